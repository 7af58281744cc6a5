/* check-kernels.c - compares the fast quantizers with ggml on as many weights as one wants to wait for.
 * SPDX-License-Identifier: MIT
 *
 * usage: check-kernels [-n WEIGHTS] [-s SEED] [-t THREADS] [-m MODEL.gguf]... [TYPE...]
 * For every type, with and without importances: at least WEIGHTS (default 2^24) of each kind of weights,
 * spread over the kinds of importances; real rows are taken from the models. Prints a line per type; fails at
 * the first byte that differs. */
#include <inttypes.h>
#include <stdatomic.h>
#include <time.h>

#include "../unit/quant/identity.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/pool.h"
#include "gguf/convert.h"
#include "gguf/model.h"

enum { MOST_MODELS = 8, MOST_REAL = 1 << 25 };

struct job {
    const struct quant_type *types[64];
    int64_t n_types, n;
    uint64_t seed;
    float *real[MOST_MODELS];
    int64_t n_real[MOST_MODELS];
    int n_models;
    atomic_bool failed;
    atomic_llong compared;
};

static bool read_weights(struct job *job, const char *path)
{
    struct gguf_model *model;
    struct allot_error err;
    float *x = malloc(sizeof *x * MOST_REAL);
    int64_t n = 0;
    if (x == NULL || gguf_model_open(&model, path, &err) != ALLOT_OK) {
        fprintf(stderr, "check-kernels: %s\n", x == NULL ? "no memory" : err.message);
        return false;
    }
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        const int64_t rows = least(t->n_rows, (MOST_REAL - n) / t->ne[0]);
        if (!gguf_tensor_quantizable(t) || rows < 1)
            continue;
        if (gguf_tensor_to_f32(model, t, 0, rows, x + n, NULL, &err) != ALLOT_OK) {
            fprintf(stderr, "check-kernels: %s\n", err.message);
            return false;
        }
        n += rows * t->ne[0];
    }
    gguf_model_close(model);
    job->real[job->n_models] = x;
    job->n_real[job->n_models++] = n;
    printf("%s: %" PRId64 " real weights\n", path, n);
    return true;
}

/* A type with (odd items) or without importances: its weights compared, -1: different. */
static int64_t compare_type(const struct job *job, const struct quant_type *type, bool with)
{
    const int from = with ? UNIFORM : NONE, to = with ? IMPORTANCE_KINDS : UNIFORM;
    int64_t compared = 0;
    for (int kind = 0; kind < GIVEN + job->n_models; kind++) {
        const bool real = kind >= GIVEN;
        for (int q = from; q < to; q++) {
            const int64_t done =
                compare_kind(type, real ? GIVEN : (enum weight_kind)kind, (enum importance_kind)q, job->seed,
                             real ? job->real[kind - GIVEN] : NULL, real ? job->n_real[kind - GIVEN] : 0,
                             parts_of(job->n, to - from));
            if (done <= 0)
                return done;
            compared += done;
        }
    }
    return compared;
}

static void work(void *user, int64_t item, int thread)
{
    struct job *job = user;
    const struct quant_type *type = job->types[item / 2];
    (void)thread;
    const double start = seconds_now();
    if (atomic_load(&job->failed))
        return;
    const int64_t compared = compare_type(job, type, item % 2);
    if (compared < 0)
        atomic_store(&job->failed, true);
    atomic_fetch_add(&job->compared, compared);
    if (compared > 0)
        printf("%-8s %s importances: %" PRId64 " weights, the same bytes (%.0f s)\n", type->name,
               item % 2 ? "with   " : "without", compared, seconds_now() - start);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct job job = {.n = 1 << 24, .seed = (uint64_t)time(NULL)};
    struct allot_error err;
    struct pool *pool;
    int option, threads = 0;
    while ((option = getopt(argc, argv, "n:s:t:m:")) != -1) {
        if (option == 'n')
            job.n = strtoll(optarg, NULL, 0);
        else if (option == 's')
            job.seed = strtoull(optarg, NULL, 0);
        else if (option == 't')
            threads = atoi(optarg);
        else if (option != 'm' || job.n_models == MOST_MODELS || !read_weights(&job, optarg))
            return 2;
    }
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (int k = optind; k < argc; k++)
        if (!quant_type_by_name(argv[k])) {
            fprintf(stderr, "check-kernels: unknown type %s; known are %s\n", argv[k], quant_type_names());
            return 2;
        }
    for (size_t i = 0; i < n; i++) {
        bool chosen = optind == argc;
        for (int k = optind; k < argc; k++)
            chosen = chosen || quant_type_by_name(argv[k]) == &types[i];
        if (chosen)
            job.types[job.n_types++] = &types[i];
    }
    printf("seed %" PRIu64 ", at least %" PRId64 " weights of each kind, sets:", job.seed, job.n);
    for (const struct quant_kernel_set *const *set = quant_kernel_sets(); *set; set++)
        printf(" %s", (*set)->name);
    printf("\n");
    if (pool_new(&pool, threads, &err) != ALLOT_OK) {
        fprintf(stderr, "check-kernels: %s\n", err.message);
        return 2;
    }
    pool_run(pool, 2 * job.n_types, work, &job);
    pool_free(pool);
    for (int i = 0; i < job.n_models; i++)
        free(job.real[i]);
    if (atomic_load(&job.compared) == 0)
        fprintf(stderr, "check-kernels: no kernels of these types, nothing was compared\n");
    return atomic_load(&job.failed) || atomic_load(&job.compared) == 0;
}
