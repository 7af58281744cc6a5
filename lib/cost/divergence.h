/* divergence.h - how far a loaded model is from what it was.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. */
#ifndef ALLOT_COST_DIVERGENCE_H
#define ALLOT_COST_DIVERGENCE_H

#include "base/memory.h"
#include "base/spill.h"
#include "cost/decode.h"

struct divergence {
    struct decoder *decoder;
    struct spill base; /* float logits (windows, n_ctx, n_vocab) */
    double *kl;        /* [windows]: mean over positions, of the newest pass */
    double *ln_ppl;    /* [windows]: ln of perplexity over the base's, over positions with a next token */
    const struct allot_progress *progress;
    const char *stage;   /* of the progress */
    int64_t done, total; /* passes of the stage */
};

/* Keeps the logits of the model as it is now: in a temporary file if they are more than the budget (NULL:
 * none) leaves. */
allot_status divergence_init(struct divergence *d, struct decoder *decoder,
                             const struct memory_budget *memory, struct allot_error *err);
void divergence_release(struct divergence *d);

/* Fills kl with KL(base || model as it is now), nats per token, and ln_ppl. A pass whose logits are not
 * finite is ALLOT_ERR_NUMERIC. Reports progress of the stage between windows, `done` of `total` passes. */
allot_status divergence_measure(struct divergence *d, struct allot_error *err);

#endif
