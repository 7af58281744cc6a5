/* window.h - one window through the base and all candidates, compared position by position, on one thread.
 * SPDX-License-Identifier: MIT
 *
 * A scorer holds what one thread needs for itself: an engine per model and room for one distribution. */
#ifndef ALLOT_MEASURE_WINDOW_H
#define ALLOT_MEASURE_WINDOW_H

#include "measure/engine.h"
#include "measure/score.h"

struct window_scorer {
    size_t n_models;
    int32_t n_ctx, n_outputs, n_vocab;
    struct engine *engines; /* [n_models], the base first */
    const float **logits;   /* [n_models], of n_outputs positions at most */
    double *p;              /* [n_vocab] */
};

/* The scores of many windows: positions n_ctx/2 .. n_ctx-2 of each, in order. */
struct window_scores {
    double *nll_base;            /* (windows, n_ctx/2 - 1) */
    struct score_token **tokens; /* [n_models - 1], (windows, n_ctx/2 - 1) each */
};

/* Positions whose logits are kept at a time for a vocabulary: this bounds memory and changes no number. */
int32_t window_outputs(int32_t n_ctx, int32_t n_vocab);

/* About the bytes that a scorer takes beside the models. */
int64_t window_scorer_bytes(const struct engine_model *models, size_t n_models, int32_t n_ctx);

/* How many threads to use: the number asked for, but no more than there are windows, and than keep all
 * scorers within 4 GiB; 1 at least. */
int window_threads(int n_asked, int64_t n_windows, int64_t bytes_each);

/* The models, the base first, must outlive the scorer. */
allot_status window_scorer_open(struct window_scorer *scorer, const struct engine_model *models,
                                size_t n_models, int32_t n_ctx, struct allot_error *err);
void window_scorer_close(struct window_scorer *scorer);

/* Decodes ids [n_ctx] with every model and writes window `at` of the scores; other windows of them
 * may be written by other threads meanwhile. `name` is how messages call the window. */
allot_status window_score(struct window_scores *out, int64_t at, struct window_scorer *scorer,
                          const int32_t *ids, const char *name, struct allot_error *err);

#endif
