/* probe.c - the cost of every (tensor, type) from forward passes of libllama alone.
 * SPDX-License-Identifier: MIT */
#include "cost/probe.h"

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
#include "cost/divergence.h"
#include "cost/exchange.h"
#include "cost/weight_error.h"
#include "quant/quant.h"

/* The first that fits a tensor's rows, can hold its weights and changes them: well above the rounding of the
 * kernels, and low enough that KL still grows with the square of the error (docs/design.md has the trial). */
static const enum ggml_type probing_types[] = {GGML_TYPE_Q3_K, GGML_TYPE_Q4_0, GGML_TYPE_F16};
enum { N_PROBING = sizeof probing_types / sizeof probing_types[0] };

void probe_params(char params[static 64])
{
    snprintf(params, 64, "probe=%s", quant_type_find(probing_types[0])->name);
}

struct probe {
    const struct gguf_model *model;
    struct pool *pool;
    struct cost_wish wish;
    struct decoder decoder;
    struct exchange_slot *slots; /* [n_tensors] */
    struct candidates *lacking;  /* [n_tensors] */
    struct divergence divergence;
    int64_t n_wanted, weights_wanted;
    struct probe_result *result;
    const struct memory_budget *memory;
    const struct allot_progress *progress;
};

/* ---- What is to be done, and how long it will take ------------------------------------------------ */

static allot_status find_lacking(struct probe *p, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < p->model->n_tensors && status == ALLOT_OK; i++) {
        const struct gguf_tensor *t = &p->model->tensors[i];
        struct candidates *c = &p->lacking[i];
        if (!gguf_tensor_quantizable(t))
            continue;
        status = candidates_find(c, &p->wish, t, err);
        p->result->n_tensors++;
        p->result->n_unsuited += c->n_legal == 0;
        p->result->n_resumed += c->n_legal > 0 && c->n_types == 0;
        p->n_wanted += c->n_types > 0;
        p->weights_wanted += c->n_types > 0 ? t->n_elements : 0;
    }
    return status;
}

/* Tensors that cannot be exchanged keep their type. */
static void drop_unusable(struct probe *p)
{
    for (int64_t i = 0; i < p->model->n_tensors; i++) {
        const struct gguf_tensor *t = &p->model->tensors[i];
        const struct exchange_slot *slot = &p->slots[i];
        if (p->lacking[i].n_types == 0 || (slot->tensor != NULL && slot->misuse == GGML_OP_NONE))
            continue;
        if (slot->tensor == NULL)
            allot_note(p->progress, "%s: libllama does not compute with it; it keeps its type", t->name);
        else
            allot_note(p->progress,
                       "%s: is an operand of %s, which takes no quantized type; it keeps its type", t->name,
                       ggml_op_name(slot->misuse));
        p->lacking[i].n_types = 0;
        p->result->n_unsuited++;
        p->n_wanted--;
        p->weights_wanted -= t->n_elements;
    }
}

/* The candidates, and the probing types that are none. */
static size_t list_errors(struct weight_error *errors, const struct gguf_tensor *t,
                          const struct candidates *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_types; i++)
        errors[n++] = (struct weight_error){.type = c->types[i]};
    for (size_t k = 0; k < N_PROBING; k++) {
        bool listed = probing_types[k] == t->type || !quant_type_fits(probing_types[k], t->ne[0]);
        for (size_t i = 0; i < c->n_types && !listed; i++)
            listed = c->types[i] == probing_types[k];
        if (!listed)
            errors[n++] = (struct weight_error){.type = probing_types[k]};
    }
    return n;
}

/* Seconds that quantizing a weight to all its candidates takes, from some rows of the first tensor. */
static allot_status time_weight(double *seconds, const struct probe *p, struct allot_error *err)
{
    struct weight_error errors[GGML_TYPE_COUNT + N_PROBING];
    int64_t i = 0;
    while (p->lacking[i].n_types == 0)
        i++;
    const struct gguf_tensor *t = &p->model->tensors[i];
    size_t n = list_errors(errors, t, &p->lacking[i]);
    float *weights;
    allot_status status = candidates_weights(&weights, &p->wish, t, err);
    if (status == ALLOT_OK)
        status = weight_errors_time(seconds, errors, n, p->model, t, weights, p->pool, err);
    free(weights);
    return status;
}

static void say_cost(const struct probe *p, double seconds_weight)
{
    double quantize = seconds_weight * (double)p->weights_wanted;
    double all = quantize + p->result->seconds_forward * (double)p->n_wanted;
    char duration[32];
    allot_note(p->progress,
               "probe: %" PRId64 " tensors, one forward pass of %.3g s each, and %.3g s to quantize them: %s",
               p->n_wanted, p->result->seconds_forward, quantize, str_duration(duration, all));
}

/* ---- One tensor ------------------------------------------------------------------------------------- */

/* The type to probe with: NULL if none changes the weights and can hold them. */
static const struct weight_error *choose(const struct weight_error *errors, size_t n)
{
    for (size_t k = 0; k < N_PROBING; k++)
        for (size_t i = 0; i < n; i++)
            if (errors[i].type == probing_types[k] && !errors[i].infeasible && errors[i].squares > 0)
                return &errors[i];
    for (size_t i = 0; i < n; i++)
        if (!errors[i].infeasible && errors[i].squares > 0)
            return &errors[i];
    return NULL;
}

/* divergence.kl with the tensor in the type. */
static allot_status measure(struct probe *p, int64_t index, enum ggml_type type, const float *weights,
                            struct allot_error *err)
{
    const struct gguf_tensor *t = &p->model->tensors[index];
    size_t n_bytes = ggml_row_size(type, t->ne[0]) * (size_t)t->n_rows;
    struct weight_error error = {.type = type};
    struct ggml_tensor old;
    uint8_t *bytes = aligned_alloc(64, GGML_PAD(n_bytes, 64));
    if (bytes == NULL)
        return allot_fail_memory(err, n_bytes, t->name);
    allot_status status = weight_errors(&error, 1, p->model, t, weights, 0, bytes, p->pool, err);
    if (status == ALLOT_OK) {
        double start = seconds_now();
        exchange_put(p->slots[index].tensor, type, bytes, &old);
        status = divergence_measure(&p->divergence, err);
        exchange_restore(p->slots[index].tensor, &old);
        p->result->seconds_probe += seconds_now() - start;
        if (status == ALLOT_ERR_NUMERIC) {
            const struct allot_error cause = *err;
            status = allot_fail(err, status, "%s as %s: %s", t->name, ggml_type_name(type), cause.message);
        }
    }
    free(bytes);
    return status;
}

/* Scales what was measured to all candidates (the first n errors). */
static allot_status store(const struct probe *p, const struct gguf_tensor *t,
                          const struct weight_error *errors, size_t n, const struct weight_error *probed,
                          struct allot_error *err)
{
    struct archive_cost rows[GGML_TYPE_COUNT];
    const struct divergence *d = &p->divergence;
    struct mean kl = {0};
    for (int64_t w = 0; probed != NULL && w < d->decoder->windows->n; w++)
        mean_add(&kl, d->kl[w]);
    const double mean = fmax(0, kl.mean); /* rounding may leave it under 0 */
    for (size_t i = 0; i < n; i++) {
        const struct weight_error *e = &errors[i];
        double ratio = probed != NULL && !e->infeasible ? e->squares / probed->squares : 0;
        candidates_note(p->progress, t, e->type, e->infeasible, e->floored);
        rows[i] = (struct archive_cost){
            .type = quant_type_find(e->type)->name,
            .bytes = t->n_rows * (int64_t)ggml_row_size(e->type, t->ne[0]),
            .cost = mean * ratio,
            .std_err = mean_std_err(&kl) * ratio,
            .feasible = !e->infeasible && isfinite(mean * ratio),
        };
    }
    return archive_cost_put(p->wish.archive, p->wish.set_id, t->name, rows, n, err);
}

static allot_status probe_tensor(struct probe *p, int64_t index, struct allot_error *err)
{
    const struct gguf_tensor *t = &p->model->tensors[index];
    const struct candidates *c = &p->lacking[index];
    struct weight_error errors[GGML_TYPE_COUNT + N_PROBING];
    size_t n = list_errors(errors, t, c);
    const struct weight_error *probed = NULL;
    float *weights;
    allot_status status = candidates_weights(&weights, &p->wish, t, err);
    double start = seconds_now();
    if (status == ALLOT_OK)
        status = weight_errors(errors, n, p->model, t, weights, 0, NULL, p->pool, err);
    p->result->seconds_quantize += seconds_now() - start;
    if (status == ALLOT_OK && (probed = choose(errors, n)) != NULL)
        status = measure(p, index, probed->type, weights, err);
    if (status == ALLOT_OK)
        status = store(p, t, errors, c->n_types, probed, err);
    gguf_tensor_forget(t);
    free(weights);
    return status;
}

/* ---- The run ------------------------------------------------------------------------------------------ */

static allot_status prepare(struct probe *p, const struct text_windows *windows, struct allot_error *err)
{
    double start;
    allot_status status = allot_report(p->progress, err, "load", 0, 1);
    if (status == ALLOT_OK)
        status = decoder_open(&p->decoder, p->model, p->pool, windows, 0, err);
    if (status == ALLOT_OK)
        status = exchange_find(p->slots, &p->decoder, err);
    if (status != ALLOT_OK)
        return status;
    drop_unusable(p);
    if (p->n_wanted == 0)
        return ALLOT_OK;
    status = quant_prepare(p->wish.types, p->wish.n_types, p->progress, err);
    start = seconds_now();
    if (status == ALLOT_OK)
        status = divergence_init(&p->divergence, &p->decoder, p->memory, err);
    p->result->seconds_forward = seconds_now() - start;
    double seconds_weight = 0;
    if (status == ALLOT_OK)
        status = time_weight(&seconds_weight, p, err);
    if (status == ALLOT_OK)
        say_cost(p, seconds_weight);
    return status;
}

static allot_status run_passes(struct probe *p, const struct text_windows *windows, struct allot_error *err)
{
    allot_status status = prepare(p, windows, err);
    p->divergence.progress = p->progress;
    p->divergence.stage = "probe";
    p->divergence.total = p->n_wanted;
    for (int64_t i = 0; i < p->model->n_tensors && status == ALLOT_OK; i++) {
        if (p->lacking[i].n_types == 0)
            continue;
        status = probe_tensor(p, i, err);
        p->divergence.done++;
    }
    return status;
}

allot_status probe_run(struct probe_result *result, const struct gguf_model *model, struct pool *pool,
                       const struct text_windows *windows, const struct imatrix *imatrix,
                       const struct probe_options *options, struct archive *archive, int64_t set_id,
                       const struct allot_progress *progress, struct allot_error *err)
{
    struct probe p = {.model = model,
                      .pool = pool,
                      .wish = {imatrix, options->types, options->n_types, archive, set_id},
                      .slots = calloc((size_t)model->n_tensors + 1, sizeof *p.slots),
                      .lacking = calloc((size_t)model->n_tensors + 1, sizeof *p.lacking),
                      .result = result,
                      .memory = options->memory,
                      .progress = progress};
    allot_status status = ALLOT_OK;
    *result = (struct probe_result){0};
    if (p.slots == NULL || p.lacking == NULL)
        status = allot_fail_memory(err, (size_t)model->n_tensors * sizeof *p.slots, "the list of tensors");
    if (status == ALLOT_OK)
        status = find_lacking(&p, err);
    if (status == ALLOT_OK && p.n_wanted > 0)
        status = run_passes(&p, windows, err);
    if (status == ALLOT_OK)
        status = candidates_finish(&p.wish, windows->n * windows->n_ctx, err);
    divergence_release(&p.divergence);
    decoder_close(&p.decoder);
    for (int64_t i = 0; p.lacking != NULL && i < model->n_tensors; i++)
        free(p.lacking[i].types);
    free(p.slots);
    free(p.lacking);
    return status;
}
