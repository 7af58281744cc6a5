/* ffn_block.c - the feed-forward half of a layer.  SPDX-License-Identifier: MIT */
#include <string.h>

#include "net/arch.h"
#include "net/linear.h"

static enum gate_act act_of(const struct net *net)
{
    if (!has(net, ARCH_GELU))
        return GATE_SILU;
    return net->exact_gelu ? GATE_GELU : GATE_GELU_F16;
}

/* ---- Forward ------------------------------------------------------------------------------------- */

static allot_status dense_forward(const struct layer_call *c, float *out, struct allot_error *err)
{
    struct layer_acts *a = c->acts;
    struct layer_work *work = c->work;
    int64_t n_ff = c->net->n_ff;
    allot_status status;
    if (has(c->net, ARCH_FUSED_GATE)) {
        status = linear_forward(c, NET_FFN_UP, NET_FFN_UP_BIAS, work->fused, work->hn, err);
        if (status != ALLOT_OK)
            return status;
        columns_take(c->pool, a->gate, work->fused, c->n, 2 * n_ff, 0, n_ff);
        columns_take(c->pool, a->up, work->fused, c->n, 2 * n_ff, n_ff, n_ff);
    } else {
        status = linear_forward(c, NET_FFN_GATE, NET_FFN_GATE_BIAS, a->gate, work->hn, err);
        if (status == ALLOT_OK)
            status = linear_forward(c, NET_FFN_UP, NET_FFN_UP_BIAS, a->up, work->hn, err);
        if (status != ALLOT_OK)
            return status;
    }
    if (out == NULL && c->observer == NULL)
        return ALLOT_OK;
    gate_forward(c->pool, act_of(c->net), work->act, a->gate, a->up, c->n * n_ff);
    return linear_forward(c, NET_FFN_DOWN, NET_FFN_DOWN_BIAS, out, work->act, err);
}

allot_status ffn_block_forward(const struct layer_call *c, float *y, struct allot_error *err)
{
    const struct net *net = c->net;
    struct layer_acts *a = c->acts;
    norm_forward(c, NET_FFN_NORM, c->work->hn, a->inv_rms_ffn, a->h, c->n);
    float *out = a->ffn_out != NULL ? a->ffn_out : y;
    allot_status status = net->n_experts > 0 ? experts_forward(c, out, err) : dense_forward(c, out, err);
    if (status != ALLOT_OK)
        return status;
    float *normed = y != NULL ? y : c->work->branch;
    if (a->ffn_out != NULL)
        norm_forward(c, NET_FFN_POST_NORM, normed, a->inv_rms_ffn_post, a->ffn_out, c->n);
    if (y != NULL)
        add_forward(c->pool, y, net->residual_scale, y, a->h, c->n * net->n_embd);
    return ALLOT_OK;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

/* From d, the gradient of the branch, to work->dnorm, the gradient of hn. */
static allot_status dense_backward(const struct layer_call *c, const float *d, struct allot_error *err)
{
    struct layer_work *work = c->work;
    const struct layer_acts *a = c->acts;
    int64_t n_ff = c->net->n_ff;
    gate_forward(c->pool, act_of(c->net), work->act, a->gate, a->up, c->n * n_ff);
    allot_status status =
        linear_backward(c, NET_FFN_DOWN, NET_FFN_DOWN_BIAS, work->dup, false, d, work->act, err);
    if (status != ALLOT_OK)
        return status;
    gate_backward(c->pool, act_of(c->net), work->dgate, work->dup, work->dup, a->gate, a->up, c->n * n_ff);
    if (has(c->net, ARCH_FUSED_GATE)) {
        columns_put(c->pool, work->fused, work->dgate, c->n, 2 * n_ff, 0, n_ff);
        columns_put(c->pool, work->fused, work->dup, c->n, 2 * n_ff, n_ff, n_ff);
        return linear_backward(c, NET_FFN_UP, NET_FFN_UP_BIAS, work->dnorm, false, work->fused, work->hn,
                               err);
    }
    status = linear_backward(c, NET_FFN_UP, NET_FFN_UP_BIAS, work->dnorm, false, work->dup, work->hn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_FFN_GATE, NET_FFN_GATE_BIAS, work->dnorm, true, work->dgate, work->hn,
                                 err);
    return status;
}

allot_status ffn_block_backward(const struct layer_call *c, const float *dy, struct allot_error *err)
{
    const struct net *net = c->net;
    const struct layer_acts *a = c->acts;
    struct layer_work *work = c->work;
    size_t bytes = sizeof(float) * (size_t)(c->n * net->n_embd);
    const float *d = dy;
    allot_status status = ALLOT_OK;
    if (net->residual_scale != 1) {
        memcpy(work->dh, dy, bytes);
        scale_values(c->pool, work->dh, net->residual_scale, c->n * net->n_embd);
        d = work->dh;
    }
    if (a->ffn_out != NULL) {
        memset(work->dbranch, 0, bytes);
        status =
            norm_backward(c, NET_FFN_POST_NORM, work->dbranch, d, a->ffn_out, a->inv_rms_ffn_post, c->n, err);
        d = work->dbranch;
    }
    if (status != ALLOT_OK)
        return status;
    if (net->n_experts > 0) {
        memset(work->dnorm, 0, bytes);
        status = experts_backward(c, d, err);
    } else {
        status = dense_backward(c, d, err);
    }
    if (status != ALLOT_OK)
        return status;
    memcpy(work->dh, dy, bytes);
    return norm_backward(c, NET_FFN_NORM, work->dh, work->dnorm, a->h, a->inv_rms_ffn, c->n, err);
}
