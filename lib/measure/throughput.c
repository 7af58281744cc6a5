/* throughput.c - tokens per second of whole models with libllama.  SPDX-License-Identifier: MIT */
#include "measure/throughput.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/pool.h"
#include "measure/engine.h"
#include "measure/rank.h"
#include "text/text.h"

struct turns {
    const struct throughput_options *options;
    size_t n_models;
    struct engine_model *models; /* [n_models] */
    struct engine *engines;      /* [n_models] */
    double *seconds;             /* (n_models, 2, n_repetitions): prompt, generation */
    struct text_windows windows;
};

static allot_status open_engines(struct turns *turns, const char *const *paths, int n_threads,
                                 struct allot_error *err)
{
    const struct throughput_options *options = turns->options;
    struct text_vocab *vocab = NULL;
    allot_status status = text_vocab_open(&vocab, paths[0], err);
    if (status == ALLOT_OK)
        status =
            text_windows_from_files(&turns->windows, vocab, &options->text, 1, options->n_prompt, 1, err);
    text_vocab_close(vocab);
    for (size_t m = 0; status == ALLOT_OK && m < turns->n_models; m++) {
        status = engine_model_open(&turns->models[m], paths[m], TEXT_LOAD_MODEL, err);
        if (status == ALLOT_OK)
            status = engine_same_vocabulary(&turns->models[0], &turns->models[m], err);
        if (status == ALLOT_OK)
            status = engine_open(&turns->engines[m], &turns->models[m], options->n_prompt, 1, NULL, err);
        if (status == ALLOT_OK)
            llama_set_n_threads(turns->engines[m].context, n_threads, n_threads);
    }
    return status;
}

/* A clock that did not move is no speed. */
static double seconds_since(double start)
{
    return fmax(seconds_now() - start, 1e-9);
}

/* The logits of each last token are read, as whoever samples does. */
static allot_status take_turn(double *prompt, double *generation, struct engine *engine,
                              const struct turns *turns, struct allot_error *err)
{
    const int32_t *ids = turns->windows.ids, n = turns->options->n_prompt;
    const float *logits;
    double start = seconds_now();
    allot_status status = engine_decode(&logits, engine, ids, 0, n - 1, n, err);
    *prompt = seconds_since(start);
    start = seconds_now();
    for (int32_t i = 0; status == ALLOT_OK && i < turns->options->n_generate; i++)
        status = engine_decode(&logits, engine, ids, i, i, i + 1, err);
    *generation = seconds_since(start);
    return status;
}

static allot_status take_turns(struct turns *turns, const struct allot_progress *progress,
                               struct allot_error *err)
{
    const size_t n = (size_t)turns->options->n_repetitions, n_turns = (n + 1) * turns->n_models;
    for (size_t turn = 0; turn < n_turns; turn++) {
        const size_t m = turn % turns->n_models, repetition = turn / turns->n_models;
        double unused[2], *prompt = turns->seconds + 2 * n * m, *generation = prompt + n;
        allot_status status = allot_report(progress, err, "time", (int64_t)turn, (int64_t)n_turns);
        if (status == ALLOT_OK)
            status = take_turn(repetition ? &prompt[repetition - 1] : &unused[0],
                               repetition ? &generation[repetition - 1] : &unused[1], &turns->engines[m],
                               turns, err);
        if (status != ALLOT_OK)
            return status;
    }
    return allot_report(progress, err, "time", (int64_t)n_turns, (int64_t)n_turns);
}

static void release(struct turns *turns)
{
    for (size_t m = 0; turns->models && turns->engines && m < turns->n_models; m++) {
        engine_close(&turns->engines[m]);
        engine_model_close(&turns->models[m]);
    }
    free(turns->models);
    free(turns->engines);
    free(turns->seconds);
    text_windows_release(&turns->windows);
}

static allot_status check(const struct throughput_options *options, size_t n_models, struct allot_error *err)
{
    if (n_models < 1 || options->n_prompt < 2 || options->n_generate < 1 ||
        options->n_generate > options->n_prompt || options->n_repetitions < 1)
        return allot_fail(
            err, ALLOT_ERR_ARGUMENT,
            "cannot time %zu models, a prompt of %d tokens, %d tokens one by one, %d repetitions", n_models,
            options->n_prompt, options->n_generate, options->n_repetitions);
    return ALLOT_OK;
}

allot_status throughput_measure(struct throughput *out, int *n_threads, const char *const *paths,
                                size_t n_models, const struct throughput_options *options,
                                const struct allot_progress *progress, struct allot_error *err)
{
    if (check(options, n_models, err) != ALLOT_OK)
        return err->status;
    struct pool *pool = NULL; /* knows how many threads there are by default */
    allot_status status = pool_new(&pool, options->n_threads, err);
    if (status != ALLOT_OK)
        return status;
    const int threads = pool_threads(pool);
    pool_free(pool);
    const size_t n = (size_t)options->n_repetitions;
    struct turns turns = {.options = options,
                          .n_models = n_models,
                          .models = calloc(n_models, sizeof *turns.models),
                          .engines = calloc(n_models, sizeof *turns.engines),
                          .seconds = calloc(2 * n * n_models, sizeof *turns.seconds)};
    if (!turns.models || !turns.engines || !turns.seconds)
        status = allot_fail_memory(err, 2 * n * n_models * sizeof *turns.seconds, "times");
    if (status == ALLOT_OK)
        status = open_engines(&turns, paths, threads, err);
    if (status == ALLOT_OK)
        status = take_turns(&turns, progress, err);
    for (size_t m = 0; status == ALLOT_OK && m < n_models; m++) {
        double *prompt = turns.seconds + 2 * n * m;
        out[m].prompt = options->n_prompt / rank_quartiles(prompt, n).median;
        out[m].generation = options->n_generate / rank_quartiles(prompt + n, n).median;
    }
    if (status == ALLOT_OK && n_threads)
        *n_threads = threads;
    release(&turns);
    return status;
}
