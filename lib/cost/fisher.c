/* fisher.c - the cost of every (tensor, type), from one backward pass.  SPDX-License-Identifier: MIT */
#include "cost/fisher.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "cost/candidates.h"
#include "cost/project.h"
#include "quant/quant.h"

void fisher_params(char params[static 64], const struct fisher_options *options)
{
    snprintf(params, 64, "chunk=%" PRId32 " seed=%" PRIu64, options->chunk, options->seed);
}

/* One tensor of the model, as a run sees it. */
struct candidate {
    bool wanted;
    struct candidates lacking;
    struct projection *projection; /* while its gradients come in */
};

struct fisher {
    const struct net *net;
    struct pool *pool;
    const struct fisher_options *options;
    struct cost_wish wish;
    int64_t n_tokens;
    int last_layer_noted;                /* whose experts without tokens a note has named; -1: none */
    int64_t weights_done, weights_total; /* of the tensors wanted */
    struct candidate *candidates;        /* [n_tensors] */
    struct projector projector;
    const struct allot_progress *progress;
};

/* ---- Which tensors lack what --------------------------------------------------------------------- */

static allot_status plan_candidate(struct fisher *f, int64_t index, struct fisher_result *result,
                                   struct allot_error *err)
{
    const struct gguf_tensor *tensor = &f->net->model->tensors[index];
    struct candidate *c = &f->candidates[index];
    if (!gguf_tensor_quantizable(tensor))
        return ALLOT_OK;
    allot_status status = candidates_find(&c->lacking, &f->wish, tensor, err);
    if (status != ALLOT_OK)
        return status;
    c->wanted = c->lacking.n_types > 0;
    result->n_tensors++;
    result->n_unsuited += c->lacking.n_legal == 0;
    result->n_resumed += c->lacking.n_legal > 0 && !c->wanted;
    f->weights_total += c->wanted ? tensor->n_elements : 0;
    return ALLOT_OK;
}

/* ---- Callbacks of the backward pass ---------------------------------------------------------------- */

static bool fisher_wants(void *user, const struct gguf_tensor *tensor)
{
    const struct fisher *f = user;
    return f->candidates[tensor - f->net->model->tensors].wanted;
}

static allot_status find_projection(struct fisher *f, const struct gguf_tensor *tensor,
                                    struct projection **out, struct allot_error *err)
{
    struct candidate *c = &f->candidates[tensor - f->net->model->tensors];
    allot_status status = ALLOT_OK;
    if (c->projection == NULL) {
        float *weights;
        status = candidates_weights(&weights, &f->wish, tensor, err);
        if (status == ALLOT_OK)
            status = projection_new(&c->projection, tensor, c->lacking.types, c->lacking.n_types, weights,
                                    f->projector.n_chunks, err);
    }
    *out = c->projection;
    return status;
}

static allot_status fisher_map(void *user, const struct net_map *map, struct allot_error *err)
{
    struct fisher *f = user;
    struct projection *p;
    allot_status status = find_projection(f, map->tensor, &p, err);
    if (status == ALLOT_OK)
        status = projection_add_map(p, &f->projector, map, err);
    return status;
}

static allot_status fisher_lookup(void *user, const struct net_lookup *lookup, struct allot_error *err)
{
    struct fisher *f = user;
    struct projection *p;
    allot_status status = find_projection(f, lookup->tensor, &p, err);
    if (status == ALLOT_OK)
        status = projection_add_lookup(p, &f->projector, f->net->model, lookup, err);
    gguf_tensor_forget(lookup->tensor);
    return status;
}

/* cost = 1/(2 n_tokens) sum_c u_c^2; its standard error takes chunks as independent samples. Experts without
 * tokens count as the mean of the others. */
static struct archive_cost summarize(const struct fisher *f, const struct projection *p, size_t j, float *u)
{
    const struct quant_type *type = quant_type_find(p->types[j]);
    int64_t n_chunks = f->projector.n_chunks;
    double sum = 0, sum2 = 0, n = (double)n_chunks;
    double scale = sqrt((double)p->tensor->ne[2] / (double)candidates_seen(p->tensor, p->seen));
    for (int64_t c = 0; c < n_chunks; c++) {
        double value = scale * p->u[c * (int64_t)p->n_types + (int64_t)j];
        double kl = value * value / (2.0 * f->options->chunk);
        u[c] = (float)value;
        sum += kl;
        sum2 += kl * kl;
    }
    double mean = sum / n, variance = sum2 / n - mean * mean;
    bool feasible = !p->infeasible[j] && isfinite(mean);
    return (struct archive_cost){
        .type = type->name,
        .bytes = p->tensor->n_rows * (int64_t)ggml_row_size(p->types[j], p->tensor->ne[0]),
        .cost = mean,
        .std_err = variance > 0 && n > 1 ? sqrt(variance / (n - 1)) : 0,
        .feasible = feasible,
        /* what an infeasible type's sums hold depends on when that was found out */
        .u = feasible ? u : NULL,
        .n_u = feasible ? (size_t)n_chunks : 0,
    };
}

/* Once a layer, whose tensors have them in common. */
static void note_unseen(struct fisher *f, const struct projection *p)
{
    const struct gguf_tensor *t = p->tensor;
    if (t->layer != f->last_layer_noted && candidates_note_unseen(f->progress, t, p->seen))
        f->last_layer_noted = t->layer;
}

static allot_status store(struct fisher *f, const struct projection *p, struct allot_error *err)
{
    struct archive_cost *rows = malloc((p->n_types + 1) * sizeof *rows);
    size_t n_chunks = (size_t)f->projector.n_chunks;
    float *u = malloc(sizeof *u * (p->n_types * n_chunks + 1));
    allot_status status = ALLOT_OK;
    if (rows == NULL || u == NULL)
        status = allot_fail_memory(err, sizeof *u * p->n_types * n_chunks, p->tensor->name);
    if (status == ALLOT_OK)
        note_unseen(f, p);
    for (size_t j = 0; j < p->n_types && status == ALLOT_OK; j++) {
        rows[j] = summarize(f, p, j, u + j * n_chunks);
        if (!rows[j].feasible)
            rows[j].cost = rows[j].std_err = 0;
        candidates_note(f->progress, p->tensor, p->types[j], !rows[j].feasible, p->floored[j]);
    }
    if (status == ALLOT_OK)
        status = archive_cost_put(f->wish.archive, f->wish.set_id, p->tensor->name, rows, p->n_types, err);
    free(rows);
    free(u);
    return status;
}

static allot_status fisher_done(void *user, const struct gguf_tensor *tensor, struct allot_error *err)
{
    struct fisher *f = user;
    struct candidate *c = &f->candidates[tensor - f->net->model->tensors];
    if (c->projection == NULL)
        return ALLOT_OK;
    bool all_seen =
        tensor != f->net->token_embd && candidates_seen(tensor, c->projection->seen) == tensor->ne[2];
    allot_status status = ALLOT_OK;
    if (!all_seen)
        status = projection_try_rows(c->projection, &f->projector, f->net->model, err);
    if (status == ALLOT_OK)
        status = store(f, c->projection, err);
    projection_free(c->projection);
    c->projection = NULL;
    f->weights_done += tensor->n_elements;
    if (status == ALLOT_OK)
        status = allot_report(f->progress, err, "costs", f->weights_done, f->weights_total);
    return status;
}

/* ---- The run ------------------------------------------------------------------------------------------ */

/* Where the passes' blocks go. */
static allot_status place_blocks(struct net_placement *place, const struct fisher *f,
                                 const struct text_windows *windows, struct allot_error *err)
{
    const int n_threads = pool_threads(f->pool);
    struct net_needs needs;
    net_backward_needs(&needs, f->net, windows->n, windows->n_ctx, n_threads);
    needs.fixed +=
        projector_bytes(&f->projector, f->net->model, f->options->n_types) + memory_base(n_threads);
    return net_place(place, &needs, f->options->memory, "the costs", f->progress, err);
}

/* Forward, labels, backward. */
static allot_status pass_through(struct fisher *f, const struct net_batch *batch, float *x,
                                 struct net_tape *tape, struct fisher_result *result, struct allot_error *err)
{
    const struct net *net = f->net;
    struct net_observer observer = {
        .user = f, .wants = fisher_wants, .map = fisher_map, .lookup = fisher_lookup, .done = fisher_done};
    struct net_targets targets = {0};
    double start = seconds_now();
    allot_status status = net_forward(net, f->pool, batch, x, tape, f->n_tokens, NULL, f->progress, err);
    if (status == ALLOT_OK)
        status = net_targets_draw(&targets, net, f->pool, x, f->n_tokens, f->options->seed, err);
    result->seconds_forward = seconds_now() - start;
    start = seconds_now();
    if (status == ALLOT_OK)
        status = allot_report(f->progress, err, "costs", 0, f->weights_total);
    if (status == ALLOT_OK)
        status = net_backward(net, f->pool, batch, x, tape, &targets, &observer, NULL, err);
    result->seconds_backward = seconds_now() - start;
    net_targets_release(&targets);
    return status;
}

static allot_status run_passes(struct fisher *f, const struct text_windows *windows,
                               struct fisher_result *result, struct allot_error *err)
{
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    struct net_tape tape = {0};
    struct spill x = {0};
    allot_status status = quant_prepare(f->options->types, f->options->n_types, f->progress, err);
    if (status == ALLOT_OK)
        status = place_blocks(&result->place, f, windows, err);
    if (status == ALLOT_OK)
        status = net_tape_init(&tape, f->net, f->n_tokens, &result->place, err);
    result->place = tape.place;
    if (status == ALLOT_OK)
        status = spill_new(&x, sizeof(float) * (size_t)(f->n_tokens * f->net->n_embd),
                           result->place.activations_folder, "the final states", err);
    if (status == ALLOT_OK)
        status = pass_through(f, &batch, x.data, &tape, result, err);
    spill_release(&x);
    net_tape_release(&tape);
    return status;
}

allot_status fisher_run(struct fisher_result *result, const struct net *net, struct pool *pool,
                        const struct text_windows *windows, const struct imatrix *imatrix,
                        const struct fisher_options *options, struct archive *archive, int64_t set_id,
                        const struct allot_progress *progress, struct allot_error *err)
{
    struct fisher f = {.net = net,
                       .pool = pool,
                       .options = options,
                       .wish = {imatrix, options->types, options->n_types, archive, set_id},
                       .n_tokens = windows->n * windows->n_ctx,
                       .last_layer_noted = -1,
                       .progress = progress};
    *result = (struct fisher_result){0};
    if (options->chunk < 1 || windows->n_ctx % options->chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "chunks of %" PRId32 " tokens do not divide sequences of %" PRId32, options->chunk,
                          windows->n_ctx);
    f.candidates = calloc((size_t)net->model->n_tensors, sizeof *f.candidates);
    if (f.candidates == NULL)
        return allot_fail_memory(err, (size_t)net->model->n_tensors * sizeof *f.candidates, "candidates");
    projector_init(&f.projector, pool, options->chunk, f.n_tokens / options->chunk);
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < net->model->n_tensors && status == ALLOT_OK; i++)
        status = plan_candidate(&f, i, result, err);
    if (status == ALLOT_OK && f.weights_total > 0)
        status = run_passes(&f, windows, result, err);
    if (status == ALLOT_OK)
        status = candidates_finish(&f.wish, f.n_tokens, err);
    result->seconds_quantize = f.projector.seconds_quantize;
    result->seconds_product = f.projector.seconds_product;
    projector_release(&f.projector);
    for (int64_t i = 0; i < net->model->n_tensors; i++) {
        free(f.candidates[i].lacking.types);
        projection_free(f.candidates[i].projection);
    }
    free(f.candidates);
    return status;
}
