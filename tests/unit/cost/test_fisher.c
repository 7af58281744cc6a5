/* test_fisher.c - Fisher costs against plain loops and exact KL; threads, interruption, resuming.
 * SPDX-License-Identifier: MIT */
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
#include "cost/version.h"
#include "cost/fisher.h"
#include "folder.h"
#include "gguf/convert.h"
#include "quant/quant.h"
#include "random_model.h"

enum { N_CTX = 64, N_SEQS = 16, N_TOKENS = N_CTX * N_SEQS, CHUNK = 16 };

static struct allot_error err;
static struct gguf_model *model;
static struct net net;
static struct pool *pool;
static struct text_windows windows;
static struct imatrix im;
static const struct imatrix *importances = &im; /* or NULL */

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_IQ3_XXS, GGML_TYPE_Q3_K, GGML_TYPE_Q4_0,
                                       GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,    GGML_TYPE_Q8_0, GGML_TYPE_BF16};
enum { N_TYPES = sizeof types / sizeof types[0] };

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* Costs of one set, as the archive gives them back. */
struct stored {
    size_t n;
    struct stored_row {
        char tensor[64], type[16];
        double cost, std_err;
        float u[N_TOKENS / CHUNK];
        size_t n_u;
    } rows[600];
};

static bool keep_row(void *user, const char *tensor, const struct archive_cost *cost)
{
    struct stored *s = user;
    struct stored_row *r = &s->rows[s->n++];
    memset(r, 0, sizeof *r);
    snprintf(r->tensor, sizeof r->tensor, "%s", tensor);
    snprintf(r->type, sizeof r->type, "%s", cost->type);
    r->cost = cost->cost;
    r->std_err = cost->std_err;
    r->n_u = cost->n_u;
    memcpy(r->u, cost->u, cost->n_u * sizeof(float));
    return false;
}

static const struct stored_row *find_row(const struct stored *s, const char *tensor, const char *type)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->rows[i].tensor, tensor) == 0 && strcmp(s->rows[i].type, type) == 0)
            return &s->rows[i];
    fail_msg("no cost of %s as %s", tensor, type);
    return NULL;
}

/* Runs with n_threads and, if interrupt_after > 0, first stops after that many tensors. */
struct stopper {
    int left;
};

static bool stop_after(void *user, const char *stage, int64_t done, int64_t total)
{
    struct stopper *s = user;
    (void)total;
    return strcmp(stage, "costs") == 0 && done > 0 && --s->left <= 0;
}

static struct stored *run(const char *name, int n_tensors, int n_threads, int interrupt_after)
{
    char path[300];
    struct archive *archive;
    struct pool *own;
    struct fisher_options options = {.chunk = CHUNK, .seed = 1, .types = types, .n_types = N_TYPES};
    struct fisher_result result;
    struct stored *s = calloc(1, sizeof *s);
    int64_t set;
    snprintf(path, sizeof path, "%s/%s.allot", folder, name);
    struct archive_cost_key key = {"model", windows.sha256, "imatrix", "fisher", "params", cost_version()};
    check(pool_new(&own, n_threads, &err));
    check(archive_open(&archive, path, &err));
    check(archive_cost_set(archive, &key, &set, &err));
    if (interrupt_after > 0) {
        struct stopper stopper = {interrupt_after};
        struct allot_progress progress = {.report = stop_after, .user = &stopper};
        assert_int_equal(
            fisher_run(&result, &net, own, &windows, importances, &options, archive, set, &progress, &err),
            ALLOT_ERR_INTERRUPTED);
    }
    check(fisher_run(&result, &net, own, &windows, importances, &options, archive, set, NULL, &err));
    assert_int_equal(result.n_tensors, n_tensors);
    assert_int_equal(result.n_resumed, interrupt_after);
    check(archive_cost_each(archive, set, true, keep_row, s, &err));
    archive_close(archive);
    pool_free(own);
    return s;
}

static struct stored *reference_run(void)
{
    static struct stored *s;
    if (s == NULL)
        s = run("reference", 44, 2, 0);
    return s;
}

static void test_threads_and_resuming(void **state)
{
    (void)state;
    const struct stored *s = reference_run();
    static const struct {
        const char *name;
        int threads, interrupt_after;
    } rows[] = {{"one", 1, 0}, {"three", 3, 0}, {"interrupted", 2, 5}, {"late", 2, 43}};
    assert_int_equal(s->n, 44 * (N_TYPES - 1)); /* BF16 is the source's own type */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct stored *other = run(rows[i].name, 44, rows[i].threads, rows[i].interrupt_after);
        print_message("%s: %d threads, interrupted after %d tensors\n", rows[i].name, rows[i].threads,
                      rows[i].interrupt_after);
        assert_int_equal(other->n, s->n);
        assert_memory_equal(other->rows, s->rows, s->n * sizeof s->rows[0]);
        free(other);
    }
}

/* ---- The same sums in plain loops -------------------------------------------------------------------- */

struct plain {
    const struct gguf_tensor *tensor;
    enum ggml_type type;
    double u[N_TOKENS / CHUNK];
};

static float *error_of(const struct gguf_tensor *t, enum ggml_type type)
{
    float *w = malloc(sizeof *w * (size_t)t->n_elements), *back = malloc(sizeof *w * (size_t)t->n_elements),
          *weights = NULL;
    void *bytes = malloc(ggml_row_size(type, t->n_elements));
    char reason[128];
    check(gguf_tensor_to_f32(model, t, 0, t->n_rows, w, NULL, &err));
    if (importances != NULL)
        check(imatrix_weights(importances, t, &weights, reason, &err));
    ggml_quantize_chunk(type, w, bytes, 0, t->n_rows, t->ne[0], weights);
    ggml_get_type_traits(type)->to_float(bytes, back, t->n_elements);
    for (int64_t i = 0; i < t->n_elements; i++)
        back[i] -= w[i];
    free(w);
    free(bytes);
    free(weights);
    return back;
}

static bool is_plain_tensor(void *user, const struct gguf_tensor *t)
{
    return t == ((struct plain *)user)->tensor;
}

static allot_status plain_map(void *user, const struct net_map *m, struct allot_error *e)
{
    (void)e;
    struct plain *p = user;
    float *error = error_of(m->tensor, p->type);
    for (int64_t t = 0; t < m->n_tokens; t++) {
        for (int64_t r = 0; r < m->n_rows; r++) {
            double product = 0;
            for (int64_t i = 0; i < m->n_in; i++)
                product += (double)error[(m->first_row + r) * m->n_in + i] * m->x[t * m->n_in + i];
            p->u[t / CHUNK] += m->g[t * m->n_rows + r] * product;
        }
    }
    free(error);
    return ALLOT_OK;
}

static allot_status plain_lookup(void *user, const struct net_lookup *l, struct allot_error *e)
{
    (void)e;
    struct plain *p = user;
    float *error = error_of(l->tensor, p->type);
    for (int64_t t = 0; t < l->n_tokens; t++)
        for (int64_t i = 0; i < l->n_in; i++)
            p->u[t / CHUNK] += (double)l->g[t * l->n_in + i] * error[l->ids[t] * l->n_in + i];
    free(error);
    return ALLOT_OK;
}

struct plain_row {
    const char *tensor;
    enum ggml_type type;
};

/* Costs of some sequences: all give the cost, and each alone gives what averages to it. */
static void compare_parts(const struct stored_row *r)
{
    int64_t all[N_SEQS];
    double mean = 0, std_err;
    for (int64_t i = 0; i < N_SEQS; i++) {
        const double one = fisher_cost_of(&std_err, r->u, r->n_u, &i, 1, N_SEQS, N_CTX);
        assert_true(one == std_err);
        mean += one / N_SEQS;
        all[i] = i;
    }
    assert_true(fabs(mean / r->cost - 1) < 1e-6);
    assert_true(fabs(fisher_cost_of(&std_err, r->u, r->n_u, all, N_SEQS, N_SEQS, N_CTX) / r->cost - 1) <
                1e-6);
    assert_true(fabs(std_err / r->std_err - 1) < 1e-5);
}

static void compare_with_plain_loops(const struct stored *s, const struct plain_row *rows, size_t n_rows)
{
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net.n_embd));
    struct net_tape tape;
    struct net_batch batch = {windows.ids, N_SEQS, N_CTX};
    struct net_targets targets;
    check(net_tape_init(&tape, &net, N_TOKENS, NULL, &err));
    check(net_forward(&net, pool, &batch, x, &tape, N_TOKENS, NULL, NULL, &err));
    check(net_targets_draw(&targets, &net, pool, x, N_TOKENS, 1, &err));
    for (size_t k = 0; k < n_rows; k++) {
        struct plain p = {.tensor = gguf_model_tensor(model, rows[k].tensor), .type = rows[k].type};
        struct net_observer o = {
            .user = &p, .wants = is_plain_tensor, .map = plain_map, .lookup = plain_lookup};
        check(net_backward(&net, pool, &batch, x, &tape, &targets, &o, NULL, &err));
        const struct stored_row *r = find_row(s, rows[k].tensor, quant_type_find(rows[k].type)->name);
        double sum = 0, wide = 0, squares = 0, scale = sqrt(2 * r->cost * CHUNK);
        assert_int_equal(r->n_u, N_TOKENS / CHUNK);
        for (int c = 0; c < N_TOKENS / CHUNK; c++) {
            if (!(fabs(p.u[c] - r->u[c]) < 1e-4 * scale))
                fail_msg("%s, chunk %d: %g, plain loops %g", rows[k].tensor, c, r->u[c], p.u[c]);
            sum += p.u[c];
            squares += p.u[c] * p.u[c];
            if ((c + 1) % 4 == 0) {
                wide += sum * sum;
                sum = 0;
            }
        }
        assert_true(fabs((squares + wide) / (4.0 * N_TOKENS) / r->cost - 1) < 1e-3);
        compare_parts(r);
    }
    net_targets_release(&targets);
    free(x);
    net_tape_release(&tape);
}

static void test_plain_loops(void **state)
{
    (void)state;
    static const struct plain_row rows[] = {{"blk.2.attn_v.weight", GGML_TYPE_Q4_K},
                                            {"blk.5.ffn_down.weight", GGML_TYPE_Q2_K},
                                            {"output.weight", GGML_TYPE_Q6_K},
                                            {"token_embd.weight", GGML_TYPE_Q3_K},
                                            {"blk.0.ffn_up.weight", GGML_TYPE_IQ3_XXS}};
    compare_with_plain_loops(reference_run(), rows, sizeof rows / sizeof rows[0]);
}

/* The embedding is the output matrix too: the sums of both roles are added before squaring. No importances,
 * rows that K-quants do not fit, and a vocabulary of more than one block of the head. */
static void test_tied_embedding(void **state)
{
    (void)state;
    static const struct random_model tied = {2, 96, 160,          2500,           6,
                                             2, 16, .tied = true, .biases = true, .seed = 5};
    static const struct plain_row rows[] = {{"token_embd.weight", GGML_TYPE_Q4_0},
                                            {"token_embd.weight", GGML_TYPE_Q8_0},
                                            {"blk.1.ffn_down.weight", GGML_TYPE_Q4_0}};
    const struct gguf_model *trained_model = model;
    struct net trained = net;
    const char *path = in_folder("tied.gguf");
    assert_true(random_model_write(path, &tied));
    check(gguf_model_open(&model, path, &err));
    check(net_open(&net, model, &err));
    importances = NULL;
    struct stored *s = run("tied", 15, 2, 0);
    assert_int_equal(s->n, 15 * 3); /* Q4_0, Q8_0, BF16 */
    compare_with_plain_loops(s, rows, sizeof rows / sizeof rows[0]);
    free(s);
    net_release(&net);
    gguf_model_close(model);
    importances = &im;
    net = trained;
    model = (struct gguf_model *)(uintptr_t)trained_model;
}

/* ---- Exact KL of single tensors ------------------------------------------------------------------------ */

static float *log_probs(void)
{
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net.n_embd));
    float *p = malloc(sizeof *p * (size_t)(N_TOKENS * net.n_vocab));
    struct net_batch batch = {windows.ids, N_SEQS, N_CTX};
    check(net_forward(&net, pool, &batch, x, NULL, N_TOKENS, NULL, NULL, &err));
    check(net_log_probs(&net, pool, x, N_TOKENS, p, &err));
    free(x);
    return p;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_exact_kl(void **state)
{
    (void)state;
    const struct stored *s = reference_run();
    float *before = log_probs();
    double ratios[600];
    int n = 0;
    for (int64_t k = 0; k < model->n_tensors; k += 3) {
        struct gguf_tensor *t = &model->tensors[k], original = *t;
        if (!gguf_tensor_quantizable(t))
            continue;
        /* shared pages keep their contents when a pass forgets a tensor's pages */
        size_t n_bytes = sizeof(float) * (size_t)t->n_elements;
        float *moved = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(moved != MAP_FAILED);
        for (int j = 2; j < 6; j++) {
            float *error = error_of(&original, types[j]);
            check(gguf_tensor_to_f32(model, &original, 0, original.n_rows, moved, NULL, &err));
            for (int64_t i = 0; i < t->n_elements; i++)
                moved[i] += error[i];
            t->type = GGML_TYPE_F32;
            t->data = (const uint8_t *)moved;
            t->row_bytes = 4 * t->ne[0];
            float *after = log_probs();
            *t = original;
            double kl = 0;
            for (int64_t i = 0; i < N_TOKENS * net.n_vocab; i++)
                kl += exp(before[i]) * ((double)before[i] - after[i]);
            ratios[n++] = kl / N_TOKENS / find_row(s, t->name, quant_type_find(types[j])->name)->cost;
            free(after);
            free(error);
        }
        munmap(moved, n_bytes);
    }
    qsort(ratios, (size_t)n, sizeof *ratios, compare_doubles);
    print_message("exact KL over cost, %d pairs: median %.3f, 10%% %.3f, 90%% %.3f\n", n, ratios[n / 2],
                  ratios[n / 10], ratios[n - 1 - n / 10]);
    assert_true(n >= 40);
    assert_true(ratios[n / 2] > 0.85 && ratios[n / 2] < 1.15);
    assert_true(ratios[n / 10] > 0.5 && ratios[n - 1 - n / 10] < 2.0);
    free(before);
}

static int set_up(void **state)
{
    if (make_folder(state) != 0)
        return 1;
    check(gguf_model_open(&model, TEST_DATA_DIR "/tiny-llama-bf16.gguf", &err));
    check(net_open(&net, model, &err));
    check(pool_new(&pool, 2, &err));
    windows = (struct text_windows){.ids = malloc(sizeof(int32_t) * N_TOKENS), .n = N_SEQS, .n_ctx = N_CTX};
    for (int64_t i = 0; i < N_TOKENS; i++)
        windows.ids[i] = (int32_t)(rng_u64(21, (uint64_t)i) % (uint64_t)net.n_vocab);
    const char *dataset = "random tokens";
    check(imatrix_collect(&im, &net, pool, &windows, &dataset, 1, NULL, NULL, &err));
    assert_int_equal(im.n_entries, 42);
    return 0;
}

static int tear_down(void **state)
{
    free(reference_run());
    free(windows.ids);
    imatrix_release(&im);
    net_release(&net);
    pool_free(pool);
    gguf_model_close(model);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_resuming), cmocka_unit_test(test_plain_loops),
        cmocka_unit_test(test_tied_embedding), cmocka_unit_test(test_exact_kl)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
