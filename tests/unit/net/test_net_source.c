/* test_net_source.c - a network whose weights come from the caller, against a file that holds them;
 * divergences against plain sums. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "architecture_cases.h"
#include "base/rng.h"
#include "folder.h"
#include "gguf/convert.h"
#include "net/net.h"

enum { N_CTX = 24, N_SEQS = 2, N_TOKENS = N_CTX * N_SEQS, SEED = 90 };

static struct allot_error err;
static struct pool *pool;
static const char *now = "";

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s: %s", now, err.message);
}

struct opened {
    struct gguf_model *model;
    struct net net;
};

static void open_model(struct opened *o, const char *name, const struct random_model *m)
{
    const char *path = in_folder(name);
    assert_true(random_model_write(path, m));
    check(gguf_model_open(&o->model, path, &err));
    check(net_open(&o->net, o->model, &err));
}

static void close_model(struct opened *o)
{
    net_release(&o->net);
    gguf_model_close(o->model);
}

static float *log_probs(const struct net *net, const int32_t *ids)
{
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net->n_embd));
    float *p = malloc(sizeof *p * (size_t)(N_TOKENS * net->n_vocab));
    const struct net_batch batch = {ids, N_SEQS, N_CTX};
    check(net_forward(net, pool, &batch, x, NULL, N_TOKENS, NULL, NULL, &err));
    check(net_log_probs(net, pool, x, N_TOKENS, p, &err));
    free(x);
    return p;
}

/* ---- Every weight from another file ---------------------------------------------------------------------
 */

struct other_file {
    const struct gguf_model *model;
    int64_t n_rows; /* that were asked for */
};

static bool replaces_all(void *user, const struct gguf_tensor *tensor)
{
    (void)user;
    (void)tensor;
    return true;
}

static allot_status rows_of_file(void *user, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                                 float *dst, struct pool *to_share, struct allot_error *e)
{
    struct other_file *file = user;
    file->n_rows += n_rows;
    return gguf_tensor_to_f32(file->model, gguf_model_tensor(file->model, tensor->name), first, n_rows, dst,
                              to_share, e);
}

static void test_all_replaced(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof architecture_cases / sizeof *architecture_cases; k++) {
        struct random_model m = architecture_cases[k].model;
        struct opened a, b;
        int32_t ids[N_TOKENS];
        now = architecture_cases[k].name;
        for (int i = 0; i < N_TOKENS; i++)
            ids[i] = (int32_t)(rng_u64(SEED, (uint64_t)i) % (uint64_t)m.vocab);
        open_model(&a, "a.gguf", &m);
        m.seed += 1000;
        open_model(&b, "b.gguf", &m);
        struct other_file file = {b.model, 0};
        const struct net_source source = {&file, replaces_all, rows_of_file};
        struct net changed = a.net, expected = b.net;
        changed.source = &source;
        expected.rope_factors = a.net.rope_factors; /* read when a net is opened */
        expected.rope_factors_long = a.net.rope_factors_long;
        float *p = log_probs(&changed, ids), *q = log_probs(&expected, ids), *own = log_probs(&a.net, ids);
        assert_memory_equal(p, q, sizeof *p * (size_t)(N_TOKENS * m.vocab));
        assert_memory_not_equal(p, own, sizeof *p * (size_t)(N_TOKENS * m.vocab));
        assert_true(file.n_rows > 0);
        free(p);
        free(q);
        free(own);
        close_model(&a);
        close_model(&b);
    }
}

/* ---- Divergences ------------------------------------------------------------------------------------------
 */

/* Final states near `base`: a step of this size for each channel. */
static float *states_near(const float *base, int64_t n, double step, uint64_t seed)
{
    float *x = malloc(sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((base ? base[i] : 0) + step * rng_normal(seed, (uint64_t)i));
    return x;
}

/* Log-probabilities from double products. */
static double *plain_log_probs(const struct net *net, const struct gguf_model *output_of, const float *x,
                               int n)
{
    int64_t width = net->n_embd, vocab = net->n_vocab;
    const struct gguf_tensor *output = gguf_model_tensor(output_of, net->output->name);
    float *w = malloc(sizeof *w * (size_t)(vocab * width)), *norm = malloc(sizeof *norm * (size_t)width);
    double *p = malloc(sizeof *p * (size_t)(n * vocab));
    check(gguf_tensor_to_f32(output_of, output, 0, vocab, w, NULL, &err));
    check(gguf_tensor_to_f32(net->model, net->output_norm, 0, 1, norm, NULL, &err));
    for (int t = 0; t < n; t++) {
        const float *row = x + t * width;
        double squares = 0, sum = 0, cap = (double)net->final_softcap, *to = p + t * vocab;
        for (int64_t i = 0; i < width; i++)
            squares += (double)row[i] * row[i] / (double)width;
        for (int64_t v = 0; v < vocab; v++) {
            double z = 0;
            for (int64_t i = 0; i < width; i++)
                z += row[i] / sqrt(squares + (double)net->rms_eps) * norm[i] * w[v * width + i];
            to[v] = cap > 0 ? cap * tanh(z / cap) : z;
            sum += exp(to[v]);
        }
        for (int64_t v = 0; v < vocab; v++)
            to[v] -= log(sum);
    }
    free(w);
    free(norm);
    return p;
}

/* The mean, and that of the tokens' absolute differences. */
static void compare(const double *kl, const double *p, const double *q, int n, int64_t vocab, double step)
{
    double mean = 0, off = 0;
    for (int t = 0; t < n; t++) {
        double plain = 0;
        for (int64_t v = 0; v < vocab; v++) {
            double d = q[t * vocab + v] - p[t * vocab + v];
            plain += exp(p[t * vocab + v]) * (expm1(d) - d);
        }
        mean += plain / n;
        off += fabs(plain - kl[t]) / n;
    }
    print_message("step %g: KL %.4g, differs by %.2g\n", step, mean, off / mean);
    /* logits of some 10 are rounded to 1e-6, which is to be seen beside differences of sqrt(2 KL) */
    if (!(off <= mean * (1e-5 + 1e-6 / sqrt(2 * mean))))
        fail_msg("%s, step %g: KL %.9g, mean difference %.3g", now, step, mean, off);
}

/* More than two blocks of the vocabulary, the last one not full; logits within some tens. */
static void test_divergence(void **state)
{
    (void)state;
    static const struct random_model models[] = {
        {1, 48, 80, 4500, 6, 2, 8, .seed = 1},
        {1, 48, 80, 2100, 4, 2, 16, .arch = "gemma2", .tied = true, .embd_sd = 0.4f, .seed = 2}};
    static const double steps[] = {3e-5, 1e-3, 0.1, 1, 30};
    enum { N_STEPS = sizeof steps / sizeof *steps, N = 20 };
    for (int k = 0; k < 2; k++) {
        struct opened a, b;
        struct random_model m = models[k];
        double kl[(N_STEPS + 2) * N];
        struct net_other others[N_STEPS + 2];
        now = k ? "gemma2" : "llama";
        open_model(&a, "a.gguf", &m);
        m.seed += 1000;
        open_model(&b, "b.gguf", &m);
        struct other_file file = {b.model, 0};
        const struct net_source source = {&file, replaces_all, rows_of_file};
        struct net same = a.net, refused = a.net;
        refused.source = &source;
        float *x = states_near(NULL, N * a.net.n_embd, 1, SEED);
        for (int i = 0; i < N_STEPS; i++)
            others[i] =
                (struct net_other){&same, states_near(x, N * a.net.n_embd, steps[i], SEED + 1 + (uint64_t)i)};
        others[N_STEPS] = (struct net_other){&a.net, x};
        check(net_divergence(kl, &a.net, pool, x, N, others, N_STEPS + 1, &err));
        double *p = plain_log_probs(&a.net, a.model, x, N);
        for (int i = 0; i < N_STEPS; i++) {
            double *q = plain_log_probs(&a.net, a.model, others[i].x, N);
            compare(kl + i * N, p, q, N, a.net.n_vocab, steps[i]);
            free(q);
            free((void *)(uintptr_t)others[i].x);
        }
        for (int t = 0; t < N; t++)
            assert_true(kl[N_STEPS * N + t] == 0);
        struct net_other with_norm = {&refused, x};
        assert_int_equal(net_divergence(kl, &a.net, pool, x, N, &with_norm, 1, &err), ALLOT_ERR_ARGUMENT);
        free(p);
        free(x);
        close_model(&a);
        close_model(&b);
    }
}

/* ---- Another output matrix beside the net's own ---------------------------------------------------------
 */

static bool replaces_output(void *user, const struct gguf_tensor *tensor)
{
    (void)user;
    return strcmp(tensor->name, "output.weight") == 0;
}

static void test_other_output(void **state)
{
    (void)state;
    struct random_model m = {1, 48, 80, 2500, 6, 2, 8, .seed = 3};
    enum { N = 10 };
    struct opened a, b;
    double kl[3 * N];
    now = "another output";
    open_model(&a, "a.gguf", &m);
    m.seed += 1000;
    open_model(&b, "b.gguf", &m);
    struct other_file file = {b.model, 0};
    const struct net_source source = {&file, replaces_output, rows_of_file};
    struct net changed = a.net;
    changed.source = &source;
    float *x = states_near(NULL, N * a.net.n_embd, 1, SEED),
          *y = states_near(x, N * a.net.n_embd, 0.1, SEED + 1);
    const struct net_other others[] = {{&a.net, y}, {&changed, y}, {&a.net, x}};
    check(net_divergence(kl, &a.net, pool, x, N, others, 3, &err));
    assert_int_equal(file.n_rows, m.vocab);
    double *p = plain_log_probs(&a.net, a.model, x, N), *q = plain_log_probs(&a.net, a.model, y, N),
           *r = plain_log_probs(&a.net, b.model, y, N);
    compare(kl, p, q, N, a.net.n_vocab, 0.1);
    compare(kl + N, p, r, N, a.net.n_vocab, 0.1);
    for (int t = 0; t < N; t++)
        assert_true(kl[2 * N + t] == 0);
    free(p);
    free(q);
    free(r);
    free(x);
    free(y);
    close_model(&a);
    close_model(&b);
}

static int set_up(void **state)
{
    print_message("seed %d\n", SEED);
    return make_folder(state) != 0 || pool_new(&pool, 2, &err) != ALLOT_OK;
}

static int tear_down(void **state)
{
    pool_free(pool);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_replaced), cmocka_unit_test(test_divergence),
                                       cmocka_unit_test(test_other_output)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
