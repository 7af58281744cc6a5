/* layer.h - one layer of the network: its weights in float32, its activations, forward and backward.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. Passes of a layer, x (n, n_embd) in, y out:
 *   1 xn = norm(x)               5 h  = x + o(attn) + bias
 *   2 q, k, v = linear(xn)       6 hn = norm(h)
 *   3 rope(q), rope(k)           7 gate, up = linear(hn)
 *   4 attn = attention(q, k, v)  8 act = silu(gate) up;  y = h + down(act) + bias
 */
#ifndef ALLOT_NET_LAYER_H
#define ALLOT_NET_LAYER_H

#include "net/net.h"
#include "net/ops.h"

/* Weights of one layer, dequantized; w[slot] is NULL where there is none. One arena, reused. */
struct layer_weights {
    float *arena;
    float *w[NET_N_SLOTS];
};
allot_status layer_weights_init(struct layer_weights *weights, const struct net *net,
                                struct allot_error *err);
void layer_weights_release(struct layer_weights *weights);
allot_status layer_weights_load(struct layer_weights *weights, const struct net *net, int64_t il,
                                struct pool *pool, struct allot_error *err);

/* Activations of n tokens inside a layer, and, if made for the way back, their gradients. */
struct layer_work {
    float *arena;
    int64_t n_seqs, n_ctx;
    struct rope_table rope;
    float *scratch; /* for attention */
    float *xn, *q, *k, *v, *attn, *h, *hn, *gate, *up, *act;
    float *inv_rms_attn, *inv_rms_ffn; /* [n] */
    float *dh, *dnorm, *dattn, *dq, *dk, *dv, *dgate, *dup;
};
allot_status layer_work_init(struct layer_work *work, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                             bool backward, int n_threads, struct allot_error *err);
void layer_work_release(struct layer_work *work);
/* Floats that layer_work_init allocates. */
int64_t layer_work_floats(const struct net *net, int64_t n_seqs, int64_t n_ctx, bool backward, int n_threads);

/* y may be x. n_seqs may be below the work's. Calls observer->input for every map. */
allot_status layer_forward(const struct net *net, int64_t il, struct pool *pool,
                           const struct layer_weights *weights, struct layer_work *work, int64_t n_seqs,
                           float *y, const float *x, const struct net_observer *observer,
                           struct allot_error *err);

/* After layer_forward of all the work's sequences (y there may be NULL: the last product is skipped).
 * dy (n, n_embd) comes in as the gradient of y and leaves as the gradient of x. Calls observer->map,
 * vector and done. */
allot_status layer_backward(const struct net *net, int64_t il, struct pool *pool,
                            const struct layer_weights *weights, struct layer_work *work, float *dy,
                            const float *x, const struct net_observer *observer, struct allot_error *err);

/* Observer calls that do nothing when the callback is absent. */
allot_status observe_map(const struct net_observer *observer, const struct net_map *map,
                         struct allot_error *err);
allot_status observe_done(const struct net_observer *observer, const struct gguf_tensor *tensor,
                          struct allot_error *err);

#endif
