/* weight_error.c - what a tensor's weights lose in each type.  SPDX-License-Identifier: MIT */
#include "cost/weight_error.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/num.h"
#include "gguf/convert.h"
#include "quant/quant.h"

/* Weights per item of work. Items have a place each for their sums, which are then added in order. */
enum { ITEM_WEIGHTS = 16384 };

struct job {
    const struct gguf_model *model;
    const struct gguf_tensor *tensor;
    const float *weights;
    struct weight_error *errors;
    size_t n_types;
    uint8_t *bytes;
    int64_t rows_per_item, items_per_matrix, n_items;
    float *buffers;                    /* [threads] x (1 + n_types, weights of an item) */
    double *parts;                     /* (n_items, n_types) */
    atomic_bool *infeasible, *floored; /* [n_types] */
    atomic_bool failed;
    struct allot_error *failures; /* [threads] */
};

/* The sum of importance times squared error. */
static double squared_error(const float *d, const float *importance, int64_t n_rows, int64_t n_in)
{
    double sum = 0;
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < n_in; i++)
            sum += (double)d[r * n_in + i] * d[r * n_in + i] * (importance != NULL ? importance[i] : 1.0f);
    return sum;
}

static void mark(struct job *job, size_t j, enum quant_result result)
{
    if (result == QUANT_INFEASIBLE)
        atomic_store(&job->infeasible[j], true);
    if (result == QUANT_FLOORED)
        atomic_store(&job->floored[j], true);
}

/* To the only type, whose bytes are wanted; the errors go behind the rows. */
static void quantize_bytes(struct job *job, float *w, int64_t first, int64_t n_rows, const float *importance,
                           float *errors)
{
    const int64_t n_in = job->tensor->ne[0];
    const enum ggml_type type = job->errors[0].type;
    void *rows = job->bytes + (size_t)first * ggml_row_size(type, n_in);
    enum quant_result result = quant_rows(type, w, rows, n_rows, n_in, importance);
    if (result != QUANT_INFEASIBLE && !gguf_to_f32(type, rows, errors, n_rows * n_in))
        result = QUANT_INFEASIBLE;
    mark(job, 0, result);
    for (int64_t i = 0; result != QUANT_INFEASIBLE && i < n_rows * n_in; i++)
        errors[i] -= w[i];
}

static void quantize_all(struct job *job, const float *w, int64_t n_rows, const float *importance,
                         float *errors, int64_t room)
{
    struct quant_target targets[WEIGHT_ERROR_TYPES];
    for (size_t j = 0; j < job->n_types; j++)
        targets[j] = (struct quant_target){.type = job->errors[j].type, .error = errors + (int64_t)j * room};
    quant_rows_all(targets, job->n_types, w, n_rows, job->tensor->ne[0], importance);
    for (size_t j = 0; j < job->n_types; j++)
        mark(job, j, targets[j].result);
}

/* Rows of one matrix, in every type. */
static void quantize_item(void *user, int64_t item, int thread)
{
    struct job *job = user;
    const struct gguf_tensor *t = job->tensor;
    int64_t n_in = t->ne[0], matrix = item / job->items_per_matrix;
    int64_t row = item % job->items_per_matrix * job->rows_per_item, n_rows = t->ne[1] - row;
    if (n_rows > job->rows_per_item)
        n_rows = job->rows_per_item;
    int64_t room = job->rows_per_item * n_in, first = matrix * t->ne[1] + row;
    float *w = job->buffers + thread * (1 + (int64_t)job->n_types) * room, *errors = w + room;
    const float *importance = job->weights != NULL ? job->weights + matrix % t->ne[2] * n_in : NULL;
    if (atomic_load(&job->failed))
        return;
    if (gguf_tensor_to_f32(job->model, t, first, n_rows, w, NULL, &job->failures[thread]) != ALLOT_OK) {
        atomic_store(&job->failed, true);
        return;
    }
    if (job->bytes != NULL)
        quantize_bytes(job, w, first, n_rows, importance, errors);
    else
        quantize_all(job, w, n_rows, importance, errors, room);
    for (size_t j = 0; j < job->n_types; j++)
        if (!atomic_load(&job->infeasible[j]))
            job->parts[(size_t)item * job->n_types + j] =
                squared_error(errors + (int64_t)j * room, importance, n_rows, n_in);
}

static allot_status run(struct job *job, struct pool *pool, struct allot_error *err)
{
    pool_run(pool, job->n_items, quantize_item, job);
    for (int i = 0; i < pool_threads(pool) && job->failed; i++)
        if (job->failures[i].status != ALLOT_OK) {
            *err = job->failures[i];
            return err->status;
        }
    for (size_t j = 0; j < job->n_types; j++) {
        struct weight_error *e = &job->errors[j];
        *e = (struct weight_error){
            .type = e->type, .infeasible = job->infeasible[j], .floored = job->floored[j]};
        for (int64_t item = 0; item < job->n_items; item++)
            e->squares += job->parts[(size_t)item * job->n_types + j];
    }
    return ALLOT_OK;
}

allot_status weight_errors(struct weight_error *errors, size_t n_types, const struct gguf_model *model,
                           const struct gguf_tensor *tensor, const float *weights, int64_t max_rows,
                           uint8_t *bytes, struct pool *pool, struct allot_error *err)
{
    size_t n_threads = (size_t)pool_threads(pool);
    struct job job = {.model = model,
                      .tensor = tensor,
                      .weights = weights,
                      .errors = errors,
                      .n_types = n_types,
                      .bytes = bytes,
                      .rows_per_item = tensor->ne[0] < ITEM_WEIGHTS ? ITEM_WEIGHTS / tensor->ne[0] : 1};
    job.items_per_matrix = (tensor->ne[1] + job.rows_per_item - 1) / job.rows_per_item;
    job.n_items = job.items_per_matrix * (tensor->n_rows / tensor->ne[1]);
    if (max_rows > 0 && max_rows / job.rows_per_item < job.n_items)
        job.n_items = max_rows / job.rows_per_item + 1;
    size_t floats = n_threads * (1 + n_types) * (size_t)(job.rows_per_item * tensor->ne[0]);
    size_t n_parts = (size_t)job.n_items * n_types;
    job.buffers = malloc(sizeof *job.buffers * floats);
    job.parts = calloc(n_parts + 1, sizeof *job.parts);
    job.infeasible = calloc(n_types + 1, sizeof *job.infeasible);
    job.floored = calloc(n_types + 1, sizeof *job.floored);
    job.failures = calloc(n_threads, sizeof *job.failures);
    allot_status status = ALLOT_OK;
    if (!job.buffers || !job.parts || !job.infeasible || !job.floored || !job.failures)
        status = allot_fail_memory(err, sizeof *job.buffers * floats, tensor->name);
    else
        status = run(&job, pool, err);
    free(job.buffers);
    free(job.parts);
    free(job.infeasible);
    free(job.floored);
    free(job.failures);
    return status;
}

int64_t weight_errors_bytes(int64_t n_in, size_t n_types, int n_threads)
{
    return (int64_t)sizeof(float) * n_threads * (1 + (int64_t)n_types) * most(n_in, ITEM_WEIGHTS);
}

allot_status weight_errors_time(double *seconds, struct weight_error *errors, size_t n_types,
                                const struct gguf_model *model, const struct gguf_tensor *tensor,
                                const float *weights, struct pool *pool, struct allot_error *err)
{
    int64_t n_rows =
        least((65536 * (int64_t)pool_threads(pool) + tensor->ne[0]) / tensor->ne[0], tensor->n_rows);
    double start = seconds_now();
    allot_status status = weight_errors(errors, n_types, model, tensor, weights, n_rows, NULL, pool, err);
    *seconds = (seconds_now() - start) / (double)(n_rows * tensor->ne[0]);
    return status;
}
