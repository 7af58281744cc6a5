/* pass.c - the streamed forward and backward passes.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "net/head.h"
#include "net/linear.h"
#include "net/pass.h"
#include "net/source.h"

allot_status pass_check(const struct net *net, const struct net_batch *batch, struct allot_error *err)
{
    for (int64_t i = 0; i < batch->n_seqs * batch->n_ctx; i++)
        if (batch->ids[i] < 0 || batch->ids[i] >= net->n_vocab)
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "%s: token %" PRId32 " is outside the embedding's %" PRId64 " rows",
                              net->model->path, batch->ids[i], net->n_vocab);
    return ALLOT_OK;
}

allot_status pass_embed(const struct net *net, struct pool *pool, const struct net_batch *batch, float *x,
                        struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (int64_t t = 0; t < batch->n_seqs * batch->n_ctx && status == ALLOT_OK; t++)
        status = net_rows(net, net->token_embd, batch->ids[t], 1, x + t * net->n_embd, NULL, err);
    gguf_tensor_forget(net->token_embd);
    scale_values(pool, x, net->embd_scale, batch->n_seqs * batch->n_ctx * net->n_embd);
    return status;
}

allot_status pass_layer(struct layer_call *c, const struct net_batch *batch, float *y, const float *x,
                        struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (int64_t s = 0; s < batch->n_seqs && status == ALLOT_OK; s += c->work->n_seqs) {
        int64_t first = s * batch->n_ctx * c->net->n_embd;
        c->n_seqs = batch->n_seqs - s < c->work->n_seqs ? batch->n_seqs - s : c->work->n_seqs;
        c->n = c->n_seqs * batch->n_ctx;
        status = layer_forward(c, y + first, x + first, err);
    }
    return status;
}

int64_t net_group_seqs(int64_t n_seqs, int64_t n_ctx, int64_t group_tokens)
{
    int64_t group = group_tokens / n_ctx;
    group = group < 1 ? 1 : group;
    return group > n_seqs ? n_seqs : group;
}

/* The states of layer il, which the tape keeps. */
static float *layer_input(const struct net *net, const struct net_tape *tape, int64_t il, int64_t n)
{
    return (float *)tape->states.data + il * n * net->n_embd;
}

/* Where the tape keeps what is inside layer il; NULL: nowhere. */
static struct layer_acts *kept_acts(const struct net_tape *tape, int64_t il)
{
    int64_t i = tape == NULL ? -1 : il - (tape->n_layers - tape->n_kept);
    return i < 0 ? NULL : &tape->kept[i];
}

allot_status net_forward(const struct net *net, struct pool *pool, const struct net_batch *batch, float *x,
                         struct net_tape *tape, int64_t group_tokens, const struct net_observer *observer,
                         const struct allot_progress *progress, struct allot_error *err)
{
    struct layer_weights weights = {0};
    struct layer_work work = {0};
    struct layer_acts acts = {0};
    const char *folder = tape != NULL ? tape->place.activations_folder : NULL;
    bool taped = tape != NULL && tape->states.data != NULL;
    int64_t n = batch->n_seqs * batch->n_ctx,
            n_group = taped ? batch->n_seqs : net_group_seqs(batch->n_seqs, batch->n_ctx, group_tokens);
    size_t state_bytes = sizeof(float) * (size_t)(n * net->n_embd);
    allot_status status = pass_check(net, batch, err);
    if (status == ALLOT_OK)
        status = layer_weights_init(&weights, net, err);
    if (status == ALLOT_OK)
        status = layer_work_init(&work, net, n_group, batch->n_ctx, false, pool_threads(pool), folder, err);
    if (status == ALLOT_OK && (!taped || tape->n_kept < net->n_layers))
        status = layer_acts_init(&acts, net, n_group * batch->n_ctx, folder, err);
    if (status == ALLOT_OK)
        status = pass_embed(net, pool, batch, x, err);
    for (int64_t il = 0; il < net->n_layers && status == ALLOT_OK; il++) {
        status = allot_report(progress, err, "forward", il, net->n_layers);
        if (status == ALLOT_OK)
            status = layer_weights_load(&weights, net, il, pool, err);
        struct layer_acts *kept = taped ? kept_acts(tape, il) : NULL;
        if (status == ALLOT_OK && kept != NULL && kept->arena.data == NULL)
            status = layer_acts_init(kept, net, n, NULL, err);
        if (status != ALLOT_OK)
            break;
        if (taped) {
            memcpy(layer_input(net, tape, il, n), x, state_bytes);
            spill_forget(&tape->states, layer_input(net, tape, il, n), state_bytes);
        }
        struct layer_call c = {.net = net,
                               .il = il,
                               .pool = pool,
                               .weights = &weights,
                               .acts = kept != NULL ? kept : &acts,
                               .work = &work,
                               .observer = observer};
        status = pass_layer(&c, batch, x, x, err);
    }
    if (status == ALLOT_OK)
        status = allot_report(progress, err, "forward", net->n_layers, net->n_layers);
    layer_acts_release(&acts);
    layer_work_release(&work);
    layer_weights_release(&weights);
    return status;
}

static allot_status embed_backward(const struct net *net, struct pool *pool, const struct net_batch *batch,
                                   float *dx, const struct net_observer *observer, struct allot_error *err)
{
    scale_values(pool, dx, net->embd_scale, batch->n_seqs * batch->n_ctx * net->n_embd);
    struct net_lookup lookup = {net->token_embd, batch->n_seqs * batch->n_ctx, net->n_embd, batch->ids, dx};
    allot_status status = ALLOT_OK;
    if (observer != NULL && observer->lookup != NULL &&
        (observer->wants == NULL || observer->wants(observer->user, net->token_embd)))
        status = observer->lookup(observer->user, &lookup, err);
    if (status == ALLOT_OK)
        status = observe_done(observer, net->token_embd, err);
    return status;
}

/* dx: gradient of the layer's output, then of its input. What is inside the layer was kept, or is made anew
 * in c->acts. */
static allot_status backward_layer(struct layer_call *c, struct layer_acts *kept, const char *folder,
                                   float *dx, const float *input, const struct net_observer *observer,
                                   struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    if (kept != NULL && kept->arena.data != NULL) {
        c->acts = kept;
        layer_refill(c, input);
    } else {
        if (c->acts->arena.data == NULL)
            status = layer_acts_init(c->acts, c->net, c->n, folder, err);
        if (status == ALLOT_OK)
            status = layer_forward(c, NULL, input, err);
    }
    c->observer = observer;
    if (status == ALLOT_OK)
        status = layer_backward(c, dx, input, err);
    if (kept != NULL)
        layer_acts_release(kept);
    return status;
}

allot_status net_backward(const struct net *net, struct pool *pool, const struct net_batch *batch,
                          const float *x, struct net_tape *tape, const struct net_targets *targets,
                          const struct net_observer *observer, const struct allot_progress *progress,
                          struct allot_error *err)
{
    struct layer_weights weights = {0};
    struct layer_work work = {0};
    struct layer_acts acts = {0};
    int64_t n = batch->n_seqs * batch->n_ctx, steps = net->n_layers + 2;
    size_t state_bytes = sizeof(float) * (size_t)(n * net->n_embd);
    const char *folder = tape->place.activations_folder;
    struct spill dx = {0};
    allot_status status = spill_new(&dx, state_bytes, folder, "the gradients of the states", err);
    if (status == ALLOT_OK)
        status = allot_report(progress, err, "backward", 0, steps);
    if (status == ALLOT_OK)
        status = head_backward(net, pool, dx.data, x, n, targets, observer, folder, err);
    if (status == ALLOT_OK)
        status = layer_weights_init(&weights, net, err);
    if (status == ALLOT_OK)
        status =
            layer_work_init(&work, net, batch->n_seqs, batch->n_ctx, true, pool_threads(pool), folder, err);
    for (int64_t il = net->n_layers - 1; il >= 0 && status == ALLOT_OK; il--) {
        const float *input = layer_input(net, tape, il, n);
        struct layer_call c = {.net = net,
                               .il = il,
                               .pool = pool,
                               .weights = &weights,
                               .acts = &acts,
                               .work = &work,
                               .n_seqs = batch->n_seqs,
                               .n = n};
        status = allot_report(progress, err, "backward", net->n_layers - il, steps);
        if (status == ALLOT_OK)
            status = layer_weights_load(&weights, net, il, pool, err);
        if (status == ALLOT_OK)
            status = backward_layer(&c, kept_acts(tape, il), folder, dx.data, input, observer, err);
        spill_forget(&tape->states, input, state_bytes);
    }
    if (status == ALLOT_OK)
        status = embed_backward(net, pool, batch, dx.data, observer, err);
    if (status == ALLOT_OK)
        status = allot_report(progress, err, "backward", steps, steps);
    layer_acts_release(&acts);
    layer_work_release(&work);
    layer_weights_release(&weights);
    spill_release(&dx);
    return status;
}
