/* engine.c - a model with libllama's real kernels, fed one window at a time.  SPDX-License-Identifier: MIT */
#include "measure/engine.h"

#include "base/error.h"
#include "text/load.h"
#include "text/text.h"

#include <string.h>

enum { N_UBATCH = 512 };

/* llama-perplexity's defaults, except that one window is decoded at a time by one thread and few outputs are
 * kept. */
static struct llama_context_params context_params(int32_t n_ctx, int32_t n_outputs)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n_ctx;
    params.n_batch = (uint32_t)n_ctx;
    params.n_ubatch = N_UBATCH;
    params.n_seq_max = 1;
    params.n_outputs_max = (uint32_t)n_outputs;
    params.n_threads = params.n_threads_batch = 1;
    params.swa_full = false;
    return params;
}

allot_status engine_model_open(struct engine_model *model, const char *path, enum text_load what,
                               struct allot_error *err)
{
    *model = (struct engine_model){.path = path};
    allot_status status = text_llama_load(&model->llama, path, what, err);
    if (status != ALLOT_OK)
        return status;
    model->vocab = llama_model_get_vocab(model->llama);
    if (!llama_model_has_decoder(model->llama) || llama_model_has_encoder(model->llama)) {
        engine_model_close(model);
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: only decoder models can be run", path);
    }
    return ALLOT_OK;
}

void engine_model_close(struct engine_model *model)
{
    if (model->llama != NULL)
        llama_model_free(model->llama);
    *model = (struct engine_model){0};
}

allot_status engine_open(struct engine *engine, const struct engine_model *model, int32_t n_ctx,
                         int32_t n_outputs, const struct engine_observer *observer, struct allot_error *err)
{
    struct llama_context_params params = context_params(n_ctx, n_outputs);
    if (observer != NULL) {
        params.cb_eval = observer->eval;
        params.cb_eval_user_data = observer->user;
    }
    *engine = (struct engine){.model = model};
    text_forget_llama_error();
    engine->context = llama_init_from_model(model->llama, params);
    if (engine->context == NULL) {
        const char *cause = text_last_llama_error();
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: libllama cannot run it: %s", model->path,
                          cause[0] != '\0' ? cause : "no reason given");
    }
    engine->batch = llama_batch_init(n_ctx, 0, 1);
    if (engine->batch.token == NULL || engine->batch.logits == NULL) {
        engine_close(engine);
        return allot_fail_memory(err, (size_t)n_ctx * sizeof(llama_token), "a batch");
    }
    return ALLOT_OK;
}

void engine_close(struct engine *engine)
{
    if (engine->batch.token != NULL)
        llama_batch_free(engine->batch);
    if (engine->context != NULL)
        llama_free(engine->context);
    *engine = (struct engine){0};
}

/* Logits in the graph and once more for the caller; keys and values of every layer in two bytes each; and the
 * widest part of a layer, taken as 16 times the embedding because libllama does not tell. */
int64_t engine_bytes(const struct engine_model *model, int32_t n_ctx, int32_t n_outputs)
{
    const struct llama_model *llama = model->llama;
    int64_t n_embd = llama_model_n_embd(llama), n_head = llama_model_n_head(llama);
    int64_t n_embd_kv = n_head > 0 ? n_embd / n_head * llama_model_n_head_kv(llama) : n_embd;
    int64_t logits = 2 * 4 * (int64_t)n_outputs * llama_vocab_n_tokens(model->vocab);
    int64_t cache = 2 * 2 * (int64_t)n_ctx * n_embd_kv * llama_model_n_layer(llama);
    int64_t layer = 16 * 4 * (n_ctx < N_UBATCH ? n_ctx : N_UBATCH) * n_embd;
    return logits + cache + layer;
}

allot_status engine_same_vocabulary(const struct engine_model *base, const struct engine_model *candidate,
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
        return allot_fail(err, ALLOT_ERR_INTERNAL, "%s: libllama failed to decode (%d): %s",
                          engine->model->path, failed, text_last_llama_error());
    return ALLOT_OK;
}
