/* score.c - two next-token distributions compared at one position.  SPDX-License-Identifier: MIT */
#include "measure/score.h"

#include <math.h>

static int32_t find_top(const float *logits, int32_t n)
{
    int32_t top = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[top])
            top = i;
    return top;
}

bool score_base(struct score_base *base)
{
    const float *logits = base->logits;
    base->top = find_top(logits, base->n_vocab);
    base->max = logits[base->top];
    double sum = 0.0;
    for (int32_t i = 0; i < base->n_vocab; i++) {
        base->p[i] = exp(logits[i] - base->max);
        sum += base->p[i];
    }
    for (int32_t i = 0; i < base->n_vocab; i++)
        base->p[i] /= sum;
    base->ln_sum = log(sum);
    base->nll = base->max + base->ln_sum - logits[base->text];
    base->p_text = exp(-base->nll); /* as the candidate's, so that equals differ by 0 */
    return isfinite(base->nll);
}

bool score_candidate(struct score_token *out, const struct score_base *base, const float *logits)
{
    int32_t top = find_top(logits, base->n_vocab);
    double max = logits[top], sum = 0.0, shift = 0.0;
    for (int32_t i = 0; i < base->n_vocab; i++) {
        sum += exp(logits[i] - max);
        if (base->p[i] > 0.0) /* 0 log 0 is 0, also where a logit is -Inf */
            shift += base->p[i] * ((base->logits[i] - base->max) - (logits[i] - max));
    }
    double ln_sum = log(sum);
    /* sum p (log p - log p'), the logarithms' constants taken out of the sum; rounding may leave it just
     * under 0. */
    double kl = shift - base->ln_sum + ln_sum;
    out->kl = kl < 0.0 ? 0.0 : kl;
    out->nll = max + ln_sum - logits[base->text];
    out->dp = exp(-out->nll) - base->p_text;
    out->same_top = top == base->top;
    return isfinite(kl) && isfinite(out->nll);
}
