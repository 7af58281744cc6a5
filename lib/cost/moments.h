/* moments.h - what an imatrix tells of a tensor's inputs, and the squares that follow from it.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. Inputs x have E x_i^2 = s_i and E x_i = m_i and are otherwise taken as uncorrelated.
 */
#ifndef ALLOT_COST_MOMENTS_H
#define ALLOT_COST_MOMENTS_H

#include "cost/imatrix.h"

#define WEIGHT_SAMPLE_ROWS 256 /* of a matrix; a stack shares them out, but each of it gives 8 */

/* Rows that stand for the n_rows of each of n_matrices, rising; returns how many. One of each of as many
 * equal stretches, at a place that looks random and is always the same, lest heads of even size show the same
 * side each time; all, where there are few. */
int64_t weight_sample(int64_t rows[static WEIGHT_SAMPLE_ROWS], int64_t n_rows, int64_t n_matrices);

struct moments {
    float *s, *m;    /* (ne[2], ne[0]); NULL: 1 and 0 */
    int64_t *shares; /* [ne[2]], how often tokens took each matrix */
};

/* im may be NULL. */
allot_status moments_init(struct moments *moments, const struct imatrix *im, const struct gguf_tensor *tensor,
                          struct allot_error *err);
void moments_release(struct moments *moments);

/* E (d . x)^2 of one row d of n weights:
 *
 *     sum_i d_i^2 (s_i - m_i^2) + (sum_i d_i m_i)^2
 *
 * s and m as above, for the row's matrix. */
double expected_square(const float *d, const float *s, const float *m, int64_t n);

#endif
