/* linear.h - the maps and norms inside a layer, with what observers see of them.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. */
#ifndef ALLOT_NET_LINEAR_H
#define ALLOT_NET_LINEAR_H

#include "net/layer.h"

static inline const struct gguf_tensor *slot_tensor(const struct layer_call *c, enum net_slot slot)
{
    return c->net->layers[c->il].tensors[slot];
}

/* Observer calls that do nothing when the callback is absent. */
allot_status observe_input(const struct net_observer *observer, const struct net_input *input,
                           struct allot_error *err);
allot_status observe_map(const struct net_observer *observer, const struct net_map *map,
                         struct allot_error *err);
allot_status observe_done(const struct net_observer *observer, const struct gguf_tensor *tensor,
                          struct allot_error *err);

/* y (n, out) = x (n, in) w' + bias; y NULL: the observer sees x and that is all. */
allot_status linear_forward(const struct layer_call *c, enum net_slot slot, enum net_slot bias, float *y,
                            const float *x, struct allot_error *err);
/* dx (n, in) is overwritten or added to; the gradients of weight and bias go to the observer. */
allot_status linear_backward(const struct layer_call *c, enum net_slot slot, enum net_slot bias, float *dx,
                             bool accumulate, const float *dy, const float *x, struct allot_error *err);

/* y = norm(x) over rows of the weight's width; x has n_rows of them. */
void norm_forward(const struct layer_call *c, enum net_slot slot, float *y, float *inv_rms, const float *x,
                  int64_t n_rows);
/* Adds to dx; the gradient of the weight goes to the observer. */
allot_status norm_backward(const struct layer_call *c, enum net_slot slot, float *dx, const float *dy,
                           const float *x, const float *inv_rms, int64_t n_rows, struct allot_error *err);

/* ---- Blocks --------------------------------------------------------------------------------------- */

/* h = x + residual_scale attention branch of x. */
allot_status attn_block_forward(const struct layer_call *c, const float *x, struct allot_error *err);
/* From work->dh to dx (overwritten). */
allot_status attn_block_backward(const struct layer_call *c, float *dx, const float *x,
                                 struct allot_error *err);

/* y = h + residual_scale feed-forward branch of h. */
allot_status ffn_block_forward(const struct layer_call *c, float *y, struct allot_error *err);
/* From dy to work->dh (overwritten). */
allot_status ffn_block_backward(const struct layer_call *c, const float *dy, struct allot_error *err);

/* out (n, n_embd) = sum over the chosen experts; out NULL: the last products are left out. */
allot_status experts_forward(const struct layer_call *c, float *out, struct allot_error *err);
/* d (n, n_embd): gradient of out. Adds to work->dnorm, the gradient of hn. */
allot_status experts_backward(const struct layer_call *c, const float *d, struct allot_error *err);
/* Makes work->routing from acts->chosen. */
void experts_sort(const struct layer_call *c);

#endif
