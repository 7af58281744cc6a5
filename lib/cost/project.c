/* project.c - projections, their buffers, and those of embeddings.  SPDX-License-Identifier: MIT */
#include "cost/project.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/num.h"
#include "gguf/convert.h"
#include "base/gemm.h"
#include "quant/compensate.h"
#include "quant/quant.h"

enum { CACHE_LINE = 64, HUGE_PAGE = 2 << 20 };

/* ---- Buffers ---------------------------------------------------------------------------------------- */

allot_status buffer_reserve(struct buffer *buffer, size_t size, const char *what, struct allot_error *err)
{
    if (size <= buffer->size)
        return ALLOT_OK;
    size_t unit = size < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE;
    size = (size_t)rounded_up((int64_t)size, (int64_t)unit);
    free(buffer->data);
    buffer->data = aligned_alloc(unit, size);
    if (unit == HUGE_PAGE && buffer->data != NULL)
        (void)madvise(buffer->data, size, MADV_HUGEPAGE);
    buffer->size = buffer->data != NULL ? size : 0;
    return buffer->data != NULL ? ALLOT_OK : allot_fail_memory(err, size, what);
}

void projector_init(struct projector *projector, struct pool *pool, int32_t chunk, int64_t n_chunks)
{
    int n;
    *projector =
        (struct projector){.pool = pool, .kernel = chunk_kernels(&n), .chunk = chunk, .n_chunks = n_chunks};
}

void projector_release(struct projector *projector)
{
    free(projector->inputs.data);
    free(projector->errors.data);
    free(projector->gradients.data);
    free(projector->parts.data);
    free(projector->scratch.data);
    free(projector->runs.data);
    free(projector->weights.data);
    free(projector->rounded.data);
    *projector = (struct projector){0};
}

/* ---- One tensor's sums --------------------------------------------------------------------------------- */

allot_status projection_new(struct projection **out, const struct gguf_tensor *tensor,
                            const enum ggml_type *types, size_t n_types, float *weights, int64_t n_chunks,
                            struct allot_error *err)
{
    struct projection *p = calloc(1, sizeof *p);
    if (p == NULL) {
        free(weights);
        return allot_fail_memory(err, sizeof *p, tensor->name);
    }
    p->tensor = tensor;
    p->n_types = n_types;
    p->weights = weights;
    p->types = malloc((n_types + 1) * sizeof *p->types);
    p->u = calloc((size_t)n_chunks * n_types + 1, sizeof *p->u);
    p->infeasible = calloc(n_types + 1, sizeof *p->infeasible);
    p->floored = calloc(n_types + 1, sizeof *p->floored);
    p->seen = calloc((size_t)tensor->ne[2], sizeof *p->seen);
    if (!p->types || !p->u || !p->infeasible || !p->floored || !p->seen) {
        projection_free(p);
        return allot_fail_memory(err, (size_t)n_chunks * n_types * sizeof *p->u, tensor->name);
    }
    memcpy(p->types, types, n_types * sizeof *types);
    *out = p;
    return ALLOT_OK;
}

void projection_free(struct projection *p)
{
    if (p == NULL)
        return;
    free(p->types);
    free(p->weights);
    free(p->u);
    free(p->infeasible);
    free(p->floored);
    free(p->seen);
    free(p);
}

enum { MOST_TYPES = 64 };

void projection_errors(struct projection *p, float *errors, const float *w, int64_t row, int64_t n_rows)
{
    const struct gguf_tensor *t = p->tensor;
    const int64_t n = n_rows * t->ne[0];
    const float *weights = p->weights != NULL ? p->weights + row / t->ne[1] * t->ne[0] : NULL;
    struct quant_target targets[MOST_TYPES];
    size_t at[MOST_TYPES];
    for (size_t first = 0; first < p->n_types; first += MOST_TYPES) {
        size_t n_targets = 0, end = (size_t)least((int64_t)(first + MOST_TYPES), (int64_t)p->n_types);
        for (size_t j = first; j < end; j++)
            if (!p->infeasible[j]) {
                targets[n_targets] =
                    (struct quant_target){.type = p->types[j], .error = errors + (int64_t)j * n};
                at[n_targets++] = j;
            }
        quant_rows_all(targets, n_targets, w, n_rows, t->ne[0], weights);
        for (size_t k = 0; k < n_targets; k++) {
            if (targets[k].result == QUANT_INFEASIBLE)
                p->infeasible[at[k]] = true;
            if (targets[k].result == QUANT_FLOORED)
                p->floored[at[k]] = true;
        }
        for (size_t j = first; j < end; j++)
            if (p->infeasible[j])
                memset(errors + (int64_t)j * n, 0, sizeof(float) * (size_t)n);
    }
}

allot_status projection_rounded(bool *rounded, const struct projection *p,
                                const struct quantize_rounding *rounding, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t j = 0; j < p->n_types && status == ALLOT_OK; j++) {
        rounded[j] = false;
        if (rounding != NULL && p->types[j] != p->tensor->type)
            status = rounding->begin(rounding->user, p->tensor, p->types[j], &rounded[j], err);
    }
    return status;
}

allot_status projection_round(bool *done, const struct projection *p, size_t j,
                              const struct quantize_rounding *rounding, float *errors, void *bytes,
                              const float *w, int64_t row, int64_t n_rows, struct allot_error *err)
{
    const struct gguf_tensor *t = p->tensor;
    const int64_t n = n_rows * t->ne[0];
    const float *weights = p->weights != NULL ? p->weights + row / t->ne[1] * t->ne[0] : NULL;
    *done =
        !p->infeasible[j] && quant_rows(p->types[j], w, bytes, n_rows, t->ne[0], weights) != QUANT_INFEASIBLE;
    if (!*done)
        return ALLOT_OK;
    allot_status status = rounding->rows(rounding->user, t, p->types[j], row, n_rows, w, bytes, err);
    if (status == ALLOT_OK)
        status = quant_to_f32(p->types[j], bytes, errors, n, err);
    for (int64_t i = 0; i < n && status == ALLOT_OK; i++)
        errors[i] -= w[i];
    return status;
}

enum { ROWS_TRIED = 64 }; /* together, below */

/* Looked up together. */
static int64_t lookup_rows(const struct projector *projector)
{
    return projector->rounding != NULL ? COMPENSATE_ROWS : 1;
}

int64_t projector_row_bytes(const struct projector *projector, int64_t n_in, size_t n_types)
{
    int64_t rows = most(((int64_t)n_types + 2) * lookup_rows(projector), (int64_t)n_types + ROWS_TRIED);
    return pool_threads(projector->pool) * rows * n_in * (int64_t)sizeof(float);
}

/* ---- Embedding rows ------------------------------------------------------------------------------- */

/* A token of the batch and the embedding row that it looks up. */
struct occurrence {
    int32_t id;
    int64_t token; /* position in the batch */
};

struct lookup_pass {
    struct projection *p;
    const struct gguf_model *model;
    const struct net_lookup *lookup;
    const struct occurrence *seen; /* sorted by id, then token */
    const int64_t *starts;         /* of each distinct id in seen */
    int64_t n_ids;
    const struct projector *projector;
    bool *rounded; /* [n_types]: by the projector's rounding */
    float *rows;   /* (threads, 2 + n_types, lookup_rows, n_in): rows, their errors, and their bytes */
    float *values; /* (n_tokens, n_types) */
    atomic_bool failed;
    struct allot_error *errors; /* [threads] */
};

static int compare_occurrences(const void *a, const void *b)
{
    const struct occurrence *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static allot_status lookup_errors(const struct lookup_pass *pass, int64_t first, int64_t n, float *rows,
                                  float *errors, void *bytes, struct allot_error *err)
{
    const struct net_lookup *lookup = pass->lookup;
    for (int64_t k = 0; k < n; k++) {
        const int32_t id = pass->seen[pass->starts[first + k]].id;
        if (gguf_tensor_to_f32(pass->model, lookup->tensor, id, 1, rows + k * lookup->n_in, NULL, err) !=
            ALLOT_OK)
            return err->status;
    }
    projection_errors(pass->p, errors, rows, 0, n); /* (n_types, n, n_in) */
    for (size_t j = 0; j < pass->p->n_types; j++) {
        bool done;
        if (pass->rounded[j] &&
            projection_round(&done, pass->p, j, pass->projector->rounding,
                             errors + (int64_t)j * n * lookup->n_in, bytes, rows, 0, n, err) != ALLOT_OK)
            return err->status;
    }
    return ALLOT_OK;
}

/* Some distinct rows: their errors, and the products of these with the gradients at every place where the
 * rows occur. */
static void lookup_item(void *user, int64_t item, int thread)
{
    struct lookup_pass *pass = user;
    const struct net_lookup *lookup = pass->lookup;
    const int64_t n_in = lookup->n_in, n_types = (int64_t)pass->p->n_types,
                  most_rows = lookup_rows(pass->projector), first = item * most_rows,
                  n = least(most_rows, pass->n_ids - first);
    float *rows = pass->rows + thread * (2 + n_types) * most_rows * n_in, *errors = rows + most_rows * n_in;
    void *bytes = errors + n_types * most_rows * n_in;
    if (atomic_load(&pass->failed))
        return;
    if (lookup_errors(pass, first, n, rows, errors, bytes, &pass->errors[thread]) != ALLOT_OK) {
        atomic_store(&pass->failed, true);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = pass->starts[first + k]; i < pass->starts[first + k + 1]; i++) {
            const int64_t token = pass->seen[i].token;
            gemm_strided(false, true, 1, (int)n_types, (int)n_in, 1, lookup->g + token * n_in, (int)n_in,
                         errors + k * n_in, (int)(n * n_in), 0, pass->values + token * n_types, (int)n_types);
        }
}

static allot_status lookup_run(struct lookup_pass *pass, struct pool *pool, struct occurrence *seen,
                               int64_t *starts, struct allot_error *err)
{
    const struct net_lookup *lookup = pass->lookup;
    for (int64_t t = 0; t < lookup->n_tokens; t++)
        seen[t] = (struct occurrence){lookup->ids[t], t};
    qsort(seen, (size_t)lookup->n_tokens, sizeof *seen, compare_occurrences);
    for (int64_t t = 0; t < lookup->n_tokens; t++)
        if (t == 0 || seen[t].id != seen[t - 1].id)
            starts[pass->n_ids++] = t;
    starts[pass->n_ids] = lookup->n_tokens;
    pass->seen = seen;
    pass->starts = starts;
    pool_run(pool, parts_of(pass->n_ids, lookup_rows(pass->projector)), lookup_item, pass);
    for (int i = 0; i < pool_threads(pool) && pass->failed; i++)
        if (pass->errors[i].status != ALLOT_OK)
            *err = pass->errors[i];
    return pass->failed ? err->status : ALLOT_OK;
}

allot_status projection_add_lookup(struct projection *p, struct projector *projector,
                                   const struct gguf_model *model, const struct net_lookup *lookup,
                                   struct allot_error *err)
{
    double start = seconds_now();
    int n_threads = pool_threads(projector->pool);
    int64_t n = lookup->n_tokens, n_types = (int64_t)p->n_types;
    struct lookup_pass pass = {.p = p, .model = model, .lookup = lookup, .projector = projector};
    allot_status status = buffer_reserve(
        &projector->errors,
        sizeof(float) * (size_t)(n_threads * (2 + n_types) * lookup_rows(projector) * lookup->n_in),
        p->tensor->name, err);
    if (status != ALLOT_OK)
        return status;
    pass.rounded = malloc((p->n_types + 1) * sizeof *pass.rounded);
    status = pass.rounded ? projection_rounded(pass.rounded, p, projector->rounding, err)
                          : allot_fail_memory(err, p->n_types, p->tensor->name);
    if (status != ALLOT_OK) {
        free(pass.rounded);
        return status;
    }
    struct occurrence *seen = malloc(sizeof *seen * (size_t)n);
    int64_t *starts = malloc(sizeof *starts * (size_t)(n + 1));
    pass.rows = projector->errors.data;
    pass.values = malloc(sizeof(float) * (size_t)(n * n_types + 1));
    pass.errors = calloc((size_t)n_threads, sizeof *pass.errors);
    if (!seen || !starts || !pass.values || !pass.errors)
        status = allot_fail_memory(err, sizeof(float) * (size_t)(n * n_types), p->tensor->name);
    else
        status = lookup_run(&pass, projector->pool, seen, starts, err);
    if (status == ALLOT_OK) {
        p->seen[0] = true;
        for (int64_t t = 0; t < n; t++)
            for (int64_t j = 0; j < n_types; j++)
                p->u[t / projector->chunk * n_types + j] += pass.values[t * n_types + j];
    }
    free(seen);
    free(starts);
    free(pass.rounded);
    free(pass.values);
    free(pass.errors);
    projector->seconds_quantize += seconds_now() - start;
    return status;
}

/* ---- Rows without tokens ----------------------------------------------------------------------------- */

/* Types fail on values that the float16 scales of their blocks cannot reach; those of ordinary size they
 * hold. */
#define LARGE_VALUE 1024.0f

struct rows_pass {
    struct projection *p;
    const struct gguf_model *model;
    float *buffer; /* (threads, ROWS_TRIED + n_types, ne[0]) */
    atomic_bool failed;
    struct allot_error *errors; /* [threads] */
};

static bool has_large_value(const float *x, int64_t n)
{
    float top = 0;
    for (int64_t i = 0; i < n; i++)
        top = top > fabsf(x[i]) ? top : fabsf(x[i]);
    return top >= LARGE_VALUE;
}

static void try_rows(void *user, int64_t item, int thread)
{
    struct rows_pass *pass = user;
    struct projection *p = pass->p;
    const struct gguf_tensor *t = p->tensor;
    int64_t first = item * ROWS_TRIED, n = least(ROWS_TRIED, t->n_rows - first);
    float *w = pass->buffer + thread * (ROWS_TRIED + (int64_t)p->n_types) * t->ne[0];
    if (pass->failed)
        return;
    if (gguf_tensor_to_f32(pass->model, t, first, n, w, NULL, &pass->errors[thread]) != ALLOT_OK) {
        pass->failed = true;
        return;
    }
    for (int64_t r = 0; r < n; r++)
        if (has_large_value(w + r * t->ne[0], t->ne[0]))
            projection_errors(p, w + ROWS_TRIED * t->ne[0], w + r * t->ne[0], first + r, 1);
}

allot_status projection_try_rows(struct projection *p, struct projector *projector,
                                 const struct gguf_model *model, struct allot_error *err)
{
    const struct gguf_tensor *t = p->tensor;
    struct rows_pass pass = {.p = p, .model = model};
    size_t n_threads = (size_t)pool_threads(projector->pool);
    allot_status status = buffer_reserve(
        &projector->errors, (size_t)projector_row_bytes(projector, t->ne[0], p->n_types), t->name, err);
    pass.errors = calloc(n_threads, sizeof *pass.errors);
    if (status == ALLOT_OK && pass.errors == NULL)
        status = allot_fail_memory(err, n_threads * sizeof *pass.errors, t->name);
    if (status == ALLOT_OK) {
        pass.buffer = projector->errors.data;
        pool_run(projector->pool, parts_of(t->n_rows, ROWS_TRIED), try_rows, &pass);
        gguf_tensor_forget(t);
    }
    for (size_t i = 0; i < n_threads && status == ALLOT_OK && pass.failed; i++)
        if (pass.errors[i].status != ALLOT_OK) {
            *err = pass.errors[i];
            status = err->status;
        }
    free(pass.errors);
    return status;
}
