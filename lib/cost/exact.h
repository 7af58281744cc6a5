/* exact.h - the cost of every (tensor, type) as the KL divergence of the network with that one change.
 *
 * SPDX-License-Identifier: MIT
 *
 * Nothing is estimated and nothing scaled: for every tensor and every type the network of lib/net is run with
 * that tensor quantized, from its layer on (net/replay.h), over S sequences of T tokens in float32, and
 *
 *     cost = mean over sequences and positions of KL(p || p')                [nats per token].
 *
 * It takes a good part of a pass over the model for each (tensor, type), so it is for small models, and the
 * yardstick of the other methods. Where the output would take longer than half of the layers, which are an
 * average tensor's share, it is compared at every second, fourth or eighth position only (exact_every).
 *
 * Tied embeddings are one tensor in two roles, which change together. A stack of experts' matrices is one
 * tensor: its experts change together, and tokens may then go to others. Experts that no token of the
 * unchanged network took show nothing and count as the mean of the others, as in fisher.h: the costs of their
 * tensors are multiplied by experts over experts taken, and a note names them. */
#ifndef ALLOT_COST_EXACT_H
#define ALLOT_COST_EXACT_H

#include "archive/archive.h"
#include "cost/imatrix.h"
#include "net/net.h"
#include "text/text.h"

struct exact_options {
    const enum ggml_type *types; /* candidates, legal ones are used for each tensor */
    size_t n_types;
    const struct memory_budget *memory; /* NULL: no limit; results do not depend on it */
};

#define EXACT_DEFAULT_SEQUENCES 8

/* Outputs are compared at every such position: the least of 1, 2, 4, 8 with which a token's products with the
 * output matrix are no more than those with half of the layers; 8 if none is enough. */
int64_t exact_every(const struct net *net);

/* What the costs of a set depend on: "every=4"; windows and imatrix are keyed apart. */
void exact_params(char params[static 64], const struct net *net);

struct exact_result {
    int64_t n_tensors;          /* quantizable tensors of the model */
    int64_t n_unsuited;         /* of them, those that no candidate suits */
    int64_t n_resumed;          /* and those found complete in the archive */
    double seconds_forward;     /* the unchanged network, once */
    double seconds_variants;    /* all others; rows are quantized on the way */
    double seconds_quantize;    /* finding out what types can hold, before */
    struct net_placement place; /* of the passes' blocks; zeros if nothing was lacking */
};

/* Computes what the set still lacks and stores it tensor by tensor; interrupted, the next call goes on and
 * ends with the same numbers. Says at first how long it will take. The standard error of a cost takes
 * sequences as samples. Sequences have at least exact_every tokens. imatrix may be NULL. Progress stages:
 * "forward", then "exact". Results do not depend on the number of threads. */
allot_status exact_run(struct exact_result *result, const struct net *net, struct pool *pool,
                       const struct text_windows *windows, const struct imatrix *imatrix,
                       const struct exact_options *options, struct archive *archive, int64_t set_id,
                       const struct allot_progress *progress, struct allot_error *err);

#endif
