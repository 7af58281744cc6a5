/* convert.c - tensor data to float32.  SPDX-License-Identifier: MIT */
#include "gguf/convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"

bool gguf_to_f32(enum ggml_type type, const void *src, float *dst, int64_t n)
{
    if (type == GGML_TYPE_F32) {
        memcpy(dst, src, sizeof(float) * (size_t)n);
        return true;
    }
    const struct ggml_type_traits *traits = ggml_get_type_traits(type);
    if (traits->to_float == NULL)
        return false;
    traits->to_float(src, dst, n);
    return true;
}

enum { VALUES_PER_ITEM = 65536 };

struct conversion {
    const struct gguf_tensor *tensor;
    int64_t first, n_rows, rows_per_item;
    float *dst;
    atomic_bool impossible;
    _Atomic int64_t bad_row; /* lowest row that is not finite, or INT64_MAX */
};

static bool all_finite(const float *x, int64_t n)
{
    /* x - x is 0 for finite x and NaN otherwise */
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] - x[i];
    return sum == 0;
}

static void convert_item(void *user, int64_t item, int thread)
{
    (void)thread;
    struct conversion *c = user;
    const struct gguf_tensor *t = c->tensor;
    int64_t row = item * c->rows_per_item, n = c->n_rows - row;
    if (n > c->rows_per_item)
        n = c->rows_per_item;
    float *dst = c->dst + row * t->ne[0];
    if (!gguf_to_f32(t->type, t->data + (c->first + row) * t->row_bytes, dst, n * t->ne[0])) {
        atomic_store(&c->impossible, true);
        return;
    }
    if (all_finite(dst, n * t->ne[0]))
        return;
    for (int64_t i = 0; i < n; i++) {
        if (all_finite(dst + i * t->ne[0], t->ne[0]))
            continue;
        int64_t bad = c->first + row + i, seen = atomic_load(&c->bad_row);
        while (bad < seen && !atomic_compare_exchange_weak(&c->bad_row, &seen, bad))
            ;
        return;
    }
}

allot_status gguf_tensor_to_f32(const struct gguf_model *model, const struct gguf_tensor *tensor,
                                int64_t first, int64_t n_rows, float *dst, struct pool *pool,
                                struct allot_error *err)
{
    struct conversion c = {
        .tensor = tensor, .first = first, .n_rows = n_rows, .dst = dst, .bad_row = INT64_MAX};
    c.rows_per_item = tensor->ne[0] >= VALUES_PER_ITEM ? 1 : VALUES_PER_ITEM / tensor->ne[0];
    int64_t n_items = (n_rows + c.rows_per_item - 1) / c.rows_per_item;
    if (pool != NULL)
        pool_run(pool, n_items, convert_item, &c);
    else
        for (int64_t i = 0; i < n_items; i++)
            convert_item(&c, i, 0);
    if (c.impossible)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s: values of type %s cannot be read",
                          model->path, tensor->name, ggml_type_name(tensor->type));
    if (c.bad_row != INT64_MAX)
        return allot_fail(err, ALLOT_ERR_NUMERIC,
                          "%s: tensor %s, row %" PRId64 ": a weight is not finite (NaN or Inf)", model->path,
                          tensor->name, (int64_t)c.bad_row);
    return ALLOT_OK;
}
