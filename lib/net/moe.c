/* moe.c - a router, the experts that it chooses, and the shared expert.  SPDX-License-Identifier: MIT
 *
 * probs = softmax(router(hn)); the experts used are those with the largest, and their weights w are their
 * probs, made to sum to 1 where the architecture says so (llama-graph.cpp, build_moe_ffn). The matrices of
 * one expert are in memory at a time, and see the tokens that took it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "net/arch.h"
#include "base/gemm.h"
#include "net/linear.h"
#include "net/source.h"
#include "net/vector.h"

static const float smallest_sum =
    6.103515625e-5f; /* libllama's bound for the sum that weights are divided by */

static const enum net_slot expert_slots[3] = {NET_EXPERTS_GATE, NET_EXPERTS_UP, NET_EXPERTS_DOWN};
enum { GATE, UP, DOWN };

/* ---- Router -------------------------------------------------------------------------------------- */

static void choose(const struct net *net, float *probs, float *weights, int32_t *chosen)
{
    int64_t n = net->n_experts, used = net->n_experts_used;
    float inv = (float)(1.0 / exp_shifted(probs, n, max_of(probs, n))), sum = 0;
    for (int64_t e = 0; e < n; e++)
        probs[e] *= inv;
    for (int64_t i = 0; i < used; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++)
                taken = taken || chosen[j] == e;
            if (!taken && (best < 0 || probs[e] > probs[best]))
                best = e;
        }
        chosen[i] = best;
        weights[i] = probs[best];
        sum += probs[best];
    }
    if (has(net, ARCH_RENORMALISE))
        for (int64_t i = 0; i < used; i++)
            weights[i] /= fmaxf(sum, smallest_sum);
}

static void choose_token(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct layer_call *c = user;
    const struct net *net = c->net;
    choose(net, c->acts->probs + t * net->n_experts, c->acts->weights + t * net->n_experts_used,
           c->acts->chosen + t * net->n_experts_used);
}

void experts_sort(const struct layer_call *c)
{
    const struct routing *r = &c->work->routing;
    int64_t n = c->net->n_experts, used = c->net->n_experts_used, n_pairs = c->n * used;
    memset(r->start, 0, sizeof(int64_t) * (size_t)(n + 1));
    for (int64_t p = 0; p < n_pairs; p++)
        r->start[c->acts->chosen[p] + 1]++;
    for (int64_t e = 0; e < n; e++)
        r->start[e + 1] += r->start[e];
    for (int64_t p = 0; p < n_pairs; p++) {
        int64_t at = r->start[c->acts->chosen[p]]++;
        r->token[at] = (int32_t)(p / used);
        r->slot[at] = (int32_t)(p % used);
    }
    memmove(r->start + 1, r->start, sizeof(int64_t) * (size_t)n);
    r->start[0] = 0;
}

/* dweights to dprobs, then through the softmax to the router's output, in place of dprobs. */
static void router_gradient_token(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct layer_call *c = user;
    const struct net *net = c->net;
    int64_t n = net->n_experts, used = net->n_experts_used;
    const float *probs = c->acts->probs + t * n, *weights = c->acts->weights + t * used;
    const float *dweights = c->work->dweights + t * used;
    const int32_t *chosen = c->acts->chosen + t * used;
    float *dprobs = c->work->dprobs + t * n, divisor = 1, mean = 0;
    if (has(net, ARCH_RENORMALISE)) {
        float sum = 0;
        for (int64_t i = 0; i < used; i++)
            sum += probs[chosen[i]];
        divisor = fmaxf(sum, smallest_sum);
        for (int64_t i = 0; i < used && sum > smallest_sum; i++)
            mean += dweights[i] * weights[i];
    }
    memset(dprobs, 0, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < used; i++)
        dprobs[chosen[i]] = (dweights[i] - mean) / divisor;
    float inner = (float)dot(probs, dprobs, n);
    for (int64_t e = 0; e < n; e++)
        dprobs[e] = probs[e] * (dprobs[e] - inner);
}

/* ---- One expert ---------------------------------------------------------------------------------- */

/* The pairs of one expert. */
struct expert {
    const struct layer_call *c;
    int64_t e, first, n; /* pairs first to first+n-1 */
    const int32_t *token;
};

static struct expert expert_of(const struct layer_call *c, int64_t e)
{
    const struct routing *r = &c->work->routing;
    return (struct expert){c, e, r->start[e], r->start[e + 1] - r->start[e], r->token + r->start[e]};
}

static allot_status load_expert(const struct expert *x, int which, struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(x->c, expert_slots[which]);
    return net_rows(x->c->net, t, x->e * t->ne[1], t->ne[1], x->c->weights->expert[which], x->c->pool, err);
}

/* What the loops over rows of n_embd need. */
struct rows {
    const struct expert *x;
    float *to;
    const float *from;
};

static float *pair_weight(const struct expert *x, float *weights, int64_t pair)
{
    return weights + x->token[pair] * x->c->net->n_experts_used + x->c->work->routing.slot[x->first + pair];
}

static void gather_row(void *user, int64_t i, int thread)
{
    (void)thread;
    const struct rows *r = user;
    int64_t width = r->x->c->net->n_embd;
    memcpy(r->to + i * width, r->from + r->x->token[i] * width, sizeof(float) * (size_t)width);
}

static void gather(const struct expert *x, float *to, const float *from)
{
    struct rows r = {x, to, from};
    pool_run(x->c->pool, x->n, gather_row, &r);
}

/* to[token] += from. */
static void scatter_row(void *user, int64_t i, int thread)
{
    (void)thread;
    const struct rows *r = user;
    int64_t width = r->x->c->net->n_embd;
    float *to = r->to + r->x->token[i] * width;
    for (int64_t j = 0; j < width; j++)
        to[j] += r->from[i * width + j];
}

static void scatter(const struct expert *x, float *to, const float *from)
{
    struct rows r = {x, to, from};
    pool_run(x->c->pool, x->n, scatter_row, &r);
}

/* Every row times its pair's weight. */
static void weigh_row(void *user, int64_t i, int thread)
{
    (void)thread;
    const struct rows *r = user;
    int64_t width = r->x->c->net->n_embd;
    float w = *pair_weight(r->x, r->x->c->acts->weights, i);
    for (int64_t j = 0; j < width; j++)
        r->to[i * width + j] *= w;
}

static void weigh(const struct expert *x, float *rows)
{
    struct rows r = {x, rows, NULL};
    pool_run(x->c->pool, x->n, weigh_row, &r);
}

static allot_status observe_expert_input(const struct expert *x, int which, const float *in,
                                         struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(x->c, expert_slots[which]);
    struct net_input input = {t, x->e, x->n, t->ne[0], in};
    return observe_input(x->c->observer, &input, err);
}

static allot_status expert_forward(const struct expert *x, float *out, struct allot_error *err)
{
    const struct layer_call *c = x->c;
    struct layer_work *work = c->work;
    int64_t n_ff = c->net->n_ff, n_embd = c->net->n_embd;
    float *gate = c->acts->gate + x->first * n_ff, *up = c->acts->up + x->first * n_ff;
    gather(x, work->rows_x, work->hn);
    allot_status status = load_expert(x, GATE, err);
    if (status == ALLOT_OK)
        status = load_expert(x, UP, err);
    if (status == ALLOT_OK)
        status = observe_expert_input(x, GATE, work->rows_x, err);
    if (status == ALLOT_OK)
        status = observe_expert_input(x, UP, work->rows_x, err);
    if (status != ALLOT_OK)
        return status;
    gemm_forward(c->pool, gate, work->rows_x, c->weights->expert[GATE], x->n, n_ff, n_embd);
    gemm_forward(c->pool, up, work->rows_x, c->weights->expert[UP], x->n, n_ff, n_embd);
    if (out == NULL && c->observer == NULL)
        return ALLOT_OK;
    gate_forward(c->pool, GATE_SILU, work->act, gate, up, x->n * n_ff);
    status = observe_expert_input(x, DOWN, work->act, err);
    if (status != ALLOT_OK || out == NULL)
        return status;
    status = load_expert(x, DOWN, err);
    if (status != ALLOT_OK)
        return status;
    gemm_forward(c->pool, work->rows_y, work->act, c->weights->expert[DOWN], x->n, n_embd, n_ff);
    weigh(x, work->rows_y);
    scatter(x, out, work->rows_y);
    return ALLOT_OK;
}

static allot_status observe_expert_map(const struct expert *x, int which, const float *in, const float *g,
                                       struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(x->c, expert_slots[which]);
    struct net_map map = {.tensor = t,
                          .first_row = x->e * t->ne[1],
                          .n_rows = t->ne[1],
                          .n_in = t->ne[0],
                          .n_tokens = x->n,
                          .tokens = x->token,
                          .w = x->c->weights->expert[which],
                          .x = in,
                          .g = g};
    return observe_map(x->c->observer, &map, err);
}

/* Of a pair's weight w_e: dy . y_e. With dup = w_e dy W and y_e = W' act this is dup . act / w_e, so that no
 * product with y_e is needed. */
static void weight_gradient(void *user, int64_t i, int thread)
{
    (void)thread;
    const struct expert *x = user;
    const struct layer_work *work = x->c->work;
    int64_t n_ff = x->c->net->n_ff;
    float w = *pair_weight(x, x->c->acts->weights, i);
    double product = dot(work->dup + i * n_ff, work->act + i * n_ff, n_ff);
    *pair_weight(x, work->dweights, i) = w > 0 ? (float)(product / w) : 0;
}

/* d: gradient of the block's output. Adds to dhn, and leaves the gradients of the pairs' weights. */
static allot_status expert_backward(const struct expert *x, float *dhn, const float *d,
                                    struct allot_error *err)
{
    const struct layer_call *c = x->c;
    struct layer_work *work = c->work;
    int64_t n_ff = c->net->n_ff, n_embd = c->net->n_embd;
    const float *gate = c->acts->gate + x->first * n_ff, *up = c->acts->up + x->first * n_ff;
    allot_status status = ALLOT_OK;
    for (int i = 0; i < 3 && status == ALLOT_OK; i++)
        status = load_expert(x, i, err);
    if (status != ALLOT_OK)
        return status;
    gate_forward(c->pool, GATE_SILU, work->act, gate, up, x->n * n_ff);
    gather(x, work->rows_y, d);
    weigh(x, work->rows_y);
    gemm_backward(c->pool, work->dup, work->rows_y, c->weights->expert[DOWN], x->n, n_embd, n_ff, false);
    pool_run(c->pool, x->n, weight_gradient, (void *)(uintptr_t)x);
    status = observe_expert_map(x, DOWN, work->act, work->rows_y, err);
    if (status != ALLOT_OK)
        return status;
    gate_backward(c->pool, GATE_SILU, work->dgate, work->dup, work->dup, gate, up, x->n * n_ff);
    gather(x, work->rows_x, work->hn);
    status = observe_expert_map(x, GATE, work->rows_x, work->dgate, err);
    if (status == ALLOT_OK)
        status = observe_expert_map(x, UP, work->rows_x, work->dup, err);
    if (status != ALLOT_OK)
        return status;
    gemm_backward(c->pool, work->rows_y, work->dgate, c->weights->expert[GATE], x->n, n_ff, n_embd, false);
    gemm_backward(c->pool, work->rows_y, work->dup, c->weights->expert[UP], x->n, n_ff, n_embd, true);
    scatter(x, dhn, work->rows_y);
    return ALLOT_OK;
}

static void forget_experts(const struct layer_call *c)
{
    for (int i = 0; i < 3; i++)
        gguf_tensor_forget(slot_tensor(c, expert_slots[i]));
}

/* ---- The shared expert --------------------------------------------------------------------------- */

/* scale = sigmoid(hn . router), or 1 without a router. */
static void shared_scale(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct layer_call *c = user;
    int64_t width = c->net->n_embd;
    const float *w = c->weights->w[NET_SHARED_ROUTER];
    c->acts->shared_scale[t] =
        w == NULL ? 1 : (float)(1 / (1 + exp(-dot(c->work->hn + t * width, w, width))));
}

/* work->rows_y[t] *= scale[t]. */
static void scale_shared(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct layer_call *c = user;
    int64_t width = c->net->n_embd;
    float *row = c->work->rows_y + t * width;
    for (int64_t i = 0; i < width; i++)
        row[i] *= c->acts->shared_scale[t];
}

static void for_tokens(const struct layer_call *c, void (*token)(void *user, int64_t t, int thread))
{
    pool_run(c->pool, c->n, token, (void *)(uintptr_t)c);
}

static allot_status observe_shared_router_input(const struct layer_call *c, struct allot_error *err)
{
    struct net_input input = {slot_tensor(c, NET_SHARED_ROUTER), 0, c->n, c->net->n_embd, c->work->hn};
    return input.tensor == NULL ? ALLOT_OK : observe_input(c->observer, &input, err);
}

/* Adds to out. */
static allot_status shared_forward(const struct layer_call *c, float *out, struct allot_error *err)
{
    struct layer_acts *a = c->acts;
    struct layer_work *work = c->work;
    int64_t n_embd = c->net->n_embd;
    for_tokens(c, shared_scale);
    allot_status status = observe_shared_router_input(c, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_SHARED_GATE, NO_BIAS, a->shared_gate, work->hn, err);
    if (status == ALLOT_OK)
        status = linear_forward(c, NET_SHARED_UP, NO_BIAS, a->shared_up, work->hn, err);
    if (status != ALLOT_OK || (out == NULL && c->observer == NULL))
        return status;
    gate_forward(c->pool, GATE_SILU, work->act, a->shared_gate, a->shared_up, c->n * c->net->n_ff_shared);
    status = linear_forward(c, NET_SHARED_DOWN, NO_BIAS, out == NULL ? NULL : work->rows_y, work->act, err);
    if (status != ALLOT_OK || out == NULL)
        return status;
    for_tokens(c, scale_shared);
    add_forward(c->pool, out, 1, work->rows_y, out, c->n * n_embd);
    return ALLOT_OK;
}

/* Gradients of the shared expert's scores, into rows_x [n], and what they add to dnorm. dup = s dy W, so the
 * gradient of s is dup . act / s, and that of its score s (1 - s) times it. */
static void shared_score_gradient(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct layer_call *c = user;
    const struct layer_work *work = c->work;
    int64_t n_ff = c->net->n_ff_shared, width = c->net->n_embd;
    const float *w = c->weights->w[NET_SHARED_ROUTER];
    double product = dot(work->dup + t * n_ff, work->act + t * n_ff, n_ff);
    float score = (float)(product * (1 - (double)c->acts->shared_scale[t]));
    work->rows_x[t] = score;
    for (int64_t i = 0; i < width; i++)
        work->dnorm[t * width + i] += score * w[i];
}

static allot_status shared_router_backward(const struct layer_call *c, struct allot_error *err)
{
    const struct gguf_tensor *t = slot_tensor(c, NET_SHARED_ROUTER);
    const float *scored = c->work->rows_x, *hn = c->work->hn;
    int64_t width = c->net->n_embd;
    for_tokens(c, shared_score_gradient);
    if (c->observer == NULL || c->observer->vector == NULL)
        return ALLOT_OK;
    double *sum = calloc((size_t)width, sizeof *sum);
    if (sum == NULL)
        return allot_fail_memory(err, (size_t)width * sizeof *sum, t->name);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)scored[i] * hn[i * width + j];
    allot_status status = c->observer->vector(c->observer->user, t, sum, width, err);
    free(sum);
    return status;
}

static allot_status shared_backward(const struct layer_call *c, const float *d, struct allot_error *err)
{
    const struct layer_acts *a = c->acts;
    struct layer_work *work = c->work;
    int64_t n_embd = c->net->n_embd, n_ff = c->net->n_ff_shared;
    memcpy(work->rows_y, d, sizeof(float) * (size_t)(c->n * n_embd));
    for_tokens(c, scale_shared);
    gate_forward(c->pool, GATE_SILU, work->act, a->shared_gate, a->shared_up, c->n * n_ff);
    allot_status status =
        linear_backward(c, NET_SHARED_DOWN, NO_BIAS, work->dup, false, work->rows_y, work->act, err);
    if (status == ALLOT_OK && c->weights->w[NET_SHARED_ROUTER] != NULL)
        status = shared_router_backward(c, err);
    if (status != ALLOT_OK)
        return status;
    gate_backward(c->pool, GATE_SILU, work->dgate, work->dup, work->dup, a->shared_gate, a->shared_up,
                  c->n * n_ff);
    status = linear_backward(c, NET_SHARED_UP, NO_BIAS, work->dnorm, true, work->dup, work->hn, err);
    if (status == ALLOT_OK)
        status = linear_backward(c, NET_SHARED_GATE, NO_BIAS, work->dnorm, true, work->dgate, work->hn, err);
    return status;
}

/* ---- The block ----------------------------------------------------------------------------------- */

allot_status experts_forward(const struct layer_call *c, float *out, struct allot_error *err)
{
    const struct net *net = c->net;
    allot_status status = linear_forward(c, NET_ROUTER, NO_BIAS, c->acts->probs, c->work->hn, err);
    if (status != ALLOT_OK)
        return status;
    for_tokens(c, choose_token);
    experts_sort(c);
    if (out != NULL)
        memset(out, 0, sizeof(float) * (size_t)(c->n * net->n_embd));
    for (int64_t e = 0; e < net->n_experts && status == ALLOT_OK; e++) {
        struct expert x = expert_of(c, e);
        if (x.n > 0)
            status = expert_forward(&x, out, err);
    }
    forget_experts(c);
    if (status == ALLOT_OK && net->n_ff_shared > 0)
        status = shared_forward(c, out, err);
    return status;
}

allot_status experts_backward(const struct layer_call *c, const float *d, struct allot_error *err)
{
    const struct net *net = c->net;
    struct layer_work *work = c->work;
    allot_status status = ALLOT_OK;
    for (int64_t e = 0; e < net->n_experts && status == ALLOT_OK; e++) {
        struct expert x = expert_of(c, e);
        if (x.n > 0)
            status = expert_backward(&x, work->dnorm, d, err);
    }
    forget_experts(c);
    for (int i = 0; i < 3 && status == ALLOT_OK; i++)
        status = observe_done(c->observer, slot_tensor(c, expert_slots[i]), err);
    if (status != ALLOT_OK)
        return status;
    for_tokens(c, router_gradient_token);
    status = linear_backward(c, NET_ROUTER, NO_BIAS, work->dnorm, true, work->dprobs, work->hn, err);
    if (status == ALLOT_OK && net->n_ff_shared > 0)
        status = shared_backward(c, d, err);
    return status;
}
