/* engine.h - a model with libllama's real kernels, fed one window at a time.  SPDX-License-Identifier: MIT
 *
 * One model serves any number of engines, and so of threads: they share its weights, each decodes on its own
 * thread alone. ggml's own threads wait for each other in busy loops at every operation, which costs a
 * multiple of the work as soon as a processor is busy with something else. */
#ifndef ALLOT_MEASURE_ENGINE_H
#define ALLOT_MEASURE_ENGINE_H

#include "allot.h"
#include "text/load.h"

struct engine_model {
    const char *path; /* the caller's */
    struct llama_model *llama;
    const struct llama_vocab *vocab;
};

allot_status engine_model_open(struct engine_model *model, const char *path, enum text_load what,
                               struct allot_error *err);
void engine_model_close(struct engine_model *model);

/* Fails, naming the first difference, unless both vocabularies hold the same tokens in the same order. */
allot_status engine_same_vocabulary(const struct engine_model *base, const struct engine_model *candidate,
                                    struct allot_error *err);

struct engine {
    const struct engine_model *model;
    struct llama_context *context;
    struct llama_batch batch;
};

/* Sees the nodes of the graph as they are computed (ggml-backend.h); true always, and again if asked. */
struct engine_observer {
    ggml_backend_sched_eval_callback eval;
    void *user;
};

/* A context like llama-perplexity's with one thread, for windows of n_ctx tokens. The model must outlive it.
 * observer: or NULL. */
allot_status engine_open(struct engine *engine, const struct engine_model *model, int32_t n_ctx,
                         int32_t n_outputs, const struct engine_observer *observer, struct allot_error *err);
void engine_close(struct engine *engine);

/* About the bytes that one engine takes beside the model. */
int64_t engine_bytes(const struct engine_model *model, int32_t n_ctx, int32_t n_outputs);

/* Decodes window[begin .. end), which continues what was decoded since begin was 0, and gives
 * the logits of positions first_output .. end-1, (end - first_output, n_vocab), valid until the engine's next
 * call. A failure quotes what libllama logged. */
allot_status engine_decode(const float **logits, struct engine *engine, const int32_t *window, int32_t begin,
                           int32_t first_output, int32_t end, struct allot_error *err);

#endif
