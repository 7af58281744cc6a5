/* bench_cost.c - the time of a cost run over its two floors.  SPDX-License-Identifier: MIT
 *
 * usage: bench-cost [MODEL [SEQUENCES LENGTH [THREADS [TYPE,...]]]]
 *
 * Floor 1: the products of forward, backward and gradient, 3 x 2 flops per token and weight, at the
 * sgemm rate measured in this run. Floor 2: ggml_quantize_chunk of every tensor to every candidate, at the
 * time per weight measured in this run. Both with all threads. Random tokens, flat importances. */
#include <cblas.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cost/fisher.h"
#include "cost/candidates.h"
#include "gguf/convert.h"
#include "base/gemm.h"
#include "quant/quant.h"

enum { MAX_TYPES = 64, GEMM_SIZE = 1024, SAMPLE_WEIGHTS = 1 << 16 };

static struct allot_error err;

static void check(allot_status status)
{
    if (status == ALLOT_OK)
        return;
    fprintf(stderr, "bench-cost: %s\n", err.message);
    exit(1);
}

/* ---- Floors --------------------------------------------------------------------------------------- */

static void one_gemm(void *user, int64_t item, int thread)
{
    (void)item;
    float *a = (float *)user + (size_t)thread * 3 * GEMM_SIZE * GEMM_SIZE, *b = a + GEMM_SIZE * GEMM_SIZE;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, 1, a, GEMM_SIZE, b,
                GEMM_SIZE, 0, b + GEMM_SIZE * GEMM_SIZE, GEMM_SIZE);
}

/* Flops per second with all threads: best of five. */
static double sgemm_rate(struct pool *pool)
{
    size_t n = (size_t)pool_threads(pool) * 3 * GEMM_SIZE * GEMM_SIZE;
    float *buffer = malloc(n * sizeof *buffer);
    double best = 1e30;
    for (size_t i = 0; i < n; i++)
        buffer[i] = (float)(i % 7) - 3;
    int64_t items = 8 * pool_threads(pool);
    for (int k = 0; k < 5; k++) {
        double start = seconds_now();
        pool_run(pool, items, one_gemm, buffer);
        double t = seconds_now() - start;
        best = t < best ? t : best;
    }
    free(buffer);
    return 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE * (double)items / best;
}

struct sample {
    enum ggml_type type;
    const float *w, *weights;
    uint8_t *out; /* (threads, SAMPLE_WEIGHTS * 4) */
    int64_t n_in;
};

static void one_quantize(void *user, int64_t item, int thread)
{
    (void)item;
    const struct sample *s = user;
    ggml_quantize_chunk(s->type, s->w, s->out + (size_t)thread * SAMPLE_WEIGHTS * 4, 0,
                        SAMPLE_WEIGHTS / s->n_in, s->n_in, s->weights);
}

/* Seconds for all threads together to quantize one weight of a row of n_in. */
static double quantize_rate(struct pool *pool, enum ggml_type type, int64_t n_in)
{
    float *w = malloc(SAMPLE_WEIGHTS * sizeof *w), *weights = malloc((size_t)n_in * sizeof *weights);
    struct sample s = {type, w, weights, malloc((size_t)pool_threads(pool) * SAMPLE_WEIGHTS * 4), n_in};
    for (int64_t i = 0; i < SAMPLE_WEIGHTS; i++)
        w[i] = 0.02f * (float)rng_normal(1, (uint64_t)i);
    for (int64_t i = 0; i < n_in; i++)
        weights[i] = 1.0f;
    one_quantize(&s, 0, 0); /* tables */
    double start = seconds_now();
    pool_run(pool, pool_threads(pool), one_quantize, &s);
    double t = seconds_now() - start;
    free(w);
    free(weights);
    free(s.out);
    return t / (double)(pool_threads(pool) * (SAMPLE_WEIGHTS / n_in) * n_in);
}

static double quantize_floor(const struct net *net, struct pool *pool, const enum ggml_type *types,
                             size_t n_types)
{
    enum ggml_type legal[MAX_TYPES];
    double sum = 0, known[MAX_TYPES][8];
    int64_t widths[8];
    int n_widths = 0;
    for (int64_t i = 0; i < net->model->n_tensors; i++) {
        const struct gguf_tensor *t = &net->model->tensors[i];
        if (!gguf_tensor_quantizable(t))
            continue;
        int w = 0;
        while (w < n_widths && widths[w] != t->ne[0])
            w++;
        if (w == 8)
            exit(1);
        if (w == n_widths) {
            widths[n_widths++] = t->ne[0];
            for (size_t j = 0; j < n_types; j++)
                known[j][w] =
                    quant_type_fits(types[j], t->ne[0]) ? quantize_rate(pool, types[j], t->ne[0]) : 0;
        }
        size_t n = candidates_legal(t, true, types, n_types, legal);
        for (size_t k = 0; k < n; k++)
            for (size_t j = 0; j < n_types; j++)
                if (types[j] == legal[k])
                    sum += known[j][w] * (double)t->n_elements;
    }
    return sum;
}

/* ---- The run ---------------------------------------------------------------------------------------- */

static struct imatrix flat_imatrix(const struct net *net)
{
    struct imatrix im = {.chunk_count = 1, .chunk_size = 512};
    for (int64_t i = 0; i < net->model->n_tensors; i++) {
        const struct gguf_tensor *t = &net->model->tensors[i];
        if (!gguf_tensor_quantizable(t) || t->layer < 0)
            continue;
        float *sums = malloc((size_t)t->ne[0] * sizeof *sums);
        int64_t *counts = malloc(sizeof *counts);
        for (int64_t k = 0; k < t->ne[0]; k++)
            sums[k] = 512.0f;
        counts[0] = 512;
        check(imatrix_add(&im, t->name, t->ne[0], 1, sums, counts, &err));
    }
    return im;
}

static size_t read_types(const char *list, enum ggml_type *types)
{
    size_t n = 0, n_all;
    const struct quant_type *all = quant_types(&n_all);
    for (size_t i = 0; i < n_all && list == NULL; i++)
        if (all[i].default_candidate)
            types[n++] = all[i].type;
    char *copy = strdup(list ? list : "");
    for (char *word = strtok(copy, ","); word && n < MAX_TYPES; word = strtok(NULL, ",")) {
        const struct quant_type *t = quant_type_by_name(word);
        if (t == NULL) {
            fprintf(stderr, "bench-cost: unknown type %s\n", word);
            exit(2);
        }
        types[n++] = t->type;
    }
    free(copy);
    return n;
}

int main(int argc, char **argv)
{
    enum ggml_type types[MAX_TYPES];
    struct gguf_model *model;
    struct net net;
    struct pool *pool;
    struct archive *archive;
    struct fisher_result result;
    int64_t set, n_seqs = argc > 3 ? atoi(argv[2]) : 32, n_ctx = argc > 3 ? atoi(argv[3]) : 128;
    struct fisher_options options = {.chunk = FISHER_DEFAULT_CHUNK,
                                     .seed = 1,
                                     .types = types,
                                     .n_types = read_types(argc > 5 ? argv[5] : NULL, types)};
    const char *path = argc > 1 ? argv[1] : TEST_DATA_DIR "/tiny-llama-bf16.gguf";
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    check(pool_new(&pool, argc > 4 ? atoi(argv[4]) : 0, &err));
    double weights = 0, n = (double)(n_seqs * n_ctx);
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]) &&
            (&model->tensors[i] != net.token_embd || net.output == net.token_embd))
            weights += (double)model->tensors[i].n_elements;
    double rate = sgemm_rate(pool), floor1 = 6 * n * weights / rate,
           floor2 = quantize_floor(&net, pool, types, options.n_types);

    struct text_windows windows = {
        .ids = malloc(sizeof(int32_t) * (size_t)n), .n = n_seqs, .n_ctx = (int32_t)n_ctx};
    for (int64_t i = 0; i < n_seqs * n_ctx; i++)
        windows.ids[i] = (int32_t)(rng_u64(2, (uint64_t)i) % (uint64_t)net.n_vocab);
    struct imatrix im = flat_imatrix(&net);
    char folder[] = "/tmp/allot-bench-XXXXXX", archive_path[64];
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(archive_path, sizeof archive_path, "%s/a.allot", folder);
    struct archive_cost_key key = {"m", "t", "i", "fisher", "p", "v"};
    check(archive_open(&archive, archive_path, &err));
    check(archive_cost_set(archive, &key, &set, &err));
    double start = seconds_now();
    check(fisher_run(&result, &net, pool, &windows, &im, &options, archive, set, NULL, &err));
    double seconds = seconds_now() - start;
    archive_close(archive);
    unlink(archive_path);
    rmdir(folder);

    int threads = pool_threads(pool);
    printf("%s: %.1fM weights in products, %zu types, %" PRId64 " x %" PRId64
           " tokens, %d threads, OpenBLAS %s\n",
           path, weights / 1e6, options.n_types, n_seqs, n_ctx, threads, openblas_get_corename());
    printf("sgemm rate                 %8.1f GFLOP/s\n", rate / 1e9);
    printf("floor 1, products          %8.2f s   (3 x 2 flops per token and weight)\n", floor1);
    printf("floor 2, quantization      %8.2f s   (ggml_quantize_chunk)\n", floor2);
    printf("cost                       %8.2f s   %.2f x (floor 1 + floor 2)\n", seconds,
           seconds / (floor1 + floor2));
    printf("  forward, labels          %8.2f s\n", result.seconds_forward);
    printf("  backward                 %8.2f s   of this:\n", result.seconds_backward);
    printf("    quantizing             %8.2f s   %.2f x floor 2\n", result.seconds_quantize,
           result.seconds_quantize / floor2);
    printf("    gradients and sums     %8.2f s\n", result.seconds_product);
    printf("  all but quantizing       %8.2f s   %.2f x floor 1\n", seconds - result.seconds_quantize,
           (seconds - result.seconds_quantize) / floor1);
    free(windows.ids);
    imatrix_release(&im);
    net_release(&net);
    pool_free(pool);
    gguf_model_close(model);
    return 0;
}
