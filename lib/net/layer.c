/* layer.c - one layer: weights, activations, forward and backward.  SPDX-License-Identifier: MIT */
#include "net/layer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gguf/convert.h"
#include "net/gemm.h"

/* ---- Weights ----------------------------------------------------------------------------------- */

/* Every buffer starts on a cache line. */
static int64_t round_up(int64_t n)
{
    return (n + 15) / 16 * 16;
}

static float *allocate_floats(int64_t n, const char *what, struct allot_error *err)
{
    float *p = aligned_alloc(64, sizeof(float) * (size_t)round_up(n));
    if (p == NULL)
        allot_fail_memory(err, sizeof(float) * (size_t)n, what);
    return p;
}

allot_status layer_weights_init(struct layer_weights *weights, const struct net *net, struct allot_error *err)
{
    *weights = (struct layer_weights){0};
    weights->arena =
        allocate_floats(net->max_layer_weights + 16 * NET_N_SLOTS, "the weights of a layer", err);
    return weights->arena == NULL ? ALLOT_ERR_MEMORY : ALLOT_OK;
}

void layer_weights_release(struct layer_weights *weights)
{
    free(weights->arena);
    *weights = (struct layer_weights){0};
}

allot_status layer_weights_load(struct layer_weights *weights, const struct net *net, int64_t il,
                                struct pool *pool, struct allot_error *err)
{
    float *next = weights->arena;
    for (int slot = 0; slot < NET_N_SLOTS; slot++) {
        const struct gguf_tensor *t = net->layers[il].tensors[slot];
        weights->w[slot] = NULL;
        if (t == NULL)
            continue;
        allot_status status = gguf_tensor_to_f32(net->model, t, 0, t->n_rows, next, pool, err);
        if (status != ALLOT_OK)
            return status;
        gguf_tensor_forget(t);
        weights->w[slot] = next;
        next += round_up(t->n_elements);
    }
    return ALLOT_OK;
}

/* ---- Activations --------------------------------------------------------------------------------- */

/* Lays out the buffers from `base` (NULL: only counts) and returns the number of floats. */
static int64_t lay_out(struct layer_work *work, float *base, const struct net *net, bool backward,
                       int n_threads)
{
    int64_t n = work->n_seqs * work->n_ctx, q = n * net->n_heads * net->head_dim;
    int64_t kv = n * net->n_kv_heads * net->head_dim, embd = n * net->n_embd, ff = n * net->n_ff;
    struct {
        float **buffer;
        int64_t size;
        bool backward;
    } rows[] = {
        {&work->xn, embd, false},
        {&work->q, q, false},
        {&work->k, kv, false},
        {&work->v, kv, false},
        {&work->attn, q, false},
        {&work->h, embd, false},
        {&work->hn, embd, false},
        {&work->gate, ff, false},
        {&work->up, ff, false},
        {&work->act, ff, false},
        {&work->inv_rms_attn, n, false},
        {&work->inv_rms_ffn, n, false},
        {&work->scratch, attention_scratch(work->n_ctx, n_threads), false},
        {&work->dh, embd, true},
        {&work->dnorm, embd, true},
        {&work->dattn, q, true},
        {&work->dq, q, true},
        {&work->dk, kv, true},
        {&work->dv, kv, true},
        {&work->dgate, ff, true},
        {&work->dup, ff, true},
    };
    int64_t used = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].backward && !backward)
            continue;
        if (base != NULL)
            *rows[i].buffer = base + used;
        used += round_up(rows[i].size);
    }
    return used;
}

int64_t layer_work_floats(const struct net *net, int64_t n_seqs, int64_t n_ctx, bool backward, int n_threads)
{
    struct layer_work work = {.n_seqs = n_seqs, .n_ctx = n_ctx};
    return lay_out(&work, NULL, net, backward, n_threads);
}

allot_status layer_work_init(struct layer_work *work, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                             bool backward, int n_threads, struct allot_error *err)
{
    *work = (struct layer_work){.n_seqs = n_seqs, .n_ctx = n_ctx};
    allot_status status = rope_table_init(&work->rope, n_ctx, net->head_dim, net->rope_base, net->rope_scale,
                                          net->rope_factors, err);
    if (status != ALLOT_OK)
        return status;
    work->arena =
        allocate_floats(layer_work_floats(net, n_seqs, n_ctx, backward, n_threads), "activations", err);
    if (work->arena == NULL) {
        layer_work_release(work);
        return ALLOT_ERR_MEMORY;
    }
    lay_out(work, work->arena, net, backward, n_threads);
    return ALLOT_OK;
}

void layer_work_release(struct layer_work *work)
{
    rope_table_release(&work->rope);
    free(work->arena);
    *work = (struct layer_work){0};
}

/* ---- Forward --------------------------------------------------------------------------------------- */

/* What the passes of one call share. */
struct layer_call {
    const struct net *net;
    const struct net_layer *layer;
    float *const *w;
    struct pool *pool;
    const struct net_observer *observer;
    int64_t n;
};

/* y = x w' + bias. */
static allot_status linear_forward(const struct layer_call *c, enum net_slot slot, enum net_slot bias,
                                   float *y, const float *x, struct allot_error *err)
{
    const struct gguf_tensor *t = c->layer->tensors[slot];
    struct net_input input = {t, 0, c->n, t->ne[0], x};
    allot_status status = ALLOT_OK;
    if (c->observer != NULL && c->observer->input != NULL)
        status = c->observer->input(c->observer->user, &input, err);
    if (status != ALLOT_OK || y == NULL)
        return status;
    gemm_forward(c->pool, y, x, c->w[slot], c->n, t->ne[1], t->ne[0]);
    if (c->w[bias] != NULL)
        bias_forward(c->pool, y, c->w[bias], c->n, t->ne[1]);
    return ALLOT_OK;
}

static struct attention attention_of(const struct net *net, const struct layer_work *work, int64_t n_seqs)
{
    return (struct attention){n_seqs,        work->n_ctx,     net->n_heads, net->n_kv_heads,
                              net->head_dim, net->attn_scale, work->scratch};
}

static allot_status attention_block_forward(const struct layer_call *c, struct layer_work *work,
                                            const float *x, struct allot_error *err)
{
    const struct net *net = c->net;
    struct attention a = attention_of(net, work, c->n / work->n_ctx);
    rms_norm_forward(c->pool, work->xn, work->inv_rms_attn, x, c->w[NET_ATTN_NORM], c->n, net->n_embd,
                     net->rms_eps);
    allot_status status = linear_forward(c, NET_ATTN_Q, NET_ATTN_Q_BIAS, work->q, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_ATTN_K, NET_ATTN_K_BIAS, work->k, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_ATTN_V, NET_ATTN_V_BIAS, work->v, work->xn, err);
    if (status != ALLOT_OK)
        return status;
    rope_forward(c->pool, work->q, &work->rope, c->n, net->n_heads, net->head_dim);
    rope_forward(c->pool, work->k, &work->rope, c->n, net->n_kv_heads, net->head_dim);
    attention_forward(c->pool, work->attn, work->q, work->k, work->v, &a);
    status = linear_forward(c, NET_ATTN_OUT, NET_ATTN_OUT_BIAS, work->h, work->attn, err);
    if (status == ALLOT_OK)
        add_forward(c->pool, work->h, work->h, x, c->n * net->n_embd);
    return status;
}

static allot_status ffn_block_forward(const struct layer_call *c, struct layer_work *work, float *y,
                                      struct allot_error *err)
{
    const struct net *net = c->net;
    rms_norm_forward(c->pool, work->hn, work->inv_rms_ffn, work->h, c->w[NET_FFN_NORM], c->n, net->n_embd,
                     net->rms_eps);
    allot_status status = linear_forward(c, NET_FFN_GATE, NET_FFN_GATE_BIAS, work->gate, work->hn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_FFN_UP, NET_FFN_UP_BIAS, work->up, work->hn, err);
    if (status != ALLOT_OK)
        return status;
    swiglu_forward(c->pool, work->act, work->gate, work->up, c->n * c->net->n_ff);
    status = linear_forward(c, NET_FFN_DOWN, NET_FFN_DOWN_BIAS, y, work->act, err);
    if (status == ALLOT_OK && y != NULL)
        add_forward(c->pool, y, y, work->h, c->n * net->n_embd);
    return status;
}

allot_status layer_forward(const struct net *net, int64_t il, struct pool *pool,
                           const struct layer_weights *weights, struct layer_work *work, int64_t n_seqs,
                           float *y, const float *x, const struct net_observer *observer,
                           struct allot_error *err)
{
    struct layer_call c = {net, &net->layers[il], weights->w, pool, observer, n_seqs * work->n_ctx};
    allot_status status = attention_block_forward(&c, work, x, err);
    if (status == ALLOT_OK)
        status = ffn_block_forward(&c, work, y, err);
    return status;
}

/* ---- Backward ---------------------------------------------------------------------------------------- */

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
    const struct gguf_tensor *t = c->layer->tensors[bias];
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

/* The map's gradients go to the observer; dx (n, in) is overwritten or added to. */
static allot_status linear_backward(const struct layer_call *c, enum net_slot slot, enum net_slot bias,
                                    float *dx, bool accumulate, const float *dy, const float *x,
                                    struct allot_error *err)
{
    const struct gguf_tensor *t = c->layer->tensors[slot];
    struct net_map map = {.tensor = t,
                          .n_rows = t->ne[1],
                          .n_in = t->ne[0],
                          .n_tokens = c->n,
                          .w = c->w[slot],
                          .x = x,
                          .g = dy};
    gemm_backward(c->pool, dx, dy, c->w[slot], c->n, t->ne[1], t->ne[0], accumulate);
    allot_status status = bias_observe(c, bias, dy, err);
    if (status == ALLOT_OK)
        status = observe_map(c->observer, &map, err);
    if (status == ALLOT_OK)
        status = observe_done(c->observer, t, err);
    return status;
}

/* Adds to dx; the gradient of the norm's weight goes to the observer. */
static allot_status norm_backward(const struct layer_call *c, enum net_slot slot, float *dx, const float *dy,
                                  const float *x, const float *inv_rms, struct allot_error *err)
{
    const struct gguf_tensor *t = c->layer->tensors[slot];
    bool wanted = c->observer != NULL && c->observer->vector != NULL;
    double *dw = wanted ? calloc((size_t)t->ne[0], sizeof *dw) : NULL;
    if (wanted && dw == NULL)
        return allot_fail_memory(err, (size_t)t->ne[0] * sizeof *dw, t->name);
    rms_norm_backward(c->pool, dx, dw, dy, x, c->w[slot], inv_rms, c->n, t->ne[0]);
    allot_status status = wanted ? c->observer->vector(c->observer->user, t, dw, t->ne[0], err) : ALLOT_OK;
    free(dw);
    return status;
}

/* Leaves the gradient of h in work->dh. */
static allot_status ffn_block_backward(const struct layer_call *c, struct layer_work *work, const float *dy,
                                       struct allot_error *err)
{
    allot_status status =
        linear_backward(c, NET_FFN_DOWN, NET_FFN_DOWN_BIAS, work->dup, false, dy, work->act, err);
    if (status != ALLOT_OK)
        return status;
    swiglu_backward(c->pool, work->dgate, work->dup, work->dup, work->gate, work->up, c->n * c->net->n_ff);
    status = linear_backward(c, NET_FFN_UP, NET_FFN_UP_BIAS, work->dnorm, false, work->dup, work->hn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_FFN_GATE, NET_FFN_GATE_BIAS, work->dnorm, true, work->dgate, work->hn,
                                 err);
    if (status != ALLOT_OK)
        return status;
    memcpy(work->dh, dy, sizeof(float) * (size_t)(c->n * c->net->n_embd));
    return norm_backward(c, NET_FFN_NORM, work->dh, work->dnorm, work->h, work->inv_rms_ffn, err);
}

/* From work->dh to dx (overwritten). */
static allot_status attention_block_backward(const struct layer_call *c, struct layer_work *work, float *dx,
                                             const float *x, struct allot_error *err)
{
    const struct net *net = c->net;
    struct attention a = attention_of(net, work, c->n / work->n_ctx);
    allot_status status =
        linear_backward(c, NET_ATTN_OUT, NET_ATTN_OUT_BIAS, work->dattn, false, work->dh, work->attn, err);
    if (status != ALLOT_OK)
        return status;
    attention_backward(c->pool, work->dq, work->dk, work->dv, work->dattn, work->q, work->k, work->v, &a);
    rope_backward(c->pool, work->dq, &work->rope, c->n, net->n_heads, net->head_dim);
    rope_backward(c->pool, work->dk, &work->rope, c->n, net->n_kv_heads, net->head_dim);
    status = linear_backward(c, NET_ATTN_V, NET_ATTN_V_BIAS, work->dnorm, false, work->dv, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_ATTN_K, NET_ATTN_K_BIAS, work->dnorm, true, work->dk, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_ATTN_Q, NET_ATTN_Q_BIAS, work->dnorm, true, work->dq, work->xn, err);
    if (status != ALLOT_OK)
        return status;
    memcpy(dx, work->dh, sizeof(float) * (size_t)(c->n * net->n_embd));
    return norm_backward(c, NET_ATTN_NORM, dx, work->dnorm, x, work->inv_rms_attn, err);
}

allot_status layer_backward(const struct net *net, int64_t il, struct pool *pool,
                            const struct layer_weights *weights, struct layer_work *work, float *dy,
                            const float *x, const struct net_observer *observer, struct allot_error *err)
{
    struct layer_call c = {net, &net->layers[il], weights->w, pool, observer, work->n_seqs * work->n_ctx};
    allot_status status = ffn_block_backward(&c, work, dy, err);
    if (status == ALLOT_OK)
        status = attention_block_backward(&c, work, dy, x, err);
    return status;
}
