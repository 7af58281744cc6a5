/* engine.c - a model with libllama's real kernels, fed one window at a time.  SPDX-License-Identifier: MIT */
#include "measure/engine.h"

#include "base/error.h"
#include "text/load.h"
#include "text/text.h"

#include <string.h>

/* llama-perplexity's defaults, except that one window is decoded at a time and few outputs are kept. */
static struct llama_context_params context_params(int32_t n_ctx, int32_t n_outputs, int n_threads)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n_ctx;
    params.n_batch = (uint32_t)n_ctx;
    params.n_ubatch = 512;
    params.n_seq_max = 1;
    params.n_outputs_max = (uint32_t)n_outputs;
    params.n_threads = params.n_threads_batch = n_threads;
    params.swa_full = false;
    return params;
}

allot_status engine_open(struct engine *engine, const char *path, int32_t n_ctx, int32_t n_outputs,
                         int n_threads, struct allot_error *err)
{
    *engine = (struct engine){.path = path};
    allot_status status = text_llama_load(&engine->model, path, false, err);
    if (status != ALLOT_OK)
        return status;
    engine->vocab = llama_model_get_vocab(engine->model);
    if (!llama_model_has_decoder(engine->model) || llama_model_has_encoder(engine->model)) {
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: only decoder models can be measured", path);
        goto fail;
    }
    text_forget_llama_error();
    engine->context = llama_init_from_model(engine->model, context_params(n_ctx, n_outputs, n_threads));
    if (engine->context == NULL) {
        const char *cause = text_last_llama_error();
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: libllama cannot run it: %s", path,
                            cause[0] != '\0' ? cause : "no reason given");
        goto fail;
    }
    engine->batch = llama_batch_init(n_ctx, 0, 1);
    if (engine->batch.token == NULL || engine->batch.logits == NULL) {
        status = allot_fail_memory(err, (size_t)n_ctx * sizeof(llama_token), "a batch");
        goto fail;
    }
    return ALLOT_OK;
fail:
    engine_close(engine);
    return status;
}

void engine_close(struct engine *engine)
{
    if (engine->batch.token != NULL)
        llama_batch_free(engine->batch);
    if (engine->context != NULL)
        llama_free(engine->context);
    if (engine->model != NULL)
        llama_model_free(engine->model);
    *engine = (struct engine){0};
}

allot_status engine_same_vocabulary(const struct engine *base, const struct engine *candidate,
                                    struct allot_error *err)
{
    int32_t n = llama_vocab_n_tokens(base->vocab), n_candidate = llama_vocab_n_tokens(candidate->vocab);
    if (n != n_candidate)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: its vocabulary has %d tokens, that of %s has %d: they cannot be compared",
                          candidate->path, n_candidate, base->path, n);
    for (int32_t id = 0; id < n; id++) {
        const char *text = llama_vocab_get_text(base->vocab, id);
        const char *other = llama_vocab_get_text(candidate->vocab, id);
        if (strcmp(text, other) != 0)
            return allot_fail(
                err, ALLOT_ERR_ARGUMENT,
                "%s: token %d of its vocabulary is \"%.64s\", in %s it is \"%.64s\": they cannot be "
                "compared",
                candidate->path, id, other, base->path, text);
    }
    return ALLOT_OK;
}

allot_status engine_decode(const float **logits, struct engine *engine, const int32_t *window, int32_t begin,
                           int32_t first_output, int32_t end, struct allot_error *err)
{
    if (begin == 0)
        llama_memory_clear(llama_get_memory(engine->context), true);
    struct llama_batch *batch = &engine->batch;
    batch->n_tokens = end - begin;
    for (int32_t i = 0; i < batch->n_tokens; i++) {
        batch->token[i] = window[begin + i];
        batch->pos[i] = begin + i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = begin + i >= first_output;
    }
    text_forget_llama_error();
    int32_t failed = llama_decode(engine->context, *batch);
    *logits = failed == 0 ? llama_get_logits(engine->context) : NULL;
    if (*logits == NULL)
        return allot_fail(err, ALLOT_ERR_INTERNAL, "%s: libllama failed to decode (%d): %s", engine->path,
                          failed, text_last_llama_error());
    return ALLOT_OK;
}
