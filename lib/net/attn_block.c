/* attn_block.c - the attention half of a layer.  SPDX-License-Identifier: MIT */
#include <string.h>

#include "net/linear.h"

/* Widths of q and of k or v. */
static int64_t q_width(const struct net *net)
{
    return net->n_heads * net->head_dim;
}

static int64_t kv_width(const struct net *net)
{
    return net->n_kv_heads * net->head_dim;
}

static struct attention attention_of(const struct layer_call *c)
{
    const struct net *net = c->net;
    return (struct attention){.n_seqs = c->n_seqs,
                              .n_ctx = c->work->n_ctx,
                              .n_heads = net->n_heads,
                              .n_kv_heads = net->n_kv_heads,
                              .head_dim = net->head_dim,
                              .scale = net->attn_scale,
                              .softcap = net->attn_softcap,
                              .window = net->layers[c->il].window,
                              .scratch = c->work->scratch};
}

/* Rows of a norm's width in n tokens of q or k: all heads at once, or each. */
static int64_t norm_rows(const struct layer_call *c, enum net_slot slot, int64_t width)
{
    return c->n * width / slot_tensor(c, slot)->ne[0];
}

static const struct rope_table *rope_of(const struct layer_call *c)
{
    int rope = c->net->layers[c->il].rope;
    return rope < 0 ? NULL : &c->work->ropes[rope];
}

/* ---- Forward ------------------------------------------------------------------------------------- */

static allot_status qkv_forward(const struct layer_call *c, float *q, float *k, float *v,
                                struct allot_error *err)
{
    const struct layer_work *work = c->work;
    int64_t wq = q_width(c->net), wkv = kv_width(c->net);
    allot_status status;
    if (slot_tensor(c, NET_ATTN_QKV) != NULL) {
        status = linear_forward(c, NET_ATTN_QKV, NET_ATTN_QKV_BIAS, work->fused, work->xn, err);
        if (status != ALLOT_OK)
            return status;
        columns_take(c->pool, q, work->fused, c->n, wq + 2 * wkv, 0, wq);
        columns_take(c->pool, k, work->fused, c->n, wq + 2 * wkv, wq, wkv);
        columns_take(c->pool, v, work->fused, c->n, wq + 2 * wkv, wq + wkv, wkv);
        return ALLOT_OK;
    }
    status = linear_forward(c, NET_ATTN_Q, NET_ATTN_Q_BIAS, q, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_ATTN_K, NET_ATTN_K_BIAS, k, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_ATTN_V, NET_ATTN_V_BIAS, v, work->xn, err);
    return status;
}

allot_status attn_block_forward(const struct layer_call *c, const float *x, struct allot_error *err)
{
    const struct net *net = c->net;
    struct layer_acts *a = c->acts;
    const struct rope_table *rope = rope_of(c);
    struct attention attention = attention_of(c);
    bool normed = a->q_in != NULL;
    norm_forward(c, NET_ATTN_NORM, c->work->xn, a->inv_rms_attn, x, c->n);
    allot_status status = qkv_forward(c, normed ? a->q_in : a->q, normed ? a->k_in : a->k, a->v, err);
    if (status != ALLOT_OK)
        return status;
    if (normed) {
        norm_forward(c, NET_ATTN_Q_NORM, a->q, a->inv_rms_q, a->q_in,
                     norm_rows(c, NET_ATTN_Q_NORM, q_width(net)));
        norm_forward(c, NET_ATTN_K_NORM, a->k, a->inv_rms_k, a->k_in,
                     norm_rows(c, NET_ATTN_K_NORM, kv_width(net)));
    }
    if (rope != NULL) {
        rope_forward(c->pool, a->q, rope, c->n, net->n_heads, net->head_dim);
        rope_forward(c->pool, a->k, rope, c->n, net->n_kv_heads, net->head_dim);
    }
    attention_forward(c->pool, a->attn, a->q, a->k, a->v, &attention);
    float *out = a->attn_out != NULL ? a->attn_out : a->h;
    status = linear_forward(c, NET_ATTN_OUT, NET_ATTN_OUT_BIAS, out, a->attn, err);
    if (status != ALLOT_OK)
        return status;
    if (a->attn_out != NULL)
        norm_forward(c, NET_ATTN_POST_NORM, a->h, a->inv_rms_attn_post, a->attn_out, c->n);
    add_forward(c->pool, a->h, net->residual_scale, a->h, x, c->n * net->n_embd);
    return ALLOT_OK;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

/* From dq, dk, dv to work->dnorm, the gradient of xn. */
static allot_status qkv_backward(const struct layer_call *c, const float *dq, const float *dk,
                                 const float *dv, struct allot_error *err)
{
    struct layer_work *work = c->work;
    int64_t wq = q_width(c->net), wkv = kv_width(c->net);
    allot_status status;
    if (slot_tensor(c, NET_ATTN_QKV) != NULL) {
        columns_put(c->pool, work->fused, dq, c->n, wq + 2 * wkv, 0, wq);
        columns_put(c->pool, work->fused, dk, c->n, wq + 2 * wkv, wq, wkv);
        columns_put(c->pool, work->fused, dv, c->n, wq + 2 * wkv, wq + wkv, wkv);
        return linear_backward(c, NET_ATTN_QKV, NET_ATTN_QKV_BIAS, work->dnorm, false, work->fused, work->xn,
                               err);
    }
    status = linear_backward(c, NET_ATTN_V, NET_ATTN_V_BIAS, work->dnorm, false, dv, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_ATTN_K, NET_ATTN_K_BIAS, work->dnorm, true, dk, work->xn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_ATTN_Q, NET_ATTN_Q_BIAS, work->dnorm, true, dq, work->xn, err);
    return status;
}

/* Gradient of q or k before its norm: takes the place of what attention needed no more, q or k itself. */
static allot_status qk_norm_backward(const struct layer_call *c, enum net_slot slot, float *d_in,
                                     const float *d, const float *in, const float *inv_rms, int64_t width,
                                     struct allot_error *err)
{
    memset(d_in, 0, sizeof(float) * (size_t)(c->n * width));
    return norm_backward(c, slot, d_in, d, in, inv_rms, norm_rows(c, slot, width), err);
}

/* work->dattn: the gradient of the attention's output. */
static allot_status attn_out_backward(const struct layer_call *c, struct allot_error *err)
{
    struct layer_work *work = c->work;
    const struct layer_acts *a = c->acts;
    int64_t n = c->n * c->net->n_embd;
    const float *d = work->dh;
    if (c->net->residual_scale != 1) {
        memcpy(work->branch, d, sizeof(float) * (size_t)n);
        scale_values(c->pool, work->branch, c->net->residual_scale, n);
        d = work->branch;
    }
    allot_status status = ALLOT_OK;
    if (a->attn_out != NULL) {
        memset(work->dbranch, 0, sizeof(float) * (size_t)n);
        status = norm_backward(c, NET_ATTN_POST_NORM, work->dbranch, d, a->attn_out, a->inv_rms_attn_post,
                               c->n, err);
        d = work->dbranch;
    }
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_ATTN_OUT, NET_ATTN_OUT_BIAS, work->dattn, false, d, a->attn, err);
    return status;
}

allot_status attn_block_backward(const struct layer_call *c, float *dx, const float *x,
                                 struct allot_error *err)
{
    const struct net *net = c->net;
    struct layer_work *work = c->work;
    struct layer_acts *a = c->acts;
    const struct rope_table *rope = rope_of(c);
    struct attention attention = attention_of(c);
    float *dq = work->dq, *dk = work->dk;
    allot_status status = attn_out_backward(c, err);
    if (status != ALLOT_OK)
        return status;
    attention_backward(c->pool, dq, dk, work->dv, work->dattn, a->q, a->k, a->v, &attention);
    if (rope != NULL) {
        rope_backward(c->pool, dq, rope, c->n, net->n_heads, net->head_dim);
        rope_backward(c->pool, dk, rope, c->n, net->n_kv_heads, net->head_dim);
    }
    if (a->q_in != NULL) {
        status = qk_norm_backward(c, NET_ATTN_Q_NORM, a->q, dq, a->q_in, a->inv_rms_q, q_width(net), err);
        if (status == ALLOT_OK)
            status =
                qk_norm_backward(c, NET_ATTN_K_NORM, a->k, dk, a->k_in, a->inv_rms_k, kv_width(net), err);
        dq = a->q;
        dk = a->k;
    }
    if (status == ALLOT_OK)
        status = qkv_backward(c, dq, dk, work->dv, err);
    if (status != ALLOT_OK)
        return status;
    memcpy(dx, work->dh, sizeof(float) * (size_t)(c->n * net->n_embd));
    return norm_backward(c, NET_ATTN_NORM, dx, work->dnorm, x, a->inv_rms_attn, c->n, err);
}
