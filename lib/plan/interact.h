/* interact.h - a plan improved by what its choices do to each other.  SPDX-License-Identifier: MIT
 *
 * A plan's cost is the sum of its choices' costs as long as their errors are independent. With z_i,s a
 * choice's sample values, scaled so that its cost is the mean of z_i,s^2 over samples s, the cost of all
 * errors together is
 *
 *     mean over s of (sum_i z_i,s)^2 = sum_i cost_i + sum over pairs of 2 mean over s of z_i,s z_k,s.
 *
 * There are far more pairs than samples, so their sum is mostly noise, and a search that believes it finds
 * the noise. So pairs count with a weight from 0 to 1, and the weight is what pays on samples that the search
 * has not seen: the samples are cut in two halves, each half judges the plans that the other half finds. */
#ifndef ALLOT_PLAN_INTERACT_H
#define ALLOT_PLAN_INTERACT_H

#include "plan/plan.h"

/* Sample values of the choices of all items: values[i] is (items[i].n_choices, n), or NULL for an item
 * without. The first half of the samples and the second should come from different text. */
struct plan_samples {
    const float *const *values;
    size_t n;
};

struct plan_interaction {
    double weight; /* of the pairs; 0: the plan was not changed */
    double gain,
        std_err;      /* what plans of this weight save on samples not searched, of both halves; cost units */
    size_t n_changed; /* items */
    double cost;      /* of the plan with all interactions as the samples have them */
};

/* Improves a plan (chosen: in and out) by single changes and exchanges of two, as long as one lowers the sum
 * of costs and weighted pairs and no more bytes are taken than `bytes_most` for all items together. The plan
 * stays as it is unless the gain on samples not searched is above its standard error. Deterministic. */
allot_status plan_interact(struct plan_interaction *out, const struct plan_item *items, size_t n_items,
                           const struct plan_samples *samples, int64_t bytes_most, size_t *chosen,
                           struct allot_error *err);

#endif
