/* planned.c - a model's weights as a plan would leave them.  SPDX-License-Identifier: MIT */
#include "cost/planned.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "cost/weight_error.h"
#include "gguf/convert.h"
#include "quant/quant.h"

enum { ALIGNMENT = 64, ITEM_WEIGHTS = 65536 };

/* Lays the changed tensors out one after the other; returns their bytes. */
static int64_t lay_out(struct planned *p, int64_t *weights)
{
    int64_t used = 0;
    *weights = 0;
    for (int64_t i = 0; i < p->model->n_tensors; i++) {
        const struct gguf_tensor *t = &p->model->tensors[i];
        p->offsets[i] = -1;
        if (p->types[i] == t->type)
            continue;
        p->offsets[i] = used;
        used += rounded_up((int64_t)ggml_row_size(p->types[i], t->ne[0]) * t->n_rows, ALIGNMENT);
        *weights += t->n_elements;
    }
    return used;
}

static allot_status quantize(struct planned *p, int64_t index, const struct imatrix *imatrix,
                             struct pool *pool, struct allot_error *err)
{
    const struct gguf_tensor *t = &p->model->tensors[index];
    struct weight_error error = {.type = p->types[index]};
    float *weights = NULL;
    char reason[128];
    allot_status status = ALLOT_OK;
    if (imatrix != NULL)
        status = imatrix_weights(imatrix, t, &weights, reason, err);
    if (status == ALLOT_OK)
        status = weight_errors(&error, 1, p->model, t, weights, 0,
                               (uint8_t *)p->bytes.data + p->offsets[index], pool, err);
    if (status == ALLOT_OK && error.infeasible)
        status = allot_fail(err, ALLOT_ERR_NUMERIC, "%s: %s cannot hold it", t->name,
                            quant_type_find(error.type)->name);
    free(weights);
    gguf_tensor_forget(t);
    return status;
}

/* ---- Rows for a network ------------------------------------------------------------------------------ */

struct rows {
    enum ggml_type type;
    const uint8_t *bytes;
    float *to;
    int64_t n, n_in, row_bytes, per_item;
};

static void rows_item(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct rows *r = user;
    int64_t first = item * r->per_item, n = least(r->per_item, r->n - first);
    gguf_to_f32(r->type, r->bytes + first * r->row_bytes, r->to + first * r->n_in, n * r->n_in);
}

static bool planned_replaces(void *user, const struct gguf_tensor *t)
{
    const struct planned *p = user;
    return p->offsets[t - p->model->tensors] >= 0;
}

static allot_status planned_rows(void *user, const struct gguf_tensor *t, int64_t first, int64_t n_rows,
                                 float *dst, struct pool *pool, struct allot_error *err)
{
    (void)err;
    const struct planned *p = user;
    int64_t index = t - p->model->tensors, row_bytes = (int64_t)ggml_row_size(p->types[index], t->ne[0]);
    const uint8_t *bytes = (const uint8_t *)p->bytes.data + p->offsets[index] + first * row_bytes;
    struct rows r = {p->types[index], bytes, dst, n_rows, t->ne[0], row_bytes, ITEM_WEIGHTS / t->ne[0] + 1};
    if (pool != NULL) {
        pool_run(pool, parts_of(n_rows, r.per_item), rows_item, &r);
    } else {
        r.per_item = n_rows;
        rows_item(&r, 0, 0);
    }
    spill_forget(&p->bytes, bytes, (size_t)(n_rows * row_bytes));
    return ALLOT_OK;
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

allot_status planned_init(struct planned *p, const struct net *net, const enum ggml_type *types,
                          const struct imatrix *imatrix, struct pool *pool,
                          const struct memory_budget *memory, const struct allot_progress *progress,
                          struct allot_error *err)
{
    const struct gguf_model *model = net->model;
    size_t n = (size_t)model->n_tensors;
    int64_t done = 0, total;
    *p = (struct planned){.model = model, .net = *net};
    p->types = malloc((n + 1) * sizeof *p->types);
    p->offsets = malloc((n + 1) * sizeof *p->offsets);
    if (p->types == NULL || p->offsets == NULL) {
        planned_release(p);
        return allot_fail_memory(err, n * sizeof *p->offsets, "a plan's weights");
    }
    memcpy(p->types, types, n * sizeof *types);
    int64_t size = lay_out(p, &total);
    bool in_memory = memory == NULL || size < memory->limit / 2;
    allot_status status = spill_new(&p->bytes, (size_t)most(size, 1), in_memory ? NULL : memory->folder,
                                    "the quantized weights", err);
    for (int64_t i = 0; i < model->n_tensors && status == ALLOT_OK; i++) {
        if (p->offsets[i] < 0)
            continue;
        status = allot_report(progress, err, "quantize", done, total);
        if (status == ALLOT_OK)
            status = quantize(p, i, imatrix, pool, err);
        done += model->tensors[i].n_elements;
    }
    if (status != ALLOT_OK)
        planned_release(p);
    p->source = (struct net_source){p, planned_replaces, planned_rows};
    p->net.source = &p->source;
    return status;
}

void planned_release(struct planned *p)
{
    free(p->types);
    free(p->offsets);
    spill_release(&p->bytes);
    *p = (struct planned){0};
}
