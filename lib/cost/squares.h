/* squares.h - sums of squared inputs of linear maps, on the way to an imatrix.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. Sums are double, so that the order of threads would hardly show; they are added in
 * order nevertheless. */
#ifndef ALLOT_COST_SQUARES_H
#define ALLOT_COST_SQUARES_H

#include "cost/imatrix.h"
#include "text/text.h"

struct squares {
    const struct gguf_model *model;
    double **sums;    /* [n_tensors]: squares (ne[2], ne[0]), or NULL */
    int64_t **counts; /* [n_tensors]: tokens of each of the ne[2] matrices */
};

allot_status squares_init(struct squares *squares, const struct gguf_model *model, struct allot_error *err);
void squares_release(struct squares *squares);

/* Bytes of the sums of all quantizable tensors. */
int64_t squares_bytes(const struct gguf_model *model);

/* Room for the tensor, zeroed when it is new. */
allot_status squares_of(struct squares *squares, int64_t tensor, struct allot_error *err);

/* Adds everything that `part` holds, and zeroes it. */
allot_status squares_take(struct squares *squares, struct squares *part, struct allot_error *err);

/* The imatrix of these sums; fails if one is not finite. datasets: the names of the texts. */
allot_status squares_imatrix(struct imatrix *out, const struct squares *squares,
                             const struct text_windows *windows, const char *const *datasets,
                             size_t n_datasets, struct allot_error *err);

#endif
