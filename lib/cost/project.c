/* project.c - projections of quantization errors on chunk gradients.  SPDX-License-Identifier: MIT */
#include "cost/project.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "gguf/convert.h"
#include "net/gemm.h"
#include "quant/quant.h"

/* Weights per item of work and chunks whose gradients are formed together: 16 x 16384 floats, about
 * the size of a second-level cache. Items of one wave have a place each for their sums, which are then
 * added in order, so that results do not depend on the number of threads. */
enum { ITEM_WEIGHTS = 16384, CHUNK_GROUP = 16, WAVE_ITEMS = 64 };

allot_status projection_new(struct projection **out, const struct gguf_tensor *tensor,
                            const enum ggml_type *types, size_t n_types, float *weights, int32_t chunk,
                            int64_t n_chunks, struct allot_error *err)
{
    struct projection *p = calloc(1, sizeof *p);
    if (p == NULL) {
        free(weights);
        return allot_fail_memory(err, sizeof *p, tensor->name);
    }
    p->tensor = tensor;
    p->n_types = n_types;
    p->weights = weights;
    p->chunk = chunk;
    p->n_chunks = n_chunks;
    p->types = malloc((n_types + 1) * sizeof *p->types);
    p->u = calloc((size_t)n_chunks * n_types + 1, sizeof *p->u);
    p->infeasible = calloc(n_types + 1, sizeof *p->infeasible);
    p->floored = calloc(n_types + 1, sizeof *p->floored);
    if (p->types == NULL || p->u == NULL || p->infeasible == NULL || p->floored == NULL) {
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
    free(p);
}

/* A token of the batch and the embedding row that it looks up. */
struct occurrence {
    int32_t id;
    int64_t token; /* position in the batch */
};

int64_t projection_bytes(const struct gguf_tensor *tensor, size_t n_types, int64_t n_chunks, int32_t chunk,
                         int n_threads)
{
    const int64_t types = (int64_t)n_types, row = tensor->ne[0], n_tokens = n_chunks * chunk;
    const int64_t item = row > ITEM_WEIGHTS ? row : ITEM_WEIGHTS;
    const int64_t worker = item * (types + 1 + CHUNK_GROUP + 1) * (int64_t)sizeof(float);
    const int64_t map = WAVE_ITEMS * n_chunks * types * (int64_t)sizeof(float);
    const int64_t lookup = n_tokens * (types * (int64_t)sizeof(float) + (int64_t)sizeof(struct occurrence));
    return n_threads * worker + (map > lookup ? map : lookup) + n_chunks * types * (int64_t)sizeof(double) +
           row * tensor->ne[2] * (int64_t)sizeof(float);
}

/* ---- What maps and lookups share: the errors of some rows in every type ------------------------- */

/* One thread's buffers and verdicts. */
struct worker {
    uint8_t *bytes;             /* quantized rows */
    float *errors;              /* (n_types, weights of an item) */
    float *gradient;            /* (CHUNK_GROUP, weights of an item) */
    bool *infeasible, *floored; /* [n_types] */
    struct projection_times times;
};

struct workers {
    struct worker *all;
    int n;
};

static void workers_release(struct workers *w)
{
    for (int i = 0; w->all != NULL && i < w->n; i++) {
        free(w->all[i].bytes);
        free(w->all[i].errors);
        free(w->all[i].gradient);
        free(w->all[i].infeasible);
        free(w->all[i].floored);
    }
    free(w->all);
}

static allot_status workers_init(struct workers *w, const struct projection *p, int n_threads,
                                 int64_t item_weights, struct allot_error *err)
{
    size_t floats = (size_t)item_weights * sizeof(float);
    *w = (struct workers){calloc((size_t)n_threads, sizeof *w->all), n_threads};
    bool failed = w->all == NULL;
    for (int i = 0; i < n_threads && !failed; i++) {
        struct worker *one = &w->all[i];
        one->bytes = malloc(floats); /* no type takes more than four bytes a weight */
        one->errors = malloc(floats * (p->n_types + 1));
        one->gradient = malloc(floats * CHUNK_GROUP);
        one->infeasible = calloc(p->n_types + 1, sizeof(bool));
        one->floored = calloc(p->n_types + 1, sizeof(bool));
        failed = !one->bytes || !one->errors || !one->gradient || !one->infeasible || !one->floored;
    }
    if (!failed)
        return ALLOT_OK;
    workers_release(w);
    return allot_fail_memory(err, floats * (p->n_types + CHUNK_GROUP + 1) * (size_t)n_threads,
                             p->tensor->name);
}

static void workers_collect(struct workers *w, struct projection *p, struct projection_times *times)
{
    for (int i = 0; i < w->n; i++) {
        for (size_t j = 0; j < p->n_types; j++) {
            p->infeasible[j] |= w->all[i].infeasible[j];
            p->floored[j] |= w->all[i].floored[j];
        }
        times->quantize += w->all[i].times.quantize;
        times->product += w->all[i].times.product;
    }
}

/* errors[j] (n_rows, n_in) = dequant(quant_j(w)) - w for every type. */
static void quantization_errors(const struct projection *p, struct worker *one, const float *w,
                                int64_t n_rows, int64_t n_in)
{
    double start = seconds_now();
    int64_t n = n_rows * n_in;
    for (size_t j = 0; j < p->n_types; j++) {
        float *error = one->errors + (int64_t)j * n;
        enum quant_result result = QUANT_INFEASIBLE;
        if (!one->infeasible[j])
            result = quant_rows(p->types[j], w, one->bytes, n_rows, n_in, p->weights);
        if (result == QUANT_INFEASIBLE || !gguf_to_f32(p->types[j], one->bytes, error, n)) {
            one->infeasible[j] = true;
            memset(error, 0, sizeof(float) * (size_t)n);
            continue;
        }
        one->floored[j] |= result == QUANT_FLOORED;
        for (int64_t i = 0; i < n; i++)
            error[i] -= w[i];
    }
    one->times.quantize += seconds_now() - start;
}

/* ---- Linear maps -------------------------------------------------------------------------------- */

struct map_pass {
    struct projection *p;
    const struct net_map *map;
    struct workers workers;
    int64_t rows_per_item, first_item;
    float *parts; /* (WAVE_ITEMS, n_chunks, n_types) */
};

static void map_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    const struct projection *p = pass->p;
    const struct net_map *map = pass->map;
    struct worker *one = &pass->workers.all[thread];
    int64_t row = (pass->first_item + item) * pass->rows_per_item, n_rows = map->n_rows - row;
    if (n_rows > pass->rows_per_item)
        n_rows = pass->rows_per_item;
    int64_t n = n_rows * map->n_in, n_types = (int64_t)p->n_types;
    float *part = pass->parts + item * p->n_chunks * n_types;
    quantization_errors(p, one, map->w + row * map->n_in, n_rows, map->n_in);
    double start = seconds_now();
    for (int64_t first = 0; first < p->n_chunks; first += CHUNK_GROUP) {
        int64_t n_group = p->n_chunks - first < CHUNK_GROUP ? p->n_chunks - first : CHUNK_GROUP;
        for (int64_t c = 0; c < n_group; c++) {
            int64_t token = (first + c) * p->chunk;
            gemm_gradient_here(one->gradient + c * n, map->g + token * map->n_rows + row, map->n_rows,
                               map->x + token * map->n_in, p->chunk, n_rows, map->n_in);
        }
        gemm_forward_here(part + first * n_types, one->gradient, one->errors, n_group, n_types, n);
    }
    one->times.product += seconds_now() - start;
}

allot_status projection_add_map(struct projection *p, struct pool *pool, const struct net_map *map,
                                struct projection_times *times, struct allot_error *err)
{
    struct map_pass pass = {.p = p, .map = map, .rows_per_item = ITEM_WEIGHTS / map->n_in};
    if (pass.rows_per_item < 1)
        pass.rows_per_item = 1;
    int64_t n_items = (map->n_rows + pass.rows_per_item - 1) / pass.rows_per_item;
    int64_t n_sums = p->n_chunks * (int64_t)p->n_types;
    allot_status status =
        workers_init(&pass.workers, p, pool_threads(pool), pass.rows_per_item * map->n_in, err);
    if (status != ALLOT_OK)
        return status;
    pass.parts = malloc(sizeof(float) * (size_t)(WAVE_ITEMS * n_sums + 1));
    if (pass.parts == NULL)
        status = allot_fail_memory(err, sizeof(float) * (size_t)(WAVE_ITEMS * n_sums), p->tensor->name);
    for (int64_t first = 0; first < n_items && status == ALLOT_OK; first += WAVE_ITEMS) {
        int64_t wave = n_items - first < WAVE_ITEMS ? n_items - first : WAVE_ITEMS;
        pass.first_item = first;
        pool_run(pool, wave, map_item, &pass);
        for (int64_t item = 0; item < wave; item++)
            for (int64_t i = 0; i < n_sums; i++)
                p->u[i] += pass.parts[item * n_sums + i];
    }
    if (status == ALLOT_OK)
        workers_collect(&pass.workers, p, times);
    free(pass.parts);
    workers_release(&pass.workers);
    return status;
}

/* ---- Embedding rows ------------------------------------------------------------------------------- */

struct lookup_pass {
    struct projection *p;
    const struct gguf_model *model;
    const struct net_lookup *lookup;
    struct workers workers;
    const struct occurrence *seen; /* sorted by id, then token */
    const int64_t *starts;         /* of each distinct id in seen */
    int64_t n_ids;
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

/* One distinct row: its errors, and their products with the gradients at every place it occurs. */
static void lookup_item(void *user, int64_t item, int thread)
{
    struct lookup_pass *pass = user;
    const struct net_lookup *lookup = pass->lookup;
    struct worker *one = &pass->workers.all[thread];
    int64_t n_in = lookup->n_in, n_types = (int64_t)pass->p->n_types;
    if (atomic_load(&pass->failed))
        return;
    if (gguf_tensor_to_f32(pass->model, lookup->tensor, pass->seen[pass->starts[item]].id, 1, one->gradient,
                           NULL, &pass->errors[thread]) != ALLOT_OK) {
        atomic_store(&pass->failed, true);
        return;
    }
    quantization_errors(pass->p, one, one->gradient, 1, n_in);
    double start = seconds_now();
    for (int64_t i = pass->starts[item]; i < pass->starts[item + 1]; i++) {
        int64_t token = pass->seen[i].token;
        gemm_forward_here(pass->values + token * n_types, lookup->g + token * n_in, one->errors, 1, n_types,
                          n_in);
    }
    one->times.product += seconds_now() - start;
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
    pool_run(pool, pass->n_ids, lookup_item, pass);
    for (int i = 0; i < pass->workers.n && pass->failed; i++)
        if (pass->errors[i].status != ALLOT_OK)
            *err = pass->errors[i];
    return pass->failed ? err->status : ALLOT_OK;
}

allot_status projection_add_lookup(struct projection *p, struct pool *pool, const struct gguf_model *model,
                                   const struct net_lookup *lookup, struct projection_times *times,
                                   struct allot_error *err)
{
    struct lookup_pass pass = {.p = p, .model = model, .lookup = lookup};
    int64_t n = lookup->n_tokens, n_types = (int64_t)p->n_types;
    allot_status status = workers_init(&pass.workers, p, pool_threads(pool), lookup->n_in, err);
    if (status != ALLOT_OK)
        return status;
    struct occurrence *seen = malloc(sizeof *seen * (size_t)n);
    int64_t *starts = malloc(sizeof *starts * (size_t)(n + 1));
    pass.values = malloc(sizeof(float) * (size_t)(n * n_types + 1));
    pass.errors = calloc((size_t)pool_threads(pool), sizeof *pass.errors);
    if (!seen || !starts || !pass.values || !pass.errors)
        status = allot_fail_memory(err, sizeof(float) * (size_t)(n * n_types), p->tensor->name);
    else
        status = lookup_run(&pass, pool, seen, starts, err);
    if (status == ALLOT_OK) {
        for (int64_t t = 0; t < n; t++)
            for (int64_t j = 0; j < n_types; j++)
                p->u[t / p->chunk * n_types + j] += pass.values[t * n_types + j];
        workers_collect(&pass.workers, p, times);
    }
    free(seen);
    free(starts);
    free(pass.values);
    free(pass.errors);
    workers_release(&pass.workers);
    return status;
}
