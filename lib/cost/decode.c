/* decode.c - windows of tokens through a model that libllama runs.  SPDX-License-Identifier: MIT */
#include "cost/decode.h"

#include <stdlib.h>

#include "base/error.h"
#include "measure/window.h"

/* Logits that a worker keeps at a time; ggml's tiles of rows divide the step. */
enum { LOGITS_BYTES = 64 << 20, OUTPUTS_STEP = 64 };

static int32_t outputs_at_a_time(int32_t n_ctx, int64_t n_vocab)
{
    int64_t fit = LOGITS_BYTES / ((int64_t)sizeof(float) * n_vocab) / OUTPUTS_STEP * OUTPUTS_STEP;
    if (fit < OUTPUTS_STEP)
        fit = OUTPUTS_STEP;
    return fit < n_ctx ? (int32_t)fit : n_ctx;
}

allot_status decoder_open(struct decoder *decoder, const struct gguf_model *model, struct pool *pool,
                          const struct text_windows *windows, int64_t bytes_each, struct allot_error *err)
{
    *decoder = (struct decoder){.model = model, .pool = pool, .windows = windows};
    allot_status status = engine_model_open(&decoder->llama, model->path, TEXT_LOAD_AS_STORED, err);
    if (status != ALLOT_OK)
        return status;
    uint32_t n_trained = (uint32_t)llama_model_n_ctx_train(decoder->llama.llama);
    if ((uint32_t)windows->n_ctx > n_trained) {
        decoder_close(decoder);
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: was trained on %u tokens of context, the sequences have %d: use shorter ones",
                          model->path, n_trained, windows->n_ctx);
    }
    decoder->n_vocab = llama_vocab_n_tokens(decoder->llama.vocab);
    decoder->n_outputs = outputs_at_a_time(windows->n_ctx, decoder->n_vocab);
    decoder->n_workers =
        window_threads(pool_threads(pool), windows->n,
                       bytes_each + engine_bytes(&decoder->llama, windows->n_ctx, decoder->n_outputs));
    return ALLOT_OK;
}

void decoder_close(struct decoder *decoder)
{
    engine_model_close(&decoder->llama);
    *decoder = (struct decoder){0};
}

const char *decoder_folder(const struct decoder *decoder, int64_t bytes, const struct memory_budget *memory)
{
    if (memory == NULL)
        return NULL;
    int64_t contexts =
        decoder->n_workers * engine_bytes(&decoder->llama, decoder->windows->n_ctx, decoder->n_outputs);
    int64_t all = memory_base(pool_threads(decoder->pool)) + contexts + bytes;
    return all > memory->limit ? memory->folder : NULL;
}

struct worker {
    struct engine engine;
    allot_status status;
    struct allot_error err;
};

struct run {
    const struct decoder *decoder;
    const struct decode_pass *pass;
    struct worker *workers;
    int64_t first; /* window of the wave */
};

static allot_status decode_window(const struct run *run, struct worker *worker, int64_t window)
{
    const struct decoder *d = run->decoder;
    const int32_t n_ctx = d->windows->n_ctx, *ids = d->windows->ids + window * n_ctx;
    allot_status status = ALLOT_OK;
    for (int32_t begin = 0, end; begin < n_ctx && status == ALLOT_OK; begin = end) {
        const float *logits;
        end = n_ctx - begin < d->n_outputs ? n_ctx : begin + d->n_outputs;
        status = engine_decode(&logits, &worker->engine, ids, begin, begin, end, &worker->err);
        if (status == ALLOT_OK && run->pass->logits != NULL)
            status = run->pass->logits(run->pass->user, window, begin, end - begin, logits, &worker->err);
    }
    return status;
}

static void decode_item(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct run *run = user;
    run->workers[item].status = decode_window(run, &run->workers[item], run->first + item);
}

static allot_status run_wave(struct run *run, int64_t n, struct allot_error *err)
{
    pool_run(run->decoder->pool, n, decode_item, run);
    for (int64_t i = 0; i < n; i++)
        if (run->workers[i].status != ALLOT_OK) {
            *err = run->workers[i].err;
            return err->status;
        }
    return run->pass->wave != NULL ? run->pass->wave(run->pass->user, run->first, n, err) : ALLOT_OK;
}

allot_status decoder_run(struct decoder *decoder, int64_t n_windows, const struct decode_pass *pass,
                         struct allot_error *err)
{
    int64_t n_workers = decoder->n_workers < n_windows ? decoder->n_workers : n_windows;
    struct run run = {
        .decoder = decoder, .pass = pass, .workers = calloc((size_t)n_workers, sizeof *run.workers)};
    allot_status status = ALLOT_OK;
    if (run.workers == NULL)
        return allot_fail_memory(err, (size_t)n_workers * sizeof *run.workers, "workers");
    for (int64_t i = 0; i < n_workers && status == ALLOT_OK; i++)
        status = engine_open(&run.workers[i].engine, &decoder->llama, decoder->windows->n_ctx,
                             decoder->n_outputs, pass->observers ? &pass->observers[i] : NULL, err);
    for (; run.first < n_windows && status == ALLOT_OK; run.first += n_workers)
        status = run_wave(&run, n_windows - run.first < n_workers ? n_windows - run.first : n_workers, err);
    for (int64_t i = 0; i < n_workers; i++)
        engine_close(&run.workers[i].engine);
    free(run.workers);
    return status;
}
