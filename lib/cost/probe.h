/* probe.h - the cost of every (tensor, type) from forward passes of libllama alone.
 *
 * SPDX-License-Identifier: MIT
 *
 * For any architecture that libllama runs. One tensor after the other is quantized to a probing type, takes
 * its place in the loaded model, and the KL divergence of the model's output is measured over S sequences of
 * T tokens at every position, with the kernels that will run the file. KL grows with the square of the weight
 * error, so other types are scaled:
 *
 *     cost(type) = KL(probing type) * err(type) / err(probing type),
 *
 * err the sum of squared errors of the tensor's weights times their importances. Tied embeddings are one
 * tensor in two roles, both seen; of experts, those that the tokens are routed to. */
#ifndef ALLOT_COST_PROBE_H
#define ALLOT_COST_PROBE_H

#include "archive/archive.h"
#include "base/memory.h"
#include "base/pool.h"
#include "cost/imatrix.h"
#include "text/text.h"

struct probe_options {
    const enum ggml_type *types; /* candidates, legal ones are used for each tensor */
    size_t n_types;
    const struct memory_budget *memory; /* beside the model, which is mapped; NULL: no limit */
};

#define PROBE_DEFAULT_SEQUENCES 8

/* What the costs of a set depend on: "probe=Q3_K"; windows and imatrix are keyed apart. */
void probe_params(char params[static 64]);

struct probe_result {
    int64_t n_tensors;      /* quantizable tensors of the model */
    int64_t n_unsuited;     /* of them, those that no candidate suits, or that the model's graph does not use
                               as weights of products and lookups; they keep their type */
    int64_t n_resumed;      /* and those found complete in the archive */
    double seconds_forward; /* one pass */
    double seconds_probe;   /* all passes with a tensor exchanged */
    double seconds_quantize;
};

/* Computes what the set still lacks and stores it tensor by tensor; interrupted, the next call goes on and
 * ends with the same numbers. Says at first how long it will take. The whole model should fit into memory;
 * needs S T logits over the vocabulary beside it, which go to a temporary file where the budget is too small
 * for them. The standard error of a cost takes sequences as samples,
 * and knows nothing of the error of scaling. imatrix may be NULL. Progress stage: "probe". Results do not
 * depend on the number of threads. */
allot_status probe_run(struct probe_result *result, const struct gguf_model *model, struct pool *pool,
                       const struct text_windows *windows, const struct imatrix *imatrix,
                       const struct probe_options *options, struct archive *archive, int64_t set_id,
                       const struct allot_progress *progress, struct allot_error *err);

#endif
