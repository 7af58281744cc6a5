/* collect.c - the importance matrix from one streamed forward pass.  SPDX-License-Identifier: MIT */
#include "cost/collect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Tokens that one call of a layer works on: enough for full speed, few enough to stay small. */
enum { GROUP_TOKENS = 4096, COLUMNS_PER_ITEM = 64 };

struct collector {
    struct pool *pool;
    const struct gguf_model *model;
    double **sums;    /* [n_tensors]: squares (ne[2], ne[0]), or NULL */
    int64_t **counts; /* [n_tensors]: tokens of each of the ne[2] matrices */
};

struct squares {
    const float *x;
    double *sums;
    int64_t n_tokens, n_in;
};

/* One strip of columns: the tokens are added in order, whatever the number of threads. */
static void add_squares(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct squares *s = user;
    int64_t first = item * COLUMNS_PER_ITEM, end = first + COLUMNS_PER_ITEM;
    if (end > s->n_in)
        end = s->n_in;
    for (int64_t t = 0; t < s->n_tokens; t++) {
        const float *x = s->x + t * s->n_in;
        for (int64_t i = first; i < end; i++)
            s->sums[i] += (double)x[i] * x[i];
    }
}

static allot_status collect_input(void *user, const struct net_input *input, struct allot_error *err)
{
    struct collector *c = user;
    const struct gguf_tensor *t = input->tensor;
    int64_t index = t - c->model->tensors, n_in = input->n_in;
    if (c->sums[index] == NULL) {
        c->sums[index] = calloc((size_t)(n_in * t->ne[2]), sizeof(double));
        c->counts[index] = calloc((size_t)t->ne[2], sizeof(int64_t));
    }
    if (c->sums[index] == NULL || c->counts[index] == NULL)
        return allot_fail_memory(err, (size_t)(n_in * t->ne[2]) * sizeof(double), t->name);
    struct squares s = {input->x, c->sums[index] + input->matrix * n_in, input->n_tokens, n_in};
    pool_run(c->pool, (n_in + COLUMNS_PER_ITEM - 1) / COLUMNS_PER_ITEM, add_squares, &s);
    c->counts[index][input->matrix] += input->n_tokens;
    return ALLOT_OK;
}

static allot_status add_entry(struct imatrix *im, const struct collector *c, int64_t index,
                              struct allot_error *err)
{
    const struct gguf_tensor *t = &c->model->tensors[index];
    size_t n_sums = (size_t)(t->ne[0] * t->ne[2]), counts_bytes = sizeof(int64_t) * (size_t)t->ne[2];
    float *sums = malloc(sizeof *sums * n_sums);
    int64_t *counts = malloc(counts_bytes);
    if (sums == NULL || counts == NULL) {
        free(sums);
        free(counts);
        return allot_fail_memory(err, sizeof *sums * n_sums, t->name);
    }
    for (size_t i = 0; i < n_sums; i++) {
        sums[i] = (float)c->sums[index][i];
        if (!isfinite(sums[i])) {
            free(sums);
            free(counts);
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: the inputs of tensor %s are not finite",
                              c->model->path, t->name);
        }
    }
    memcpy(counts, c->counts[index], counts_bytes);
    return imatrix_add(im, t->name, t->ne[0], t->ne[2], sums, counts, err);
}

static allot_status fill_imatrix(struct imatrix *im, const struct collector *c,
                                 const struct text_windows *windows, const char *const *datasets,
                                 size_t n_datasets, struct allot_error *err)
{
    *im = (struct imatrix){.chunk_count = (int32_t)windows->n, .chunk_size = windows->n_ctx};
    im->datasets = calloc(n_datasets + 1, sizeof *im->datasets);
    if (im->datasets == NULL)
        return allot_fail_memory(err, (n_datasets + 1) * sizeof *im->datasets, "the names of the texts");
    for (; im->n_datasets < n_datasets; im->n_datasets++) {
        im->datasets[im->n_datasets] = strdup(datasets[im->n_datasets]);
        if (im->datasets[im->n_datasets] == NULL)
            return allot_fail_memory(err, strlen(datasets[im->n_datasets]), "the names of the texts");
    }
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < c->model->n_tensors && status == ALLOT_OK; i++)
        if (c->sums[i] != NULL)
            status = add_entry(im, c, i, err);
    return status;
}

/* The pass reports its layers under "imatrix". */
static bool report_imatrix(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)stage;
    const struct allot_progress *outer = user;
    return outer->report(outer->user, "imatrix", done, total);
}

/* The sums of all tensors, in double and as the entries' floats. */
static int64_t sums_bytes(const struct gguf_model *model)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            sum += model->tensors[i].ne[0] * model->tensors[i].ne[2];
    return sum * (int64_t)(sizeof(double) + sizeof(float));
}

/* The forward pass, with the states of all windows where the budget allows. */
static allot_status pass_through(struct collector *c, const struct net *net,
                                 const struct text_windows *windows, const struct memory_budget *memory,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    struct net_observer observer = {.user = c, .input = collect_input};
    struct allot_progress renamed = {.report = report_imatrix, .user = (void *)(uintptr_t)progress};
    const bool reports = progress != NULL && progress->report != NULL;
    const int n_threads = pool_threads(c->pool);
    struct net_needs needs;
    struct net_placement place;
    struct net_tape tape = {0};
    struct spill x = {0};
    net_forward_needs(&needs, net, batch.n_seqs, batch.n_ctx, GROUP_TOKENS, n_threads);
    needs.fixed += sums_bytes(net->model) + memory_base(n_threads);
    allot_status status = net_place(&place, &needs, memory, "the importance matrix", progress, err);
    if (status == ALLOT_OK)
        status = net_tape_init(&tape, net, 0, &place, err);
    if (status == ALLOT_OK)
        status = spill_new(&x, (size_t)needs.states, place.states_folder, "the states of all windows", err);
    if (status == ALLOT_OK)
        status = net_forward(net, c->pool, &batch, x.data, &tape, GROUP_TOKENS, &observer,
                             reports ? &renamed : NULL, err);
    spill_release(&x);
    net_tape_release(&tape);
    return status;
}

allot_status imatrix_collect(struct imatrix *out, const struct net *net, struct pool *pool,
                             const struct text_windows *windows, const char *const *datasets,
                             size_t n_datasets, const struct memory_budget *memory,
                             const struct allot_progress *progress, struct allot_error *err)
{
    int64_t n_tensors = net->model->n_tensors;
    struct collector c = {.pool = pool, .model = net->model};
    struct imatrix im = {0};
    allot_status status = ALLOT_OK;
    c.sums = calloc((size_t)n_tensors, sizeof *c.sums);
    c.counts = calloc((size_t)n_tensors, sizeof *c.counts);
    if (c.sums == NULL || c.counts == NULL)
        status = allot_fail_memory(err, (size_t)n_tensors * sizeof *c.sums, "the sums of the importances");
    if (status == ALLOT_OK)
        status = pass_through(&c, net, windows, memory, progress, err);
    if (status == ALLOT_OK)
        status = fill_imatrix(&im, &c, windows, datasets, n_datasets, err);
    for (int64_t i = 0; c.sums != NULL && c.counts != NULL && i < n_tensors; i++) {
        free(c.sums[i]);
        free(c.counts[i]);
    }
    free(c.sums);
    free(c.counts);
    if (status == ALLOT_OK)
        *out = im;
    else
        imatrix_release(&im);
    return status;
}
