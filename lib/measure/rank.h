/* rank.h - whether two lists of numbers rank alike, and where the middle of one lies.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_MEASURE_RANK_H
#define ALLOT_MEASURE_RANK_H

#include "allot.h"

/* Spearman's rank correlation of n pairs: Pearson's of their ranks, equal numbers sharing the mean of theirs
 * (Spearman 1904). NAN for fewer than two pairs, and where all x or all y are equal. No NaN in x and y. */
allot_status rank_correlation(double *rho, const double *x, const double *y, size_t n,
                              struct allot_error *err);

struct rank_quartiles {
    double first, median, third; /* interpolated as stats_percentile does */
};

/* Sorts x, n numbers without NaN. All NAN if there are none. */
struct rank_quartiles rank_quartiles(double *x, size_t n);

#endif
