/* net.h - a decoder-only transformer read from a GGUF, forward and backward, layer by layer.
 *
 * SPDX-License-Identifier: MIT
 *
 * float32 throughout. One layer's weights are in memory at a time; everything else is the
 * activations of the tokens in hand. Knows nothing of quantization: observers see the inputs and the
 * output gradients of every linear map and do with them what they like.
 *
 * Architectures are described in arch.c. Anything in a file that its architecture has no place for is
 * refused by name, never ignored.
 *
 * Shapes: S sequences of T tokens, n = S*T; matrices (out, in) as stored, so y = x w'.
 */
#ifndef ALLOT_NET_NET_H
#define ALLOT_NET_NET_H

#include "base/pool.h"
#include "gguf/model.h"
#include "net/tape.h"

/* The tensors of one layer. The feed-forward part is either dense or a router and experts (stacks of
 * matrices), with or without a shared expert. */
enum net_slot {
    NET_ATTN_NORM,
    NET_ATTN_Q,
    NET_ATTN_K,
    NET_ATTN_V,
    NET_ATTN_QKV, /* instead of the three */
    NET_ATTN_Q_NORM,
    NET_ATTN_K_NORM,
    NET_ATTN_OUT,
    NET_ATTN_POST_NORM,
    NET_FFN_NORM,
    NET_FFN_GATE,
    NET_FFN_UP, /* with the gate's rows before its own where the architecture fuses them */
    NET_FFN_DOWN,
    NET_ROUTER,
    NET_EXPERTS_GATE,
    NET_EXPERTS_UP,
    NET_EXPERTS_DOWN,
    NET_SHARED_ROUTER, /* a vector */
    NET_SHARED_GATE,
    NET_SHARED_UP,
    NET_SHARED_DOWN,
    NET_FFN_POST_NORM,
    NET_ATTN_Q_BIAS,
    NET_ATTN_K_BIAS,
    NET_ATTN_V_BIAS,
    NET_ATTN_QKV_BIAS,
    NET_ATTN_OUT_BIAS,
    NET_FFN_GATE_BIAS,
    NET_FFN_UP_BIAS,
    NET_FFN_DOWN_BIAS,
    NET_N_SLOTS,
    NO_BIAS = NET_N_SLOTS /* where a bias may be named */
};

struct net_layer {
    const struct gguf_tensor *tensors[NET_N_SLOTS]; /* NULL where the model has none */
    int64_t window;                                 /* keys a query sees, itself included; 0: all before it */
    int rope;                                       /* enum net_rope_kind */
};

/* Which rotary embedding a layer has. Of windowed layers libllama keeps its own base and scale ("_swa"). */
enum net_rope_kind { NET_ROPE_NONE = -1, NET_ROPE_PLAIN, NET_ROPE_WINDOWED, NET_N_ROPES };

/* Frequencies of a rotary embedding. scale multiplies positions (linear scaling by a factor f is 1/f). */
struct net_rope {
    double base, scale;
};

enum rope_scaling { ROPE_SCALING_LINEAR, ROPE_SCALING_NONE, ROPE_SCALING_YARN, ROPE_SCALING_LONGROPE };

struct net_arch; /* arch.h */

/* Weights of the caller's own, in place of the model's. */
struct net_source {
    void *user;
    bool (*replaces)(void *user, const struct gguf_tensor *tensor); /* has it rows of this tensor? */
    /* Those rows, [first, first + n_rows) of all matrices of a stack as one list, to dst (n_rows, ne[0]):
     * finite float32, the same in every call. pool: to share out the work over; NULL: on this thread alone,
     * and perhaps on others at the same time. */
    allot_status (*rows)(void *user, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                         float *dst, struct pool *pool, struct allot_error *err);
};

/* A copy of an opened net with another source is a net too: it may be given wherever a net is wanted, shares
 * all it has with the first, goes with it, and is not released. What net_open reads itself, the factors of
 * the rotary embedding, stays the model's. */
struct net {
    const struct gguf_model *model;
    const struct net_source *source; /* NULL, as net_open sets it: the model's weights */
    const struct net_arch *arch;
    int64_t n_layers, n_embd, n_vocab, n_heads, n_kv_heads, head_dim;
    int64_t n_ff;                      /* width of the dense feed-forward part, or of one expert */
    int64_t n_experts, n_experts_used; /* 0: dense */
    int64_t n_ff_shared;               /* 0: no shared expert */
    int64_t max_layer_weights;         /* over the layers, experts aside */
    float rms_eps, attn_scale;
    float attn_softcap, final_softcap; /* 0: none */
    float embd_scale, residual_scale, logit_scale;
    bool exact_gelu; /* false, as net_open sets it: rounded as ggml's CPU kernels do */
    int64_t n_rot, n_ctx_trained, n_ctx_original;
    enum rope_scaling rope_scaling;
    double rope_magnitude;                   /* of cosines and sines */
    struct net_rope ropes[NET_N_ROPES];      /* by kind */
    float *rope_factors, *rope_factors_long; /* [n_rot/2] divisors of the frequencies, or NULL; the second
                                                are for sequences longer than n_ctx_original */
    const struct gguf_tensor *rope_tensors[2];
    struct net_layer *layers;
    const struct gguf_tensor *token_embd, *output_norm, *output; /* output is token_embd when tied */
    const struct gguf_tensor *output_bias;                       /* or NULL */
};

/* Is the slot's tensor a stack of the experts' matrices (of one, where there is one expert)? */
bool net_slot_is_stack(enum net_slot slot);

/* Checks architecture, hyperparameters, and presence and shape of every tensor, and refuses tensors
 * it does not know; what libllama refuses is refused here too. The model stays open as long as the net. */
allot_status net_open(struct net *net, const struct gguf_model *model, struct allot_error *err);
void net_release(struct net *net);

/* What enters a linear map on the way forward, for the tokens of this call: those of one expert where the
 * tensor is a stack of experts' matrices. */
struct net_input {
    const struct gguf_tensor *tensor;
    int64_t matrix; /* which of tensor->ne[2]; 0 where there is one */
    int64_t n_tokens, n_in;
    const float *x; /* (n_tokens, n_in) */
};

/* What passes through a linear map on the way back. A map may come in several calls, by row ranges in
 * rising order; an expert's matrix e of a stack has rows e*ne[1] to (e+1)*ne[1], and no call spans two. An
 * expert that no token took makes no call. Gradients are those of sum_t log p(label_t). */
struct net_map {
    const struct gguf_tensor *tensor;
    int64_t first_row, n_rows, n_in, n_tokens;
    const int32_t *tokens; /* [n_tokens] their positions in the batch, rising; NULL: 0 to n_tokens-1 */
    const float *w;        /* (n_rows, n_in): rows of the weight */
    const float *x;        /* (n_tokens, n_in): inputs */
    const float *g;        /* (n_tokens, n_rows): output gradients */
};

/* The token embedding on the way back. */
struct net_lookup {
    const struct gguf_tensor *tensor;
    int64_t n_tokens, n_in;
    const int32_t *ids; /* [n_tokens] rows looked up */
    const float *g;     /* (n_tokens, n_in): gradients of the rows */
};

/* Any callback may be NULL. A failure ends the pass with its status. */
struct net_observer {
    void *user;
    allot_status (*input)(void *user, const struct net_input *input, struct allot_error *err);
    /* Backward: if false, map and lookup are not called for the tensor. NULL: all are wanted. */
    bool (*wants)(void *user, const struct gguf_tensor *tensor);
    allot_status (*map)(void *user, const struct net_map *map, struct allot_error *err);
    allot_status (*lookup)(void *user, const struct net_lookup *lookup, struct allot_error *err);
    /* The whole gradient of a norm weight or bias. */
    allot_status (*vector)(void *user, const struct gguf_tensor *tensor, const double *gradient, int64_t n,
                           struct allot_error *err);
    /* All calls for this tensor have been made (a tied embedding comes last). */
    allot_status (*done)(void *user, const struct gguf_tensor *tensor, struct allot_error *err);
};

/* Tokens to run: (S, T), every id below n_vocab (checked). */
struct net_batch {
    const int32_t *ids;
    int64_t n_seqs, n_ctx;
};

/* Forward. x (n, n_embd) receives the input of the output norm; tape, unless NULL, says where the work is
 * done and keeps what net_backward wants. Without states to keep, layers work on at most group_tokens tokens
 * at a time (whole sequences, at least one) to bound memory. progress counts layers. */
allot_status net_forward(const struct net *net, struct pool *pool, const struct net_batch *batch, float *x,
                         struct net_tape *tape, int64_t group_tokens, const struct net_observer *observer,
                         const struct allot_progress *progress, struct allot_error *err);

/* Natural log-probabilities (n, n_vocab) for the final states x (n, n_embd) of n tokens. */
allot_status net_log_probs(const struct net *net, struct pool *pool, const float *x, int64_t n,
                           float *log_probs, struct allot_error *err);

/* xn (n, n_embd) receives what enters the output matrix: the final states x (n, n_embd), normed. */
allot_status net_output_input(const struct net *net, struct pool *pool, const float *x, int64_t n, float *xn,
                              struct allot_error *err);

/* The final states of the same tokens in another network. */
struct net_other {
    const struct net *net; /* a copy with another source, which leaves the output's norm and bias alone */
    const float *x;        /* (n, n_embd) */
};

/* kl (n_others, n) receives KL(p || p'), nats, of n tokens: p the net's distribution at its final states x
 * (n, n_embd), p' that of each other. The output matrix is read once for all that have the net's own. Good to
 * 1e-6 of the value for the logits as they are; what limits it is their rounding to float32, of which a
 * token's KL of 1e-9 feels less than 1e-2. Not finite where a state is not.
 */
allot_status net_divergence(double *kl, const struct net *net, struct pool *pool, const float *x, int64_t n,
                            const struct net_other *others, int64_t n_others, struct allot_error *err);

/* Final states of another network with the same vocabulary, for the first n tokens of a batch: its
 * distribution q stands there in place of labels, and what is differentiated is sum_y q(y) log p(y). The
 * gradient of KL(q || p) is the negative of that. */
struct net_teacher {
    const struct net *net;
    int64_t n;
    const float *x;   /* (n, n_embd) */
    const float *lse; /* [n] of its logits */
};

/* Bytes that a teacher of n tokens takes in net_backward, beside x and lse. */
int64_t net_teacher_bytes(const struct net *net, int64_t n);

/* What is differentiated: the log-probability of labels, or of a teacher's distribution. */
struct net_targets {
    int64_t n;
    int32_t *labels;                   /* [n]; negative: this position has none */
    float *lse;                        /* [n] logarithm of the sum of the exponentials of the logits */
    const struct net_teacher *teacher; /* or NULL; the caller's */
};
/* Draws a label from the model's own distribution at every position, from the random number
 * (seed, position in the batch). The caller may then overwrite labels. */
allot_status net_targets_draw(struct net_targets *targets, const struct net *net, struct pool *pool,
                              const float *x, int64_t n, uint64_t seed, struct allot_error *err);
void net_targets_release(struct net_targets *targets);

/* Backward from sum_t log p(label_t), with x and tape as net_forward left them; what the tape keeps
 * inside layers goes then, the states stay. progress counts layers, the head as the first and the embedding
 * as the last. */
allot_status net_backward(const struct net *net, struct pool *pool, const struct net_batch *batch,
                          const float *x, struct net_tape *tape, const struct net_targets *targets,
                          const struct net_observer *observer, const struct allot_progress *progress,
                          struct allot_error *err);

#endif
