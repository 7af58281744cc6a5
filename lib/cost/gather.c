/* gather.c - the projections of a model's tensors as a backward pass goes by.  SPDX-License-Identifier: MIT
 */
#include "cost/gather.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "cost/candidates.h"

allot_status gather_init(struct gather *gather, const struct net *net, struct pool *pool,
                         const struct imatrix *imatrix, int32_t chunk, int64_t n_chunks,
                         const struct allot_progress *progress, struct allot_error *err)
{
    *gather = (struct gather){.net = net, .imatrix = imatrix, .progress = progress, .last_layer_noted = -1};
    gather->tensors = calloc((size_t)net->model->n_tensors + 1, sizeof *gather->tensors);
    if (gather->tensors == NULL)
        return allot_fail_memory(err, (size_t)net->model->n_tensors * sizeof *gather->tensors, "candidates");
    projector_init(&gather->projector, pool, chunk, n_chunks);
    return ALLOT_OK;
}

void gather_release(struct gather *gather)
{
    for (int64_t i = 0; gather->tensors != NULL && i < gather->net->model->n_tensors; i++) {
        free(gather->tensors[i].types);
        projection_free(gather->tensors[i].projection);
    }
    free(gather->tensors);
    projector_release(&gather->projector);
    *gather = (struct gather){0};
}

/* ---- Callbacks of the backward pass ---------------------------------------------------------------- */

static struct gather_tensor *tensor_of(const struct gather *g, const struct gguf_tensor *tensor)
{
    return &g->tensors[tensor - g->net->model->tensors];
}

static bool gather_wants(void *user, const struct gguf_tensor *tensor)
{
    return tensor_of(user, tensor)->n_types > 0;
}

static allot_status find_projection(struct projection **out, struct gather *g,
                                    const struct gguf_tensor *tensor, struct allot_error *err)
{
    struct gather_tensor *t = tensor_of(g, tensor);
    allot_status status = ALLOT_OK;
    if (t->projection == NULL) {
        float *weights = NULL;
        char reason[128];
        if (g->imatrix != NULL)
            status = imatrix_weights(g->imatrix, tensor, &weights, reason, err);
        if (status == ALLOT_OK)
            status = projection_new(&t->projection, tensor, t->types, t->n_types, weights,
                                    g->projector.n_chunks, err);
    }
    *out = t->projection;
    return status;
}

static allot_status gather_map(void *user, const struct net_map *map, struct allot_error *err)
{
    struct gather *g = user;
    struct projection *p;
    allot_status status = find_projection(&p, g, map->tensor, err);
    if (status == ALLOT_OK)
        status = projection_add_map(p, &g->projector, map, err);
    return status;
}

static allot_status gather_lookup(void *user, const struct net_lookup *lookup, struct allot_error *err)
{
    struct gather *g = user;
    struct projection *p;
    allot_status status = find_projection(&p, g, lookup->tensor, err);
    if (status == ALLOT_OK)
        status = projection_add_lookup(p, &g->projector, g->net->model, lookup, err);
    gguf_tensor_forget(lookup->tensor);
    return status;
}

static allot_status gather_done(void *user, const struct gguf_tensor *tensor, struct allot_error *err)
{
    struct gather *g = user;
    struct gather_tensor *t = tensor_of(g, tensor);
    if (t->projection == NULL)
        return ALLOT_OK;
    bool all_seen =
        tensor != g->net->token_embd && candidates_seen(tensor, t->projection->seen) == tensor->ne[2];
    allot_status status = ALLOT_OK;
    if (!all_seen)
        status = projection_try_rows(t->projection, &g->projector, g->net->model, err);
    if (status == ALLOT_OK)
        status = g->take(g->user, t->projection, err);
    projection_free(t->projection);
    t->projection = NULL;
    g->weights_done += tensor->n_elements;
    if (status == ALLOT_OK)
        status = allot_report(g->progress, err, "costs", g->weights_done, g->weights_total);
    return status;
}

struct net_observer gather_observer(struct gather *gather)
{
    return (struct net_observer){.user = gather,
                                 .wants = gather_wants,
                                 .map = gather_map,
                                 .lookup = gather_lookup,
                                 .done = gather_done};
}

/* ---- Experts without tokens ------------------------------------------------------------------------ */

double gather_scale(const struct projection *p)
{
    return sqrt((double)p->tensor->ne[2] / (double)candidates_seen(p->tensor, p->seen));
}

void gather_note_unseen(struct gather *gather, const struct projection *p)
{
    const struct gguf_tensor *t = p->tensor;
    if (t->layer != gather->last_layer_noted && candidates_note_unseen(gather->progress, t, p->seen))
        gather->last_layer_noted = t->layer;
}
