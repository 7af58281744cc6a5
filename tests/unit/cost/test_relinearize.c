/* test_relinearize.c - predicted changes from a plan against the KL of plans with one tensor changed.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cost/relinearize.h"
#include "quant/quant.h"
#include "tiny.h"

enum { N_CTX = 64, N_SEQS = 24, N_TOKENS = N_CTX * N_SEQS };

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
enum { N_TYPES = sizeof types / sizeof *types };

static struct allot_error err;
static struct gguf_model *model;
static struct net net;
static struct pool *pool;
static struct text_windows windows, twice; /* the sequences, and the same two times */
static enum ggml_type *plan;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* Text of the model's own: labels drawn again and again, so that states are what training made of them. */
static void sample_windows(void)
{
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net.n_embd));
    windows = (struct text_windows){.n = N_SEQS, .n_ctx = N_CTX};
    windows.ids = calloc(N_TOKENS, sizeof *windows.ids);
    for (int64_t i = 0; i < N_TOKENS; i++)
        windows.ids[i] = (int32_t)(rng_u64(3, (uint64_t)i) % (uint64_t)net.n_vocab);
    for (int round = 0; round < 6; round++) {
        struct net_batch batch = {windows.ids, N_SEQS, N_CTX};
        struct net_targets drawn;
        check(net_forward(&net, pool, &batch, x, NULL, N_TOKENS, NULL, NULL, &err));
        check(net_targets_draw(&drawn, &net, pool, x, N_TOKENS, (uint64_t)round, &err));
        for (int64_t i = 0; i < N_TOKENS; i++)
            if (i % N_CTX != 0)
                windows.ids[i] = drawn.labels[i - 1];
        net_targets_release(&drawn);
    }
    free(x);
    twice = (struct text_windows){.n = 2 * N_SEQS, .n_ctx = N_CTX};
    twice.ids = malloc(2 * N_TOKENS * sizeof *twice.ids);
    for (int64_t i = 0; i < 2 * N_TOKENS; i++)
        twice.ids[i] = windows.ids[i % N_TOKENS];
}

static double divergence(void)
{
    double kl[N_SEQS], sum = 0;
    check(planned_divergence(kl, &net, plan, pool, &windows, NULL, NULL, NULL, &err));
    for (int i = 0; i < N_SEQS; i++) {
        assert_true(kl[i] > 0);
        sum += kl[i];
    }
    return sum / N_SEQS;
}

static int set_up(void **state)
{
    (void)state;
    check(gguf_model_open(&model, TEST_DATA_DIR "/tiny-llama-bf16.gguf", &err));
    check(net_open(&net, model, &err));
    check(pool_new(&pool, 2, &err));
    sample_windows();
    plan = malloc(sizeof *plan * (size_t)model->n_tensors);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        plan[i] = model->tensors[i].type;
        if (gguf_tensor_quantizable(&model->tensors[i]))
            plan[i] = types[i % 3];
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(plan);
    free(windows.ids);
    free(twice.ids);
    net_release(&net);
    gguf_model_close(model);
    pool_free(pool);
    return 0;
}

static const struct type_change *find(const struct tensor_changes *c, enum ggml_type type)
{
    for (size_t j = 0; j < c->n; j++)
        if (c->list[j].type == type)
            return &c->list[j];
    return NULL;
}

static struct tensor_changes *relinearize(int64_t n_taught)
{
    const struct relinearize_options options = {
        .chunk = 16, .seed = 1, .n_taught = n_taught, .types = types, .n_types = N_TYPES};
    struct tensor_changes *changes = malloc(sizeof *changes * (size_t)model->n_tensors);
    check(relinearize_run(changes, &net, plan, pool, &twice, NULL, &options, NULL, &err));
    return changes;
}

/* All sequences give the slope, the curvature and the KL that the changes are held to. */
static void test_changes(void **state)
{
    (void)state;
    struct tensor_changes *changes = relinearize(N_SEQS);
    const double now = divergence();
    double xy = 0, xx = 0, yy = 0;
    int n = 0, n_off = 0;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        const enum ggml_type old = plan[i], other = types[(i + 1) % N_TYPES];
        if (!gguf_tensor_quantizable(t)) {
            assert_int_equal(changes[i].n, 0);
            continue;
        }
        assert_int_equal(changes[i].n, N_TYPES + 1);
        assert_non_null(find(&changes[i], t->type));
        assert_true(find(&changes[i], old)->curve == 0 && find(&changes[i], old)->slope == 0);
        if (i % 2 != 0 || other == old)
            continue;
        const struct type_change *c = find(&changes[i], other);
        plan[i] = other;
        const double change = c->slope + c->curve, measured = divergence() - now;
        plan[i] = old;
        xy += change * measured;
        xx += change * change;
        yy += measured * measured;
        n_off += fabs(change - measured) > 3 * c->std_err + 0.05 * fabs(measured);
        n++;
    }
    print_message("%d changes: correlation %.4f, slope %.3f, %d more than three errors off\n", n,
                  xy / sqrt(xx * yy), xy / xx, n_off);
    assert_true(n >= 15);
    assert_true(xy / sqrt(xx * yy) > 0.98 && xy / xx > 0.75 && xy / xx < 1.3);
    assert_true(n_off <= n / 20);
    tensor_changes_free(changes, model->n_tensors);
    free(changes);
}

/* Around the original there is no slope, and the curvature gives what is never negative. */
static void test_around_the_original(void **state)
{
    (void)state;
    enum ggml_type *kept = plan;
    plan = malloc(sizeof *plan * (size_t)model->n_tensors);
    for (int64_t i = 0; i < model->n_tensors; i++)
        plan[i] = model->tensors[i].type;
    struct tensor_changes *sloped = relinearize(2 * N_SEQS), *curved = relinearize(0);
    for (int64_t i = 0; i < model->n_tensors; i++)
        for (size_t j = 0; j < curved[i].n; j++) {
            assert_true(curved[i].list[j].curve >= 0);
            assert_true(fabs(sloped[i].list[j].slope) <= 0.01 * curved[i].list[j].curve);
        }
    tensor_changes_free(sloped, model->n_tensors);
    tensor_changes_free(curved, model->n_tensors);
    free(sloped);
    free(curved);
    free(plan);
    plan = kept;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changes),
                                       cmocka_unit_test(test_around_the_original)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
