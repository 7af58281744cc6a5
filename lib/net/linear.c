/* linear.c - maps and norms inside a layer.  SPDX-License-Identifier: MIT */
#include "net/linear.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/gemm.h"

/* ---- What observers see -------------------------------------------------------------------------- */

allot_status observe_input(const struct net_observer *observer, const struct net_input *input,
                           struct allot_error *err)
{
    if (observer == NULL || observer->input == NULL)
        return ALLOT_OK;
    return observer->input(observer->user, input, err);
}

allot_status observe_map(const struct net_observer *observer, const struct net_map *map,
                         struct allot_error *err)
{
    if (observer == NULL || observer->map == NULL ||
        (observer->wants != NULL && !observer->wants(observer->user, map->tensor)))
        return ALLOT_OK;
    return observer->map(observer->user, map, err);
}

allot_status observe_done(const struct net_observer *observer, const struct gguf_tensor *tensor,
                          struct allot_error *err)
{
    if (observer == NULL || observer->done == NULL)
        return ALLOT_OK;
    return observer->done(observer->user, tensor, err);
}

/* Passes the gradient of a bias to the observer. */
static allot_status bias_observe(const struct layer_call *c, enum net_slot bias, const float *dy,
                                 struct allot_error *err)
{
    const struct gguf_tensor *t = bias == NO_BIAS ? NULL : slot_tensor(c, bias);
    if (t == NULL || c->observer == NULL || c->observer->vector == NULL)
        return ALLOT_OK;
    double *sum = calloc((size_t)t->ne[0], sizeof *sum);
    if (sum == NULL)
        return allot_fail_memory(err, (size_t)t->ne[0] * sizeof *sum, t->name);
    bias_backward(sum, dy, c->n, t->ne[0]);
    allot_status status = c->observer->vector(c->observer->user, t, sum, t->ne[0], err);
    free(sum);
    return status;
}

/* ---- Linear maps --------------------------------------------------------------------------------- */

allot_status linear_forward(const struct layer_call *c, enum net_slot slot, enum net_slot bias, float *y,
                            const float *x, struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(c, slot);
    struct net_input input = {t, 0, c->n, t->ne[0], x};
    allot_status status = observe_input(c->observer, &input, err);
    if (status != ALLOT_OK || y == NULL)
        return status;
    gemm_forward(c->pool, y, x, c->weights->w[slot], c->n, t->ne[1], t->ne[0]);
    if (bias != NO_BIAS && c->weights->w[bias] != NULL)
        bias_forward(c->pool, y, c->weights->w[bias], c->n, t->ne[1]);
    return ALLOT_OK;
}

allot_status linear_backward(const struct layer_call *c, enum net_slot slot, enum net_slot bias, float *dx,
                             bool accumulate, const float *dy, const float *x, struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(c, slot);
    struct net_map map = {.tensor = t,
                          .n_rows = t->ne[1],
                          .n_in = t->ne[0],
                          .n_tokens = c->n,
                          .w = c->weights->w[slot],
                          .x = x,
                          .g = dy};
    gemm_backward(c->pool, dx, dy, map.w, c->n, t->ne[1], t->ne[0], accumulate);
    allot_status status = bias_observe(c, bias, dy, err);
    if (status == ALLOT_OK)
        status = observe_map(c->observer, &map, err);
    if (status == ALLOT_OK)
        status = observe_done(c->observer, t, err);
    return status;
}

/* ---- Norms --------------------------------------------------------------------------------------- */

void norm_forward(const struct layer_call *c, enum net_slot slot, float *y, float *inv_rms, const float *x,
                  int64_t n_rows)
{
    rms_norm_forward(c->pool, y, inv_rms, x, c->weights->w[slot], n_rows, slot_tensor(c, slot)->ne[0],
                     c->net->rms_eps);
}

allot_status norm_backward(const struct layer_call *c, enum net_slot slot, float *dx, const float *dy,
                           const float *x, const float *inv_rms, int64_t n_rows, struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(c, slot);
    bool wanted = c->observer != NULL && c->observer->vector != NULL;
    double *dw = wanted ? calloc((size_t)t->ne[0], sizeof *dw) : NULL;
    if (wanted && dw == NULL)
        return allot_fail_memory(err, (size_t)t->ne[0] * sizeof *dw, t->name);
    rms_norm_backward(c->pool, dx, dw, dy, x, c->weights->w[slot], inv_rms, n_rows, t->ne[0]);
    allot_status status = wanted ? c->observer->vector(c->observer->user, t, dw, t->ne[0], err) : ALLOT_OK;
    free(dw);
    return status;
}
