/* test_probe.c - probe costs against files written and run by libllama; threads, interruption, resuming; the
 * imatrix from libllama's graphs against that of lib/net. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cost/collect.h"
#include "cost/version.h"
#include "cost/fisher.h"
#include "cost/probe.h"
#include "folder.h"
#include "gguf/convert.h"
#include "measure/engine.h"
#include "quant/quant.h"
#include "quant/quantize.h"
#include "random_model.h"
#include "stored.h"

enum { N_CTX = 48, N_SEQS = 5, N_TOKENS = N_CTX * N_SEQS, SEED = 77 };

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K,
                                       GGML_TYPE_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };

/* Models of architectures that lib/net knows, so that its imatrix can be compared. */
static const struct probe_case {
    const char *name;
    struct random_model model; /* layers, width, ff, vocab, heads, kv_heads, head_dim */
    enum ggml_type probing;
    const char *probed[3]; /* compared with files */
} cases[] = {
    {"qwen3, tied",
     {2, 256, 256, 300, 4, 2, 64, .arch = "qwen3", .tied = true, .embd_sd = 0.2f, .tokens = true, .seed = 1},
     GGML_TYPE_Q3_K,
     {"token_embd.weight", "blk.0.attn_v.weight", "blk.1.ffn_down.weight"}},
    {"qwen3moe, narrow rows, an idle expert",
     {2, 64, 32, 300, 4, 2, 16, .arch = "qwen3moe", .experts = 6, .used = 2, .idle_expert = true,
      .tokens = true, .seed = 2},
     GGML_TYPE_Q4_0,
     {"output.weight", "blk.1.ffn_gate_exps.weight", "blk.0.ffn_down_exps.weight"}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static struct allot_error err;
static struct pool *pool;
static struct text_windows windows;
static const struct probe_case *now;
static struct gguf_model *model;
static struct imatrix im;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s: %s", now ? now->name : "", err.message);
}

static void open_case(const struct probe_case *c)
{
    now = c;
    print_message("%s\n", c->name);
    const char *path = in_folder("model.gguf"), *dataset = "random tokens";
    assert_true(random_model_write(path, &c->model));
    check(gguf_model_open(&model, path, &err));
    for (int64_t i = 0; i < N_TOKENS; i++)
        windows.ids[i] = (int32_t)(rng_u64(SEED, (uint64_t)i) % (uint64_t)c->model.vocab);
    check(imatrix_collect_decoded(&im, model, pool, &windows, &dataset, 1, NULL, &err));
}

static void close_case(void)
{
    imatrix_release(&im);
    gguf_model_close(model);
}

/* ---- The imatrix ------------------------------------------------------------------------------------ */

static void compare_entry(const struct imatrix_entry *a, const struct imatrix_entry *b)
{
    assert_non_null(b);
    assert_int_equal(a->n_mats, b->n_mats);
    assert_int_equal(a->n_per_mat, b->n_per_mat);
    for (int64_t m = 0; m < a->n_mats; m++) {
        double sum = 0, difference = 0;
        if (a->counts[m] != b->counts[m])
            fail_msg("%s, matrix %d: %d tokens, lib/net %d", a->name, (int)m, (int)a->counts[m],
                     (int)b->counts[m]);
        for (int64_t i = m * a->n_per_mat; i < (m + 1) * a->n_per_mat; i++) {
            sum += b->sums[i];
            difference += fabs((double)a->sums[i] - b->sums[i]);
        }
        if (!(difference <= 1e-2 * sum))
            fail_msg("%s, matrix %d: differs by %g of %g", a->name, (int)m, difference, sum);
    }
}

static void test_imatrix(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        struct net net;
        struct imatrix other;
        const char *dataset = "random tokens";
        open_case(&cases[k]);
        check(net_open(&net, model, &err));
        check(imatrix_collect(&other, &net, pool, &windows, &dataset, 1, NULL, NULL, &err));
        assert_int_equal(im.n_entries, other.n_entries);
        assert_int_equal(im.chunk_count, N_SEQS);
        for (size_t i = 0; i < im.n_entries; i++)
            compare_entry(&im.entries[i], imatrix_find(&other, im.entries[i].name));
        struct pool *one;
        struct imatrix alone;
        check(pool_new(&one, 1, &err));
        check(imatrix_collect_decoded(&alone, model, one, &windows, &dataset, 1, NULL, &err));
        for (size_t i = 0; i < im.n_entries; i++)
            assert_memory_equal(im.entries[i].sums, alone.entries[i].sums,
                                sizeof(float) * (size_t)(im.entries[i].n_mats * im.entries[i].n_per_mat));
        pool_free(one);
        imatrix_release(&alone);
        imatrix_release(&other);
        net_release(&net);
        close_case();
    }
}

/* ---- Costs ------------------------------------------------------------------------------------------- */

static const struct stored_row *find_row(const struct stored *s, const char *tensor, enum ggml_type type)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->rows[i].tensor, tensor) == 0 &&
            strcmp(s->rows[i].type, quant_type_find(type)->name) == 0)
            return &s->rows[i];
    fail_msg("no cost of %s as %s", tensor, ggml_type_name(type));
    return NULL;
}

/* Stops in the middle of the tensor after so many, if that is not negative. */
struct observer {
    int64_t stop_after;
    int n_said;
};

static bool report(void *user, const char *stage, int64_t done, int64_t total)
{
    const struct observer *o = user;
    (void)total;
    return strcmp(stage, "probe") == 0 && o->stop_after >= 0 && done > o->stop_after * N_SEQS;
}

static void note(void *user, const char *line)
{
    struct observer *o = user;
    o->n_said += strstr(line, "one forward pass of") != NULL;
}

static struct stored *run(const char *name, int n_threads, int64_t stop_after,
                          const struct memory_budget *memory)
{
    struct archive *archive;
    struct pool *own;
    struct probe_options options = {types, N_TYPES, memory};
    struct probe_result result;
    struct stored *s = calloc(1, sizeof *s);
    struct observer observer = {stop_after, 0};
    const struct allot_progress progress = {report, note, &observer};
    int64_t set;
    struct archive_cost_key key = {"model", windows.sha256, "imatrix", "probe", "params", cost_version()};
    check(pool_new(&own, n_threads, &err));
    check(archive_open(&archive, in_folder(name), &err));
    check(archive_cost_set(archive, &key, &set, &err));
    if (stop_after >= 0) {
        assert_int_equal(
            probe_run(&result, model, own, &windows, &im, &options, archive, set, &progress, &err),
            ALLOT_ERR_INTERRUPTED);
        observer.stop_after = -1;
    }
    check(probe_run(&result, model, own, &windows, &im, &options, archive, set, &progress, &err));
    assert_int_equal(result.n_resumed, stop_after < 0 ? 0 : stop_after);
    assert_int_equal(result.n_unsuited, 0);
    assert_int_equal(observer.n_said, stop_after < 0 ? 1 : 2);
    check(archive_cost_each(archive, set, true, keep_row, s, &err));
    /* all there: nothing is done again, nothing said */
    check(probe_run(&result, model, own, &windows, &im, &options, archive, set, &progress, &err));
    assert_int_equal(result.n_resumed, result.n_tensors);
    assert_int_equal(observer.n_said, stop_after < 0 ? 1 : 2);
    archive_close(archive);
    pool_free(own);
    unlink(in_folder(name));
    return s;
}

static void test_threads_and_resuming(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        open_case(&cases[k]);
        const struct memory_budget tight = {1, folder}; /* the logits go to a file */
        struct stored *s = run("two.allot", 2, -1, NULL), *one = run("one.allot", 1, -1, &tight),
                      *late = run("late.allot", 3, 4, NULL);
        assert_true(s->n > 0);
        assert_int_equal(one->n, s->n);
        assert_int_equal(late->n, s->n);
        assert_memory_equal(one->rows, s->rows, s->n * sizeof s->rows[0]);
        assert_memory_equal(late->rows, s->rows, s->n * sizeof s->rows[0]);
        free(s);
        free(one);
        free(late);
        close_case();
    }
}

/* ---- The same in plain ways: a file with one tensor changed, whole windows, log-softmax -------------------
 */

static float *importances(const struct gguf_tensor *t)
{
    float *weights;
    char reason[128];
    check(imatrix_weights(&im, t, &weights, reason, &err));
    return weights;
}

static void write_changed(const char *path, const struct gguf_tensor *changed, enum ggml_type type)
{
    enum ggml_type *plan = calloc((size_t)model->n_tensors, sizeof *plan);
    float **weights = calloc((size_t)model->n_tensors, sizeof *weights);
    struct quantize_result result;
    int64_t index = changed - model->tensors;
    for (int64_t i = 0; i < model->n_tensors; i++)
        plan[i] = i == index ? type : model->tensors[i].type;
    weights[index] = importances(changed);
    const struct quantize_job job = {.model = model,
                                     .types = plan,
                                     .imatrix = (const float *const *)weights,
                                     .out_path = path,
                                     .identity = "probe"};
    check(quantize_write(&job, pool, &result, NULL, &err));
    free(weights[index]);
    free(weights);
    free(plan);
}

/* Log-probabilities (N_TOKENS, n_vocab). */
static double *log_probs(const char *path)
{
    struct engine_model llama;
    struct engine engine;
    check(engine_model_open(&llama, path, TEXT_LOAD_AS_STORED, &err));
    check(engine_open(&engine, &llama, N_CTX, N_CTX, NULL, &err));
    int64_t n_vocab = llama_vocab_n_tokens(llama.vocab);
    double *p = malloc(sizeof *p * (size_t)(N_TOKENS * n_vocab));
    for (int s = 0; s < N_SEQS; s++) {
        const float *logits;
        check(engine_decode(&logits, &engine, windows.ids + s * N_CTX, 0, 0, N_CTX, &err));
        for (int64_t t = 0; t < N_CTX; t++) {
            const float *row = logits + t * n_vocab;
            double *to = p + (s * N_CTX + t) * n_vocab, sum = 0;
            for (int64_t i = 0; i < n_vocab; i++)
                sum += exp(row[i]);
            for (int64_t i = 0; i < n_vocab; i++)
                to[i] = row[i] - log(sum);
        }
    }
    engine_close(&engine);
    engine_model_close(&llama);
    return p;
}

static double weight_error(const struct gguf_tensor *t, enum ggml_type type)
{
    int64_t n = t->n_elements, n_in = t->ne[0], per_matrix = t->ne[0] * t->ne[1];
    float *w = malloc(sizeof *w * (size_t)n), *back = malloc(sizeof *w * (size_t)n),
          *weights = importances(t);
    uint8_t *bytes = malloc(ggml_row_size(type, n));
    double sum = 0;
    check(gguf_tensor_to_f32(model, t, 0, t->n_rows, w, NULL, &err));
    for (int64_t m = 0; m < t->ne[2]; m++)
        ggml_quantize_chunk(type, w + m * per_matrix, bytes + (size_t)m * ggml_row_size(type, per_matrix), 0,
                            t->ne[1], n_in, weights ? weights + m * n_in : NULL);
    ggml_get_type_traits(type)->to_float(bytes, back, n);
    for (int64_t i = 0; i < n; i++)
        sum += ((double)back[i] - w[i]) * ((double)back[i] - w[i]) *
               (weights ? weights[i / per_matrix * n_in + i % n_in] : 1);
    free(w);
    free(back);
    free(weights);
    free(bytes);
    return sum;
}

static void compare_tensor(const struct stored *s, const struct gguf_tensor *t, const double *base)
{
    const char *path = in_folder("changed.gguf");
    write_changed(path, t, now->probing);
    double *changed = log_probs(path), kl[N_SEQS] = {0}, mean = 0, variance = 0;
    int64_t per_window = N_CTX * (int64_t)now->model.vocab;
    for (int64_t i = 0; i < N_SEQS * per_window; i++)
        kl[i / per_window] += exp(base[i]) * (base[i] - changed[i]) / N_CTX;
    for (int k = 0; k < N_SEQS; k++)
        mean += kl[k] / N_SEQS;
    for (int k = 0; k < N_SEQS; k++)
        variance += (kl[k] - mean) * (kl[k] - mean) / (N_SEQS * (N_SEQS - 1));
    print_message("%s as %s: KL %.6g\n", t->name, ggml_type_name(now->probing), mean);
    assert_true(mean > 1e-6);
    for (int j = 0; j < N_TYPES; j++) {
        if (!quant_type_fits(types[j], t->ne[0]))
            continue;
        double ratio = weight_error(t, types[j]) / weight_error(t, now->probing);
        const struct stored_row *r = find_row(s, t->name, types[j]);
        if (!(fabs(r->cost - mean * ratio) <= 1e-6 * mean * ratio + 1e-12) ||
            !(fabs(r->std_err - sqrt(variance) * ratio) <= 1e-5 * sqrt(variance) * ratio + 1e-12))
            fail_msg("%s as %s: %.9g +- %.9g, plainly %.9g +- %.9g", t->name, r->type, r->cost, r->std_err,
                     mean * ratio, sqrt(variance) * ratio);
    }
    free(changed);
    unlink(path);
}

static void test_plain_files(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        open_case(&cases[k]);
        struct stored *s = run("plain.allot", 2, -1, NULL);
        double *base = log_probs(model->path);
        for (int i = 0; i < 3; i++) {
            const struct gguf_tensor *t = gguf_model_tensor(model, now->probed[i]);
            assert_non_null(t);
            compare_tensor(s, t, base);
        }
        free(base);
        free(s);
        close_case();
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct probe_options options = {types, N_TYPES, NULL};
    struct probe_result result;
    struct archive *archive;
    int64_t set;
    struct archive_cost_key key = {"model", windows.sha256, "", "probe", "params", cost_version()};
    open_case(&cases[0]);
    check(archive_open(&archive, in_folder("refused.allot"), &err));
    check(archive_cost_set(archive, &key, &set, &err));
    struct text_windows longer = {.ids = calloc(100000, sizeof(int32_t)), .n = 1, .n_ctx = 100000};
    assert_int_equal(probe_run(&result, model, pool, &longer, NULL, &options, archive, set, NULL, &err),
                     ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "tokens of context"));
    free(longer.ids);
    archive_close(archive);
    close_case();
}

static int set_up(void **state)
{
    print_message("seed %d\n", SEED);
    windows = (struct text_windows){.ids = malloc(sizeof(int32_t) * N_TOKENS), .n = N_SEQS, .n_ctx = N_CTX};
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_imatrix),
                                       cmocka_unit_test(test_threads_and_resuming),
                                       cmocka_unit_test(test_plain_files), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
