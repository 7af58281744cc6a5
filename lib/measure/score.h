/* score.h - two next-token distributions compared at one position.  SPDX-License-Identifier: MIT
 *
 * All sums are in double over the whole vocabulary, from float logits; nothing is clipped. */
#ifndef ALLOT_MEASURE_SCORE_H
#define ALLOT_MEASURE_SCORE_H

#include "allot.h"

/* What the comparison needs of the base at one position. p is (n_vocab), the caller's. */
struct score_base {
    const float *logits;
    double *p;            /* probabilities */
    double max, ln_sum;   /* log p_i = logits_i - max - ln_sum */
    int32_t n_vocab, top; /* top: the first token of the highest logit */
    int32_t text;         /* the token that the text has next */
    double nll, p_text;   /* -log p and p of that token */
};

/* One candidate against the base at one position. */
struct score_token {
    double kl;  /* KL(base || candidate), nats */
    double nll; /* of the text's token */
    double dp;  /* p_candidate - p_base of the text's token */
    bool same_top;
};

/* Set logits, p, n_vocab and text first. False if the logits hold a NaN or +Inf, or give the text's
 * token no probability at all. */
bool score_base(struct score_base *base);

/* False likewise, and where the candidate excludes (logit -Inf) what the base deems possible. */
bool score_candidate(struct score_token *out, const struct score_base *base, const float *logits);

#endif
