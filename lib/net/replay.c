/* replay.c - passes of networks that differ from one in a single tensor.  SPDX-License-Identifier: MIT */
#include "net/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "net/head.h"
#include "net/linear.h"
#include "net/pass.h"
#include "net/source.h"

/* Tokens that go through a layer together. The same for every variant and for the net itself, so that
 * products have the same shapes, and the same rounding: what a change leaves alone does not differ by a bit.
 */
enum { GROUP_TOKENS = 1024 };

/* One tensor changed. */
struct variant {
    struct net_source source; /* for this tensor only */
    const struct net_source *given;
    const struct gguf_tensor *tensor;
    struct net net;
    float *x; /* (n, n_embd) */
};

struct net_replay {
    const struct net *net;
    struct pool *pool;
    struct net_batch batch;
    int64_t n, every, n_compared, max_variants; /* n_compared: of all sequences */
    struct spill states;                        /* (n_layers, n, n_embd): inputs of the layers */
    struct spill ends;                          /* (max_variants, n, n_embd): states of the variants */
    float *output;                              /* (n_compared, n_embd): the net's final states */
    struct layer_weights weights;
    struct layer_work work;
    struct layer_acts acts;
    struct variant *variants; /* [max_variants] */
    struct net_other *others; /* [max_variants] */
    double *kl;               /* (max_variants, n_compared) */
};

static size_t state_bytes(const struct net_replay *r)
{
    return sizeof(float) * (size_t)(r->n * r->net->n_embd);
}

static float *layer_state(const struct net_replay *r, int64_t il)
{
    return (float *)r->states.data + il * r->n * r->net->n_embd;
}

static struct layer_call call_of(struct net_replay *r, int64_t il)
{
    return (struct layer_call){
        .net = r->net, .il = il, .pool = r->pool, .weights = &r->weights, .acts = &r->acts, .work = &r->work};
}

/* to (n_compared, n_embd) from x (n, n_embd); may be the same. */
static void take_compared(const struct net_replay *r, float *to, const float *x)
{
    int64_t width = r->net->n_embd, n_ctx = r->batch.n_ctx;
    for (int64_t s = 0; s < r->batch.n_seqs; s++)
        for (int64_t t = r->every - 1; t < n_ctx; t += r->every, to += width)
            memmove(to, x + (s * n_ctx + t) * width, sizeof *to * (size_t)width);
}

/* ---- Memory ---------------------------------------------------------------------------------------------
 */

void net_replay_needs(struct net_needs *needs, const struct net *net, const struct net_batch *batch,
                      int64_t max_variants, int64_t every, int n_threads)
{
    int64_t n_seqs = net_group_seqs(batch->n_seqs, batch->n_ctx, GROUP_TOKENS),
            n = batch->n_seqs * batch->n_ctx, n_compared = batch->n_seqs * (batch->n_ctx / every),
            state = (int64_t)sizeof(float) * net->n_embd;
    *needs = (struct net_needs){
        .fixed = layer_weights_bytes(net) + head_divergence_bytes(net, n_compared, max_variants) +
                 max_variants * (int64_t)(sizeof(struct variant) + sizeof(struct net_other)) +
                 max_variants * n_compared * (int64_t)sizeof(double) + n_compared * state,
        .states = (net->n_layers + max_variants) * n * state,
        .activations =
            (int64_t)sizeof(float) * (layer_work_floats(net, n_seqs, batch->n_ctx, false, n_threads) +
                                      layer_acts_floats(net, n_seqs * batch->n_ctx)),
    };
}

static allot_status allocate(struct net_replay *r, const struct net_placement *place, struct allot_error *err)
{
    const struct net *net = r->net;
    const char *folder = place ? place->activations_folder : NULL;
    const char *states_folder = place ? place->states_folder : NULL;
    int64_t n_seqs = net_group_seqs(r->batch.n_seqs, r->batch.n_ctx, GROUP_TOKENS);
    size_t max = (size_t)r->max_variants;
    r->output = malloc(sizeof(float) * (size_t)(r->n_compared * net->n_embd));
    r->variants = calloc(max, sizeof *r->variants);
    r->others = calloc(max, sizeof *r->others);
    r->kl = malloc(sizeof *r->kl * max * (size_t)r->n_compared);
    if (!r->output || !r->variants || !r->others || !r->kl)
        return allot_fail_memory(err, sizeof(float) * (size_t)(r->n_compared * net->n_embd),
                                 "the final states");
    allot_status status = spill_new(&r->states, (size_t)net->n_layers * state_bytes(r), states_folder,
                                    "the states of all layers", err);
    if (status == ALLOT_OK)
        status = spill_new(&r->ends, max * state_bytes(r), states_folder, "the states of the variants", err);
    if (status == ALLOT_OK)
        status = layer_weights_init(&r->weights, net, err);
    if (status == ALLOT_OK)
        status =
            layer_work_init(&r->work, net, n_seqs, r->batch.n_ctx, false, pool_threads(r->pool), folder, err);
    if (status == ALLOT_OK)
        status = layer_acts_init(&r->acts, net, n_seqs * r->batch.n_ctx, folder, err);
    return status;
}

void net_replay_close(struct net_replay *r)
{
    if (r == NULL)
        return;
    layer_acts_release(&r->acts);
    layer_work_release(&r->work);
    layer_weights_release(&r->weights);
    spill_release(&r->states);
    spill_release(&r->ends);
    free(r->output);
    free(r->variants);
    free(r->others);
    free(r->kl);
    free(r);
}

/* ---- The net itself -------------------------------------------------------------------------------------
 */

/* A net whose own output is not finite is no measure of others. */
static allot_status check_output(const struct net_replay *r, struct allot_error *err)
{
    int64_t width = r->net->n_embd;
    for (int64_t i = 0; i < r->n_compared * width; i++)
        if (!isfinite(r->output[i]))
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: its output is not finite (NaN or infinite)",
                              r->net->model->path);
    return ALLOT_OK;
}

static allot_status run_net(struct net_replay *r, const struct net_observer *observer,
                            const struct allot_progress *progress, struct allot_error *err)
{
    const struct net *net = r->net;
    allot_status status = pass_check(net, &r->batch, err);
    if (status == ALLOT_OK)
        status = pass_embed(net, r->pool, &r->batch, r->states.data, err);
    for (int64_t il = 0; il < net->n_layers && status == ALLOT_OK; il++) {
        struct layer_call c = call_of(r, il);
        c.observer = observer;
        status = allot_report(progress, err, "forward", il, net->n_layers);
        if (status == ALLOT_OK)
            status = layer_weights_load(&r->weights, net, il, r->pool, err);
        if (status != ALLOT_OK)
            break;
        float *next = il + 1 < net->n_layers ? layer_state(r, il + 1) : r->ends.data;
        status = pass_layer(&c, &r->batch, next, layer_state(r, il), err);
        spill_forget(&r->states, layer_state(r, il), state_bytes(r));
    }
    if (status == ALLOT_OK)
        take_compared(r, r->output, r->ends.data);
    if (status == ALLOT_OK)
        status = check_output(r, err);
    return status == ALLOT_OK ? allot_report(progress, err, "forward", net->n_layers, net->n_layers) : status;
}

allot_status net_replay_open(struct net_replay **out, const struct net *net, struct pool *pool,
                             const struct net_batch *batch, const struct net_replay_options *options,
                             const struct net_observer *observer, const struct allot_progress *progress,
                             struct allot_error *err)
{
    *out = NULL;
    if (options->every < 1 || options->every > batch->n_ctx || options->max_variants < 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: no position of a sequence is compared",
                          net->model->path);
    struct net_replay *r = calloc(1, sizeof *r);
    if (r == NULL)
        return allot_fail_memory(err, sizeof *r, "passes");
    r->net = net;
    r->pool = pool;
    r->batch = *batch;
    r->n = batch->n_seqs * batch->n_ctx;
    r->every = options->every;
    r->n_compared = batch->n_seqs * (batch->n_ctx / options->every);
    r->max_variants = options->max_variants;
    allot_status status = allocate(r, options->place, err);
    if (status == ALLOT_OK)
        status = run_net(r, observer, progress, err);
    if (status == ALLOT_OK)
        *out = r;
    else
        net_replay_close(r);
    return status;
}

/* ---- Variants -------------------------------------------------------------------------------------------
 */

static bool is_changed(void *user, const struct gguf_tensor *tensor)
{
    const struct variant *v = user;
    return v->tensor == tensor;
}

static allot_status changed_rows(void *user, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                                 float *dst, struct pool *pool, struct allot_error *err)
{
    const struct variant *v = user;
    return v->given->rows(v->given->user, tensor, first, n_rows, dst, pool, err);
}

static void set_variants(struct net_replay *r, const struct gguf_tensor *tensor,
                         const struct net_source *sources, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        struct variant *v = &r->variants[i];
        *v = (struct variant){.source = {v, is_changed, changed_rows},
                              .given = &sources[i],
                              .tensor = tensor,
                              .net = *r->net,
                              .x = (float *)r->ends.data + i * r->n * r->net->n_embd};
        v->net.source = &v->source;
        r->others[i] = (struct net_other){&v->net, v->x};
    }
}

/* The slot of a tensor of this layer; NET_N_SLOTS: it is none of them. */
static enum net_slot slot_of(const struct net *net, int64_t il, const struct gguf_tensor *tensor)
{
    int slot = 0;
    while (slot < NET_N_SLOTS && net->layers[il].tensors[slot] != tensor)
        slot++;
    return (enum net_slot)slot;
}

static bool in_feed_forward(enum net_slot slot)
{
    return (slot >= NET_FFN_NORM && slot <= NET_FFN_POST_NORM) ||
           (slot >= NET_FFN_GATE_BIAS && slot <= NET_FFN_DOWN_BIAS);
}

/* Of the call's sequences, which begin with token `first`, through the layer with the variant's weights. The
 * attention half of the net's own is in the acts if half. */
static allot_status changed_group(struct net_replay *r, struct layer_call *c, const struct variant *v,
                                  enum net_slot slot, bool half, int64_t first, struct allot_error *err)
{
    int64_t at = first * r->net->n_embd;
    allot_status status = ALLOT_OK;
    if (!net_slot_is_stack(slot))
        status = layer_weights_load_slot(&r->weights, &v->net, c->il, slot, r->pool, err);
    c->net = &v->net;
    if (status == ALLOT_OK)
        status = half ? ffn_block_forward(c, v->x + at, err)
                      : layer_forward(c, v->x + at, layer_state(r, c->il) + at, err);
    c->net = r->net;
    return status;
}

/* All variants through the layer of their tensor. */
static allot_status changed_layer(struct net_replay *r, int64_t il, enum net_slot slot, int64_t n,
                                  struct allot_error *err)
{
    struct layer_call c = call_of(r, il);
    int64_t n_ctx = r->batch.n_ctx;
    bool half = in_feed_forward(slot);
    allot_status status = layer_weights_load(&r->weights, r->net, il, r->pool, err);
    for (int64_t s = 0; s < r->batch.n_seqs && status == ALLOT_OK; s += r->work.n_seqs) {
        c.n_seqs = least(r->batch.n_seqs - s, r->work.n_seqs);
        c.n = c.n_seqs * n_ctx;
        if (half)
            status = attn_block_forward(&c, layer_state(r, il) + s * n_ctx * r->net->n_embd, err);
        for (int64_t i = 0; i < n && status == ALLOT_OK; i++)
            status = changed_group(r, &c, &r->variants[i], slot, half, s * n_ctx, err);
    }
    spill_forget(&r->states, layer_state(r, il), state_bytes(r));
    return status;
}

static allot_status later_layer(struct net_replay *r, int64_t il, int64_t n, struct allot_error *err)
{
    struct layer_call c = call_of(r, il);
    allot_status status = layer_weights_load(&r->weights, r->net, il, r->pool, err);
    for (int64_t i = 0; i < n && status == ALLOT_OK; i++) {
        status = pass_layer(&c, &r->batch, r->variants[i].x, r->variants[i].x, err);
        spill_forget(&r->ends, r->variants[i].x, state_bytes(r));
    }
    return status;
}

int64_t net_replay_layers(const struct net *net, const struct gguf_tensor *tensor)
{
    if (tensor == net->token_embd)
        return net->n_layers;
    return tensor->layer >= 0 ? net->n_layers - tensor->layer : 0;
}

/* From the changed tensor to the states before the output. */
static allot_status run_layers(struct net_replay *r, const struct gguf_tensor *tensor, int64_t n,
                               const struct allot_progress *progress, struct allot_error *err)
{
    const struct net *net = r->net;
    int64_t n_run = net_replay_layers(net, tensor), first = net->n_layers - n_run;
    enum net_slot slot = tensor->layer >= 0 ? slot_of(net, first, tensor) : NET_N_SLOTS;
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < n && status == ALLOT_OK; i++) {
        if (tensor == net->token_embd)
            status = pass_embed(&r->variants[i].net, r->pool, &r->batch, r->variants[i].x, err);
        else if (n_run == 0)
            memcpy(r->variants[i].x, r->output, sizeof(float) * (size_t)(r->n_compared * net->n_embd));
    }
    for (int64_t il = first; il < net->n_layers && n > 0 && status == ALLOT_OK; il++) {
        status = allot_report(progress, err, "variants", il - first, n_run + 1);
        if (status != ALLOT_OK)
            break;
        bool changed = il == first && tensor != net->token_embd;
        status = changed ? changed_layer(r, il, slot, n, err) : later_layer(r, il, n, err);
    }
    for (int64_t i = 0; i < n && status == ALLOT_OK && n_run > 0; i++)
        take_compared(r, r->variants[i].x, r->variants[i].x);
    return status == ALLOT_OK ? allot_report(progress, err, "variants", n_run, n_run + 1) : status;
}

allot_status net_replay_run(struct net_replay *r, const struct gguf_tensor *tensor,
                            const struct net_source *sources, int64_t n, double *kl,
                            const struct allot_progress *progress, struct allot_error *err)
{
    const struct net *net = r->net;
    int64_t n_seqs = r->batch.n_seqs, per_seq = r->n_compared / n_seqs;
    bool known = tensor == net->token_embd || tensor == net->output ||
                 (tensor->layer >= 0 && tensor->layer < net->n_layers &&
                  slot_of(net, tensor->layer, tensor) != NET_N_SLOTS);
    if (!known || n > r->max_variants)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: tensor %s cannot be exchanged in so many ways",
                          net->model->path, tensor->name);
    set_variants(r, tensor, sources, n);
    allot_status status = run_layers(r, tensor, n, progress, err);
    if (status == ALLOT_OK)
        status = net_divergence(r->kl, net, r->pool, r->output, r->n_compared, r->others, n, err);
    for (int64_t i = 0; i < n * n_seqs && status == ALLOT_OK; i++) {
        kl[i] = 0;
        for (int64_t t = 0; t < per_seq; t++)
            kl[i] += r->kl[i * per_seq + t];
        kl[i] /= (double)per_seq;
    }
    if (status == ALLOT_OK)
        status = allot_report(progress, err, "variants", net_replay_layers(net, tensor) + 1,
                              net_replay_layers(net, tensor) + 1);
    return status;
}
