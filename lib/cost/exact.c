/* exact.c - the cost of every (tensor, type) as the KL of the network with that one change.
 * SPDX-License-Identifier: MIT */
#include "cost/exact.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mean.h"
#include "base/strbuf.h"
#include "cost/candidates.h"
#include "cost/requantize.h"
#include "cost/weight_error.h"
#include "net/replay.h"
#include "quant/quant.h"

int64_t exact_every(const struct net *net)
{
    int64_t head = net->output->n_elements, layers = 0, every = 1;
    for (int64_t il = 0; il < net->n_layers; il++)
        for (int slot = 0; slot < NET_N_SLOTS; slot++) {
            const struct gguf_tensor *t = net->layers[il].tensors[slot];
            bool stack = t != NULL && net_slot_is_stack((enum net_slot)slot);
            layers += t == NULL ? 0 : stack ? t->n_elements / t->ne[2] * net->n_experts_used : t->n_elements;
        }
    while (every < 8 && 2 * head > every * layers)
        every *= 2;
    return every;
}

void exact_params(char params[static 64], const struct net *net)
{
    snprintf(params, 64, "every=%" PRId64, exact_every(net));
}

struct exact {
    const struct net *net;
    struct pool *pool;
    struct cost_wish wish;
    struct candidates *lacking; /* [n_tensors] */
    bool **seen; /* [n_tensors]: matrices of a stack that tokens passed through; NULL: no stack */
    struct net_replay *replay;
    int64_t n_seqs;
    int64_t n_wanted, weights_wanted, max_types;
    int64_t steps_done, steps_total; /* layers and outputs, one for each type */
    int64_t types_now;
    int last_layer_noted; /* whose experts without tokens a note has named; -1: none */
    struct exact_result *result;
    const struct allot_progress *progress;
};

/* ---- What is to be done, and how long it will take ------------------------------------------------------
 */

static int64_t steps_of(const struct exact *e, int64_t index)
{
    return net_replay_layers(e->net, &e->net->model->tensors[index]) + 1;
}

static allot_status find_lacking(struct exact *e, struct allot_error *err)
{
    const struct gguf_model *model = e->net->model;
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < model->n_tensors && status == ALLOT_OK; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        struct candidates *c = &e->lacking[i];
        if (!gguf_tensor_quantizable(t))
            continue;
        status = candidates_find(c, &e->wish, t, err);
        int64_t n = (int64_t)c->n_types;
        e->result->n_tensors++;
        e->result->n_unsuited += c->n_legal == 0;
        e->result->n_resumed += c->n_legal > 0 && n == 0;
        e->n_wanted += n > 0;
        e->weights_wanted += n > 0 ? t->n_elements : 0;
        e->steps_total += n * steps_of(e, i);
        e->max_types = n > e->max_types ? n : e->max_types;
        e->seen[i] = calloc((size_t)t->ne[2], sizeof(bool));
        if (status == ALLOT_OK && e->seen[i] == NULL)
            status = allot_fail_memory(err, (size_t)t->ne[2], t->name);
    }
    return status;
}

/* Seconds that quantizing a weight to all its candidates takes, from some rows of the first tensor. */
static allot_status time_weight(double *seconds, const struct exact *e, struct allot_error *err)
{
    struct weight_error errors[GGML_TYPE_COUNT];
    float *weights;
    int64_t i = 0;
    while (e->lacking[i].n_types == 0)
        i++;
    const struct gguf_tensor *t = &e->net->model->tensors[i];
    for (size_t j = 0; j < e->lacking[i].n_types; j++)
        errors[j] = (struct weight_error){.type = e->lacking[i].types[j]};
    allot_status status = candidates_weights(&weights, &e->wish, t, err);
    if (status == ALLOT_OK)
        status = weight_errors_time(seconds, errors, e->lacking[i].n_types, e->net->model, t, weights,
                                    e->pool, err);
    free(weights);
    return status;
}

/* The layers were timed by the pass of the unchanged network; the output is run once here. */
static allot_status say_cost(const struct exact *e, struct allot_error *err)
{
    double seconds_weight = 0, start = seconds_now(), n_runs = 0;
    allot_status status = net_replay_run(e->replay, e->net->output, NULL, 0, NULL, NULL, err);
    double layer = e->result->seconds_forward / (double)e->net->n_layers, output = seconds_now() - start;
    if (status == ALLOT_OK)
        status = time_weight(&seconds_weight, e, err);
    if (status != ALLOT_OK)
        return status;
    double all = 2 * seconds_weight * (double)e->weights_wanted; /* what it can hold; what comes back */
    for (int64_t i = 0; i < e->net->model->n_tensors; i++) {
        double n = (double)e->lacking[i].n_types;
        n_runs += n;
        all += n > 0 ? n * ((double)(steps_of(e, i) - 1) * layer + output) : 0;
    }
    char duration[32];
    allot_note(e->progress,
               "exact: %.0f types of %" PRId64
               " tensors, each a part of a pass of %.3g s and an output of %.3g s: %s",
               n_runs, e->n_wanted, e->result->seconds_forward, output, str_duration(duration, all));
    return ALLOT_OK;
}

/* ---- One tensor -------------------------------------------------------------------------------------------
 */

/* A report of the passes of one tensor, as part of the whole. */
static bool report_step(void *user, const char *stage, int64_t done, int64_t total)
{
    const struct exact *e = user;
    (void)stage;
    (void)total;
    return e->progress != NULL && e->progress->report != NULL &&
           e->progress->report(e->progress->user, "exact", e->steps_done + done * e->types_now,
                               e->steps_total);
}

/* The divergences (n_types, n_seqs) of the types that can hold the tensor, one after the other. */
static allot_status run_types(struct exact *e, const struct gguf_tensor *t, const struct weight_error *errors,
                              size_t n_types, const float *weights, double *kl, struct allot_error *err)
{
    struct requantized types[GGML_TYPE_COUNT];
    struct net_source sources[GGML_TYPE_COUNT];
    const struct allot_progress progress = {report_step, NULL, e};
    int64_t n = 0;
    for (size_t j = 0; j < n_types; j++) {
        if (errors[j].infeasible)
            continue;
        types[n] = (struct requantized){e->net->model, t, errors[j].type, weights};
        sources[n] = requantized_source(&types[n]);
        n++;
    }
    double start = seconds_now();
    allot_status status = n > 0 ? net_replay_run(e->replay, t, sources, n, kl, &progress, err) : ALLOT_OK;
    e->result->seconds_variants += seconds_now() - start;
    return status;
}

/* Over sequences, times scale. */
static void summarize(struct archive_cost *cost, const double *kl, int64_t n, double scale)
{
    struct mean mean = {0};
    for (int64_t s = 0; s < n; s++)
        mean_add(&mean, kl[s]);
    cost->feasible = isfinite(mean.mean);
    if (!cost->feasible)
        return;
    cost->cost = scale * mean.mean;
    cost->std_err = scale * mean_std_err(&mean);
}

static allot_status store(struct exact *e, const struct gguf_tensor *t, const struct weight_error *errors,
                          size_t n_types, const double *kl, struct allot_error *err)
{
    struct archive_cost rows[GGML_TYPE_COUNT];
    const bool *seen = e->seen[t - e->net->model->tensors];
    double scale = 1;
    if (t->ne[2] > 1) {
        scale = (double)t->ne[2] / (double)candidates_seen(t, seen);
        if (t->layer != e->last_layer_noted && candidates_note_unseen(e->progress, t, seen))
            e->last_layer_noted = t->layer;
    }
    for (size_t j = 0; j < n_types; j++) {
        rows[j] = (struct archive_cost){
            .type = quant_type_find(errors[j].type)->name,
            .bytes = t->n_rows * (int64_t)ggml_row_size(errors[j].type, t->ne[0]),
        };
        if (!errors[j].infeasible) {
            summarize(&rows[j], kl, e->n_seqs, scale);
            kl += e->n_seqs;
        }
        candidates_note(e->progress, t, errors[j].type, !rows[j].feasible, errors[j].floored);
    }
    return archive_cost_put(e->wish.archive, e->wish.set_id, t->name, rows, n_types, err);
}

static allot_status exact_tensor(struct exact *e, int64_t index, struct allot_error *err)
{
    const struct gguf_tensor *t = &e->net->model->tensors[index];
    const struct candidates *c = &e->lacking[index];
    struct weight_error errors[GGML_TYPE_COUNT];
    float *weights = NULL;
    double *kl = malloc(sizeof *kl * c->n_types * (size_t)e->n_seqs), start = seconds_now();
    for (size_t j = 0; j < c->n_types; j++)
        errors[j] = (struct weight_error){.type = c->types[j]};
    e->types_now = (int64_t)c->n_types;
    allot_status status = kl == NULL
                              ? allot_fail_memory(err, sizeof *kl * c->n_types * (size_t)e->n_seqs, t->name)
                              : candidates_weights(&weights, &e->wish, t, err);
    if (status == ALLOT_OK)
        status = weight_errors(errors, c->n_types, e->net->model, t, weights, 0, NULL, e->pool, err);
    gguf_tensor_forget(t);
    e->result->seconds_quantize += seconds_now() - start;
    if (status == ALLOT_OK)
        status = run_types(e, t, errors, c->n_types, weights, kl, err);
    if (status == ALLOT_OK)
        status = store(e, t, errors, c->n_types, kl, err);
    e->steps_done += e->types_now * steps_of(e, index);
    free(weights);
    free(kl);
    return status;
}

/* ---- The run ------------------------------------------------------------------------------------------- */

static allot_status see_expert(void *user, const struct net_input *input, struct allot_error *err)
{
    struct exact *e = user;
    bool *seen = e->seen[input->tensor - e->net->model->tensors];
    (void)err;
    if (seen != NULL && input->n_tokens > 0)
        seen[input->matrix] = true;
    return ALLOT_OK;
}

static allot_status place_blocks(struct exact *e, const struct net_batch *batch,
                                 const struct memory_budget *memory, struct allot_error *err)
{
    const int n_threads = pool_threads(e->pool);
    int64_t widest = 0;
    struct net_needs needs;
    for (int64_t i = 0; i < e->net->model->n_tensors; i++)
        widest = e->net->model->tensors[i].ne[0] > widest ? e->net->model->tensors[i].ne[0] : widest;
    net_replay_needs(&needs, e->net, batch, e->max_types, exact_every(e->net), n_threads);
    needs.fixed += memory_base(n_threads) + weight_errors_bytes(widest, (size_t)e->max_types, n_threads);
    return net_place(&e->result->place, &needs, memory, "the costs", e->progress, err);
}

static allot_status run_passes(struct exact *e, const struct net_batch *batch,
                               const struct exact_options *options, struct allot_error *err)
{
    const struct net_observer observer = {.user = e, .input = see_expert};
    const struct net_replay_options replay = {e->max_types, exact_every(e->net), &e->result->place};
    allot_status status = quant_prepare(options->types, options->n_types, e->progress, err);
    if (status == ALLOT_OK)
        status = place_blocks(e, batch, options->memory, err);
    double start = seconds_now();
    if (status == ALLOT_OK)
        status = net_replay_open(&e->replay, e->net, e->pool, batch, &replay, &observer, e->progress, err);
    e->result->seconds_forward = seconds_now() - start;
    if (status == ALLOT_OK)
        status = say_cost(e, err);
    for (int64_t i = 0; i < e->net->model->n_tensors && status == ALLOT_OK; i++)
        if (e->lacking[i].n_types > 0)
            status = exact_tensor(e, i, err);
    if (status == ALLOT_OK)
        status = allot_report(e->progress, err, "exact", e->steps_total, e->steps_total);
    return status;
}

allot_status exact_run(struct exact_result *result, const struct net *net, struct pool *pool,
                       const struct text_windows *windows, const struct imatrix *imatrix,
                       const struct exact_options *options, struct archive *archive, int64_t set_id,
                       const struct allot_progress *progress, struct allot_error *err)
{
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    size_t n_tensors = (size_t)net->model->n_tensors;
    struct exact e = {.net = net,
                      .pool = pool,
                      .wish = {imatrix, options->types, options->n_types, archive, set_id},
                      .lacking = calloc(n_tensors, sizeof *e.lacking),
                      .seen = calloc(n_tensors, sizeof *e.seen),
                      .n_seqs = windows->n,
                      .last_layer_noted = -1,
                      .result = result,
                      .progress = progress};
    *result = (struct exact_result){0};
    allot_status status = ALLOT_OK;
    if (e.lacking == NULL || e.seen == NULL)
        status = allot_fail_memory(err, n_tensors * sizeof *e.lacking, "candidates");
    if (status == ALLOT_OK)
        status = find_lacking(&e, err);
    if (status == ALLOT_OK && e.n_wanted > 0)
        status = run_passes(&e, &batch, options, err);
    if (status == ALLOT_OK)
        status = candidates_finish(&e.wish, windows->n * windows->n_ctx, err);
    net_replay_close(e.replay);
    for (size_t i = 0; i < n_tensors; i++) {
        if (e.lacking != NULL)
            free(e.lacking[i].types);
        if (e.seen != NULL)
            free(e.seen[i]);
    }
    free(e.lacking);
    free(e.seen);
    return status;
}
