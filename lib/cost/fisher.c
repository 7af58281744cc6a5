/* fisher.c - the cost of every (tensor, type), from one backward pass.  SPDX-License-Identifier: MIT */
#include "cost/fisher.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mean.h"
#include "cost/candidates.h"
#include "cost/chunk_kl.h"
#include "cost/gather.h"
#include "quant/quant.h"

void fisher_params(char params[static FISHER_PARAMS], const struct fisher_options *options)
{
    snprintf(params, FISHER_PARAMS, "chunk=%" PRId32 "+%" PRId32 " seed=%" PRIu64 "%s%s", options->chunk,
             CHUNKS_WIDE * options->chunk, options->seed, options->rounding ? " rounding=" : "",
             options->rounding ? options->rounding_name : "");
}

struct fisher {
    const struct net *net;
    struct pool *pool;
    const struct fisher_options *options;
    struct cost_wish wish;
    int64_t n_tokens, sequence_length;
    struct gather gather;
    const struct allot_progress *progress;
};

/* ---- Which tensors lack what --------------------------------------------------------------------- */

static allot_status plan_candidate(struct fisher *f, int64_t index, struct fisher_result *result,
                                   struct allot_error *err)
{
    const struct gguf_tensor *tensor = &f->net->model->tensors[index];
    struct candidates lacking;
    if (!gguf_tensor_quantizable(tensor))
        return ALLOT_OK;
    allot_status status = candidates_find(&lacking, &f->wish, tensor, err);
    if (status != ALLOT_OK)
        return status;
    f->gather.tensors[index] = (struct gather_tensor){.types = lacking.types, .n_types = lacking.n_types};
    result->n_tensors++;
    result->n_unsuited += lacking.n_legal == 0;
    result->n_resumed += lacking.n_legal > 0 && lacking.n_types == 0;
    f->gather.weights_total += lacking.n_types > 0 ? tensor->n_elements : 0;
    return ALLOT_OK;
}

/* ---- Sums into costs ------------------------------------------------------------------------------ */

double fisher_cost_of(double *std_err, const float *u, size_t n_u, const int64_t *which, int64_t n,
                      int64_t of, int64_t n_tokens)
{
    const int64_t per_sequence = (int64_t)n_u / of;
    struct mean kl = {0};
    for (int64_t i = 0; i < n; i++) {
        const float *first = u + which[i] * per_sequence;
        double sum = 0, chunks[CHUNKS_WIDE];
        for (int64_t c = 0; c < per_sequence; c += CHUNKS_WIDE) {
            int64_t n_wide = 0;
            for (; n_wide < CHUNKS_WIDE && c + n_wide < per_sequence; n_wide++)
                chunks[n_wide] = (double)first[c + n_wide];
            sum += chunk_kl(chunks, n_wide);
        }
        mean_add(&kl, sum / (double)n_tokens);
    }
    *std_err = mean_std_err(&kl);
    return kl.mean;
}

/* The cost's standard error takes sequences as independent samples. Experts without tokens count as the mean
 * of the others. u gets the sums, which summed has room for. */
static struct archive_cost summarize(const struct fisher *f, const struct projection *p, size_t j, float *u,
                                     double *summed)
{
    const struct quant_type *type = quant_type_find(p->types[j]);
    const struct projector *projector = &f->gather.projector;
    const int64_t per_sequence = f->sequence_length / projector->chunk;
    const double scale = gather_scale(p);
    struct mean kl = {0};
    for (int64_t c = 0; c < projector->n_chunks; c++) {
        summed[c] = scale * p->u[c * (int64_t)p->n_types + (int64_t)j];
        u[c] = (float)summed[c];
    }
    for (int64_t first = 0; first < projector->n_chunks; first += per_sequence)
        mean_add(&kl, chunk_kl(summed + first, per_sequence) / (double)f->sequence_length);
    bool feasible = !p->infeasible[j] && isfinite(kl.mean);
    return (struct archive_cost){
        .type = type->name,
        .bytes = p->tensor->n_rows * (int64_t)ggml_row_size(p->types[j], p->tensor->ne[0]),
        .cost = kl.mean,
        .std_err = mean_std_err(&kl),
        .feasible = feasible,
        /* what an infeasible type's sums hold depends on when that was found out */
        .u = feasible ? u : NULL,
        .n_u = feasible ? (size_t)projector->n_chunks : 0,
    };
}

static allot_status store(void *user, const struct projection *p, struct allot_error *err)
{
    struct fisher *f = user;
    struct archive_cost *rows = malloc((p->n_types + 1) * sizeof *rows);
    size_t n_chunks = (size_t)f->gather.projector.n_chunks;
    float *u = malloc(sizeof *u * (p->n_types * n_chunks + 1));
    double *summed = malloc(sizeof *summed * (n_chunks + 1));
    allot_status status = ALLOT_OK;
    if (rows == NULL || u == NULL || summed == NULL)
        status = allot_fail_memory(err, sizeof *u * p->n_types * n_chunks, p->tensor->name);
    if (status == ALLOT_OK)
        gather_note_unseen(&f->gather, p);
    for (size_t j = 0; j < p->n_types && status == ALLOT_OK; j++) {
        rows[j] = summarize(f, p, j, u + j * n_chunks, summed);
        if (!rows[j].feasible)
            rows[j].cost = rows[j].std_err = 0;
        candidates_note(f->progress, p->tensor, p->types[j], !rows[j].feasible, p->floored[j]);
    }
    if (status == ALLOT_OK)
        status = archive_cost_put(f->wish.archive, f->wish.set_id, p->tensor->name, rows, p->n_types, err);
    free(rows);
    free(u);
    free(summed);
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
        projector_bytes(&f->gather.projector, f->net->model, f->options->n_types) + memory_base(n_threads);
    if (f->options->rounding)
        needs.fixed += f->options->rounding->bytes;
    return net_place(place, &needs, f->options->memory, "the costs", f->progress, err);
}

/* Forward, labels, backward. */
static allot_status pass_through(struct fisher *f, const struct net_batch *batch, float *x,
                                 struct net_tape *tape, struct fisher_result *result, struct allot_error *err)
{
    const struct net *net = f->net;
    struct net_observer observer = gather_observer(&f->gather);
    struct net_targets targets = {0};
    double start = seconds_now();
    allot_status status = net_forward(net, f->pool, batch, x, tape, f->n_tokens, NULL, f->progress, err);
    if (status == ALLOT_OK)
        status = net_targets_draw(&targets, net, f->pool, x, f->n_tokens, f->options->seed, err);
    result->seconds_forward = seconds_now() - start;
    start = seconds_now();
    if (status == ALLOT_OK)
        status = allot_report(f->progress, err, "costs", 0, f->gather.weights_total);
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
                       .sequence_length = windows->n_ctx,
                       .progress = progress};
    *result = (struct fisher_result){0};
    if (options->chunk < 1 || windows->n_ctx % options->chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "chunks of %" PRId32 " tokens do not divide sequences of %" PRId32, options->chunk,
                          windows->n_ctx);
    allot_status status = gather_init(&f.gather, net, pool, imatrix, options->chunk,
                                      f.n_tokens / options->chunk, progress, err);
    f.gather.projector.rounding = options->rounding;
    f.gather.take = store;
    f.gather.user = &f;
    for (int64_t i = 0; i < net->model->n_tensors && status == ALLOT_OK; i++)
        status = plan_candidate(&f, i, result, err);
    if (status == ALLOT_OK && f.gather.weights_total > 0)
        status = run_passes(&f, windows, result, err);
    if (status == ALLOT_OK)
        status = candidates_finish(&f.wish, f.n_tokens, err);
    result->seconds_quantize = f.gather.projector.seconds_quantize;
    result->seconds_product = f.gather.projector.seconds_product;
    gather_release(&f.gather);
    return status;
}
