/* test_rounding.c - rows of dense maps and of experts, rounded by the second moments of their inputs.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/rounding.h"
#include "folder.h"
#include "gguf/convert.h"
#include "quant/quant.h"
#include "random_model.h"

enum { N_SEQS = 32, N_CTX = 32, N_THREADS = 4 };

static struct allot_error err;
static struct gguf_model *model;
static struct net net;
static struct pool *pool;
static struct second_moments moments;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static void open_model(const struct random_model *m)
{
    const char *path = in_folder("model.gguf");
    struct text_windows windows;
    assert_true(random_model_write(path, m));
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    int32_t *ids = malloc(sizeof *ids * N_SEQS * N_CTX);
    for (int i = 0; i < N_SEQS * N_CTX; i++)
        ids[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)m->vocab);
    check(text_windows_from_ids(&windows, ids, N_SEQS, N_CTX, &err));
    bool *wanted = calloc((size_t)model->n_tensors, sizeof *wanted);
    for (int64_t i = 0; i < model->n_tensors; i++)
        wanted[i] = gguf_tensor_quantizable(&model->tensors[i]);
    check(second_moments_collect(&moments, &net, pool, &windows, wanted, NULL, 0, NULL, &err));
    free(wanted);
    text_windows_release(&windows);
}

static void close_model(void)
{
    second_moments_release(&moments);
    net_release(&net);
    gguf_model_close(model);
}

/* A row's mean square error at the output, in double; NULL: none is known. */
static double cost_of(const float *moment, const float *row, const float *w, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            sum += ((double)row[i] - w[i]) * ((double)row[k] - w[k]) * moment[i * n + k];
    return sum;
}

struct rows {
    struct quantize_rounding hooks;
    const struct gguf_tensor *tensor;
    enum ggml_type type;
    const float *w;
    uint8_t *bytes;
};

/* The rows of one matrix. */
static void round_matrix(void *user, int64_t matrix, int thread)
{
    struct rows *r = user;
    const struct gguf_tensor *t = r->tensor;
    const int64_t row = matrix * t->ne[1];
    struct allot_error e;
    (void)thread;
    assert_int_equal(r->hooks.rows(r->hooks.user, t, r->type, row, t->ne[1], r->w + row * t->ne[0],
                                   r->bytes + (size_t)row * ggml_row_size(r->type, t->ne[0]), &e),
                     ALLOT_OK);
}

/* Of all rows that tell: how many are changed, and the sum of costs over what it was. */
static double round_tensor(const struct gguf_tensor *t, enum ggml_type type, int n_threads, uint8_t *out,
                           int64_t *n_changed)
{
    const int64_t index = t - model->tensors, n = t->ne[0];
    const size_t row_bytes = ggml_row_size(type, n);
    struct rounding *rounding;
    struct pool *some;
    bool wanted;
    float *w = malloc(sizeof *w * (size_t)t->n_elements), *back = malloc(sizeof *back * (size_t)n);
    uint8_t *plain = malloc(row_bytes * (size_t)t->n_rows);
    check(gguf_tensor_to_f32(model, t, 0, t->n_rows, w, NULL, &err));
    assert_int_equal(quant_rows(type, w, plain, t->n_rows, n, NULL), QUANT_OK);
    memcpy(out, plain, row_bytes * (size_t)t->n_rows);
    check(rounding_new(&rounding, &moments, n_threads, &err));
    check(pool_new(&some, n_threads, &err));
    struct rows rows = {rounding_hooks(rounding), t, type, w, out};
    check(rows.hooks.begin(rows.hooks.user, t, type, &wanted, &err));
    assert_true(wanted);
    pool_run(some, t->ne[2], round_matrix, &rows);
    double before = 0, after = 0;
    *n_changed = 0;
    for (int64_t row = 0; row < t->n_rows; row++) {
        int64_t n_tokens;
        const float *judge = second_moments_of(&moments, index, row / t->ne[1], MOMENTS_HELD_OUT, &n_tokens);
        const uint8_t *now = out + (size_t)row * row_bytes, *was = plain + (size_t)row * row_bytes;
        const bool changed = memcmp(now, was, row_bytes) != 0;
        *n_changed += changed;
        if (judge == NULL) {
            assert_false(changed);
            continue;
        }
        check(quant_to_f32(type, was, back, n, &err));
        const double cost_before = cost_of(judge, back, w + row * n, n);
        check(quant_to_f32(type, now, back, n, &err));
        const double cost_after = cost_of(judge, back, w + row * n, n);
        assert_true(cost_after <= cost_before * (1 + 1e-5));
        before += cost_before;
        after += cost_after;
    }
    const struct rounding_result result = rounding_take_result(rounding);
    assert_int_equal(result.n_kept, *n_changed);
    assert_true(fabs(result.after - after) <= 1e-3 * after && fabs(result.before - before) <= 1e-3 * before);
    rounding_free(rounding);
    pool_free(some);
    free(w);
    free(back);
    free(plain);
    return after / before;
}

static const struct random_model dense = {
    .layers = 1, .width = 64, .ff = 96, .vocab = 60, .heads = 4, .kv_heads = 2, .head_dim = 16, .seed = 3};

static void test_tensors(const struct random_model *m, double most)
{
    static const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4};
    int64_t n_rounded = 0;
    open_model(m);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        if (second_moments_input(&moments, i) < 0)
            continue;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            const size_t bytes = ggml_row_size(types[k], t->ne[0]) * (size_t)t->n_rows;
            uint8_t *one = malloc(bytes), *many = malloc(bytes);
            int64_t n_changed, n_again;
            const double ratio = round_tensor(t, types[k], 1, one, &n_changed);
            print_message("%s to %s: %lld of %lld rows, error %.3f\n", t->name, ggml_type_name(types[k]),
                          (long long)n_changed, (long long)t->n_rows, ratio);
            assert_true(n_changed > 0 && ratio < most);
            assert_true(round_tensor(t, types[k], N_THREADS, many, &n_again) == ratio);
            assert_memory_equal(one, many, bytes);
            free(one);
            free(many);
        }
        n_rounded++;
    }
    assert_true(n_rounded >= 7);
    close_model();
}

static void test_dense(void **state)
{
    (void)state;
    test_tensors(&dense, 0.75);
}

static void test_experts(void **state)
{
    (void)state;
    struct random_model moe = dense;
    moe.arch = "qwen3moe";
    moe.experts = 6;
    moe.used = 2;
    test_tensors(&moe, 0.75);
}

/* An expert that no token took has nothing to be rounded by. */
static void test_idle_expert(void **state)
{
    (void)state;
    struct random_model moe = dense;
    moe.arch = "qwen3moe";
    moe.experts = 6;
    moe.used = 2;
    moe.idle_expert = true;
    open_model(&moe);
    const struct gguf_tensor *t = net.layers[0].tensors[NET_EXPERTS_DOWN];
    uint8_t *bytes = malloc(ggml_row_size(GGML_TYPE_Q4_0, t->ne[0]) * (size_t)t->n_rows);
    int64_t n_changed;
    round_tensor(t, GGML_TYPE_Q4_0, N_THREADS, bytes, &n_changed);
    assert_true(n_changed > 0 && n_changed <= t->n_rows - t->ne[1]);
    free(bytes);
    close_model();
}

static int set_up(void **state)
{
    return make_folder(state) || pool_new(&pool, 2, &err) != ALLOT_OK;
}

static int tear_down(void **state)
{
    pool_free(pool);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_idle_expert),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
