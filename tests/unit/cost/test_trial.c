/* test_trial.c - models tried out in memory against files written and measured: any types, one tensor after
 * the other, back again; threads, memory, interruption, refusals. SPDX-License-Identifier: MIT */
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
#include "cost/trial.h"
#include "folder.h"
#include "measure/engine.h"
#include "quant/quant.h"
#include "quant/quantize.h"
#include "random_model.h"

enum { N_CTX = 40, N_WINDOWS = 3, VOCAB = 300, SEED = 11 };

static struct allot_error err;
static struct pool *pool;
static struct gguf_model *model;
static int32_t ids[N_WINDOWS * N_CTX];
static const struct text_windows windows = {.ids = ids, .n = N_WINDOWS, .n_ctx = N_CTX};
static struct imatrix im;
static double *base; /* log-probabilities of the untouched model */
static double newest_ln_ppl[N_WINDOWS];

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static int64_t index_of(const char *name)
{
    const struct gguf_tensor *t = gguf_model_tensor(model, name);
    assert_non_null(t);
    return t - model->tensors;
}

/* ---- The same in plain ways --------------------------------------------------------------------------- */

static double *log_probs(const char *path)
{
    struct engine_model llama;
    struct engine engine;
    double *p = malloc(sizeof *p * N_WINDOWS * N_CTX * VOCAB);
    check(engine_model_open(&llama, path, TEXT_LOAD_AS_STORED, &err));
    check(engine_open(&engine, &llama, N_CTX, N_CTX, NULL, &err));
    for (int w = 0; w < N_WINDOWS; w++) {
        const float *logits;
        check(engine_decode(&logits, &engine, ids + w * N_CTX, 0, 0, N_CTX, &err));
        for (int64_t t = 0; t < N_CTX; t++) {
            const float *row = logits + t * VOCAB;
            double *to = p + (w * N_CTX + t) * VOCAB, sum = 0;
            for (int i = 0; i < VOCAB; i++)
                sum += exp(row[i]);
            for (int i = 0; i < VOCAB; i++)
                to[i] = row[i] - log(sum);
        }
    }
    engine_close(&engine);
    engine_model_close(&llama);
    return p;
}

static void compare_ln_ppl(int window, double ln_ppl, const double *changed)
{
    double plain = 0;
    for (int64_t t = (int64_t)window * N_CTX; t < (int64_t)(window + 1) * N_CTX - 1; t++)
        plain += (base[t * VOCAB + ids[t + 1]] - changed[t * VOCAB + ids[t + 1]]) / (N_CTX - 1);
    if (!(fabs(ln_ppl - plain) <= 1e-5 * fabs(plain) + 1e-7))
        fail_msg("window %d: ln PPL ratio %.12g, of the file %.12g", window, ln_ppl, plain);
}

/* Writes the file that the types stand for, with importances or without, and compares window by window;
 * ln_ppl: or NULL. */
static void compare_with_file_of(const double *kl, const double *ln_ppl, const enum ggml_type *types,
                                 bool importances)
{
    const char *path = in_folder("types.gguf");
    float **weights = calloc((size_t)model->n_tensors, sizeof *weights);
    char reason[128];
    for (int64_t i = 0; i < model->n_tensors && importances; i++)
        check(imatrix_weights(&im, &model->tensors[i], &weights[i], reason, &err));
    struct quantize_result result;
    const struct quantize_job job = {.model = model,
                                     .types = types,
                                     .imatrix = (const float *const *)weights,
                                     .out_path = path,
                                     .identity = "trial"};
    check(quantize_write(&job, pool, &result, NULL, &err));
    double *changed = log_probs(path);
    for (int w = 0; w < N_WINDOWS; w++) {
        double plain = 0;
        for (int64_t i = (int64_t)w * N_CTX * VOCAB; i < (int64_t)(w + 1) * N_CTX * VOCAB; i++)
            plain += exp(base[i]) * (base[i] - changed[i]) / N_CTX;
        if (!(fabs(kl[w] - plain) <= 1e-6 * plain + 1e-12))
            fail_msg("window %d: KL %.12g, of the file %.12g", w, kl[w], plain);
        if (ln_ppl != NULL)
            compare_ln_ppl(w, ln_ppl[w], changed);
    }
    for (int64_t i = 0; i < model->n_tensors; i++)
        free(weights[i]);
    free(changed);
    free(weights);
    unlink(path);
}

static void compare_with_file(const double *kl, const enum ggml_type *types)
{
    compare_with_file_of(kl, newest_ln_ppl, types, false);
}

/* ---- Trials -------------------------------------------------------------------------------------------- */

static void all_in(enum ggml_type *types, enum ggml_type type, const struct trial *trial)
{
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        bool change = gguf_tensor_quantizable(t) && trial_usable(trial, i) && quant_type_fits(type, t->ne[0]);
        types[i] = change ? type : t->type;
    }
}

static void measure(double *kl, struct trial *trial, const enum ggml_type *types)
{
    const struct trial_step step = {"trial", 0, 1};
    check(trial_measure(kl, newest_ln_ppl, trial, types, &step, NULL, &err));
}

static double sum(const double *kl)
{
    return kl[0] + kl[1] + kl[2];
}

static void test_files(void **state)
{
    (void)state;
    static const char *const names[] = {"token_embd.weight", "blk.0.attn_v.weight", "blk.1.ffn_down.weight",
                                        "blk.1.attn_output.weight"};
    struct trial *trial;
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    double low[N_WINDOWS], high[N_WINDOWS], again[N_WINDOWS];
    check(trial_open(&trial, model, pool, &windows, NULL, NULL, &err));
    all_in(types, GGML_TYPE_Q8_0, trial);
    measure(high, trial, types);
    compare_with_file(high, types);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int64_t i = index_of(names[k]);
        assert_true(trial_usable(trial, i));
        types[i] = GGML_TYPE_Q2_K;
        measure(low, trial, types);
        compare_with_file(low, types);
        print_message("%s: %.6g -> %.6g\n", names[k], sum(high) / N_WINDOWS, sum(low) / N_WINDOWS);
        assert_true(sum(low) > 2 * sum(high));
        types[i] = GGML_TYPE_Q8_0;
    }
    measure(again, trial, types); /* all tensors went back */
    assert_memory_equal(again, high, sizeof high);
    all_in(types, GGML_TYPE_Q4_K, trial);
    types[index_of("blk.0.ffn_up.weight")] = model->tensors[index_of("blk.0.ffn_up.weight")].type;
    types[index_of("blk.1.ffn_gate.weight")] = GGML_TYPE_Q3_K;
    measure(low, trial, types);
    compare_with_file(low, types);
    for (int64_t i = 0; i < model->n_tensors; i++)
        types[i] = model->tensors[i].type;
    measure(again, trial, types); /* the model itself */
    for (int w = 0; w < N_WINDOWS; w++)
        assert_true(fabs(again[w]) <= 1e-12);
    trial_close(trial);
    free(types);
}

static void test_importances(void **state)
{
    (void)state;
    struct trial *trial;
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    double with[N_WINDOWS], without[N_WINDOWS];
    check(trial_open(&trial, model, pool, &windows, NULL, NULL, &err));
    all_in(types, GGML_TYPE_Q3_K, trial);
    measure(without, trial, types);
    trial_close(trial);
    check(trial_open(&trial, model, pool, &windows, &im, NULL, &err));
    measure(with, trial, types);
    compare_with_file_of(with, NULL, types, true);
    assert_memory_not_equal(with, without, sizeof with);
    types[index_of("blk.0.ffn_down.weight")] = GGML_TYPE_IQ2_XXS;
    types[index_of("blk.1.attn_q.weight")] = GGML_TYPE_IQ3_S;
    measure(with, trial, types);
    compare_with_file_of(with, NULL, types, true);
    trial_close(trial);
    free(types);
}

/* The same numbers on any number of threads, with bytes and logits in files, and after other trials. */
static void test_threads_and_memory(void **state)
{
    (void)state;
    const struct memory_budget tight = {1, folder};
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    double kl[3][N_WINDOWS];
    for (int k = 0; k < 3; k++) {
        struct trial *trial;
        struct pool *own;
        double seconds = -1;
        check(pool_new(&own, k + 1, &err));
        check(trial_open(&trial, model, own, &windows, NULL, k == 1 ? &tight : NULL, &err));
        if (k == 2) {
            all_in(types, GGML_TYPE_Q2_K, trial);
            measure(kl[k], trial, types);
            check(trial_begin(trial, &seconds, &err)); /* from the untouched model again */
            assert_true(seconds >= 0);
        }
        all_in(types, GGML_TYPE_Q5_K, trial);
        measure(kl[k], trial, types);
        trial_close(trial);
        pool_free(own);
    }
    assert_memory_equal(kl[1], kl[0], sizeof kl[0]);
    assert_memory_equal(kl[2], kl[0], sizeof kl[0]);
    free(types);
}

static bool stop_late(void *user, const char *stage, int64_t done, int64_t total)
{
    int *calls = user;
    if (strcmp(stage, "search tables") == 0)
        return false;
    assert_string_equal(stage, "trial");
    assert_int_equal(total, 5 * N_WINDOWS);
    assert_true(done >= 2 * N_WINDOWS && done <= 3 * N_WINDOWS);
    return --*calls == 0;
}

static void test_interruption(void **state)
{
    (void)state;
    int calls = 4;
    const struct allot_progress progress = {stop_late, NULL, &calls};
    const struct trial_step step = {"trial", 2, 5};
    struct trial *trial;
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    double kl[N_WINDOWS], again[N_WINDOWS];
    check(trial_open(&trial, model, pool, &windows, NULL, NULL, &err));
    all_in(types, GGML_TYPE_Q3_K, trial);
    assert_int_equal(trial_measure(kl, newest_ln_ppl, trial, types, &step, &progress, &err),
                     ALLOT_ERR_INTERRUPTED);
    measure(again, trial, types);
    compare_with_file(again, types);
    trial_close(trial);
    free(types);
}

static void test_refusals(void **state)
{
    (void)state;
    struct trial *trial;
    const struct trial_step step = {"trial", 0, 1};
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    double kl[N_WINDOWS];
    const struct text_windows longer = {.ids = calloc(100000, sizeof(int32_t)), .n = 1, .n_ctx = 100000};
    assert_int_equal(trial_open(&trial, model, pool, &longer, NULL, NULL, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "tokens of context"));
    free(longer.ids);
    check(trial_open(&trial, model, pool, &windows, NULL, NULL, &err));
    all_in(types, GGML_TYPE_Q8_0, trial);
    int64_t norm = index_of("output_norm.weight");
    assert_false(trial_usable(trial, norm));
    types[norm] = GGML_TYPE_Q8_0;
    assert_int_equal(trial_measure(kl, newest_ln_ppl, trial, types, &step, NULL, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "output_norm.weight"));
    types[norm] = model->tensors[norm].type;
    int64_t i = index_of("blk.0.attn_v.weight");
    types[i] = GGML_TYPE_IQ2_XXS; /* ggml would abort without importances */
    assert_int_equal(trial_measure(kl, newest_ln_ppl, trial, types, &step, NULL, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "importances"));
    types[i] = GGML_TYPE_Q8_0;
    measure(kl, trial, types); /* goes on after a refusal */
    compare_with_file(kl, types);
    trial_close(trial);
    free(types);
}

static int set_up(void **state)
{
    static const struct random_model shape = {
        2,        256, 256, VOCAB, 4, 2, 64, .arch = "qwen3", .tied = true, .embd_sd = 0.2f, .tokens = true,
        .seed = 5};
    print_message("seed %d\n", SEED);
    if (make_folder(state) != 0 || pool_new(&pool, 2, &err) != ALLOT_OK)
        return -1;
    const char *path = in_folder("model.gguf");
    if (!random_model_write(path, &shape) || gguf_model_open(&model, path, &err) != ALLOT_OK)
        return -1;
    for (int i = 0; i < N_WINDOWS * N_CTX; i++)
        ids[i] = (int32_t)(rng_u64(SEED, (uint64_t)i) % VOCAB);
    const char *dataset = "random tokens";
    if (imatrix_collect_decoded(&im, model, pool, &windows, &dataset, 1, NULL, &err) != ALLOT_OK)
        return -1;
    base = log_probs(model->path);
    return 0;
}

static int tear_down(void **state)
{
    free(base);
    imatrix_release(&im);
    gguf_model_close(model);
    pool_free(pool);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_importances),
                                       cmocka_unit_test(test_threads_and_memory),
                                       cmocka_unit_test(test_interruption), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
