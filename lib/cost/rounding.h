/* rounding.h - rounding that makes up for its own errors, while a file is written.
 * SPDX-License-Identifier: MIT
 *
 * The quantizer's codes of each row are chosen again by the second moment of the row's inputs (compensate.h),
 * and kept where the row's mean square error at the output, by the moment of the windows held out, is lower
 * than it was. */
#ifndef ALLOT_COST_ROUNDING_H
#define ALLOT_COST_ROUNDING_H

#include "cost/second_moments.h"
#include "quant/quantize.h"

struct rounding;

struct rounding_result {
    int64_t n_rows, n_kept; /* that were tried, and that have other codes now */
    double before, after;   /* sums over the rows tried of what is judged, before and after */
    int64_t n_tensors;      /* of the rows */
};

/* Bytes that rounding the model's tensors takes besides the moments, on so many threads. */
int64_t rounding_bytes(const struct gguf_model *model, int n_threads);

/* Moments live as long as the rounding, whose hooks at most n_threads threads call at once. */
allot_status rounding_new(struct rounding **out, const struct second_moments *moments, int n_threads,
                          struct allot_error *err);
void rounding_free(struct rounding *rounding);

/* For quantize_job.rounding; results do not depend on the number of threads. */
struct quantize_rounding rounding_hooks(struct rounding *rounding);
/* Of all that was rounded since it was made, or asked here the last time. */
struct rounding_result rounding_take_result(struct rounding *rounding);

#endif
