/* planned.h - a model's weights as a plan would leave them.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. Every tensor in its type, as bytes, in memory or in a temporary file; rows come back
 * as float32 for a network to run on. */
#ifndef ALLOT_COST_PLANNED_H
#define ALLOT_COST_PLANNED_H

#include "base/memory.h"
#include "base/pool.h"
#include "base/spill.h"
#include "cost/imatrix.h"
#include "net/net.h"

struct planned {
    const struct gguf_model *model;
    enum ggml_type *types; /* [n_tensors] */
    int64_t *offsets;      /* [n_tensors] into bytes; -1: the tensor is as it was */
    struct spill bytes;
    struct net_source source;
    struct net net; /* that of the original with these weights */
};

/* Quantizes the tensors of `net` whose type (types: [n_tensors], the plan's) is not the source's. imatrix: or
 * NULL. A type that cannot hold its tensor is an error. In memory if half of the budget (NULL: no limit) has
 * room for it. Progress stage "quantize". The net must outlive it, and it must not move. */
allot_status planned_init(struct planned *planned, const struct net *net, const enum ggml_type *types,
                          const struct imatrix *imatrix, struct pool *pool,
                          const struct memory_budget *memory, const struct allot_progress *progress,
                          struct allot_error *err);
void planned_release(struct planned *planned);

#endif
