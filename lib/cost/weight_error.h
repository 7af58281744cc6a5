/* weight_error.h - what a tensor's weights lose in each type.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. */
#ifndef ALLOT_COST_WEIGHT_ERROR_H
#define ALLOT_COST_WEIGHT_ERROR_H

#include "base/pool.h"
#include "gguf/model.h"

struct weight_error {
    enum ggml_type type;
    double squares; /* sum of importance times squared error */
    bool infeasible, floored;
};

#define WEIGHT_ERROR_TYPES 64 /* at most */

/* Fills in the errors of the n_types types that errors[] names, from the first max_rows rows (< 1: all).
 * weights: importances (ne[2], ne[0]) or NULL. bytes: NULL, or room for the rows in the only type. Does not
 * depend on the number of threads. */
allot_status weight_errors(struct weight_error *errors, size_t n_types, const struct gguf_model *model,
                           const struct gguf_tensor *tensor, const float *weights, int64_t max_rows,
                           uint8_t *bytes, struct pool *pool, struct allot_error *err);

/* Bytes of buffers that it takes for rows of n_in weights, but for the sums of single rows. */
int64_t weight_errors_bytes(int64_t n_in, size_t n_types, int n_threads);

/* Seconds a weight that weight_errors takes for these types, from some rows. */
allot_status weight_errors_time(double *seconds, struct weight_error *errors, size_t n_types,
                                const struct gguf_model *model, const struct gguf_tensor *tensor,
                                const float *weights, struct pool *pool, struct allot_error *err);

#endif
