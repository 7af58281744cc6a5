/* stats.h - from per-token scores to means, errors and percentiles.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_MEASURE_STATS_H
#define ALLOT_MEASURE_STATS_H

#include "measure/measure.h"
#include "measure/score.h"

/* Scores of consecutive windows; the arrays are (n_windows, per_window). */
struct stats_input {
    const struct score_token *tokens; /* of the candidate */
    const struct score_token *first;  /* of the first candidate, for the paired difference */
    const double *nll_base;
    int64_t n_windows, per_window;
};

allot_status stats_compute(struct measure_stats *out, const struct stats_input *in, struct allot_error *err);

/* The paired KL difference to the first candidate alone; nll_base is not needed. */
struct measure_mean stats_kl_difference(const struct stats_input *in);

/* Of n >= 1 ascending values, interpolated linearly between neighbours as llama-perplexity does; 0 <=
 * fraction <= 1. */
double stats_percentile(const double *sorted, int64_t n, double fraction);

#endif
