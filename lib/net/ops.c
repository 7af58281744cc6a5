/* ops.c - norms, rotary embedding, gates, sums: forward and backward.  SPDX-License-Identifier: MIT */
#include "net/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "net/vector.h"

/* Tokens, or thousands of values, that one item of a parallel loop covers. */
enum { TOKEN_BLOCK = 32, VALUE_BLOCK = 16384 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* ---- Root mean square norm ------------------------------------------------------------------ */

struct rms_norm {
    float *y, *inv_rms_out, *dx;
    const float *x, *w, *dy, *inv_rms;
    int64_t n, width;
    float eps;
};

static void rms_norm_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct rms_norm *r = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, r->n);
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++) {
        const float *x = r->x + t * r->width;
        float *y = r->y + t * r->width;
        double mean = dot(x, x, r->width) / (double)r->width;
        float inv = 1.0f / sqrtf((float)mean + r->eps);
        r->inv_rms_out[t] = inv;
        for (int64_t i = 0; i < r->width; i++)
            y[i] = x[i] * inv * r->w[i];
    }
}

void rms_norm_forward(struct pool *pool, float *y, float *inv_rms, const float *x, const float *w, int64_t n,
                      int64_t width, float eps)
{
    struct rms_norm r = {.y = y, .inv_rms_out = inv_rms, .x = x, .w = w, .n = n, .width = width, .eps = eps};
    pool_run(pool, blocks(n, TOKEN_BLOCK), rms_norm_forward_block, &r);
}

/* y_i = x_i r w_i with r = (mean x^2 + eps)^-1/2, so dr/dx_i = -r^3 x_i / width and
 * dx_i = r w_i dy_i - x_i r^3 / width * sum_j w_j dy_j x_j. */
static void rms_norm_backward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct rms_norm *r = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, r->n);
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++) {
        const float *x = r->x + t * r->width, *dy = r->dy + t * r->width;
        float *dx = r->dx + t * r->width;
        double inv = r->inv_rms[t];
        float slope = (float)(dot3(r->w, dy, x, r->width) * inv * inv * inv / (double)r->width);
        for (int64_t i = 0; i < r->width; i++)
            dx[i] += r->inv_rms[t] * r->w[i] * dy[i] - slope * x[i];
    }
}

void rms_norm_backward(struct pool *pool, float *dx, double *dw, const float *dy, const float *x,
                       const float *w, const float *inv_rms, int64_t n, int64_t width)
{
    struct rms_norm r = {.dx = dx, .x = x, .w = w, .dy = dy, .inv_rms = inv_rms, .n = n, .width = width};
    pool_run(pool, blocks(n, TOKEN_BLOCK), rms_norm_backward_block, &r);
    if (dw == NULL)
        return;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < width; i++)
            dw[i] += (double)dy[t * width + i] * x[t * width + i] * inv_rms[t];
}

/* ---- Rotary embedding ----------------------------------------------------------------------- */

allot_status rope_table_init(struct rope_table *table, int64_t n_ctx, int64_t n_rot, double base,
                             double scale, const float *freq_factors, struct allot_error *err)
{
    int64_t n_pairs = n_rot / 2;
    size_t bytes = sizeof(float) * (size_t)(n_ctx * n_pairs);
    *table = (struct rope_table){.n_ctx = n_ctx, .n_pairs = n_pairs};
    table->cos = malloc(bytes);
    table->sin = malloc(bytes);
    if (table->cos == NULL || table->sin == NULL) {
        rope_table_release(table);
        return allot_fail_memory(err, 2 * bytes, "the rotary embedding");
    }
    for (int64_t t = 0; t < n_ctx; t++) {
        for (int64_t i = 0; i < n_pairs; i++) {
            double angle = (double)t * pow(base, -2.0 * (double)i / (double)n_rot) * scale;
            if (freq_factors != NULL)
                angle /= freq_factors[i];
            table->cos[t * n_pairs + i] = (float)cos(angle);
            table->sin[t * n_pairs + i] = (float)sin(angle);
        }
    }
    return ALLOT_OK;
}

void rope_table_release(struct rope_table *table)
{
    free(table->cos);
    free(table->sin);
    *table = (struct rope_table){0};
}

struct rope {
    float *x;
    const struct rope_table *table;
    int64_t n, n_heads, head_dim;
    float direction; /* 1 forward, -1 backward */
};

static void rope_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct rope *r = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, r->n), n_pairs = r->table->n_pairs;
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++) {
        const float *c = r->table->cos + t % r->table->n_ctx * n_pairs;
        const float *s = r->table->sin + t % r->table->n_ctx * n_pairs;
        for (int64_t h = 0; h < r->n_heads; h++) {
            float *x = r->x + (t * r->n_heads + h) * r->head_dim;
            for (int64_t i = 0; i < n_pairs; i++) {
                float a = x[2 * i], b = x[2 * i + 1], sine = r->direction * s[i];
                x[2 * i] = a * c[i] - b * sine;
                x[2 * i + 1] = a * sine + b * c[i];
            }
        }
    }
}

static void rope_run(struct pool *pool, struct rope r)
{
    pool_run(pool, blocks(r.n, TOKEN_BLOCK), rope_block, &r);
}

void rope_forward(struct pool *pool, float *x, const struct rope_table *table, int64_t n, int64_t n_heads,
                  int64_t head_dim)
{
    rope_run(pool, (struct rope){x, table, n, n_heads, head_dim, 1.0f});
}

void rope_backward(struct pool *pool, float *dx, const struct rope_table *table, int64_t n, int64_t n_heads,
                   int64_t head_dim)
{
    rope_run(pool, (struct rope){dx, table, n, n_heads, head_dim, -1.0f});
}

/* ---- Gated activation ------------------------------------------------------------------------ */

struct elementwise {
    float *y, *y2;
    const float *a, *b, *c;
    int64_t n, width;
};

VECTORISED static void swiglu_forward_range(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_inline(-gate[i])) * up[i];
}

/* silu'(z) = s + z s (1 - s), s = sigmoid(z). */
VECTORISED static void swiglu_backward_range(float *dgate, float *dup, const float *dy, const float *gate,
                                             const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + exp_inline(-gate[i])), d = dy[i];
        dgate[i] = d * up[i] * (s + gate[i] * s * (1.0f - s));
        dup[i] = d * gate[i] * s;
    }
}

static void swiglu_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t i = item * VALUE_BLOCK;
    swiglu_forward_range(e->y + i, e->a + i, e->b + i, least(VALUE_BLOCK, e->n - i));
}

void swiglu_forward(struct pool *pool, float *y, const float *gate, const float *up, int64_t n)
{
    struct elementwise e = {.y = y, .a = gate, .b = up, .n = n};
    pool_run(pool, blocks(n, VALUE_BLOCK), swiglu_forward_block, &e);
}

static void swiglu_backward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t i = item * VALUE_BLOCK;
    swiglu_backward_range(e->y + i, e->y2 + i, e->c + i, e->a + i, e->b + i, least(VALUE_BLOCK, e->n - i));
}

void swiglu_backward(struct pool *pool, float *dgate, float *dup, const float *dy, const float *gate,
                     const float *up, int64_t n)
{
    struct elementwise e = {.y = dgate, .y2 = dup, .a = gate, .b = up, .c = dy, .n = n};
    pool_run(pool, blocks(n, VALUE_BLOCK), swiglu_backward_block, &e);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static void bias_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, e->n);
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++)
        for (int64_t i = 0; i < e->width; i++)
            e->y[t * e->width + i] += e->a[i];
}

void bias_forward(struct pool *pool, float *y, const float *bias, int64_t n, int64_t width)
{
    struct elementwise e = {.y = y, .a = bias, .n = n, .width = width};
    pool_run(pool, blocks(n, TOKEN_BLOCK), bias_forward_block, &e);
}

void bias_backward(double *dbias, const float *dy, int64_t n, int64_t width)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < width; i++)
            dbias[i] += dy[t * width + i];
}

static void add_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t end = least((item + 1) * VALUE_BLOCK, e->n);
    for (int64_t i = item * VALUE_BLOCK; i < end; i++)
        e->y[i] = e->a[i] + e->b[i];
}

void add_forward(struct pool *pool, float *y, const float *a, const float *b, int64_t n)
{
    struct elementwise e = {.y = y, .a = a, .b = b, .n = n};
    pool_run(pool, blocks(n, VALUE_BLOCK), add_forward_block, &e);
}
