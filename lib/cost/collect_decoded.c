/* collect_decoded.c - the importance matrix from the graphs that libllama computes.
 * SPDX-License-Identifier: MIT */
#include "cost/collect.h"

#include <stdlib.h>

#include "base/error.h"
#include "cost/decode.h"
#include "cost/squares.h"

/* One thread's window. */
struct observed {
    struct squares squares;
    bool failed;
    struct allot_error err;
};

struct collection {
    struct decoder decoder;
    struct squares total;
    struct observed *observed; /* [n_workers] */
    const struct allot_progress *progress;
};

static void add_row(double *sums, const void *row, int64_t n)
{
    const float *x = row;
    for (int64_t i = 0; i < n; i++)
        sums[i] += (double)x[i] * x[i];
}

/* Input (ne[0], ne[1], ne[2], ne[3]) of a plain product; a matrix of a 3-D weight serves every so-many-th of
 * dimension 2. */
static void add_product(double *sums, int64_t *counts, const struct ggml_tensor *weight,
                        const struct ggml_tensor *x)
{
    int64_t repeat = x->ne[2] / weight->ne[2];
    for (int64_t i3 = 0; i3 < x->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < x->ne[2]; i2++) {
            int64_t m = i2 / repeat;
            for (int64_t i1 = 0; i1 < x->ne[1]; i1++)
                add_row(sums + m * x->ne[0],
                        (const char *)x->data + i1 * (int64_t)x->nb[1] + i2 * (int64_t)x->nb[2] +
                            i3 * (int64_t)x->nb[3],
                        x->ne[0]);
            counts[m] += x->ne[1];
        }
}

/* ids (slots, tokens) choose the matrix; x is (ne[0], slots or 1, tokens). */
static void add_routed(double *sums, int64_t *counts, const struct ggml_tensor *x,
                       const struct ggml_tensor *ids)
{
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
            int32_t m = *(const int32_t *)((const char *)ids->data + slot * (int64_t)ids->nb[0] +
                                           t * (int64_t)ids->nb[1]);
            add_row(sums + m * x->ne[0],
                    (const char *)x->data + slot % x->ne[1] * (int64_t)x->nb[1] + t * (int64_t)x->nb[2],
                    x->ne[0]);
            counts[m]++;
        }
}

/* The weight of a layer that a node multiplies with float inputs, or NULL. */
static const struct gguf_tensor *weight_of(const struct gguf_model *model, const struct ggml_tensor *node)
{
    if (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL_MAT_ID)
        return NULL;
    const struct ggml_tensor *w = node->src[0];
    const struct gguf_tensor *t = gguf_model_tensor(model, w->view_src != NULL ? w->view_src->name : w->name);
    bool usable = t != NULL && t->layer >= 0 && t->ne[0] == w->ne[0] && t->ne[2] == w->ne[2] &&
                  w->ne[3] == 1 && node->src[1]->type == GGML_TYPE_F32;
    return usable ? t : NULL;
}

static bool observe(struct ggml_tensor *node, bool ask, void *user)
{
    struct observed *o = user;
    const struct gguf_model *model = o->squares.model;
    const struct gguf_tensor *t = weight_of(model, node);
    if (ask)
        return t != NULL;
    if (t == NULL || o->failed)
        return true;
    int64_t index = t - model->tensors;
    if (squares_of(&o->squares, index, &o->err) != ALLOT_OK)
        o->failed = true;
    else if (node->op == GGML_OP_MUL_MAT)
        add_product(o->squares.sums[index], o->squares.counts[index], node->src[0], node->src[1]);
    else
        add_routed(o->squares.sums[index], o->squares.counts[index], node->src[1], node->src[2]);
    return true;
}

/* The windows are added in their order, whatever the number of threads. */
static allot_status add_wave(void *user, int64_t first, int64_t n, struct allot_error *err)
{
    struct collection *c = user;
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < n && status == ALLOT_OK; i++) {
        if (c->observed[i].failed) {
            *err = c->observed[i].err;
            return err->status;
        }
        status = squares_take(&c->total, &c->observed[i].squares, err);
    }
    if (status == ALLOT_OK)
        status = allot_report(c->progress, err, "imatrix", first + n, c->decoder.windows->n);
    return status;
}

static allot_status run_collection(struct collection *c, struct allot_error *err)
{
    size_t n = (size_t)c->decoder.n_workers;
    struct engine_observer *observers = calloc(n, sizeof *observers);
    allot_status status = ALLOT_OK;
    c->observed = calloc(n, sizeof *c->observed);
    if (observers == NULL || c->observed == NULL)
        status = allot_fail_memory(err, n * sizeof *c->observed, "workers");
    for (size_t i = 0; i < n && status == ALLOT_OK; i++) {
        observers[i] = (struct engine_observer){observe, &c->observed[i]};
        status = squares_init(&c->observed[i].squares, c->decoder.model, err);
    }
    const struct decode_pass pass = {.user = c, .wave = add_wave, .observers = observers};
    if (status == ALLOT_OK)
        status = decoder_run(&c->decoder, c->decoder.windows->n, &pass, err);
    for (size_t i = 0; c->observed != NULL && i < n; i++)
        squares_release(&c->observed[i].squares);
    free(c->observed);
    free(observers);
    return status;
}

allot_status imatrix_collect_decoded(struct imatrix *out, const struct gguf_model *model, struct pool *pool,
                                     const struct text_windows *windows, const char *const *datasets,
                                     size_t n_datasets, const struct allot_progress *progress,
                                     struct allot_error *err)
{
    struct collection c = {.progress = progress};
    allot_status status = squares_init(&c.total, model, err);
    if (status == ALLOT_OK)
        status = decoder_open(&c.decoder, model, pool, windows, squares_bytes(model), err);
    if (status == ALLOT_OK)
        status = run_collection(&c, err);
    if (status == ALLOT_OK)
        status = squares_imatrix(out, &c.total, windows, datasets, n_datasets, err);
    decoder_close(&c.decoder);
    squares_release(&c.total);
    return status;
}
