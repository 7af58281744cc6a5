/* relinearize.c - what changing one tensor's type costs from where a plan stands.
 * SPDX-License-Identifier: MIT */
#include "cost/relinearize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mean.h"
#include "base/spill.h"
#include "cost/candidates.h"
#include "cost/chunk_kl.h"
#include "cost/gather.h"
#include "cost/planned.h"
#include "quant/quant.h"

struct relinearize {
    const struct net *net;
    struct pool *pool;
    const struct relinearize_options *options;
    const struct text_windows *windows;
    struct planned planned;
    struct gather gather;
    int64_t n_tokens, n_taught; /* all, and those with a teacher, which come first */
    struct tensor_changes *changes;
    const struct allot_progress *progress;
};

/* ---- Candidates ---------------------------------------------------------------------------------------- */

/* The legal types, and the plan's own, which may have come from elsewhere. */
static allot_status list_types(struct relinearize *r, int64_t index, const struct imatrix *imatrix,
                               struct allot_error *err)
{
    const struct gguf_tensor *t = &r->net->model->tensors[index];
    struct gather_tensor *g = &r->gather.tensors[index];
    const enum ggml_type now = r->planned.types[index];
    float *weights = NULL;
    char reason[128];
    bool listed = now == t->type;
    allot_status status = ALLOT_OK;
    if (!gguf_tensor_quantizable(t))
        return ALLOT_OK;
    if (imatrix != NULL)
        status = imatrix_weights(imatrix, t, &weights, reason, err);
    if (status != ALLOT_OK)
        return status;
    g->types = malloc((r->options->n_types + 1) * sizeof *g->types);
    if (g->types == NULL) {
        free(weights);
        return allot_fail_memory(err, r->options->n_types * sizeof *g->types, t->name);
    }
    g->n_types = candidates_legal(t, weights != NULL, r->options->types, r->options->n_types, g->types);
    for (size_t j = 0; j < g->n_types; j++)
        listed = listed || g->types[j] == now;
    if (!listed)
        g->types[g->n_types++] = now;
    r->gather.weights_total += g->n_types > 0 ? t->n_elements : 0;
    free(weights);
    return ALLOT_OK;
}

/* ---- Sums into changes -----------------------------------------------------------------------------------
 */

/* j, now: places among the projection's types; -1: the source's own, without error. step has room for the
 * chunks of a sequence. */
static void find_change(struct type_change *out, const struct relinearize *r, const struct projection *p,
                        int64_t j, int64_t now, double *step)
{
    const struct projector *projector = &r->gather.projector;
    const double scale = gather_scale(p), n_tokens = r->windows->n_ctx;
    int64_t n_types = (int64_t)p->n_types, n_taught = r->n_taught / projector->chunk;
    const int64_t per_sequence = r->windows->n_ctx / projector->chunk;
    struct mean slope = {0}, curve = {0};
    for (int64_t first = 0; first < projector->n_chunks; first += per_sequence) {
        double sum = 0;
        for (int64_t c = 0; c < per_sequence; c++) {
            const double *u = p->u + (first + c) * n_types;
            step[c] = scale * ((j < 0 ? 0 : u[j]) - (now < 0 ? 0 : u[now]));
            sum += step[c];
        }
        if (first < n_taught)
            mean_add(&slope, -scale * sum / n_tokens); /* linear: not the root, but scale^2 */
        else
            mean_add(&curve, chunk_kl(step, per_sequence) / n_tokens);
    }
    out->slope = slope.mean;
    out->curve = curve.mean;
    out->std_err = hypot(mean_std_err(&slope), mean_std_err(&curve));
}

static allot_status take(void *user, const struct projection *p, struct allot_error *err)
{
    struct relinearize *r = user;
    int64_t index = p->tensor - r->net->model->tensors, now = -1;
    struct tensor_changes *out = &r->changes[index];
    out->list = calloc(p->n_types + 1, sizeof *out->list);
    double *step = malloc(sizeof *step * (size_t)(r->windows->n_ctx + 1));
    if (out->list == NULL || step == NULL) {
        free(step);
        return allot_fail_memory(err, (p->n_types + 1) * sizeof *out->list, p->tensor->name);
    }
    for (size_t j = 0; j < p->n_types; j++)
        if (p->types[j] == r->planned.types[index])
            now = (int64_t)j;
    for (int64_t j = -1; j < (int64_t)p->n_types; j++) {
        struct type_change *change = &out->list[out->n];
        if (j >= 0 && p->infeasible[j])
            continue;
        change->type = j < 0 ? p->tensor->type : p->types[j];
        find_change(change, r, p, j, now, step);
        out->n += isfinite(change->slope + change->curve);
    }
    free(step);
    return ALLOT_OK;
}

/* ---- Passes -------------------------------------------------------------------------------------------- */

static allot_status place_blocks(struct net_placement *place, const struct relinearize *r,
                                 struct allot_error *err)
{
    const int n_threads = pool_threads(r->pool);
    struct net_needs needs;
    net_backward_needs(&needs, r->net, r->windows->n, r->windows->n_ctx, n_threads);
    needs.fixed += projector_bytes(&r->gather.projector, r->net->model, r->options->n_types + 1) +
                   memory_base(n_threads);
    /* the teacher's states, as they are and normed, and a block of its logits */
    needs.activations += net_teacher_bytes(r->net, r->n_taught);
    return net_place(place, &needs, r->options->memory, "re-linearising", r->progress, err);
}

/* The original's states and log-sums at the taught tokens. */
static allot_status find_teacher(struct net_teacher *teacher, struct spill *x, struct net_targets *base,
                                 const struct relinearize *r, const struct net_placement *place,
                                 struct allot_error *err)
{
    const struct net *net = r->net;
    const struct net_batch batch = {r->windows->ids, r->options->n_taught, r->windows->n_ctx};
    struct net_tape tape = {.place = *place};
    allot_status status = spill_new(x, sizeof(float) * (size_t)(r->n_taught * net->n_embd + 1),
                                    place->activations_folder, "the original's states", err);
    if (status == ALLOT_OK && r->n_taught > 0)
        status = net_forward(net, r->pool, &batch, x->data, &tape, r->n_taught, NULL, r->progress, err);
    if (status == ALLOT_OK && r->n_taught > 0)
        status = net_targets_draw(base, net, r->pool, x->data, r->n_taught, r->options->seed, err);
    *teacher = (struct net_teacher){net, r->n_taught, x->data, base->lse};
    return status;
}

static allot_status pass_through(struct relinearize *r, struct net_tape *tape, float *x,
                                 const struct net_teacher *teacher, struct allot_error *err)
{
    const struct net_batch batch = {r->windows->ids, r->windows->n, r->windows->n_ctx};
    struct net_observer observer = gather_observer(&r->gather);
    struct net_targets targets = {0};
    const struct net *net = &r->planned.net;
    allot_status status = net_forward(net, r->pool, &batch, x, tape, r->n_tokens, NULL, r->progress, err);
    if (status == ALLOT_OK)
        status = net_targets_draw(&targets, net, r->pool, x, r->n_tokens, r->options->seed, err);
    targets.teacher = teacher->n > 0 ? teacher : NULL;
    if (status == ALLOT_OK)
        status = net_backward(net, r->pool, &batch, x, tape, &targets, &observer, NULL, err);
    net_targets_release(&targets);
    return status;
}

static allot_status run_passes(struct relinearize *r, struct allot_error *err)
{
    struct net_placement place;
    struct net_teacher teacher;
    struct net_targets base = {0};
    struct net_tape tape = {0};
    struct spill x = {0}, taught = {0};
    allot_status status = quant_prepare(r->options->types, r->options->n_types, r->progress, err);
    if (status == ALLOT_OK)
        status = place_blocks(&place, r, err);
    if (status == ALLOT_OK)
        status = find_teacher(&teacher, &taught, &base, r, &place, err);
    if (status == ALLOT_OK)
        status = net_tape_init(&tape, r->net, r->n_tokens, &place, err);
    if (status == ALLOT_OK)
        status = spill_new(&x, sizeof(float) * (size_t)(r->n_tokens * r->net->n_embd),
                           place.activations_folder, "the final states", err);
    if (status == ALLOT_OK)
        status = pass_through(r, &tape, x.data, &teacher, err);
    spill_release(&x);
    spill_release(&taught);
    net_tape_release(&tape);
    net_targets_release(&base);
    return status;
}

allot_status relinearize_run(struct tensor_changes *changes, const struct net *net, const enum ggml_type *now,
                             struct pool *pool, const struct text_windows *windows,
                             const struct imatrix *imatrix, const struct relinearize_options *options,
                             const struct allot_progress *progress, struct allot_error *err)
{
    struct relinearize r = {.net = net,
                            .pool = pool,
                            .options = options,
                            .windows = windows,
                            .n_tokens = windows->n * windows->n_ctx,
                            .n_taught = options->n_taught * windows->n_ctx,
                            .changes = changes,
                            .progress = progress};
    memset(changes, 0, (size_t)net->model->n_tensors * sizeof *changes);
    if (options->chunk < 1 || windows->n_ctx % options->chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "chunks do not divide the sequences");
    allot_status status = gather_init(&r.gather, net, pool, imatrix, options->chunk,
                                      r.n_tokens / options->chunk, progress, err);
    r.gather.projector.source = net->model;
    r.gather.take = take;
    r.gather.user = &r;
    if (status == ALLOT_OK)
        status = planned_init(&r.planned, net, now, imatrix, pool, options->memory, progress, err);
    for (int64_t i = 0; i < net->model->n_tensors && status == ALLOT_OK; i++)
        status = list_types(&r, i, imatrix, err);
    if (status == ALLOT_OK)
        status = run_passes(&r, err);
    planned_release(&r.planned);
    gather_release(&r.gather);
    if (status != ALLOT_OK)
        tensor_changes_free(changes, net->model->n_tensors);
    return status;
}

void tensor_changes_free(struct tensor_changes *changes, int64_t n_tensors)
{
    for (int64_t i = 0; i < n_tensors; i++)
        free(changes[i].list);
    memset(changes, 0, (size_t)n_tensors * sizeof *changes);
}

/* ---- How far a plan is --------------------------------------------------------------------------------- */

static allot_status both_states(struct spill *base, struct spill *x, const struct planned *planned,
                                const struct net *net, struct pool *pool, const struct text_windows *windows,
                                const struct memory_budget *memory, const struct allot_progress *progress,
                                struct allot_error *err)
{
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    const int64_t n = windows->n * windows->n_ctx, group = n < 4096 ? n : 4096;
    size_t bytes = sizeof(float) * (size_t)(n * net->n_embd);
    struct net_needs needs;
    struct net_placement place;
    net_forward_needs(&needs, net, windows->n, windows->n_ctx, group, pool_threads(pool));
    needs.states *= 2;
    needs.fixed += memory_base(pool_threads(pool));
    allot_status status = net_place(&place, &needs, memory, "measuring a plan", progress, err);
    struct net_tape tape = {.place = place};
    if (status == ALLOT_OK)
        status = spill_new(base, bytes, place.states_folder, "the original's states", err);
    if (status == ALLOT_OK)
        status = spill_new(x, bytes, place.states_folder, "the plan's states", err);
    if (status == ALLOT_OK)
        status = net_forward(net, pool, &batch, base->data, &tape, group, NULL, progress, err);
    if (status == ALLOT_OK)
        status = net_forward(&planned->net, pool, &batch, x->data, &tape, group, NULL, progress, err);
    return status;
}

allot_status planned_divergence(double *kl, const struct net *net, const enum ggml_type *types,
                                struct pool *pool, const struct text_windows *windows,
                                const struct imatrix *imatrix, const struct memory_budget *memory,
                                const struct allot_progress *progress, struct allot_error *err)
{
    struct planned planned;
    struct spill base = {0}, x = {0};
    const int64_t n = windows->n * windows->n_ctx;
    double *token = malloc(sizeof *token * (size_t)n);
    if (token == NULL)
        return allot_fail_memory(err, sizeof *token * (size_t)n, "a divergence");
    allot_status status = planned_init(&planned, net, types, imatrix, pool, memory, progress, err);
    if (status == ALLOT_OK)
        status = both_states(&base, &x, &planned, net, pool, windows, memory, progress, err);
    struct net_other other = {&planned.net, x.data};
    if (status == ALLOT_OK)
        status = net_divergence(token, net, pool, base.data, n, &other, 1, err);
    for (int64_t s = 0; s < windows->n && status == ALLOT_OK; s++) {
        double sum = 0;
        for (int64_t t = 0; t < windows->n_ctx; t++)
            sum += token[s * windows->n_ctx + t];
        kl[s] = sum / windows->n_ctx;
        if (!isfinite(kl[s]))
            status =
                allot_fail(err, ALLOT_ERR_NUMERIC, "%s: the plan's logits are not finite", net->model->path);
    }
    spill_release(&base);
    spill_release(&x);
    planned_release(&planned);
    free(token);
    return status;
}
