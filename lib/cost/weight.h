/* weight.h - the cost of every (tensor, type) from its weights and an imatrix alone.
 *
 * SPDX-License-Identifier: MIT
 *
 * No pass through the model: a preview in seconds, for any architecture. For a tensor W with quantization
 * error D = dequant(quant(W)) - W and inputs x with E x_i^2 = s_i and E x_i = m_i, inputs taken as
 * uncorrelated,
 *
 *     E |D x|^2 = sum over rows of [ sum_i d_i^2 (s_i - m_i^2) + (sum_i d_i m_i)^2 ]
 *
 * and likewise E |W x|^2. Their ratio is the noise in the map's output relative to the output, and the cost
 * is that times the map's share of the residual stream (stream.h): the noise-to-signal ratio of the stream
 * where the noise joins it. An estimate in units of its own, NOT nats, without any constant fitted to models.
 * s comes from the imatrix (1 without an entry), m from its sums of inputs where it has them (else 0).
 *
 *  - Experts are one map: E over tokens takes each as often as the imatrix counted it, one without tokens not
 *    at all.
 *  - Token embeddings are looked up: every row alike, s = 1 and m = 0. Tied ones are two maps, whose costs
 * add.
 *
 * Of a matrix with many rows a sample stands for all; each type sees the same rows. */
#ifndef ALLOT_COST_WEIGHT_H
#define ALLOT_COST_WEIGHT_H

#include "archive/archive.h"
#include "base/pool.h"
#include "cost/imatrix.h"

struct weight_options {
    const enum ggml_type *types; /* candidates, legal ones are used for each tensor */
    size_t n_types;
};

/* What the costs of a set depend on besides the imatrix: "rows=256". */
void weight_params(char params[static 64]);

struct weight_result {
    int64_t n_tensors;  /* quantizable tensors of the model */
    int64_t n_unsuited; /* of them, those that no candidate suits; they keep their type */
    int64_t n_resumed;  /* and those found complete in the archive */
    double seconds;
};

/* Computes what the set still lacks and stores it tensor by tensor; interrupted, the next call goes on and
 * ends with the same numbers. A cost's standard error is that of the sample of its tensor (0 where it takes
 * all rows). All weights are read, though, to find those that a type cannot hold. imatrix may be NULL.
 * Progress stage: "weight", in weights. Results do not depend on the number of threads. */
allot_status weight_run(struct weight_result *result, const struct gguf_model *model, struct pool *pool,
                        const struct imatrix *imatrix, const struct weight_options *options,
                        struct archive *archive, int64_t set_id, const struct allot_progress *progress,
                        struct allot_error *err);

#endif
