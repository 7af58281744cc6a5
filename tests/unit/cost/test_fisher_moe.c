/* test_fisher_moe.c - Fisher costs of a mixture of experts against exact KL.  SPDX-License-Identifier: MIT
 *
 * Every tensor is quantized alone to every candidate; the ranks of costs and of KL on other tokens must
 * agree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "cost/collect.h"
#include "cost/version.h"
#include "cost/fisher.h"
#include "folder.h"
#include "gguf/convert.h"
#include "quant/quant.h"
#include "random_model.h"

enum { N_CTX = 64, N_SEQS = 16, N_TOKENS = N_CTX * N_SEQS, MAX_PAIRS = 256 };

static const enum ggml_type types[] = {GGML_TYPE_IQ3_S, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_0,
                                       GGML_TYPE_Q4_K,  GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };

static struct allot_error err;
static struct gguf_model *model;
static struct net net;
static struct pool *pool;
static struct imatrix importances;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static struct text_windows random_windows(uint64_t seed)
{
    struct text_windows w = {.ids = malloc(sizeof(int32_t) * N_TOKENS), .n = N_SEQS, .n_ctx = N_CTX};
    for (int64_t i = 0; i < N_TOKENS; i++)
        w.ids[i] = (int32_t)(rng_u64(seed, (uint64_t)i) % (uint64_t)net.n_vocab);
    return w;
}

static float *log_probs(const struct text_windows *windows)
{
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net.n_embd));
    float *p = malloc(sizeof *p * (size_t)(N_TOKENS * net.n_vocab));
    struct net_batch batch = {windows->ids, N_SEQS, N_CTX};
    check(net_forward(&net, pool, &batch, x, NULL, N_TOKENS, NULL, NULL, &err));
    check(net_log_probs(&net, pool, x, N_TOKENS, p, &err));
    free(x);
    return p;
}

/* The mean of sum p (q/p - 1 - log q/p), whose terms are all positive. */
static double mean_kl(const float *p, const float *q)
{
    double sum = 0;
    for (int64_t i = 0; i < N_TOKENS * net.n_vocab; i++) {
        double d = (double)q[i] - p[i];
        sum += exp(p[i]) * (expm1(d) - d);
    }
    return sum / N_TOKENS;
}

/* The tensor's weights through a type and back, each matrix with its own importances. */
static void quantize_to(float *w, const struct gguf_tensor *t, enum ggml_type type)
{
    float *weights = NULL;
    char reason[128];
    int64_t rows = t->ne[1], cols = t->ne[0];
    size_t row_bytes = ggml_row_size(type, cols);
    void *bytes = malloc(row_bytes * (size_t)rows);
    check(gguf_tensor_to_f32(model, t, 0, t->n_rows, w, NULL, &err));
    check(imatrix_weights(&importances, t, &weights, reason, &err));
    for (int64_t e = 0; e < t->ne[2]; e++) {
        float *matrix = w + e * rows * cols;
        assert_int_not_equal(quant_rows(type, matrix, bytes, rows, cols, weights ? weights + e * cols : NULL),
                             QUANT_INFEASIBLE);
        check(quant_to_f32(type, bytes, matrix, rows * cols, &err));
    }
    free(bytes);
    free(weights);
}

struct pair {
    char tensor[64], type[16];
    double cost, kl;
};

struct pairs {
    size_t n;
    struct pair rows[MAX_PAIRS];
};

static bool keep_pair(void *user, const char *tensor, const struct archive_cost *cost)
{
    struct pairs *pairs = user;
    struct pair *p = &pairs->rows[pairs->n++];
    assert_true(pairs->n <= MAX_PAIRS);
    snprintf(p->tensor, sizeof p->tensor, "%s", tensor);
    snprintf(p->type, sizeof p->type, "%s", cost->type);
    p->cost = cost->cost;
    return false;
}

static void run_fisher(struct pairs *pairs)
{
    struct text_windows windows = random_windows(31);
    struct fisher_options options = {
        .chunk = FISHER_DEFAULT_CHUNK, .seed = 1, .types = types, .n_types = N_TYPES};
    struct fisher_result result;
    struct archive *archive;
    int64_t set;
    struct archive_cost_key key = {"model", windows.sha256, "imatrix", "fisher", "params", cost_version()};
    const char *dataset = "random tokens";
    check(imatrix_collect(&importances, &net, pool, &windows, &dataset, 1, NULL, NULL, &err));
    check(archive_open(&archive, in_folder("costs.allot"), &err));
    check(archive_cost_set(archive, &key, &set, &err));
    check(fisher_run(&result, &net, pool, &windows, &importances, &options, archive, set, NULL, &err));
    check(archive_cost_each(archive, set, true, keep_pair, pairs, &err));
    archive_close(archive);
    free(windows.ids);
}

/* The KL of every pair, on tokens that the costs have not seen. */
static void measure_kl(struct pairs *pairs)
{
    struct text_windows windows = random_windows(32);
    float *before = log_probs(&windows);
    for (size_t i = 0; i < pairs->n; i++) {
        struct pair *p = &pairs->rows[i];
        struct gguf_tensor *t = (struct gguf_tensor *)(uintptr_t)gguf_model_tensor(model, p->tensor);
        struct gguf_tensor original = *t;
        /* shared pages keep their contents when a pass forgets a tensor's pages */
        size_t n_bytes = sizeof(float) * (size_t)t->n_elements;
        float *w = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(w != MAP_FAILED);
        quantize_to(w, t, quant_type_by_name(p->type)->type);
        t->data = (const uint8_t *)w;
        float *after = log_probs(&windows);
        *t = original;
        p->kl = mean_kl(before, after);
        free(after);
        munmap(w, n_bytes);
    }
    free(before);
    free(windows.ids);
}

static double rank_of(const struct pairs *pairs, size_t i, bool by_kl)
{
    double rank = 0;
    for (size_t j = 0; j < pairs->n; j++) {
        double a = by_kl ? pairs->rows[i].kl : pairs->rows[i].cost;
        double b = by_kl ? pairs->rows[j].kl : pairs->rows[j].cost;
        rank += b < a ? 1.0 : b > a ? 0.0 : 0.5;
    }
    return rank;
}

static double spearman(const struct pairs *pairs)
{
    double middle = (double)pairs->n / 2, xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < pairs->n; i++) {
        double x = rank_of(pairs, i, false) - middle, y = rank_of(pairs, i, true) - middle;
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xy / sqrt(xx * yy);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_ranks(void **state)
{
    (void)state;
    static struct pairs pairs;
    double ratios[MAX_PAIRS];
    run_fisher(&pairs);
    assert_int_equal(pairs.n, (2 + 7 * 2) * N_TYPES); /* all but norms and routers */
    measure_kl(&pairs);
    for (size_t i = 0; i < pairs.n; i++)
        ratios[i] = pairs.rows[i].kl / pairs.rows[i].cost;
    qsort(ratios, pairs.n, sizeof *ratios, compare_doubles);
    double rho = spearman(&pairs);
    print_message("Spearman of cost and exact KL over %d pairs: %.4f; KL over cost: median %.3f, 10%% %.3f, "
                  "90%% %.3f\n",
                  (int)pairs.n, rho, ratios[pairs.n / 2], ratios[pairs.n / 10],
                  ratios[pairs.n - 1 - pairs.n / 10]);
    assert_true(rho >= 0.9);
}

static int set_up(void **state)
{
    static const struct random_model moe = {
        2, 256, 256, 600, 4, 2, 64, .arch = "qwen3moe", .experts = 8, .used = 2, .seed = 41};
    if (make_folder(state) != 0)
        return 1;
    const char *path = in_folder("moe.gguf");
    assert_true(random_model_write(path, &moe));
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    check(pool_new(&pool, 2, &err));
    return 0;
}

static int tear_down(void **state)
{
    imatrix_release(&importances);
    net_release(&net);
    pool_free(pool);
    gguf_model_close(model);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
