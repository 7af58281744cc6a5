/* rounding.c - rounding that makes up for its own errors, while a file is written.
 * SPDX-License-Identifier: MIT */
#include "cost/rounding.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/gemm.h"
#include "quant/compensate.h"
#include "quant/quant.h"

enum { BLOCK_WEIGHTS = 256 * 1024 }; /* of narrow rows, as quantize.c gives them */

#define DAMPING 0.05

static const struct compensation_options options = {.passes = 3, .scales = true};

struct rounding {
    const struct second_moments *moments;
    struct compensation compensation; /* of this input */
    int32_t input;                    /* -1: none yet */
    const float *judge;               /* the moment that decides, or NULL */
    pthread_mutex_t lock;
    struct rounding_result result;
};

allot_status rounding_new(struct rounding **out, const struct second_moments *moments,
                          struct allot_error *err)
{
    struct rounding *r = calloc(1, sizeof *r);
    if (r == NULL)
        return allot_fail_memory(err, sizeof *r, "rounding");
    *r = (struct rounding){.moments = moments, .input = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
    *out = r;
    return gemm_init(err);
}

int64_t rounding_bytes(const struct gguf_model *model, int n_threads)
{
    int64_t most = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]) && model->tensors[i].ne[0] > most)
            most = model->tensors[i].ne[0];
    /* The moment and its factor; of each thread errors, products and weights of a block of rows, and what
     * compensate_rows lays out of a panel. */
    const int64_t per_thread =
        4 * (3 * BLOCK_WEIGHTS + 3 * COMPENSATE_ROWS * most + 4 * COMPENSATE_ROWS * most);
    return 8 * most * most + n_threads * per_thread;
}

void rounding_free(struct rounding *r)
{
    if (r == NULL)
        return;
    compensation_release(&r->compensation);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

struct rounding_result rounding_take_result(struct rounding *r)
{
    const struct rounding_result result = r->result;
    r->result = (struct rounding_result){0};
    return result;
}

static allot_status begin(void *user, const struct gguf_tensor *t, enum ggml_type type, bool *wanted,
                          struct allot_error *err)
{
    struct rounding *r = user;
    const int64_t tensor = t - r->moments->net->model->tensors;
    const int32_t input = second_moments_input(r->moments, tensor);
    int64_t n_seen, n_judged;
    *wanted = false;
    if (input < 0 || !compensate_fits(type) || t->ne[2] > 1)
        return ALLOT_OK;
    const float *seen = second_moments_of(r->moments, tensor, 0, MOMENTS_SEEN, &n_seen);
    r->judge = second_moments_of(r->moments, tensor, 0, MOMENTS_HELD_OUT, &n_judged);
    if (seen == NULL)
        return ALLOT_OK;
    if (input != r->input) {
        compensation_release(&r->compensation);
        r->input = -1;
        allot_status status = compensation_init(&r->compensation, seen, t->ne[0], DAMPING, err);
        if (status != ALLOT_OK)
            return status;
        r->input = input;
    }
    r->result.n_tensors++;
    *wanted = true;
    return ALLOT_OK;
}

/* errors (n_rows, n) of the bytes, and what they cost by the moment: of each row e M e', in costs. product:
 * (n_rows, n). */
static allot_status judge_rows(double *costs, float *errors, float *product, const float *moment,
                               enum ggml_type type, const float *src, const void *bytes, int64_t n_rows,
                               int64_t n, struct allot_error *err)
{
    allot_status status = quant_to_f32(type, bytes, errors, n_rows * n, err);
    if (status != ALLOT_OK)
        return status;
    for (int64_t i = 0; i < n_rows * n; i++)
        errors[i] -= src[i];
    gemm_strided(false, false, (int)n_rows, (int)n, (int)n, 1, errors, (int)n, moment, (int)n, 0, product,
                 (int)n);
    for (int64_t row = 0; row < n_rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)errors[row * n + i] * product[row * n + i];
        costs[row] = sum;
    }
    return ALLOT_OK;
}

struct work {
    float *errors, *product, *scratch; /* (n_rows, n) twice, and what compensate_rows wants */
    double *before, *after;            /* [n_rows] */
    uint8_t *given;                    /* the bytes as they came */
};

static void work_release(struct work *w)
{
    free(w->errors);
    free(w->product);
    free(w->scratch);
    free(w->before);
    free(w->after);
    free(w->given);
}

static allot_status work_init(struct work *w, enum ggml_type type, int64_t n_rows, int64_t n,
                              struct allot_error *err)
{
    const size_t floats = (size_t)(n_rows * n), bytes = (size_t)n_rows * ggml_row_size(type, n);
    *w = (struct work){.errors = malloc(floats * sizeof(float)),
                       .product = malloc(floats * sizeof(float)),
                       .scratch = malloc((size_t)compensate_scratch_floats(type, n) * sizeof(float)),
                       .before = malloc((size_t)n_rows * sizeof(double)),
                       .after = malloc((size_t)n_rows * sizeof(double)),
                       .given = malloc(bytes)};
    if (w->errors && w->product && w->scratch && w->before && w->after && w->given)
        return ALLOT_OK;
    work_release(w);
    return allot_fail_memory(err, 4 * floats * sizeof(float), "rounding");
}

/* Of each row the better bytes stay. */
static void choose(struct rounding *r, const struct work *w, void *bytes, int64_t n_rows, size_t row_bytes,
                   bool judged)
{
    struct rounding_result sum = {.n_rows = n_rows};
    for (int64_t row = 0; row < n_rows; row++) {
        uint8_t *now = (uint8_t *)bytes + (size_t)row * row_bytes;
        const uint8_t *given = w->given + (size_t)row * row_bytes;
        const bool better = !judged || w->after[row] < w->before[row];
        if (!better)
            memcpy(now, given, row_bytes);
        sum.n_kept += better && memcmp(now, given, row_bytes) != 0;
        if (judged) {
            sum.before += w->before[row];
            sum.after += better ? w->after[row] : w->before[row];
        }
    }
    pthread_mutex_lock(&r->lock);
    r->result.n_rows += sum.n_rows;
    r->result.n_kept += sum.n_kept;
    r->result.before += sum.before;
    r->result.after += sum.after;
    pthread_mutex_unlock(&r->lock);
}

static allot_status rows(void *user, const struct gguf_tensor *tensor, enum ggml_type type, int64_t n_rows,
                         const float *src, void *bytes, struct allot_error *err)
{
    struct rounding *r = user;
    const int64_t n = tensor->ne[0];
    const size_t row_bytes = ggml_row_size(type, n);
    struct work w;
    allot_status status = work_init(&w, type, n_rows, n, err);
    if (status != ALLOT_OK)
        return status;
    memcpy(w.given, bytes, (size_t)n_rows * row_bytes);
    status = compensate_rows(type, src, bytes, n_rows, n, &r->compensation, &options, w.scratch, err);
    if (status == ALLOT_OK && r->judge)
        status = judge_rows(w.before, w.errors, w.product, r->judge, type, src, w.given, n_rows, n, err);
    if (status == ALLOT_OK && r->judge)
        status = judge_rows(w.after, w.errors, w.product, r->judge, type, src, bytes, n_rows, n, err);
    if (status == ALLOT_OK)
        choose(r, &w, bytes, n_rows, row_bytes, r->judge != NULL);
    work_release(&w);
    return status;
}

struct quantize_rounding rounding_hooks(struct rounding *r)
{
    return (struct quantize_rounding){r, begin, rows};
}
