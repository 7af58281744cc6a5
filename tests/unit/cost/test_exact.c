/* test_exact.c - exact costs against whole passes of models with one tensor exchanged; threads, memory,
 * interruption, resuming. SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cost/collect.h"
#include "cost/exact.h"
#include "cost/version.h"
#include "folder.h"
#include "gguf/convert.h"
#include "quant/quant.h"
#include "random_model.h"
#include "stored.h"

enum { SEED = 78, MAX_SEQS = 48, MAX_TOKENS = 1200 };

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_IQ3_S, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K,
                                       GGML_TYPE_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };

static const struct exact_case {
    const char *name;
    int n_seqs, n_ctx, every;
    bool idle;                 /* an expert that no token takes */
    struct random_model model; /* layers, width, ff, vocab, heads, kv_heads, head_dim */
} cases[] = {
    {"llama, two blocks of the vocabulary", 3, 40, 1, false, {3, 256, 512, 2600, 4, 2, 64, .seed = 1}},
    {"qwen3, tied, every fourth position",
     3,
     42,
     4,
     false,
     {2, 256, 256, 5000, 4, 2, 64, .arch = "qwen3", .tied = true, .embd_sd = 0.1f, .seed = 2}},
    {"phi3, fused maps, a position in eight",
     2,
     40,
     8,
     false,
     {1, 256, 256, 7000, 4, 2, 64, .arch = "phi3", .fused_qkv = true, .seed = 3}},
    {"gemma2, norms after the branches, a window",
     3,
     40,
     2,
     false,
     {2, 256, 256, 2000, 4, 2, 64, .arch = "gemma2", .tied = true, .embd_sd = 0.2f, .seed = 4,
      .settings = "attention.sliding_window=20"}},
    {"qwen3moe, narrow rows, an idle expert, more tokens than go together",
     46,
     24,
     1,
     true,
     {2, 64, 32, 300, 4, 2, 16, .arch = "qwen3moe", .experts = 6, .used = 2, .idle_expert = true, .seed = 5}},
    {"qwen2moe, a shared expert",
     3,
     40,
     1,
     false,
     {2, 256, 256, 700, 4, 2, 64, .arch = "qwen2moe", .experts = 4, .used = 2, .shared_ff = 256, .seed = 6}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static struct allot_error err;
static struct pool *pool;
static struct text_windows windows;
static const struct exact_case *now;
static struct gguf_model *model;
static struct net net;
static struct imatrix im;
static double worst, least; /* relative difference, KL */

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s: %s", now ? now->name : "", err.message);
}

static void open_case(const struct exact_case *c)
{
    const char *path = in_folder("model.gguf"), *dataset = "random tokens";
    now = c;
    print_message("%s\n", c->name);
    assert_true(c->n_seqs <= MAX_SEQS && c->n_seqs * c->n_ctx <= MAX_TOKENS);
    assert_true(random_model_write(path, &c->model));
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    windows.n = c->n_seqs;
    windows.n_ctx = c->n_ctx;
    for (int64_t i = 0; i < windows.n * windows.n_ctx; i++)
        windows.ids[i] = (int32_t)(rng_u64(SEED, (uint64_t)i) % (uint64_t)c->model.vocab);
    check(imatrix_collect(&im, &net, pool, &windows, &dataset, 1, NULL, NULL, &err));
}

static void close_case(void)
{
    imatrix_release(&im);
    net_release(&net);
    gguf_model_close(model);
}

/* ---- Runs -------------------------------------------------------------------------------------------------
 */

/* Stops once this part of the work is done, if it is above 0. */
struct observer {
    double stop_at;
    int n_said, n_unseen;
    int64_t last;
};

static bool report(void *user, const char *stage, int64_t done, int64_t total)
{
    struct observer *o = user;
    if (strcmp(stage, "exact") != 0)
        return false;
    assert_true(done >= o->last && done <= total);
    o->last = done;
    return o->stop_at > 0 && (double)done > o->stop_at * (double)total;
}

static void note(void *user, const char *line)
{
    struct observer *o = user;
    o->n_said += strstr(line, "each a part of a pass of") != NULL;
    o->n_unseen += strstr(line, "no token of the calibration took expert") != NULL;
}

static allot_status run_once(struct exact_result *result, struct archive *archive, struct pool *own,
                             const struct memory_budget *memory, struct observer *observer)
{
    const struct exact_options options = {types, N_TYPES, memory};
    const struct allot_progress progress = {report, note, observer};
    const struct archive_cost_key key = {"model", windows.sha256, "imatrix",
                                         "exact", "params",       cost_version()};
    int64_t set;
    observer->last = 0;
    check(archive_cost_set(archive, &key, &set, &err));
    return exact_run(result, &net, own, &windows, &im, &options, archive, set, &progress, &err);
}

/* The least limit, as the refusal of a smaller one names it, and a little more. */
static int64_t least_memory(struct archive *archive, struct pool *own)
{
    const struct memory_budget none = {1, folder};
    struct exact_result result;
    struct observer observer = {0};
    int64_t mib;
    assert_int_equal(run_once(&result, archive, own, &none, &observer), ALLOT_ERR_MEMORY);
    assert_int_equal(sscanf(strstr(err.message, "at least "), "at least %" SCNd64, &mib), 1);
    return (mib << 20) + (1 << 18);
}

/* What an archive holds at the end; stop_at: interrupted there first. */
static struct stored *run(int n_threads, double stop_at, bool tight)
{
    const char *path = in_folder("costs.allot");
    struct archive *archive;
    struct pool *own;
    struct exact_result result;
    struct stored *s = calloc(1, sizeof *s);
    struct observer observer = {stop_at, 0, 0, 0};
    check(pool_new(&own, n_threads, &err));
    check(archive_open(&archive, path, &err));
    const struct memory_budget budget = {tight ? least_memory(archive, own) : 0, folder};
    const struct memory_budget *memory = tight ? &budget : NULL;
    if (stop_at > 0) {
        assert_int_equal(run_once(&result, archive, own, memory, &observer), ALLOT_ERR_INTERRUPTED);
        observer.stop_at = 0;
    }
    check(run_once(&result, archive, own, memory, &observer));
    assert_true(stop_at > 0 ? result.n_resumed > 0 : result.n_resumed == 0);
    assert_true(result.n_resumed < result.n_tensors);
    assert_int_equal(result.n_unsuited, 0);
    assert_int_equal(result.place.file > 0, tight);
    assert_int_equal(observer.n_said, stop_at > 0 ? 2 : 1);
    if (now->idle)
        assert_true(observer.n_unseen >= now->model.layers);
    else
        assert_int_equal(observer.n_unseen, 0);
    check(archive_cost_each(archive, 1, true, keep_row, s, &err));
    /* all there: nothing is done again */
    check(run_once(&result, archive, own, memory, &observer));
    assert_int_equal(result.n_resumed, result.n_tensors);
    assert_int_equal(observer.n_said, stop_at > 0 ? 2 : 1);
    archive_close(archive);
    pool_free(own);
    unlink(path);
    return s;
}

static void test_threads_memory_and_resuming(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        open_case(&cases[k]);
        struct stored *s = run(1, 0, false), *three = run(3, 0.6, false), *small = run(2, 0, true);
        assert_true(s->n > 0);
        assert_int_equal(three->n, s->n);
        assert_int_equal(small->n, s->n);
        assert_memory_equal(three->rows, s->rows, s->n * sizeof s->rows[0]);
        assert_memory_equal(small->rows, s->rows, s->n * sizeof s->rows[0]);
        free(s);
        free(three);
        free(small);
        close_case();
    }
}

/* ---- The same in plain ways -------------------------------------------------------------------------------
 */

/* The whole model runs anew, with the tensor's floats exchanged. */

static float *log_probs(void)
{
    int64_t n = windows.n * windows.n_ctx;
    float *x = malloc(sizeof *x * (size_t)(n * net.n_embd)),
          *p = malloc(sizeof *p * (size_t)(n * net.n_vocab));
    const struct net_batch batch = {windows.ids, windows.n, windows.n_ctx};
    check(net_forward(&net, pool, &batch, x, NULL, n, NULL, NULL, &err));
    check(net_log_probs(&net, pool, x, n, p, &err));
    free(x);
    return p;
}

/* Mean and standard error over sequences, at every k-th position: sum p (q/p - 1 - log q/p). */
static void plain_kl(const float *p, const float *q, double *mean, double *std_err)
{
    double kl[MAX_SEQS] = {0}, n = (double)windows.n, variance = 0;
    *mean = 0;
    for (int64_t s = 0; s < windows.n; s++) {
        int64_t n_seen = 0;
        for (int64_t t = now->every - 1; t < windows.n_ctx; t += now->every, n_seen++)
            for (int64_t v = 0; v < net.n_vocab; v++) {
                int64_t i = (s * windows.n_ctx + t) * net.n_vocab + v;
                double d = (double)q[i] - p[i];
                kl[s] += exp(p[i]) * (expm1(d) - d);
            }
        kl[s] /= (double)n_seen;
        *mean += kl[s] / n;
    }
    for (int64_t s = 0; s < windows.n; s++)
        variance += (kl[s] - *mean) * (kl[s] - *mean) / (n * (n - 1));
    *std_err = sqrt(variance);
}

/* The tensor's weights through a type and back, each matrix with its own importances. */
static void quantize_to(float *w, const struct gguf_tensor *t, enum ggml_type type)
{
    float *weights = NULL;
    char reason[128];
    int64_t rows = t->ne[1], cols = t->ne[0];
    size_t matrix_bytes = ggml_row_size(type, cols) * (size_t)rows;
    void *bytes = malloc(matrix_bytes);
    check(gguf_tensor_to_f32(model, t, 0, t->n_rows, w, NULL, &err));
    check(imatrix_weights(&im, t, &weights, reason, &err));
    for (int64_t e = 0; e < t->ne[2]; e++) {
        float *matrix = w + e * rows * cols;
        assert_int_equal(
            ggml_quantize_chunk(type, matrix, bytes, 0, rows, cols, weights ? weights + e * cols : NULL),
            matrix_bytes);
        ggml_get_type_traits(type)->to_float(bytes, matrix, rows * cols);
    }
    free(bytes);
    free(weights);
}

static float *log_probs_with(const struct gguf_tensor *tensor, enum ggml_type type)
{
    struct gguf_tensor *t = (struct gguf_tensor *)(uintptr_t)tensor, original = *t;
    /* shared pages keep their contents when a pass forgets a tensor's pages */
    size_t n_bytes = sizeof(float) * (size_t)t->n_elements;
    float *w = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED && t->type == GGML_TYPE_F32);
    quantize_to(w, t, type);
    t->data = (const uint8_t *)w;
    float *p = log_probs();
    *t = original;
    munmap(w, n_bytes);
    return p;
}

static void compare_row(const struct stored_row *r, const float *base)
{
    const struct gguf_tensor *t = gguf_model_tensor(model, r->tensor);
    enum ggml_type type = quant_type_by_name(r->type)->type;
    float *changed = log_probs_with(t, type);
    double mean, std_err, scale = now->idle && t->ne[2] > 1 ? (double)t->ne[2] / (double)(t->ne[2] - 1) : 1;
    plain_kl(base, changed, &mean, &std_err);
    mean *= scale;
    std_err *= scale;
    worst = fmax(worst, fabs(r->cost / mean - 1));
    least = fmin(least, mean);
    assert_int_equal(r->bytes, (int64_t)ggml_row_size(type, t->ne[0]) * t->n_rows);
    if (!r->feasible || !(fabs(r->cost - mean) <= 1e-4 * mean + 1e-15) ||
        !(fabs(r->std_err - std_err) <= 1e-3 * std_err + 1e-4 * mean))
        fail_msg("%s as %s: %.9g +- %.9g, plainly %.9g +- %.9g", r->tensor, r->type, r->cost, r->std_err,
                 mean, std_err);
    free(changed);
}

static void test_plain_passes(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        char params[64], expected[64];
        size_t n_expected = 0;
        open_case(&cases[k]);
        snprintf(expected, sizeof expected, "every=%d", now->every);
        exact_params(params, &net);
        assert_string_equal(params, expected);
        for (int64_t i = 0; i < model->n_tensors; i++)
            for (int j = 0; j < N_TYPES && gguf_tensor_quantizable(&model->tensors[i]); j++)
                n_expected += quant_type_fits(types[j], model->tensors[i].ne[0]);
        struct stored *s = run(2, 0, false);
        assert_int_equal(s->n, n_expected);
        float *base = log_probs();
        worst = 0;
        least = INFINITY;
        for (size_t i = 0; i < s->n; i++)
            compare_row(&s->rows[i], base);
        print_message("%d costs, from %.3g, differ by %.2g at most\n", (int)s->n, least, worst);
        free(base);
        free(s);
        close_case();
    }
}

static int set_up(void **state)
{
    print_message("seed %d\n", SEED);
    windows.ids = malloc(sizeof(int32_t) * MAX_TOKENS);
    return make_folder(state) != 0 || pool_new(&pool, 2, &err) != ALLOT_OK;
}

static int tear_down(void **state)
{
    pool_free(pool);
    free(windows.ids);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain_passes),
                                       cmocka_unit_test(test_threads_memory_and_resuming)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
