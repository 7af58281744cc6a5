/* engine.h - a model with libllama's real kernels, fed one window at a time.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_MEASURE_ENGINE_H
#define ALLOT_MEASURE_ENGINE_H

#include "allot.h"
#include "llama.h"

struct engine {
    const char *path; /* the caller's */
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context *context;
    struct llama_batch batch;
};

/* Loads the model and makes a context like llama-perplexity's, for windows of n_ctx tokens. */
allot_status engine_open(struct engine *engine, const char *path, int32_t n_ctx, int32_t n_outputs,
                         int n_threads, struct allot_error *err);
void engine_close(struct engine *engine);

/* Fails, naming the first difference, unless both vocabularies hold the same tokens in the same order. */
allot_status engine_same_vocabulary(const struct engine *base, const struct engine *candidate,
                                    struct allot_error *err);

/* Decodes window[begin .. end), which continues what was decoded since begin was 0, and gives
 * the logits of positions first_output .. end-1, (end - first_output, n_vocab), valid until the engine's next
 * call. */
allot_status engine_decode(const float **logits, struct engine *engine, const int32_t *window, int32_t begin,
                           int32_t first_output, int32_t end, struct allot_error *err);

#endif
