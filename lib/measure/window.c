/* window.c - one window through the base and all candidates, on one thread.  SPDX-License-Identifier: MIT */
#include "measure/window.h"

#include "base/error.h"

#include <stdlib.h>

/* Positions decoded at a time: as many as fit these bytes of logits, in multiples of 64 and never fewer.
 * ggml's kernels work on tiles of rows that divide 64, so the numbers are those of decoding the window at
 * once. */
enum { LOGITS_BYTES = 16 << 20, OUTPUTS_STEP = 64 };

static const int64_t SCORERS_BYTES = (int64_t)4 << 30;

int32_t window_outputs(int32_t n_ctx, int32_t n_vocab)
{
    int64_t fit = LOGITS_BYTES / ((int64_t)sizeof(float) * n_vocab) / OUTPUTS_STEP * OUTPUTS_STEP;
    int32_t half = n_ctx / 2;
    if (fit < OUTPUTS_STEP)
        fit = OUTPUTS_STEP;
    return fit < half ? (int32_t)fit : half;
}

int64_t window_scorer_bytes(const struct engine_model *models, size_t n_models, int32_t n_ctx)
{
    int32_t n_vocab = llama_vocab_n_tokens(models[0].vocab), n_outputs = window_outputs(n_ctx, n_vocab);
    int64_t bytes = n_vocab * (int64_t)sizeof(double);
    for (size_t m = 0; m < n_models; m++)
        bytes += engine_bytes(&models[m], n_ctx, n_outputs);
    return bytes;
}

int window_threads(int n_asked, int64_t n_windows, int64_t bytes_each)
{
    int64_t n = SCORERS_BYTES / bytes_each;
    if (n > n_windows)
        n = n_windows;
    if (n > n_asked)
        n = n_asked;
    return n > 1 ? (int)n : 1;
}

allot_status window_scorer_open(struct window_scorer *scorer, const struct engine_model *models,
                                size_t n_models, int32_t n_ctx, struct allot_error *err)
{
    int32_t n_vocab = llama_vocab_n_tokens(models[0].vocab);
    *scorer = (struct window_scorer){.n_models = n_models,
                                     .n_ctx = n_ctx,
                                     .n_outputs = window_outputs(n_ctx, n_vocab),
                                     .n_vocab = n_vocab,
                                     .engines = calloc(n_models, sizeof *scorer->engines),
                                     .logits = calloc(n_models, sizeof *scorer->logits),
                                     .p = malloc((size_t)n_vocab * sizeof *scorer->p)};
    allot_status status = ALLOT_OK;
    if (scorer->engines == NULL || scorer->logits == NULL || scorer->p == NULL)
        status = allot_fail_memory(err, (size_t)n_vocab * sizeof *scorer->p, "a distribution");
    for (size_t m = 0; m < n_models && status == ALLOT_OK; m++)
        status = engine_open(&scorer->engines[m], &models[m], n_ctx, scorer->n_outputs, NULL, err);
    if (status != ALLOT_OK)
        window_scorer_close(scorer);
    return status;
}

void window_scorer_close(struct window_scorer *scorer)
{
    for (size_t m = 0; scorer->engines != NULL && m < scorer->n_models; m++)
        engine_close(&scorer->engines[m]);
    free(scorer->engines);
    free(scorer->logits);
    free(scorer->p);
    *scorer = (struct window_scorer){0};
}

/* Row `row` of the logits at hand, whose next token is `text`, to place `place` of the scores. Returns -1, or
 * the model whose logits are not finite. */
static int64_t score_position(struct window_scores *out, int64_t place, struct window_scorer *scorer,
                              int64_t row, int32_t text)
{
    int64_t offset = row * scorer->n_vocab;
    struct score_base base = {
        .logits = scorer->logits[0] + offset, .p = scorer->p, .n_vocab = scorer->n_vocab, .text = text};
    if (!score_base(&base))
        return 0;
    out->nll_base[place] = base.nll;
    for (size_t m = 1; m < scorer->n_models; m++)
        if (!score_candidate(&out->tokens[m - 1][place], &base, scorer->logits[m] + offset))
            return (int64_t)m;
    return -1;
}

/* The last token is decoded with the rest although it is only ever a label: so does
 * llama-perplexity, and the kernels' tiles stay the same. */
allot_status window_score(struct window_scores *out, int64_t at, struct window_scorer *scorer,
                          const int32_t *ids, const char *name, struct allot_error *err)
{
    int32_t n_ctx = scorer->n_ctx, half = n_ctx / 2, begin = 0;
    int64_t place = at * (half - 1);
    for (int32_t first = half; first < n_ctx - 1;) {
        int32_t end = first + scorer->n_outputs < n_ctx ? first + scorer->n_outputs : n_ctx;
        for (size_t m = 0; m < scorer->n_models; m++) {
            allot_status status =
                engine_decode(&scorer->logits[m], &scorer->engines[m], ids, begin, first, end, err);
            if (status != ALLOT_OK)
                return status;
        }
        for (int32_t i = first; i < end && i < n_ctx - 1; i++) {
            int64_t fault = score_position(out, place++, scorer, i - first, ids[i + 1]);
            if (fault >= 0)
                return allot_fail(err, ALLOT_ERR_NUMERIC,
                                  "%s: its output is not finite (NaN or infinite) at token %d of %s",
                                  scorer->engines[fault].model->path, i, name);
        }
        begin = first = end;
    }
    return ALLOT_OK;
}
