/* gather.h - the projections of a model's tensors as a backward pass goes by.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. The pass calls an observer for each map; one tensor after the other gets its sums
 * (project.h), and is handed on when they are complete. */
#ifndef ALLOT_COST_GATHER_H
#define ALLOT_COST_GATHER_H

#include "cost/imatrix.h"
#include "cost/project.h"

struct gather_tensor {
    enum ggml_type *types; /* the candidates; owned */
    size_t n_types;        /* 0: not wanted */
    struct projection *projection;
};

struct gather {
    const struct net *net;
    const struct imatrix *imatrix; /* or NULL */
    struct projector projector;
    struct gather_tensor *tensors; /* [n_tensors] of the model */
    /* All sums of a tensor are there; the projection goes after the call. */
    allot_status (*take)(void *user, const struct projection *p, struct allot_error *err);
    void *user;
    const struct allot_progress *progress;
    int last_layer_noted;                /* whose experts without tokens a note has named; -1: none */
    int64_t weights_done, weights_total; /* of the tensors wanted: progress of stage "costs" */
};

/* n_chunks chunks of `chunk` tokens. Set tensors, take and user before the pass. */
allot_status gather_init(struct gather *gather, const struct net *net, struct pool *pool,
                         const struct imatrix *imatrix, int32_t chunk, int64_t n_chunks,
                         const struct allot_progress *progress, struct allot_error *err);
/* Frees the types too. */
void gather_release(struct gather *gather);

struct net_observer gather_observer(struct gather *gather);

/* By how much a sum grows for experts that no token took, which count as the mean of the others. */
double gather_scale(const struct projection *p);
/* Names the experts that no token took: once a layer, whose tensors have them in common. */
void gather_note_unseen(struct gather *gather, const struct projection *p);

#endif
