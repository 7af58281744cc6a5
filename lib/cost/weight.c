/* weight.c - the cost of every (tensor, type) from its weights and an imatrix alone.
 * SPDX-License-Identifier: MIT */
#include "cost/weight.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/num.h"
#include "cost/candidates.h"
#include "cost/moments.h"
#include "cost/stream.h"
#include "gguf/convert.h"
#include "quant/quant.h"

enum { ITEM_WEIGHTS = 16384 };

/* Types fail on values that the float16 scales of their blocks cannot reach; those of ordinary size they
 * hold. */
static const float LARGE_VALUE = 1024;

void weight_params(char params[static 64])
{
    snprintf(params, 64, "rows=%d", WEIGHT_SAMPLE_ROWS);
}

/* ---- One tensor --------------------------------------------------------------------------------------- */

/* What a tensor does to its inputs. */
enum role { AS_MAP, AS_LOOKUP, N_ROLES };

struct tensor_job {
    const struct gguf_model *model;
    const struct gguf_tensor *tensor;
    const struct candidates *types;
    bool roles[N_ROLES];
    double stream_share;
    struct moments moments;
    int64_t sample[WEIGHT_SAMPLE_ROWS], n_sample; /* rows of a matrix */
    int64_t n_matrices, rows_per_item, items_per_matrix;
    double *squares; /* (n_matrices, n_sample, N_ROLES, 1 + n_types): of W, then of errors */
    float *buffers;  /* [threads] x (1 + n_types, weights of an item) */
    atomic_bool *infeasible, *floored; /* [n_types] */
    atomic_bool failed;
    struct allot_error *failures; /* [threads] */
};

static size_t values_per_row(const struct tensor_job *job)
{
    return N_ROLES * (1 + job->types->n_types);
}

/* The errors of some rows in every type go behind the rows. */
static void quantize_rows(struct tensor_job *job, float *w, int64_t n_rows, const float *importances)
{
    struct quant_target targets[GGML_TYPE_COUNT];
    const int64_t n_in = job->tensor->ne[0];
    for (size_t j = 0; j < job->types->n_types; j++)
        targets[j] = (struct quant_target){.type = job->types->types[j],
                                           .error = w + (int64_t)(1 + j) * job->rows_per_item * n_in};
    quant_rows_all(targets, job->types->n_types, w, n_rows, n_in, importances);
    for (size_t j = 0; j < job->types->n_types; j++) {
        if (targets[j].result == QUANT_INFEASIBLE)
            atomic_store(&job->infeasible[j], true);
        if (targets[j].result == QUANT_FLOORED)
            atomic_store(&job->floored[j], true);
    }
}

static bool read_rows(struct tensor_job *job, int64_t first, int64_t n, float *w, int thread)
{
    if (atomic_load(&job->failed))
        return false;
    if (gguf_tensor_to_f32(job->model, job->tensor, first, n, w, NULL, &job->failures[thread]) == ALLOT_OK)
        return true;
    atomic_store(&job->failed, true);
    return false;
}

static float *thread_buffer(const struct tensor_job *job, int thread)
{
    const int64_t floats = (1 + (int64_t)job->types->n_types) * job->rows_per_item * job->tensor->ne[0];
    return job->buffers + thread * floats;
}

/* Some rows of the sample of one matrix. */
static void sample_item(void *user, int64_t item, int thread)
{
    struct tensor_job *job = user;
    const struct gguf_tensor *t = job->tensor;
    const int64_t n_in = t->ne[0], matrix = item / job->items_per_matrix;
    const int64_t first = item % job->items_per_matrix * job->rows_per_item;
    const int64_t n = least(job->rows_per_item, job->n_sample - first);
    const int64_t input = matrix % t->ne[2] * n_in;
    const float *s = job->moments.s != NULL ? job->moments.s + input : NULL;
    const float *m = job->moments.m != NULL ? job->moments.m + input : NULL;
    float *w = thread_buffer(job, thread);
    for (int64_t r = 0; r < n; r++)
        if (!read_rows(job, matrix * t->ne[1] + job->sample[first + r], 1, w + r * n_in, thread))
            return;
    quantize_rows(job, w, n, s);
    for (int64_t r = 0; r < n; r++) {
        const size_t n_values = 1 + job->types->n_types;
        double *squares = job->squares + (size_t)(matrix * job->n_sample + first + r) * N_ROLES * n_values;
        for (size_t j = 0; j < n_values; j++) {
            const float *d = w + ((int64_t)j * job->rows_per_item + r) * n_in;
            if (job->roles[AS_MAP])
                squares[AS_MAP * n_values + j] = expected_square(d, s, m, n_in);
            if (job->roles[AS_LOOKUP])
                squares[AS_LOOKUP * n_values + j] = expected_square(d, NULL, NULL, n_in);
        }
    }
}

/* Looks for weights that a type might not hold, in all rows; where there are such, tries. */
static void search_item(void *user, int64_t item, int thread)
{
    struct tensor_job *job = user;
    const struct gguf_tensor *t = job->tensor;
    const int64_t n_in = t->ne[0], first = item * job->rows_per_item;
    const int64_t n = least(job->rows_per_item, t->n_rows - first);
    float *w = thread_buffer(job, thread);
    if (!read_rows(job, first, n, w, thread))
        return;
    for (int64_t r = 0; r < n; r++) {
        float *row = w + r * n_in, top = 0;
        for (int64_t i = 0; i < n_in; i++)
            top = fabsf(row[i]) > top ? fabsf(row[i]) : top;
        if (top < LARGE_VALUE)
            continue;
        memmove(w, row, sizeof *row * (size_t)n_in); /* rows up to this one are done with */
        const int64_t input = (first + r) / t->ne[1] % t->ne[2] * n_in;
        quantize_rows(job, w, 1, job->moments.s != NULL ? job->moments.s + input : NULL);
    }
}

/* The cost and its standard error: a ratio of sums over the sample, one for each role. */
static void summarize(const struct tensor_job *job, size_t type, double *cost, double *std_err)
{
    const size_t n_values = 1 + job->types->n_types, per_row = values_per_row(job);
    const double n = (double)(job->n_sample * job->n_matrices), part = n / (double)job->tensor->n_rows;
    double variance = 0;
    *cost = 0;
    for (size_t role = 0; role < N_ROLES; role++) {
        const double *values = job->squares + role * n_values;
        double noise = 0, signal = 0, residual = 0;
        for (int64_t r = 0; job->roles[role] && r < job->n_sample * job->n_matrices; r++) {
            const double share = (double)job->moments.shares[r / job->n_sample % job->tensor->ne[2]];
            noise += share * values[(size_t)r * per_row + 1 + type];
            signal += share * values[(size_t)r * per_row];
        }
        if (!(signal > 0))
            continue;
        for (int64_t r = 0; r < job->n_sample * job->n_matrices; r++) {
            const double share = (double)job->moments.shares[r / job->n_sample % job->tensor->ne[2]];
            const double z = share * (values[(size_t)r * per_row + 1 + type] -
                                      noise / signal * values[(size_t)r * per_row]);
            residual += z * z;
        }
        *cost += noise / signal;
        if (n > 1)
            variance += (1 - part) * n / (n - 1) * residual / (signal * signal);
    }
    *cost *= job->stream_share;
    *std_err = variance > 0 ? sqrt(variance) * job->stream_share : 0;
}

static allot_status store(const struct tensor_job *job, const struct cost_wish *wish,
                          const struct allot_progress *progress, struct allot_error *err)
{
    struct archive_cost rows[GGML_TYPE_COUNT];
    const struct gguf_tensor *t = job->tensor;
    for (size_t j = 0; j < job->types->n_types; j++) {
        const enum ggml_type type = job->types->types[j];
        double cost = 0, std_err = 0;
        candidates_note(progress, t, type, job->infeasible[j], job->floored[j]);
        if (!job->infeasible[j])
            summarize(job, j, &cost, &std_err);
        rows[j] = (struct archive_cost){
            .type = quant_type_find(type)->name,
            .bytes = t->n_rows * (int64_t)ggml_row_size(type, t->ne[0]),
            .cost = cost,
            .std_err = std_err,
            .feasible = !job->infeasible[j] && isfinite(cost),
        };
    }
    return archive_cost_put(wish->archive, wish->set_id, t->name, rows, job->types->n_types, err);
}

static allot_status run_tensor(struct tensor_job *job, struct pool *pool, struct allot_error *err)
{
    const struct gguf_tensor *t = job->tensor;
    pool_run(pool, job->items_per_matrix * job->n_matrices, sample_item, job);
    pool_run(pool, parts_of(t->n_rows, job->rows_per_item), search_item, job);
    gguf_tensor_forget(t);
    for (int i = 0; i < pool_threads(pool) && job->failed; i++)
        if (job->failures[i].status != ALLOT_OK) {
            *err = job->failures[i];
            return err->status;
        }
    return ALLOT_OK;
}

/* Token embeddings are looked up, and are the output's map too if there is none. */
static void find_roles(struct tensor_job *job)
{
    const bool embeds = strcmp(job->tensor->name, "token_embd.weight") == 0;
    job->roles[AS_LOOKUP] = embeds;
    job->roles[AS_MAP] = !embeds || gguf_model_tensor(job->model, "output.weight") == NULL;
}

static allot_status tensor_job_init(struct tensor_job *job, const struct cost_wish *wish, size_t n_threads,
                                    struct allot_error *err)
{
    const struct gguf_tensor *t = job->tensor;
    const size_t n_types = job->types->n_types;
    find_roles(job);
    job->n_matrices = t->n_rows / t->ne[1];
    job->rows_per_item = t->ne[0] < ITEM_WEIGHTS ? ITEM_WEIGHTS / t->ne[0] : 1;
    allot_status status = moments_init(&job->moments, wish->imatrix, t, err);
    if (status != ALLOT_OK)
        return status;
    job->n_sample = weight_sample(job->sample, t->ne[1], job->n_matrices);
    job->items_per_matrix = parts_of(job->n_sample, job->rows_per_item);
    const size_t floats = n_threads * (1 + n_types) * (size_t)(job->rows_per_item * t->ne[0]);
    job->squares = calloc((size_t)(job->n_matrices * job->n_sample) * values_per_row(job), sizeof(double));
    job->buffers = malloc(floats * sizeof *job->buffers);
    job->infeasible = calloc(n_types + 1, sizeof *job->infeasible);
    job->floored = calloc(n_types + 1, sizeof *job->floored);
    job->failures = calloc(n_threads, sizeof *job->failures);
    if (!job->squares || !job->buffers || !job->infeasible || !job->floored || !job->failures)
        return allot_fail_memory(err, floats * sizeof *job->buffers, t->name);
    return ALLOT_OK;
}

static void tensor_job_release(struct tensor_job *job)
{
    moments_release(&job->moments);
    free(job->squares);
    free(job->buffers);
    free(job->infeasible);
    free(job->floored);
    free(job->failures);
}

struct run {
    const struct gguf_model *model;
    struct pool *pool;
    struct cost_wish wish;
    double *stream_shares; /* [n_tensors]; NULL until wanted */
    const struct allot_progress *progress;
};

static allot_status weigh(const struct run *run, int64_t index, const struct candidates *types,
                          struct allot_error *err)
{
    const struct gguf_model *model = run->model;
    struct tensor_job job = {.model = model,
                             .tensor = &model->tensors[index],
                             .types = types,
                             .stream_share = run->stream_shares[index]};
    allot_status status = tensor_job_init(&job, &run->wish, (size_t)pool_threads(run->pool), err);
    if (status == ALLOT_OK)
        status = run_tensor(&job, run->pool, err);
    if (status == ALLOT_OK)
        status = store(&job, &run->wish, run->progress, err);
    tensor_job_release(&job);
    return status;
}

/* ---- The run ------------------------------------------------------------------------------------------- */

static int64_t quantizable_weights(const struct gguf_model *model)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            n += model->tensors[i].n_elements;
    return n;
}

static allot_status prepare(struct run *run, struct allot_error *err)
{
    const size_t n = (size_t)run->model->n_tensors;
    run->stream_shares = malloc((n + 1) * sizeof *run->stream_shares);
    if (run->stream_shares == NULL)
        return allot_fail_memory(err, n * sizeof *run->stream_shares, "shares of the stream");
    allot_status status = stream_shares(run->stream_shares, run->model, run->wish.imatrix, err);
    return status == ALLOT_OK ? quant_prepare(run->wish.types, run->wish.n_types, run->progress, err)
                              : status;
}

static allot_status run_index(struct run *run, int64_t index, struct weight_result *result,
                              struct allot_error *err)
{
    struct candidates c;
    allot_status status = candidates_find(&c, &run->wish, &run->model->tensors[index], err);
    if (status != ALLOT_OK)
        return status;
    result->n_tensors++;
    result->n_unsuited += c.n_legal == 0;
    result->n_resumed += c.n_legal > 0 && c.n_types == 0;
    if (c.n_types > 0 && run->stream_shares == NULL)
        status = prepare(run, err);
    if (status == ALLOT_OK && c.n_types > 0)
        status = weigh(run, index, &c, err);
    free(c.types);
    return status;
}

allot_status weight_run(struct weight_result *result, const struct gguf_model *model, struct pool *pool,
                        const struct imatrix *imatrix, const struct weight_options *options,
                        struct archive *archive, int64_t set_id, const struct allot_progress *progress,
                        struct allot_error *err)
{
    struct run run = {.model = model,
                      .pool = pool,
                      .wish = {imatrix, options->types, options->n_types, archive, set_id},
                      .progress = progress};
    const double start = seconds_now();
    const int64_t total = quantizable_weights(model);
    int64_t done = 0;
    allot_status status = ALLOT_OK;
    *result = (struct weight_result){0};
    for (int64_t i = 0; i < model->n_tensors && status == ALLOT_OK; i++) {
        if (!gguf_tensor_quantizable(&model->tensors[i]))
            continue;
        status = allot_report(progress, err, "weight", done, total);
        if (status == ALLOT_OK)
            status = run_index(&run, i, result, err);
        done += model->tensors[i].n_elements;
    }
    free(run.stream_shares);
    int64_t n_tokens = imatrix != NULL ? (int64_t)imatrix->chunk_count * imatrix->chunk_size : 0;
    if (status == ALLOT_OK)
        status = candidates_finish(&run.wish, n_tokens, err);
    result->seconds = seconds_now() - start;
    return status;
}
