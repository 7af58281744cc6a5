/* test_second_moments.c - X'X against inputs seen by an observer of the test's own, and against the
 * importance matrix. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/collect.h"
#include "cost/second_moments.h"
#include "folder.h"
#include "random_model.h"

enum { N_SEQS = 9, N_CTX = 16, MAX_FLOATS = 1 << 20 };

static struct allot_error err;
static struct gguf_model *model;
static struct net net;
static struct pool *pool;
static struct text_windows windows;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static void open_model(const struct random_model *m)
{
    const char *path = in_folder("model.gguf");
    assert_true(random_model_write(path, m));
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    int32_t *ids = malloc(sizeof *ids * N_SEQS * N_CTX);
    for (int i = 0; i < N_SEQS * N_CTX; i++)
        ids[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)m->vocab);
    check(text_windows_from_ids(&windows, ids, N_SEQS, N_CTX, &err));
}

static void close_model(void)
{
    text_windows_release(&windows);
    net_release(&net);
    gguf_model_close(model);
}

static void collect(struct second_moments *m)
{
    bool *wanted = calloc((size_t)model->n_tensors, sizeof *wanted);
    for (int64_t i = 0; i < model->n_tensors; i++)
        wanted[i] = gguf_tensor_quantizable(&model->tensors[i]);
    check(second_moments_collect(m, &net, pool, &windows, wanted, NULL, 0, NULL, &err));
    free(wanted);
}

/* ---- The inputs as they pass ----------------------------------------------------------------------------
 */

struct seen {
    const struct gguf_tensor *tensor;
    int64_t matrix, n_tokens;
    float x[MAX_FLOATS];
};

static allot_status see(void *user, const struct net_input *input, struct allot_error *e)
{
    struct seen *s = user;
    (void)e;
    if (input->tensor != s->tensor || input->matrix != s->matrix)
        return ALLOT_OK;
    assert_true((s->n_tokens + input->n_tokens) * input->n_in <= MAX_FLOATS);
    memcpy(s->x + s->n_tokens * input->n_in, input->x,
           sizeof *s->x * (size_t)(input->n_tokens * input->n_in));
    s->n_tokens += input->n_tokens;
    return ALLOT_OK;
}

static void run_net(struct net_observer *observer, float *states)
{
    const struct net_batch batch = {windows.ids, windows.n, windows.n_ctx};
    struct net_tape tape = {0};
    check(net_tape_init(&tape, &net, 0, NULL, &err));
    check(net_forward(&net, pool, &batch, states, &tape, N_CTX, observer, NULL, &err));
    net_tape_release(&tape);
}

/* The sum over the tokens of a part: of every fourth window, or of the others. */
static double expected(const struct seen *s, int64_t n, int64_t i, int64_t k, bool held_out)
{
    double sum = 0;
    for (int64_t t = 0; t < s->n_tokens; t++)
        if ((t / N_CTX % 4 == 3) == held_out)
            sum += (double)s->x[t * n + i] * s->x[t * n + k];
    return sum;
}

static void compare(const struct second_moments *m, const struct seen *s)
{
    const int64_t index = s->tensor - model->tensors, n = s->tensor->ne[0];
    for (int part = 0; part < N_MOMENT_PARTS; part++) {
        int64_t n_tokens;
        const float *sum = second_moments_of(m, index, s->matrix, (enum moment_part)part, &n_tokens);
        assert_int_equal(n_tokens, (part == MOMENTS_HELD_OUT ? 2 : 7) * N_CTX);
        assert_non_null(sum);
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < n; k++) {
                const double want = expected(s, n, i, k, part == MOMENTS_HELD_OUT),
                             size = sqrt(expected(s, n, i, i, part == MOMENTS_HELD_OUT) *
                                         expected(s, n, k, k, part == MOMENTS_HELD_OUT));
                assert_true(fabs(sum[i * n + k] - want) <= 1e-5 * size);
            }
    }
}

/* ---- Tests ----------------------------------------------------------------------------------------------
 */

static const struct random_model dense = {
    .layers = 2, .width = 32, .ff = 48, .vocab = 60, .heads = 4, .kv_heads = 2, .head_dim = 8, .seed = 3};

static void test_every_map(void **state)
{
    (void)state;
    struct seen *s = malloc(sizeof *s);
    struct second_moments m;
    float *states = malloc(sizeof *states * (size_t)(N_SEQS * N_CTX * dense.width));
    int64_t n_seen = 0;
    open_model(&dense);
    collect(&m);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        struct net_observer observer = {.user = s, .input = see};
        *s = (struct seen){.tensor = &model->tensors[i]};
        run_net(&observer, states);
        if (s->n_tokens == 0)
            continue;
        compare(&m, s);
        n_seen++;
    }
    assert_int_equal(n_seen, 14); /* two layers of seven maps */
    /* The output's input is the states, normed. */
    *s = (struct seen){.tensor = net.output, .n_tokens = N_SEQS * N_CTX};
    check(net_output_input(&net, pool, states, s->n_tokens, s->x, &err));
    compare(&m, s);
    /* Nothing enters an embedding that is not the output too. */
    assert_int_equal(second_moments_input(&m, net.token_embd - model->tensors), -1);
    second_moments_release(&m);
    close_model();
    free(states);
    free(s);
}

static void test_shared_inputs(void **state)
{
    (void)state;
    struct second_moments m;
    open_model(&dense);
    collect(&m);
    const struct gguf_tensor *const *t = net.layers[1].tensors, *all = model->tensors;
    const int32_t q = second_moments_input(&m, t[NET_ATTN_Q] - all),
                  gate = second_moments_input(&m, t[NET_FFN_GATE] - all);
    assert_int_equal(q, second_moments_input(&m, t[NET_ATTN_K] - all));
    assert_int_equal(q, second_moments_input(&m, t[NET_ATTN_V] - all));
    assert_int_equal(gate, second_moments_input(&m, t[NET_FFN_UP] - all));
    assert_true(gate != q && gate != second_moments_input(&m, t[NET_FFN_DOWN] - all));
    assert_true(q != second_moments_input(&m, net.layers[0].tensors[NET_ATTN_Q] - all));
    second_moments_release(&m);
    close_model();
}

/* Experts too: both parts' diagonals are the importance matrix's sums. */
static void test_diagonal(void **state)
{
    (void)state;
    struct random_model moe = dense;
    struct second_moments m;
    struct imatrix im;
    const char *dataset = "random";
    int64_t n_compared = 0;
    moe.experts = 4;
    moe.used = 2;
    moe.arch = "qwen3moe";
    open_model(&moe);
    collect(&m);
    check(imatrix_collect(&im, &net, pool, &windows, &dataset, 1, NULL, NULL, &err));
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        const struct imatrix_entry *entry = imatrix_find(&im, t->name);
        if (!entry || second_moments_input(&m, i) < 0)
            continue;
        for (int64_t e = 0; e < t->ne[2]; e++) {
            int64_t n_seen, n_held_out;
            const float *seen = second_moments_of(&m, i, e, MOMENTS_SEEN, &n_seen),
                        *held_out = second_moments_of(&m, i, e, MOMENTS_HELD_OUT, &n_held_out);
            assert_int_equal(n_seen + n_held_out, entry->counts[e]);
            for (int64_t k = 0; k < t->ne[0]; k++) {
                const double sum =
                    (seen ? seen[k * t->ne[0] + k] : 0) + (held_out ? held_out[k * t->ne[0] + k] : 0);
                assert_true(fabs(sum - entry->sums[e * t->ne[0] + k]) <= 1e-5 * sum);
            }
            n_compared++;
        }
    }
    assert_int_equal(n_compared, 2 * (4 + 3 * 4));
    imatrix_release(&im);
    second_moments_release(&m);
    close_model();
}

static void test_memory(void **state)
{
    (void)state;
    struct second_moments in_memory, in_file;
    open_model(&dense);
    collect(&in_memory);
    bool *wanted = calloc((size_t)model->n_tensors, sizeof *wanted);
    for (int64_t i = 0; i < model->n_tensors; i++)
        wanted[i] = gguf_tensor_quantizable(&model->tensors[i]);
    /* The least that the pass itself takes. */
    struct memory_budget budget = {1, in_folder("")};
    assert_int_equal(second_moments_collect(&in_file, &net, pool, &windows, wanted, &budget, 0, NULL, &err),
                     ALLOT_ERR_MEMORY);
    for (budget.limit = 1 << 20;; budget.limit += 1 << 18) {
        const allot_status status =
            second_moments_collect(&in_file, &net, pool, &windows, wanted, &budget, 0, NULL, &err);
        if (status == ALLOT_OK)
            break;
        assert_int_equal(status, ALLOT_ERR_MEMORY);
    }
    assert_true(in_file.sums.in_file && !in_memory.sums.in_file);
    assert_int_equal(in_file.sums.size, in_memory.sums.size);
    assert_memory_equal(in_file.sums.data, in_memory.sums.data, in_memory.sums.size);
    free(wanted);
    second_moments_release(&in_memory);
    second_moments_release(&in_file);
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
        cmocka_unit_test(test_every_map),
        cmocka_unit_test(test_shared_inputs),
        cmocka_unit_test(test_diagonal),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
