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

/* The compensation of one matrix's inputs, made by the first thread that wants it. */
struct slot {
    int32_t input; /* -1: none */
    int64_t matrix;
    int users;
    bool made;
    struct compensation compensation;
    struct allot_error error; /* if it could not be made */
};

struct rounding {
    const struct second_moments *moments;
    pthread_mutex_t lock;
    pthread_cond_t made;
    struct slot *slots; /* [n_slots] */
    int n_slots;
    struct rounding_result result;
};

allot_status rounding_new(struct rounding **out, const struct second_moments *moments, int n_threads,
                          struct allot_error *err)
{
    struct rounding *r = calloc(1, sizeof *r);
    struct slot *slots = calloc((size_t)n_threads, sizeof *slots);
    if (r == NULL || slots == NULL) {
        free(r);
        free(slots);
        return allot_fail_memory(err, sizeof *r + (size_t)n_threads * sizeof *slots, "rounding");
    }
    *r = (struct rounding){.moments = moments,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .made = PTHREAD_COND_INITIALIZER,
                           .slots = slots,
                           .n_slots = n_threads};
    for (int i = 0; i < n_threads; i++)
        slots[i].input = -1;
    *out = r;
    return gemm_init(err);
}

int64_t rounding_bytes(const struct gguf_model *model, int n_threads)
{
    int64_t most = 0, compensations = 0;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        /* Threads may be at different experts; one matrix has one compensation, made when its input's last
         * one is not used any more. */
        const int64_t at_once = t->ne[2] < n_threads ? t->ne[2] : n_threads;
        if (!gguf_tensor_quantizable(t))
            continue;
        most = t->ne[0] > most ? t->ne[0] : most;
        if (8 * t->ne[0] * t->ne[0] * at_once > compensations)
            compensations = 8 * t->ne[0] * t->ne[0] * at_once;
    }
    /* Of each thread errors, products and weights of a block of rows, and what compensate_rows lays out of a
     * panel. */
    const int64_t per_thread =
        4 * (3 * BLOCK_WEIGHTS + 3 * COMPENSATE_ROWS * most + 4 * COMPENSATE_ROWS * most);
    return compensations + n_threads * per_thread;
}

void rounding_free(struct rounding *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->n_slots; i++)
        compensation_release(&r->slots[i].compensation);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->made);
    free(r->slots);
    free(r);
}

struct rounding_result rounding_take_result(struct rounding *r)
{
    const struct rounding_result result = r->result;
    r->result = (struct rounding_result){0};
    return result;
}

static int64_t index_of(const struct rounding *r, const struct gguf_tensor *t)
{
    return t - r->moments->net->model->tensors;
}

static allot_status begin(void *user, const struct gguf_tensor *t, enum ggml_type type, bool *wanted,
                          struct allot_error *err)
{
    struct rounding *r = user;
    (void)err;
    *wanted = second_moments_input(r->moments, index_of(r, t)) >= 0 && compensate_fits(type);
    r->result.n_tensors += *wanted;
    return ALLOT_OK;
}

/* ---- Compensations in use ------------------------------------------------------------------------------ */

/* That of the matrix; or one that nobody uses, those that hold something first, so that as few as can be do;
 * there are as many as threads. */
static struct slot *find_slot(struct rounding *r, int32_t input, int64_t matrix)
{
    struct slot *unused = NULL;
    for (int i = 0; i < r->n_slots; i++) {
        struct slot *s = &r->slots[i];
        if (s->input == input && s->matrix == matrix && (s->users > 0 || s->made))
            return s;
        if (s->users == 0 && (unused == NULL || (unused->input < 0 && s->input >= 0)))
            unused = s;
    }
    compensation_release(&unused->compensation);
    if (unused->input != input)
        second_moments_forget(r->moments, unused->input);
    *unused = (struct slot){.input = input, .matrix = matrix};
    return unused;
}

/* With few tokens less is known of what inputs have in common than of each of them. */
static double shrinkage(int64_t n_in, int64_t n_tokens)
{
    return (double)n_in / (double)n_tokens;
}

/* sums: X'X of n_tokens inputs. */
static allot_status slot_acquire(struct slot **out, struct rounding *r, const struct gguf_tensor *t,
                                 int64_t matrix, const float *sums, int64_t n_tokens, struct allot_error *err)
{
    const int32_t input = second_moments_input(r->moments, index_of(r, t));
    const int64_t n_in = t->ne[0];
    pthread_mutex_lock(&r->lock);
    struct slot *s = *out = find_slot(r, input, matrix);
    if (s->users++ == 0 && !s->made) {
        pthread_mutex_unlock(&r->lock);
        compensation_init(&s->compensation, sums, n_in, shrinkage(n_in, n_tokens), DAMPING, &s->error);
        pthread_mutex_lock(&r->lock);
        s->made = true;
        pthread_cond_broadcast(&r->made);
    }
    while (!s->made)
        pthread_cond_wait(&r->made, &r->lock);
    const allot_status status = s->error.status;
    if (status != ALLOT_OK)
        allot_fail(err, status, "%s, matrix %lld: %s", t->name, (long long)matrix, s->error.message);
    pthread_mutex_unlock(&r->lock);
    return status;
}

static void slot_release(struct rounding *r, struct slot *s)
{
    pthread_mutex_lock(&r->lock);
    s->users--;
    pthread_mutex_unlock(&r->lock);
}

/* ---- Rows ------------------------------------------------------------------------------------------------
 */

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
static void choose(struct rounding *r, const struct work *w, void *bytes, int64_t n_rows, size_t row_bytes)
{
    struct rounding_result sum = {.n_rows = n_rows};
    for (int64_t row = 0; row < n_rows; row++) {
        uint8_t *now = (uint8_t *)bytes + (size_t)row * row_bytes;
        const uint8_t *given = w->given + (size_t)row * row_bytes;
        const bool better = w->after[row] < w->before[row];
        if (!better)
            memcpy(now, given, row_bytes);
        sum.n_kept += better && memcmp(now, given, row_bytes) != 0;
        sum.before += w->before[row];
        sum.after += better ? w->after[row] : w->before[row];
    }
    pthread_mutex_lock(&r->lock);
    r->result.n_rows += sum.n_rows;
    r->result.n_kept += sum.n_kept;
    r->result.before += sum.before;
    r->result.after += sum.after;
    pthread_mutex_unlock(&r->lock);
}

/* judge: the moment that decides. */
static allot_status round_rows(struct rounding *r, const struct compensation *c, const float *judge,
                               enum ggml_type type, int64_t n_rows, const float *src, void *bytes,
                               struct allot_error *err)
{
    const int64_t n = c->n;
    const size_t row_bytes = ggml_row_size(type, n);
    struct work w;
    allot_status status = work_init(&w, type, n_rows, n, err);
    if (status != ALLOT_OK)
        return status;
    memcpy(w.given, bytes, (size_t)n_rows * row_bytes);
    status = compensate_rows(type, src, bytes, n_rows, n, c, &options, w.scratch, err);
    if (status == ALLOT_OK)
        status = judge_rows(w.before, w.errors, w.product, judge, type, src, w.given, n_rows, n, err);
    if (status == ALLOT_OK)
        status = judge_rows(w.after, w.errors, w.product, judge, type, src, bytes, n_rows, n, err);
    if (status == ALLOT_OK)
        choose(r, &w, bytes, n_rows, row_bytes);
    work_release(&w);
    return status;
}

/* Rows of an expert that too few tokens took to be judged stay as they are. */
static allot_status rows(void *user, const struct gguf_tensor *t, enum ggml_type type, int64_t row,
                         int64_t n_rows, const float *src, void *bytes, struct allot_error *err)
{
    struct rounding *r = user;
    const int64_t tensor = index_of(r, t), matrix = row / t->ne[1];
    int64_t n_seen, n_judged;
    const float *seen = second_moments_of(r->moments, tensor, matrix, MOMENTS_SEEN, &n_seen),
                *judge = second_moments_of(r->moments, tensor, matrix, MOMENTS_HELD_OUT, &n_judged);
    struct slot *slot;
    if (seen == NULL || judge == NULL)
        return ALLOT_OK;
    allot_status status = slot_acquire(&slot, r, t, matrix, seen, n_seen, err);
    if (status == ALLOT_OK)
        status = round_rows(r, &slot->compensation, judge, type, n_rows, src, bytes, err);
    slot_release(r, slot);
    return status;
}

struct quantize_rounding rounding_hooks(struct rounding *r)
{
    return (struct quantize_rounding){r, rounding_bytes(r->moments->net->model, r->n_slots), begin, rows};
}
