/* measure.c - how far quantized models are from the original.  SPDX-License-Identifier: MIT */
#include "measure/measure.h"

#include "base/error.h"
#include "base/pool.h"
#include "measure/engine.h"
#include "measure/stats.h"
#include "measure/window.h"
#include "text/text.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a thread has for itself. */
struct worker {
    struct window_scorer scorer;
    bool failed;
    int64_t failed_at; /* the window, or -1 if it was asked to stop */
    struct allot_error err;
};

struct run {
    const struct measure_options *options;
    const struct allot_progress *progress;
    size_t n_candidates, n_texts;
    struct text_windows *windows; /* [n_texts] */
    int64_t n_windows;            /* of all texts */
    int32_t per_window;
    struct engine_model *models; /* [1 + n_candidates], the base first */
    struct pool *pool;
    struct worker *workers; /* [n_workers], the pool's threads */
    int n_workers;
    struct window_scores scores;

    pthread_t caller;
    atomic_int_least64_t n_done;
    atomic_int_least64_t end; /* windows from here on are left out, because one before has failed */
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

/* Before any weights are touched, so that a short text costs no wait. */
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
    text_vocab_close(vocab);
    return status;
}

static allot_status open_models(struct run *run, const char *base_path, const char *const *candidate_paths,
                                struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t m = 0; m <= run->n_candidates && status == ALLOT_OK; m++) {
        struct engine_model *model = &run->models[m];
        status = allot_report(run->progress, err, "load", (int64_t)m, (int64_t)run->n_candidates + 1);
        if (status == ALLOT_OK)
            status =
                engine_model_open(model, m == 0 ? base_path : candidate_paths[m - 1], TEXT_LOAD_MODEL, err);
        if (status == ALLOT_OK && m > 0)
            status = engine_same_vocabulary(&run->models[0], model, err);
    }
    if (status != ALLOT_OK)
        return status;
    uint32_t n_trained = (uint32_t)llama_model_n_ctx_train(run->models[0].llama); /* up to 2^32-1 */
    if ((uint32_t)run->options->n_ctx > n_trained)
        allot_note(run->progress, "%s was trained on %u tokens of context, windows have %d", base_path,
                   n_trained, run->options->n_ctx);
    return ALLOT_OK;
}

static allot_status start_pool(struct run *run, struct allot_error *err)
{
    allot_status status = pool_new(&run->pool, run->options->n_threads, err);
    if (status != ALLOT_OK)
        return status;
    int n_asked = pool_threads(run->pool);
    int64_t each = window_scorer_bytes(run->models, run->n_candidates + 1, run->options->n_ctx);
    run->n_workers = window_threads(n_asked, run->n_windows, each);
    if (run->n_workers == n_asked)
        return ALLOT_OK;
    if (run->n_workers < run->n_windows)
        allot_note(run->progress, "%d of %d threads used: each needs some %lld MiB beside the models",
                   run->n_workers, n_asked, (long long)(each >> 20));
    pool_free(run->pool);
    run->pool = NULL;
    return pool_new(&run->pool, run->n_workers, err);
}

static allot_status open_workers(struct run *run, struct allot_error *err)
{
    size_t n = (size_t)run->n_workers;
    run->workers = calloc(n, sizeof *run->workers);
    if (run->workers == NULL)
        return allot_fail_memory(err, n * sizeof *run->workers, "the threads");
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < n && status == ALLOT_OK; i++)
        status = window_scorer_open(&run->workers[i].scorer, run->models, run->n_candidates + 1,
                                    run->options->n_ctx, err);
    return status;
}

static allot_status allocate_scores(struct run *run, struct allot_error *err)
{
    struct window_scores *scores = &run->scores;
    size_t n = (size_t)(run->n_windows * run->per_window);
    scores->nll_base = malloc(n * sizeof *scores->nll_base);
    scores->tokens = calloc(run->n_candidates, sizeof *scores->tokens);
    bool complete = scores->nll_base && scores->tokens;
    for (size_t c = 0; complete && c < run->n_candidates; c++) {
        scores->tokens[c] = malloc(n * sizeof *scores->tokens[c]);
        complete = scores->tokens[c] != NULL;
    }
    return complete
               ? ALLOT_OK
               : allot_fail_memory(err, n * (sizeof(double) + run->n_candidates * sizeof **scores->tokens),
                                   "the scores");
}

/* Every window before the first that failed is still measured, so that which failure is told does not depend
 * on the threads. */
static void keep_failure(struct run *run, struct worker *worker, int64_t at)
{
    int_least64_t end = atomic_load(&run->end);
    worker->failed = true;
    worker->failed_at = at;
    while (at < end && !atomic_compare_exchange_weak(&run->end, &end, at))
        ;
}

/* One window, and between two of its own the calling thread reports how many are done. */
static void measure_window(void *user, int64_t at, int thread)
{
    struct run *run = user;
    struct worker *worker = &run->workers[thread];
    if (at >= atomic_load(&run->end))
        return;
    if (pthread_equal(run->caller, pthread_self()) &&
        allot_report(run->progress, &worker->err, "measure", atomic_load(&run->n_done), run->n_windows) !=
            ALLOT_OK) {
        keep_failure(run, worker, -1);
        return;
    }
    size_t text = 0;
    int64_t window = at;
    while (window >= run->windows[text].n)
        window -= run->windows[text++].n;
    const int32_t *ids = run->windows[text].ids + window * run->options->n_ctx;
    char name[64];
    snprintf(name, sizeof name, "window %lld of text %zu", (long long)window, text + 1);
    if (window_score(&run->scores, at, &worker->scorer, ids, name, &worker->err) == ALLOT_OK)
        atomic_fetch_add(&run->n_done, 1);
    else
        keep_failure(run, worker, at);
}

static allot_status measure_windows(struct run *run, struct allot_error *err)
{
    run->caller = pthread_self();
    atomic_init(&run->n_done, 0);
    atomic_init(&run->end, run->n_windows);
    pool_run(run->pool, run->n_windows, measure_window, run);
    const struct worker *first = NULL;
    for (int i = 0; i < run->n_workers; i++) {
        const struct worker *worker = &run->workers[i];
        if (worker->failed && (first == NULL || worker->failed_at < first->failed_at))
            first = worker;
    }
    if (first != NULL) {
        *err = first->err;
        return err->status;
    }
    return allot_report(run->progress, err, "measure", run->n_windows, run->n_windows);
}

static void fill_differences(struct measure_result *out, const struct run *run)
{
    const size_t n = run->n_candidates;
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < a; b++) {
            const struct stats_input in = {.tokens = run->scores.tokens[a],
                                           .first = run->scores.tokens[b],
                                           .n_windows = run->n_windows,
                                           .per_window = run->per_window};
            const struct measure_mean d = stats_kl_difference(&in);
            out->differences[a * n + b] = d;
            out->differences[b * n + a] = (struct measure_mean){0 - d.mean, d.se};
        }
}

/* Every candidate's column per text and the pooled one. */
static allot_status fill_result(struct measure_result *out, const struct run *run, struct allot_error *err)
{
    size_t columns = run->n_texts + 1;
    out->n_candidates = run->n_candidates;
    out->n_texts = run->n_texts;
    out->stats = calloc(run->n_candidates * columns, sizeof *out->stats);
    out->differences = calloc(run->n_candidates * run->n_candidates, sizeof *out->differences);
    out->text_sha256 = calloc(run->n_texts, sizeof *out->text_sha256);
    if (out->stats == NULL || out->differences == NULL || out->text_sha256 == NULL)
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
            struct stats_input in = {.tokens = run->scores.tokens[c] + place,
                                     .first = run->scores.tokens[0] + place,
                                     .nll_base = run->scores.nll_base + place,
                                     .n_windows = pooled ? run->n_windows : run->windows[column].n,
                                     .per_window = run->per_window};
            allot_status status = stats_compute(&out->stats[c * columns + column], &in, err);
            if (status != ALLOT_OK)
                return status;
            window += in.n_windows;
        }
    }
    fill_differences(out, run);
    return ALLOT_OK;
}

static void release_run(struct run *run)
{
    pool_free(run->pool);
    for (int i = 0; run->workers != NULL && i < run->n_workers; i++)
        window_scorer_close(&run->workers[i].scorer);
    for (size_t m = 0; run->models != NULL && m <= run->n_candidates; m++)
        engine_model_close(&run->models[m]);
    for (size_t t = 0; run->windows != NULL && t < run->n_texts; t++)
        text_windows_release(&run->windows[t]);
    for (size_t c = 0; run->scores.tokens != NULL && c < run->n_candidates; c++)
        free(run->scores.tokens[c]);
    free(run->workers);
    free(run->models);
    free(run->windows);
    free(run->scores.tokens);
    free(run->scores.nll_base);
}

/* Everything up to the first window. */
static allot_status prepare(struct run *run, const char *base_path, const char *const *candidate_paths,
                            const char *const *text_paths, struct allot_error *err)
{
    run->windows = calloc(run->n_texts, sizeof *run->windows);
    run->models = calloc(run->n_candidates + 1, sizeof *run->models);
    if (run->windows == NULL || run->models == NULL)
        return allot_fail_memory(err, (run->n_candidates + 1) * sizeof *run->models, "the list of models");
    allot_status status = cut_windows(run, base_path, text_paths, err);
    if (status == ALLOT_OK)
        status = open_models(run, base_path, candidate_paths, err);
    if (status == ALLOT_OK)
        status = start_pool(run, err);
    if (status == ALLOT_OK)
        status = open_workers(run, err);
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
    free(result->differences);
    free(result->stats);
    *result = (struct measure_result){0};
}
