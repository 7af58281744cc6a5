/* layer.c - one layer: weights, activations, forward and backward.  SPDX-License-Identifier: MIT */
#include "net/layer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "net/arch.h"
#include "net/linear.h"
#include "net/source.h"

enum { LINE = 16 }; /* floats of a cache line, on which every buffer starts */

/* ---- Weights ----------------------------------------------------------------------------------- */

static int64_t expert_floats(const struct net *net)
{
    return net->n_experts > 0 ? rounded_up(net->n_ff * net->n_embd, LINE) : 0;
}

int64_t layer_weights_bytes(const struct net *net)
{
    return (int64_t)sizeof(float) *
           rounded_up(net->max_layer_weights + 16 * NET_N_SLOTS + 3 * expert_floats(net), LINE);
}

allot_status layer_weights_init(struct layer_weights *weights, const struct net *net, struct allot_error *err)
{
    *weights = (struct layer_weights){0};
    allot_status status =
        spill_new(&weights->arena, (size_t)layer_weights_bytes(net), NULL, "the weights of a layer", err);
    for (int i = 0; i < 3 && net->n_experts > 0 && status == ALLOT_OK; i++)
        weights->expert[i] = (float *)weights->arena.data + i * expert_floats(net);
    return status;
}

void layer_weights_release(struct layer_weights *weights)
{
    spill_release(&weights->arena);
    *weights = (struct layer_weights){0};
}

allot_status layer_weights_load_slot(struct layer_weights *weights, const struct net *net, int64_t il,
                                     enum net_slot slot, struct pool *pool, struct allot_error *err)
{
    const struct gguf_tensor *t = net->layers[il].tensors[slot];
    allot_status status = net_rows(net, t, 0, t->n_rows, weights->w[slot], pool, err);
    gguf_tensor_forget(t);
    return status;
}

allot_status layer_weights_load(struct layer_weights *weights, const struct net *net, int64_t il,
                                struct pool *pool, struct allot_error *err)
{
    float *next = (float *)weights->arena.data + 3 * expert_floats(net);
    for (int slot = 0; slot < NET_N_SLOTS; slot++) {
        const struct gguf_tensor *t = net->layers[il].tensors[slot];
        weights->w[slot] = NULL;
        if (t == NULL || net_slot_is_stack((enum net_slot)slot))
            continue;
        weights->w[slot] = next;
        allot_status status = layer_weights_load_slot(weights, net, il, (enum net_slot)slot, pool, err);
        if (status != ALLOT_OK)
            return status;
        next += rounded_up(t->n_elements, LINE);
    }
    return ALLOT_OK;
}

/* ---- Buffers ------------------------------------------------------------------------------------- */

/* A buffer of an arena; of size 0 it stays NULL. */
struct buffer {
    float **at;
    int64_t size;
};

/* Lays the buffers out from `base` (NULL: only counts) and returns the number of floats. */
static int64_t lay_out(const struct buffer *buffers, size_t n, float *base)
{
    int64_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (base != NULL && buffers[i].size > 0)
            *buffers[i].at = base + used;
        used += rounded_up(buffers[i].size, LINE);
    }
    return used;
}

static int64_t lay_out_acts(struct layer_acts *a, const struct net *net, int64_t n, float *base)
{
    int64_t q = n * net->n_heads * net->head_dim, kv = n * net->n_kv_heads * net->head_dim;
    int64_t embd = n * net->n_embd, pairs = n * net->n_experts_used;
    int64_t ff = (net->n_experts > 0 ? pairs : n) * net->n_ff, shared = n * net->n_ff_shared;
    bool wide = has(net, ARCH_QK_NORM_WIDE), qk_norm = wide || has(net, ARCH_QK_NORM);
    int64_t post = has(net, ARCH_POST_NORMS);
    float *chosen = NULL;
    struct buffer buffers[] = {
        {&a->q, q},
        {&a->k, kv},
        {&a->v, kv},
        {&a->attn, q},
        {&a->h, embd},
        {&a->gate, ff},
        {&a->up, ff},
        {&a->inv_rms_attn, n},
        {&a->inv_rms_ffn, n},
        {&a->q_in, qk_norm ? q : 0},
        {&a->k_in, qk_norm ? kv : 0},
        {&a->inv_rms_q, qk_norm ? (wide ? n : n * net->n_heads) : 0},
        {&a->inv_rms_k, qk_norm ? (wide ? n : n * net->n_kv_heads) : 0},
        {&a->attn_out, post * embd},
        {&a->ffn_out, post * embd},
        {&a->inv_rms_attn_post, post * n},
        {&a->inv_rms_ffn_post, post * n},
        {&a->probs, n * net->n_experts},
        {&a->weights, pairs},
        {&chosen, pairs},
        {&a->shared_gate, shared},
        {&a->shared_up, shared},
        {&a->shared_scale, net->n_ff_shared > 0 ? n : 0},
    };
    int64_t used = lay_out(buffers, sizeof buffers / sizeof *buffers, base);
    a->chosen = (int32_t *)chosen;
    return used;
}

int64_t layer_acts_floats(const struct net *net, int64_t n)
{
    struct layer_acts acts;
    return lay_out_acts(&acts, net, n, NULL);
}

allot_status layer_acts_init(struct layer_acts *acts, const struct net *net, int64_t n, const char *folder,
                             struct allot_error *err)
{
    *acts = (struct layer_acts){0};
    allot_status status = spill_new(&acts->arena, sizeof(float) * (size_t)layer_acts_floats(net, n), folder,
                                    "the activations of a layer", err);
    if (status == ALLOT_OK)
        lay_out_acts(acts, net, n, acts->arena.data);
    return status;
}

void layer_acts_release(struct layer_acts *acts)
{
    spill_release(&acts->arena);
    *acts = (struct layer_acts){0};
}

/* Columns of the buffer for fused maps: 0 where no tensor is fused. */
static int64_t fused_width(const struct net *net)
{
    int64_t qkv = 0;
    for (int64_t il = 0; il < net->n_layers; il++)
        if (net->layers[il].tensors[NET_ATTN_QKV] != NULL)
            qkv = (net->n_heads + 2 * net->n_kv_heads) * net->head_dim;
    return most(qkv, has(net, ARCH_FUSED_GATE) ? 2 * net->n_ff : 0);
}

static int64_t lay_out_work(struct layer_work *w, const struct net *net, bool backward, int n_threads,
                            float *base)
{
    int64_t n = w->n_seqs * w->n_ctx, embd = n * net->n_embd, back = backward;
    int64_t q = n * net->n_heads * net->head_dim, kv = n * net->n_kv_heads * net->head_dim;
    int64_t ff = n * most(net->n_ff, net->n_ff_shared), pairs = n * net->n_experts_used;
    int64_t rows = net->n_experts > 0 ? embd : 0;
    bool branches = has(net, ARCH_POST_NORMS) || net->residual_scale != 1;
    float *token = NULL, *slot = NULL, *start = NULL;
    struct buffer buffers[] = {
        {&w->xn, embd},
        {&w->hn, embd},
        {&w->act, ff},
        {&w->fused, n * fused_width(net)},
        {&w->branch, branches ? embd : 0},
        {&w->rows_x, rows},
        {&w->rows_y, rows},
        {&w->scratch, attention_scratch(w->n_ctx, net->attn_softcap > 0, n_threads)},
        {&start, net->n_experts > 0 ? 2 * (net->n_experts + 1) : 0},
        {&token, pairs},
        {&slot, pairs},
        {&w->dh, back * embd},
        {&w->dnorm, back * embd},
        {&w->dbranch, branches ? back * embd : 0},
        {&w->dattn, back * q},
        {&w->dq, back * q},
        {&w->dk, back * kv},
        {&w->dv, back * kv},
        {&w->dgate, back * ff},
        {&w->dup, back * ff},
        {&w->dprobs, back * n * net->n_experts},
        {&w->dweights, back * pairs},
    };
    int64_t used = lay_out(buffers, sizeof buffers / sizeof *buffers, base);
    w->routing = (struct routing){(int64_t *)(void *)start, (int32_t *)token, (int32_t *)slot};
    return used;
}

int64_t layer_work_floats(const struct net *net, int64_t n_seqs, int64_t n_ctx, bool backward, int n_threads)
{
    struct layer_work work = {.n_seqs = n_seqs, .n_ctx = n_ctx};
    return lay_out_work(&work, net, backward, n_threads, NULL);
}

static allot_status make_rope_tables(struct layer_work *work, const struct net *net, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    /* libllama compares its context, a multiple of 256; where it takes the long ones there may be none */
    bool longer = rounded_up(work->n_ctx, 256) > net->n_ctx_original;
    bool two = has(net, ARCH_ROPE_LONG_SHORT) || net->rope_scaling == ROPE_SCALING_LONGROPE;
    for (int i = 0; i < NET_N_ROPES && status == ALLOT_OK; i++) {
        struct rope_options options = {
            .n_rot = net->n_rot,
            .base = net->ropes[i].base,
            .scale = net->ropes[i].scale,
            .magnitude = net->rope_magnitude,
            .freq_factors = two && longer ? net->rope_factors_long : net->rope_factors,
            .neox = has(net, ARCH_ROPE_NEOX),
            .yarn = net->rope_scaling == ROPE_SCALING_YARN,
            .n_ctx_original = net->n_ctx_original,
        };
        status = rope_table_init(&work->ropes[i], work->n_ctx, &options, err);
    }
    return status;
}

allot_status layer_work_init(struct layer_work *work, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                             bool backward, int n_threads, const char *folder, struct allot_error *err)
{
    *work = (struct layer_work){.n_seqs = n_seqs, .n_ctx = n_ctx};
    int64_t floats = layer_work_floats(net, n_seqs, n_ctx, backward, n_threads);
    allot_status status = make_rope_tables(work, net, err);
    if (status == ALLOT_OK)
        status =
            spill_new(&work->arena, sizeof(float) * (size_t)floats, folder, "the buffers of a layer", err);
    if (status == ALLOT_OK)
        lay_out_work(work, net, backward, n_threads, work->arena.data);
    else
        layer_work_release(work);
    return status;
}

void layer_work_release(struct layer_work *work)
{
    for (int i = 0; i < NET_N_ROPES; i++)
        rope_table_release(&work->ropes[i]);
    spill_release(&work->arena);
    *work = (struct layer_work){0};
}

/* ---- Passes ---------------------------------------------------------------------------------------- */

allot_status layer_forward(const struct layer_call *c, float *y, const float *x, struct allot_error *err)
{
    allot_status status = attn_block_forward(c, x, err);
    if (status == ALLOT_OK)
        status = ffn_block_forward(c, y, err);
    return status;
}

void layer_refill(const struct layer_call *c, const float *x)
{
    norm_forward(c, NET_ATTN_NORM, c->work->xn, c->acts->inv_rms_attn, x, c->n);
    norm_forward(c, NET_FFN_NORM, c->work->hn, c->acts->inv_rms_ffn, c->acts->h, c->n);
    if (c->net->n_experts > 0)
        experts_sort(c);
}

allot_status layer_backward(const struct layer_call *c, float *dy, const float *x, struct allot_error *err)
{
    allot_status status = ffn_block_backward(c, dy, err);
    if (status == ALLOT_OK)
        status = attn_block_backward(c, dy, x, err);
    return status;
}
