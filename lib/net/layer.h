/* layer.h - one layer of the network: its weights in float32, its activations, forward and backward.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. attn_block.c, ffn_block.c and moe.c hold the blocks, linear.c their maps and norms.
 */
#ifndef ALLOT_NET_LAYER_H
#define ALLOT_NET_LAYER_H

#include "net/net.h"
#include "net/ops.h"

/* clang-format off */
/* The program of a layer, x (n, n_embd) in, y out; what is in brackets an architecture has or has not:
 *
 *   xn = norm(x)
 *   q, k, v = linear(xn)                      one map, or three
 *   [q, k = norm(q), norm(k)]  [q, k = rope(q), rope(k)]
 *   b = linear(attention(q, k, v))
 *   [b = norm(b)]
 *   h = x + residual_scale b
 *
 *   hn = norm(h)
 *   dense:    gate, up = linear(hn)           one map, or two
 *             b = linear(act(gate) up)
 *   experts:  b = sum of w_e expert_e(hn)  [+ s shared(hn)]
 *   [b = norm(b)]
 *   y = h + residual_scale b
 *
 * Norms have weights and no biases; linear maps may have biases. */
/* clang-format on */

/* Weights of one layer, dequantized; w[slot] is NULL where there is none. One arena, reused. Matrices of
 * experts are loaded one expert at a time, into expert[]. */
struct layer_weights {
    struct spill arena;
    float *w[NET_N_SLOTS];
    float *expert[3]; /* gate, up, down of the expert in hand */
};
allot_status layer_weights_init(struct layer_weights *weights, const struct net *net,
                                struct allot_error *err);
void layer_weights_release(struct layer_weights *weights);
allot_status layer_weights_load(struct layer_weights *weights, const struct net *net, int64_t il,
                                struct pool *pool, struct allot_error *err);
/* The tensor of one slot of that layer anew, from a net whose source may differ; not one of a stack. */
allot_status layer_weights_load_slot(struct layer_weights *weights, const struct net *net, int64_t il,
                                     enum net_slot slot, struct pool *pool, struct allot_error *err);
/* Bytes that layer_weights_init allocates. */
int64_t layer_weights_bytes(const struct net *net);

/* What the way back needs of one layer's way forward. For experts gate and up hold a row for each pair of a
 * token and an expert it took, in the order of struct routing. */
struct layer_acts {
    struct spill arena;
    float *q_in, *k_in;        /* before their norms, where they have any */
    float *q, *k, *v;          /* as attention takes them */
    float *attn;               /* its output */
    float *attn_out, *ffn_out; /* before post norms, where there are any */
    float *h, *gate, *up;
    float *inv_rms_attn, *inv_rms_ffn, *inv_rms_q, *inv_rms_k, *inv_rms_attn_post, *inv_rms_ffn_post;
    float *probs, *weights;                        /* (n, experts); (n, experts used) */
    int32_t *chosen;                               /* (n, experts used) */
    float *shared_gate, *shared_up, *shared_scale; /* scale: [n] */
};

/* Pairs of a token and an expert, by expert, then token. */
struct routing {
    int64_t *start;        /* [experts + 1] first pair of each expert */
    int32_t *token, *slot; /* [pairs]: position in the call; which of the token's experts this is */
};

/* Buffers for work on n tokens, and, if made for the way back, for gradients. */
struct layer_work {
    struct spill arena;
    int64_t n_seqs, n_ctx;
    struct rope_table ropes[NET_N_ROPES];
    struct routing routing;
    float *scratch;         /* for attention */
    float *xn, *hn, *act;   /* cheap to make again: not among the acts */
    float *fused;           /* q, k, v or gate, up of a fused map */
    float *branch;          /* (n, n_embd): what a branch gives, or its gradient before the post norm */
    float *rows_x, *rows_y; /* (n, n_embd): rows of one expert's tokens; the shared expert uses them too */
    /* gradients: of h, of xn or hn, of a branch; dh is free until the feed-forward half is done */
    float *dh, *dnorm, *dbranch, *dattn, *dq, *dk, *dv, *dgate, *dup, *dprobs, *dweights;
};
/* folder: where the buffers go as a file; NULL: memory. */
allot_status layer_work_init(struct layer_work *work, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                             bool backward, int n_threads, const char *folder, struct allot_error *err);
void layer_work_release(struct layer_work *work);
/* Floats that layer_work_init allocates. */
int64_t layer_work_floats(const struct net *net, int64_t n_seqs, int64_t n_ctx, bool backward, int n_threads);

allot_status layer_acts_init(struct layer_acts *acts, const struct net *net, int64_t n, const char *folder,
                             struct allot_error *err);
void layer_acts_release(struct layer_acts *acts);
int64_t layer_acts_floats(const struct net *net, int64_t n);

/* Sequences that a forward pass that leaves no tape takes through a layer at a time. */
int64_t net_group_seqs(int64_t n_seqs, int64_t n_ctx, int64_t group_tokens);

/* A layer's pass over some sequences. */
struct layer_call {
    const struct net *net;
    int64_t il;
    struct pool *pool;
    struct layer_weights *weights;
    struct layer_acts *acts;
    struct layer_work *work;
    const struct net_observer *observer;
    int64_t n_seqs, n; /* n tokens, at most the work's */
};

/* y may be x, or NULL: what only it needs is left out. Calls observer->input for every map. */
allot_status layer_forward(const struct layer_call *c, float *y, const float *x, struct allot_error *err);

/* Makes xn, hn and the routing in the work anew, from the acts. */
void layer_refill(const struct layer_call *c, const float *x);

/* After layer_forward or layer_refill of all sequences. dy (n, n_embd) comes in as the gradient of y and
 * leaves as the gradient of x. The acts are spoilt on the way. Calls observer->map, vector and done. */
allot_status layer_backward(const struct layer_call *c, float *dy, const float *x, struct allot_error *err);

#endif
