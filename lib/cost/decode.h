/* decode.h - windows of tokens through a model that libllama runs, one window a thread at a time.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only: what methods without lib/net stand on. Windows go in waves of as many as there are
 * workers, each decoded by one thread alone, so numbers do not depend on the threads. Weights are mapped and
 * lie as they are stored. */
#ifndef ALLOT_COST_DECODE_H
#define ALLOT_COST_DECODE_H

#include "base/memory.h"
#include "base/pool.h"
#include "gguf/model.h"
#include "measure/engine.h"
#include "text/text.h"

struct decoder {
    const struct gguf_model *model;
    struct pool *pool;
    const struct text_windows *windows;
    struct engine_model llama;
    int64_t n_vocab;
    int32_t n_outputs; /* positions decoded at a time: bounds memory and changes no number */
    int64_t n_workers;
};

/* Loads the model. Fails on windows longer than the context it was trained on: with learned positions
 * libllama would end the process. bytes_each: what the caller takes for each worker. All must outlive the
 * decoder. */
allot_status decoder_open(struct decoder *decoder, const struct gguf_model *model, struct pool *pool,
                          const struct text_windows *windows, int64_t bytes_each, struct allot_error *err);
void decoder_close(struct decoder *decoder);

/* The folder for a block of so many bytes that stays while the decoder runs: NULL if the budget (NULL: none)
 * leaves room for it in memory, beside what the process has now and the contexts to come. */
const char *decoder_folder(const struct decoder *decoder, int64_t bytes, const struct memory_budget *memory);

/* What becomes of one pass; each member may be NULL. */
struct decode_pass {
    void *user;
    /* The logits (n, n_vocab) of positions first .. first + n - 1 of a window. Called from any thread. */
    allot_status (*logits)(void *user, int64_t window, int32_t first, int32_t n, const float *logits,
                           struct allot_error *err);
    /* After each wave, on the calling thread: workers 0 .. n-1 have done windows first .. first + n - 1. */
    allot_status (*wave)(void *user, int64_t first, int64_t n, struct allot_error *err);
    const struct engine_observer *observers; /* [n_workers] */
};

/* One pass over the first n_windows. Contexts are made for it and end with it, so that nothing remembers the
 * tensors of an earlier pass. Of several failures in a wave the first window's is told. */
allot_status decoder_run(struct decoder *decoder, int64_t n_windows, const struct decode_pass *pass,
                         struct allot_error *err);

#endif
