/* measure.c - how far quantized models are from the original.  SPDX-License-Identifier: MIT */
#include "measure/measure.h"

#include "base/error.h"
#include "base/pool.h"
#include "measure/engine.h"
#include "measure/score.h"
#include "measure/stats.h"
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

/* Positions decoded at a time: as many as fit these bytes of logits per model, in multiples of 64 and never
 * fewer. ggml's kernels work on tiles of rows that divide 64, so the numbers are those of decoding the window
 * at once. */
enum { LOGITS_BYTES = 64 << 20, OUTPUTS_STEP = 64 };

/* Positions of one window that are compared at once. */
struct comparison {
    int32_t n_vocab;
    size_t n_candidates;
    const float **logits;        /* [1 + n_candidates], the base first; (positions, n_vocab) each */
    const int32_t *text;         /* the next token of each position */
    double *scratch;             /* (threads, n_vocab) */
    double *nll_base;            /* [positions] */
    struct score_token **tokens; /* [n_candidates][positions] */
    int32_t *at_fault;           /* [positions]: -1, or which of the logits are not finite */
};

struct run {
    const struct measure_options *options;
    const struct allot_progress *progress;
    size_t n_candidates, n_texts;
    struct text_windows *windows; /* [n_texts] */
    int64_t n_windows;            /* of all texts */
    int32_t per_window, n_outputs;
    struct engine *engines; /* [1 + n_candidates], the base first */
    struct pool *pool;
    double *nll_base;            /* (n_windows, per_window) */
    struct score_token **tokens; /* [n_candidates], (n_windows, per_window) each */
    struct comparison now;
};

static allot_status check_options(const struct measure_options *options, size_t n_candidates, size_t n_texts,
                                  struct allot_error *err)
{
    if (options->n_ctx < 32 || options->n_ctx % 2 != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "the context must be even and at least 32, not %d",
                          options->n_ctx);
    if (n_candidates < 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "nothing to measure: no candidate given");
    if (n_texts < 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "nothing to measure with: no text given");
    return ALLOT_OK;
}

/* Before any weights are touched, so that a short text costs no wait. Also settles how many positions are
 * compared at once. */
static allot_status cut_windows(struct run *run, const char *base_path, const char *const *text_paths,
                                struct allot_error *err)
{
    struct text_vocab *vocab = NULL;
    allot_status status = text_vocab_open(&vocab, base_path, err);
    for (size_t t = 0; t < run->n_texts && status == ALLOT_OK; t++) {
        status = text_windows_from_files(&run->windows[t], vocab, &text_paths[t], 1, run->options->n_ctx,
                                         run->options->max_windows, err);
        run->n_windows += run->windows[t].n;
    }
    if (status == ALLOT_OK) {
        int64_t fit =
            LOGITS_BYTES / ((int64_t)sizeof(float) * text_vocab_size(vocab)) / OUTPUTS_STEP * OUTPUTS_STEP;
        int32_t half = run->options->n_ctx / 2;
        run->now.n_vocab = text_vocab_size(vocab);
        run->n_outputs = (int32_t)(fit > OUTPUTS_STEP ? fit : OUTPUTS_STEP);
        if (run->n_outputs > half)
            run->n_outputs = half;
    }
    text_vocab_close(vocab);
    return status;
}

static allot_status open_engines(struct run *run, const char *base_path, const char *const *candidate_paths,
                                 struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t m = 0; m <= run->n_candidates && status == ALLOT_OK; m++) {
        struct engine *engine = &run->engines[m];
        status = allot_report(run->progress, err, "load", (int64_t)m, (int64_t)run->n_candidates + 1);
        if (status == ALLOT_OK)
            status = engine_open(engine, m == 0 ? base_path : candidate_paths[m - 1], run->options->n_ctx,
                                 run->n_outputs, pool_threads(run->pool), err);
        if (status == ALLOT_OK && m > 0)
            status = engine_same_vocabulary(&run->engines[0], engine, err);
    }
    if (status != ALLOT_OK)
        return status;
    int32_t n_trained = llama_model_n_ctx_train(run->engines[0].model);
    if (run->options->n_ctx > n_trained)
        allot_note(run->progress, "%s was trained on %d tokens of context, windows have %d", base_path,
                   n_trained, run->options->n_ctx);
    return ALLOT_OK;
}

static allot_status allocate_scores(struct run *run, struct allot_error *err)
{
    struct comparison *now = &run->now;
    size_t n = (size_t)(run->n_windows * run->per_window), n_models = run->n_candidates + 1;
    size_t scratch = (size_t)pool_threads(run->pool) * (size_t)now->n_vocab * sizeof *now->scratch;
    run->nll_base = malloc(n * sizeof *run->nll_base);
    now->logits = calloc(n_models, sizeof *now->logits);
    now->tokens = calloc(run->n_candidates, sizeof *now->tokens);
    now->at_fault = malloc((size_t)run->n_outputs * sizeof *now->at_fault);
    now->scratch = malloc(scratch);
    bool complete = run->nll_base && now->logits && now->tokens && now->at_fault && now->scratch;
    for (size_t c = 0; complete && c < run->n_candidates; c++) {
        run->tokens[c] = malloc(n * sizeof *run->tokens[c]);
        complete = run->tokens[c] != NULL;
    }
    if (!complete)
        return allot_fail_memory(
            err, n * (sizeof(double) + run->n_candidates * sizeof **run->tokens) + scratch, "the scores");
    return ALLOT_OK;
}

static void compare_position(void *user, int64_t i, int thread)
{
    struct comparison *now = user;
    struct score_base base = {.logits = now->logits[0] + i * now->n_vocab,
                              .p = now->scratch + (int64_t)thread * now->n_vocab,
                              .n_vocab = now->n_vocab,
                              .text = now->text[i]};
    now->at_fault[i] = score_base(&base) ? -1 : 0;
    now->nll_base[i] = base.nll;
    for (size_t c = 0; c < now->n_candidates && now->at_fault[i] < 0; c++)
        if (!score_candidate(&now->tokens[c][i], &base, now->logits[c + 1] + i * now->n_vocab))
            now->at_fault[i] = (int32_t)c + 1;
}

/* Decodes and compares window `window` of the text; its scores go to place `at` of all windows. The
 * last token is decoded with the rest although it is only ever a label: so does llama-perplexity, and the
 * kernels' tiles stay the same. */
static allot_status measure_window(struct run *run, size_t text, int64_t window, int64_t at,
                                   struct allot_error *err)
{
    struct comparison *now = &run->now;
    int32_t n_ctx = run->options->n_ctx, first = n_ctx / 2;
    const int32_t *ids = run->windows[text].ids + window * n_ctx;
    int32_t begin = 0;
    for (int32_t out = first; out < n_ctx - 1;) {
        int32_t end = out + run->n_outputs < n_ctx ? out + run->n_outputs : n_ctx;
        for (size_t m = 0; m <= run->n_candidates; m++) {
            allot_status status = engine_decode(&now->logits[m], &run->engines[m], ids, begin, out, end, err);
            if (status != ALLOT_OK)
                return status;
        }
        int64_t place = at * run->per_window + out - first;
        int32_t n_scored = end < n_ctx ? end - out : n_ctx - 1 - out;
        now->text = ids + out + 1;
        now->nll_base = run->nll_base + place;
        for (size_t c = 0; c < run->n_candidates; c++)
            now->tokens[c] = run->tokens[c] + place;
        pool_run(run->pool, n_scored, compare_position, now);
        for (int32_t i = 0; i < n_scored; i++)
            if (now->at_fault[i] >= 0)
                return allot_fail(
                    err, ALLOT_ERR_NUMERIC,
                    "%s: its output is not finite (NaN or infinite) at token %d of window %lld of text "
                    "%zu",
                    run->engines[now->at_fault[i]].path, out + i, (long long)window, text + 1);
        begin = out = end;
    }
    return ALLOT_OK;
}

static allot_status measure_windows(struct run *run, struct allot_error *err)
{
    int64_t at = 0;
    for (size_t t = 0; t < run->n_texts; t++) {
        for (int64_t w = 0; w < run->windows[t].n; w++, at++) {
            allot_status status = allot_report(run->progress, err, "measure", at, run->n_windows);
            if (status == ALLOT_OK)
                status = measure_window(run, t, w, at, err);
            if (status != ALLOT_OK)
                return status;
        }
    }
    return allot_report(run->progress, err, "measure", at, run->n_windows);
}

/* Every candidate's column per text and the pooled one. */
static allot_status fill_result(struct measure_result *out, const struct run *run, struct allot_error *err)
{
    size_t columns = run->n_texts + 1;
    out->n_candidates = run->n_candidates;
    out->n_texts = run->n_texts;
    out->stats = calloc(run->n_candidates * columns, sizeof *out->stats);
    out->text_sha256 = calloc(run->n_texts, sizeof *out->text_sha256);
    if (out->stats == NULL || out->text_sha256 == NULL)
        return allot_fail_memory(err, run->n_candidates * columns * sizeof *out->stats, "the results");
    for (size_t t = 0; t < run->n_texts; t++) {
        out->text_sha256[t] = strdup(run->windows[t].sha256);
        if (out->text_sha256[t] == NULL)
            return allot_fail_memory(err, sizeof run->windows[t].sha256, "the results");
    }
    for (size_t c = 0; c < run->n_candidates; c++) {
        int64_t window = 0;
        for (size_t column = 0; column < columns; column++) {
            bool pooled = column == run->n_texts;
            int64_t place = pooled ? 0 : window * run->per_window;
            struct stats_input in = {.tokens = run->tokens[c] + place,
                                     .first = run->tokens[0] + place,
                                     .nll_base = run->nll_base + place,
                                     .n_windows = pooled ? run->n_windows : run->windows[column].n,
                                     .per_window = run->per_window};
            allot_status status = stats_compute(&out->stats[c * columns + column], &in, err);
            if (status != ALLOT_OK)
                return status;
            window += in.n_windows;
        }
    }
    return ALLOT_OK;
}

static void release_run(struct run *run)
{
    for (size_t t = 0; run->windows != NULL && t < run->n_texts; t++)
        text_windows_release(&run->windows[t]);
    for (size_t m = 0; run->engines != NULL && m <= run->n_candidates; m++)
        engine_close(&run->engines[m]);
    for (size_t c = 0; run->tokens != NULL && c < run->n_candidates; c++)
        free(run->tokens[c]);
    free(run->windows);
    free(run->engines);
    free(run->tokens);
    free(run->nll_base);
    free(run->now.logits);
    free(run->now.tokens);
    free(run->now.at_fault);
    free(run->now.scratch);
    pool_free(run->pool);
}

/* Everything up to the first window. */
static allot_status prepare(struct run *run, const char *base_path, const char *const *candidate_paths,
                            const char *const *text_paths, struct allot_error *err)
{
    run->windows = calloc(run->n_texts, sizeof *run->windows);
    run->engines = calloc(run->n_candidates + 1, sizeof *run->engines);
    run->tokens = calloc(run->n_candidates, sizeof *run->tokens);
    if (run->windows == NULL || run->engines == NULL || run->tokens == NULL)
        return allot_fail_memory(err, (run->n_candidates + 1) * sizeof *run->engines, "the list of models");
    allot_status status = cut_windows(run, base_path, text_paths, err);
    if (status == ALLOT_OK)
        status = pool_new(&run->pool, run->options->n_threads, err);
    if (status != ALLOT_OK)
        return status;
    status = open_engines(run, base_path, candidate_paths, err);
    return status == ALLOT_OK ? allocate_scores(run, err) : status;
}

allot_status measure_run(struct measure_result *out, const char *base_path,
                         const char *const *candidate_paths, size_t n_candidates,
                         const char *const *text_paths, size_t n_texts, const struct measure_options *options,
                         const struct allot_progress *progress, struct allot_error *err)
{
    *out = (struct measure_result){0};
    allot_status status = check_options(options, n_candidates, n_texts, err);
    if (status != ALLOT_OK)
        return status;
    struct run run = {.options = options,
                      .progress = progress,
                      .n_candidates = n_candidates,
                      .n_texts = n_texts,
                      .per_window = options->n_ctx / 2 - 1};
    run.now.n_candidates = n_candidates;
    status = prepare(&run, base_path, candidate_paths, text_paths, err);
    if (status == ALLOT_OK)
        status = measure_windows(&run, err);
    if (status == ALLOT_OK)
        status = fill_result(out, &run, err);
    if (status != ALLOT_OK)
        measure_result_release(out);
    release_run(&run);
    return status;
}

void measure_result_release(struct measure_result *result)
{
    for (size_t t = 0; result->text_sha256 != NULL && t < result->n_texts; t++)
        free(result->text_sha256[t]);
    free(result->text_sha256);
    free(result->stats);
    *result = (struct measure_result){0};
}
