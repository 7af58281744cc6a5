/* predict.h - the KL of a combination of layouts from what each costs alone.  SPDX-License-Identifier: MIT
 *
 * Decides where to spend measurements, nothing else. With c_i what group i's layout costs alone (measured in
 * isolation, or Fisher's) and b_i its bits per weight:
 *
 *     A = sum of c_i                                                  additive
 *     X = sum over pairs i < k of c_i c_k max(0, T - b_i) max(0, T - b_k)
 *     fit = a A + b X                                                 interaction
 *     KL = isotonic regression of fit over A                          projection
 *
 * a, b and the bit threshold T come from combinations that were measured; the projection makes sure that no
 * fit overturns what was measured in isolation: a lower A never gets the higher KL. */
#ifndef ALLOT_SEARCH_PREDICT_H
#define ALLOT_SEARCH_PREDICT_H

#include "allot.h"

struct predict_term {
    double cost; /* of one group alone, nats per token, >= 0; NAN: there is no evidence */
    double bits; /* per weight of that group */
};

/* A plan of single tensors is one too: a term for each group, with the sum of its tensors' costs and their
 * mean bits. */
struct combination {
    const struct predict_term *terms;
    size_t n_terms;
};

struct predict_row {
    struct combination of;
    double kl; /* measured */
};

/* Below this number of rows the prediction is additive: a = 1, b = 0. */
#define PREDICT_FEW_ROWS 6

struct predictor {
    size_t n_rows; /* that have evidence: those it was fitted on, or would have been */
    double a, b, threshold;
    double mean_error; /* mean of |measured - fit| / measured over the rows */
};

/* Least squares of the relative residual (rows range over two decades) for each T of 2.5, 3, ... 9 bits, and
 * the T of least mean_error. Bounds: a from 1/2 to 2, and b such that no row's b X exceeds half its A. Rows
 * without evidence, or whose A or KL is not above 0, do not count. */
struct predictor predict_fit(const struct predict_row *rows, size_t n);

struct prediction {
    double additive;   /* A; NAN: a term has no evidence, and so are the others */
    double kl;         /* rises with A, never falls */
    double confidence; /* 0 to 1, below */
};

/* Predicts combinations together: the projection is over all n, equal A sharing one value. b X is bounded by
 * half of a A here too. A stretch of A that the projection levels is a plateau. The confidence is a product:
 *
 *     (n_rows + 1) / (n_rows + 1 + PREDICT_FEW_ROWS)        few rows
 *     the smaller of KL / A and A / KL                      large adjustment
 *     least A / largest A of the plateau                    wide plateau
 *
 * out: [n]. */
allot_status predict_all(struct prediction *out, const struct predictor *predictor,
                         const struct combination *combinations, size_t n, struct allot_error *err);

/* Pool adjacent violators: y becomes the non-falling sequence of least weighted squared distance. weight > 0;
 * start[i]: the first index of the block that i belongs to. Everything [n]. */
void isotonic_regression(double *y, const double *weight, size_t *start, size_t n);

#endif
