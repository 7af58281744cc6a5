/* trial.c - a loaded model tried out with other types in place of its own.  SPDX-License-Identifier: MIT */
#include "cost/trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/spill.h"
#include "cost/divergence.h"
#include "cost/exchange.h"
#include "cost/weight_error.h"
#include "quant/quant.h"

/* What is in a tensor's place. */
struct part {
    enum ggml_type type;    /* now */
    struct spill bytes;     /* in that type; none while the tensor is as it was */
    struct ggml_tensor own; /* what was there, while there are other bytes */
};

struct trial {
    const struct gguf_model *model;
    struct pool *pool;
    const struct imatrix *imatrix;
    const struct memory_budget *memory;
    struct decoder decoder;
    struct exchange_slot *slots; /* [n_tensors] */
    struct part *parts;          /* [n_tensors] */
    bool begun;
    struct divergence divergence;
};

allot_status trial_open(struct trial **out, const struct gguf_model *model, struct pool *pool,
                        const struct text_windows *windows, const struct imatrix *imatrix,
                        const struct memory_budget *memory, struct allot_error *err)
{
    size_t n = (size_t)model->n_tensors + 1;
    struct trial *t = calloc(1, sizeof *t);
    if (t == NULL)
        return allot_fail_memory(err, sizeof *t, "a trial");
    t->model = model;
    t->pool = pool;
    t->imatrix = imatrix;
    t->memory = memory;
    t->slots = calloc(n, sizeof *t->slots);
    t->parts = calloc(n, sizeof *t->parts);
    allot_status status = t->slots != NULL && t->parts != NULL
                              ? ALLOT_OK
                              : allot_fail_memory(err, n * sizeof *t->parts, "the list of tensors");
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++)
        t->parts[i].type = model->tensors[i].type;
    if (status == ALLOT_OK)
        status = decoder_open(&t->decoder, model, pool, windows, 0, err);
    if (status == ALLOT_OK)
        status = exchange_find(t->slots, &t->decoder, err);
    if (status == ALLOT_OK)
        *out = t;
    else
        trial_close(t);
    return status;
}

/* Brings the tensor back to what it was. */
static void restore(struct trial *t, int64_t index)
{
    struct part *part = &t->parts[index];
    if (part->bytes.data == NULL)
        return;
    exchange_restore(t->slots[index].tensor, &part->own);
    spill_release(&part->bytes);
    part->type = t->model->tensors[index].type;
}

void trial_close(struct trial *t)
{
    if (t == NULL)
        return;
    for (int64_t i = 0; t->parts != NULL && i < t->model->n_tensors; i++)
        restore(t, i);
    divergence_release(&t->divergence);
    decoder_close(&t->decoder);
    free(t->slots);
    free(t->parts);
    free(t);
}

bool trial_usable(const struct trial *t, int64_t tensor)
{
    return t->slots[tensor].tensor != NULL && t->slots[tensor].misuse == GGML_OP_NONE;
}

allot_status trial_begin(struct trial *t, double *seconds, struct allot_error *err)
{
    double start = seconds_now();
    for (int64_t i = 0; i < t->model->n_tensors; i++)
        restore(t, i);
    divergence_release(&t->divergence);
    allot_status status = divergence_init(&t->divergence, &t->decoder, t->memory, err);
    t->begun = status == ALLOT_OK;
    *seconds = seconds_now() - start;
    return status;
}

/* Quantizes the tensor and puts the bytes in its place. */
static allot_status replace(struct trial *t, int64_t index, enum ggml_type type, struct allot_error *err)
{
    const struct gguf_tensor *tensor = &t->model->tensors[index];
    struct part *part = &t->parts[index];
    struct weight_error error = {.type = type};
    float *weights = NULL;
    char reason[128];
    size_t n_bytes = ggml_row_size(type, tensor->ne[0]) * (size_t)tensor->n_rows;
    restore(t, index);
    if (type == tensor->type)
        return ALLOT_OK;
    if (!trial_usable(t, index) || !quant_type_fits(type, tensor->ne[0]))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s cannot be tried as %s", tensor->name,
                          ggml_type_name(type));
    allot_status status =
        t->imatrix != NULL ? imatrix_weights(t->imatrix, tensor, &weights, reason, err) : ALLOT_OK;
    if (status == ALLOT_OK && weights == NULL && quant_type_needs_imatrix(type, tensor->name))
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "%s needs importances to become %s", tensor->name,
                            ggml_type_name(type));
    if (status == ALLOT_OK)
        status = spill_new(&part->bytes, n_bytes, decoder_folder(&t->decoder, (int64_t)n_bytes, t->memory),
                           tensor->name, err);
    if (status == ALLOT_OK)
        status = weight_errors(&error, 1, t->model, tensor, weights, 0, part->bytes.data, t->pool, err);
    if (status == ALLOT_OK && error.infeasible)
        status = allot_fail(err, ALLOT_ERR_NUMERIC, "%s as %s: its blocks would hold NaN or Inf",
                            tensor->name, ggml_type_name(type));
    gguf_tensor_forget(tensor);
    free(weights);
    if (status != ALLOT_OK) {
        spill_release(&part->bytes);
        return status;
    }
    exchange_put(t->slots[index].tensor, type, part->bytes.data, &part->own);
    part->type = type;
    return ALLOT_OK;
}

allot_status trial_measure(double *kl, double *ln_ppl, struct trial *t, const enum ggml_type *types,
                           const struct trial_step *step, const struct allot_progress *progress,
                           struct allot_error *err)
{
    struct divergence *d = &t->divergence;
    double seconds;
    allot_status status = t->begun ? ALLOT_OK : trial_begin(t, &seconds, err);
    int64_t n_windows = t->decoder.windows->n;
    for (int64_t i = 0; i < t->model->n_tensors && status == ALLOT_OK; i++) {
        if (types[i] == t->parts[i].type)
            continue;
        status = quant_prepare(&types[i], 1, progress, err);
        if (status == ALLOT_OK)
            status =
                allot_report(progress, err, step->stage, step->done * n_windows, step->total * n_windows);
        if (status == ALLOT_OK)
            status = replace(t, i, types[i], err);
    }
    if (status != ALLOT_OK)
        return status;
    d->progress = progress;
    d->stage = step->stage;
    d->done = step->done;
    d->total = step->total;
    status = divergence_measure(d, err);
    if (status == ALLOT_OK)
        memcpy(kl, d->kl, (size_t)n_windows * sizeof *kl);
    if (status == ALLOT_OK && ln_ppl != NULL)
        memcpy(ln_ppl, d->ln_ppl, (size_t)n_windows * sizeof *ln_ppl);
    return status;
}
