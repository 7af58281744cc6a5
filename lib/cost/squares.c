/* squares.c - sums of squared inputs of linear maps.  SPDX-License-Identifier: MIT */
#include "cost/squares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

allot_status squares_init(struct squares *squares, const struct gguf_model *model, struct allot_error *err)
{
    size_t n = (size_t)model->n_tensors + 1;
    *squares = (struct squares){.model = model,
                                .sums = calloc(n, sizeof *squares->sums),
                                .counts = calloc(n, sizeof *squares->counts)};
    if (squares->sums != NULL && squares->counts != NULL)
        return ALLOT_OK;
    squares_release(squares);
    return allot_fail_memory(err, n * sizeof *squares->sums, "sums of squares");
}

void squares_release(struct squares *squares)
{
    for (int64_t i = 0; squares->sums != NULL && squares->counts != NULL && i < squares->model->n_tensors;
         i++) {
        free(squares->sums[i]);
        free(squares->counts[i]);
    }
    free(squares->sums);
    free(squares->counts);
    *squares = (struct squares){0};
}

int64_t squares_bytes(const struct gguf_model *model)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            sum += model->tensors[i].ne[0] * model->tensors[i].ne[2];
    return sum * (int64_t)sizeof(double);
}

allot_status squares_of(struct squares *squares, int64_t tensor, struct allot_error *err)
{
    const struct gguf_tensor *t = &squares->model->tensors[tensor];
    size_t n_sums = (size_t)(t->ne[0] * t->ne[2]);
    if (squares->sums[tensor] == NULL) {
        squares->sums[tensor] = calloc(n_sums, sizeof(double));
        squares->counts[tensor] = calloc((size_t)t->ne[2], sizeof(int64_t));
    }
    if (squares->sums[tensor] != NULL && squares->counts[tensor] != NULL)
        return ALLOT_OK;
    return allot_fail_memory(err, n_sums * sizeof(double), t->name);
}

allot_status squares_take(struct squares *squares, struct squares *part, struct allot_error *err)
{
    for (int64_t k = 0; k < part->model->n_tensors; k++) {
        const struct gguf_tensor *t = &part->model->tensors[k];
        if (part->sums[k] == NULL)
            continue;
        allot_status status = squares_of(squares, k, err);
        if (status != ALLOT_OK)
            return status;
        for (int64_t i = 0; i < t->ne[0] * t->ne[2]; i++)
            squares->sums[k][i] += part->sums[k][i];
        for (int64_t m = 0; m < t->ne[2]; m++)
            squares->counts[k][m] += part->counts[k][m];
        memset(part->sums[k], 0, sizeof(double) * (size_t)(t->ne[0] * t->ne[2]));
        memset(part->counts[k], 0, sizeof(int64_t) * (size_t)t->ne[2]);
    }
    return ALLOT_OK;
}

static allot_status add_entry(struct imatrix *im, const struct squares *s, int64_t index,
                              struct allot_error *err)
{
    const struct gguf_tensor *t = &s->model->tensors[index];
    size_t n_sums = (size_t)(t->ne[0] * t->ne[2]), counts_bytes = sizeof(int64_t) * (size_t)t->ne[2];
    float *sums = malloc(sizeof *sums * n_sums);
    int64_t *counts = malloc(counts_bytes);
    if (sums == NULL || counts == NULL) {
        free(sums);
        free(counts);
        return allot_fail_memory(err, sizeof *sums * n_sums, t->name);
    }
    for (size_t i = 0; i < n_sums; i++) {
        sums[i] = (float)s->sums[index][i];
        if (!isfinite(sums[i])) {
            free(sums);
            free(counts);
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: the inputs of tensor %s are not finite",
                              s->model->path, t->name);
        }
    }
    memcpy(counts, s->counts[index], counts_bytes);
    return imatrix_add(im, t->name, t->ne[0], t->ne[2], sums, counts, err);
}

static allot_status fill(struct imatrix *im, const struct squares *s, const char *const *datasets,
                         size_t n_datasets, struct allot_error *err)
{
    im->datasets = calloc(n_datasets + 1, sizeof *im->datasets);
    if (im->datasets == NULL)
        return allot_fail_memory(err, (n_datasets + 1) * sizeof *im->datasets, "the names of the texts");
    for (; im->n_datasets < n_datasets; im->n_datasets++) {
        im->datasets[im->n_datasets] = strdup(datasets[im->n_datasets]);
        if (im->datasets[im->n_datasets] == NULL)
            return allot_fail_memory(err, strlen(datasets[im->n_datasets]), "the names of the texts");
    }
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; i < s->model->n_tensors && status == ALLOT_OK; i++)
        if (s->sums[i] != NULL)
            status = add_entry(im, s, i, err);
    return status;
}

allot_status squares_imatrix(struct imatrix *out, const struct squares *squares,
                             const struct text_windows *windows, const char *const *datasets,
                             size_t n_datasets, struct allot_error *err)
{
    struct imatrix im = {.chunk_count = (int32_t)windows->n, .chunk_size = windows->n_ctx};
    allot_status status = fill(&im, squares, datasets, n_datasets, err);
    if (status == ALLOT_OK)
        *out = im;
    else
        imatrix_release(&im);
    return status;
}
