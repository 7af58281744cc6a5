/* requantize.c - a tensor as it comes back from a type, row by row.  SPDX-License-Identifier: MIT */
#include "cost/requantize.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/num.h"
#include "gguf/convert.h"
#include "quant/quant.h"

enum { ITEM_WEIGHTS = 16384 }; /* weights per item of work */

struct job {
    const struct requantized *r;
    int64_t first, n_rows, rows_per_item;
    float *rows;
    uint8_t *bytes; /* [threads] of an item */
    size_t item_bytes;
    atomic_bool failed;
};

/* Through the type and back, in place. */
static void requantize_item(void *user, int64_t item, int thread)
{
    struct job *job = user;
    const struct requantized *r = job->r;
    const struct gguf_tensor *t = r->tensor;
    uint8_t *bytes = job->bytes + (size_t)thread * job->item_bytes;
    int64_t row = item * job->rows_per_item, end = least(row + job->rows_per_item, job->n_rows), n;
    for (; row < end; row += n) {
        int64_t at = job->first + row, matrix = at / t->ne[1];
        float *rows = job->rows + row * t->ne[0];
        n = least(end - row, (matrix + 1) * t->ne[1] - at);
        const float *importance = r->weights != NULL ? r->weights + matrix % t->ne[2] * t->ne[0] : NULL;
        if (quant_rows(r->type, rows, bytes, n, t->ne[0], importance) == QUANT_INFEASIBLE ||
            !gguf_to_f32(r->type, bytes, rows, n * t->ne[0]))
            atomic_store(&job->failed, true);
    }
}

static bool replaces(void *user, const struct gguf_tensor *tensor)
{
    const struct requantized *r = user;
    return tensor == r->tensor;
}

static allot_status rows_of(void *user, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                            float *dst, struct pool *pool, struct allot_error *err)
{
    const struct requantized *r = user;
    struct job job = {.r = r,
                      .first = first,
                      .n_rows = n_rows,
                      .rows_per_item = least(n_rows, most(ITEM_WEIGHTS / tensor->ne[0], 1)),
                      .rows = dst};
    int64_t n_items = parts_of(n_rows, job.rows_per_item);
    size_t n_threads = pool != NULL ? (size_t)pool_threads(pool) : 1;
    job.item_bytes = ggml_row_size(r->type, tensor->ne[0]) * (size_t)job.rows_per_item;
    allot_status status = gguf_tensor_to_f32(r->model, tensor, first, n_rows, dst, pool, err);
    if (status != ALLOT_OK)
        return status;
    job.bytes = malloc(n_threads * job.item_bytes);
    if (job.bytes == NULL)
        return allot_fail_memory(err, n_threads * job.item_bytes, tensor->name);
    if (pool != NULL)
        pool_run(pool, n_items, requantize_item, &job);
    for (int64_t i = 0; i < n_items && pool == NULL; i++)
        requantize_item(&job, i, 0);
    free(job.bytes);
    if (job.failed)
        return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: type %s cannot hold rows %" PRId64 " to %" PRId64,
                          tensor->name, ggml_type_name(r->type), first, first + n_rows - 1);
    return ALLOT_OK;
}

struct net_source requantized_source(struct requantized *r)
{
    return (struct net_source){r, replaces, rows_of};
}
