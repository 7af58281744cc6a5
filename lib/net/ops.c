/* ops.c - norms, rotary embedding, gates, sums: forward and backward.  SPDX-License-Identifier: MIT */
#include "net/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "net/vector.h"

/* Tokens, or values, that one item of a parallel loop covers. */
enum { TOKEN_BLOCK = 32, VALUE_BLOCK = 16384 };

/* ---- Root mean square norm ------------------------------------------------------------------ */

struct rms_norm {
    float *y, *inv_rms_out, *dx;
    const float *x, *w, *dy, *inv_rms;
    int64_t n, width;
    float eps;
};

VECTORISED static void norm_range(float *y, const float *x, const float *w, float inv, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i];
}

VECTORISED static void norm_backward_range(float *dx, const float *dy, const float *x, const float *w,
                                           float inv, float slope, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] += inv * w[i] * dy[i] - slope * x[i];
}

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
        norm_range(y, x, r->w, inv, r->width);
    }
}

void rms_norm_forward(struct pool *pool, float *y, float *inv_rms, const float *x, const float *w, int64_t n,
                      int64_t width, float eps)
{
    struct rms_norm r = {.y = y, .inv_rms_out = inv_rms, .x = x, .w = w, .n = n, .width = width, .eps = eps};
    pool_run(pool, parts_of(n, TOKEN_BLOCK), rms_norm_forward_block, &r);
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
        norm_backward_range(dx, dy, x, r->w, r->inv_rms[t], slope, r->width);
    }
}

void rms_norm_backward(struct pool *pool, float *dx, double *dw, const float *dy, const float *x,
                       const float *w, const float *inv_rms, int64_t n, int64_t width)
{
    struct rms_norm r = {.dx = dx, .x = x, .w = w, .dy = dy, .inv_rms = inv_rms, .n = n, .width = width};
    pool_run(pool, parts_of(n, TOKEN_BLOCK), rms_norm_backward_block, &r);
    if (dw == NULL)
        return;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < width; i++)
            dw[i] += (double)dy[t * width + i] * x[t * width + i] * inv_rms[t];
}

/* ---- Rotary embedding ----------------------------------------------------------------------- */

/* The pairs between which yarn goes over from unscaled to scaled frequencies (ggml_rope_yarn_corr_dims, with
 * libllama's 32 and 1 rotations over the original context). */
static void yarn_ramp_ends(const struct rope_options *o, double *low, double *high)
{
    double per_log = (double)o->n_rot / (2 * log(o->base)), turns = (double)o->n_ctx_original / (2 * M_PI);
    *low = fmax(0, floor(per_log * log(turns / 32)));
    *high = fmin((double)o->n_rot - 1, ceil(per_log * log(turns / 1)));
}

allot_status rope_table_init(struct rope_table *table, int64_t n_ctx, const struct rope_options *options,
                             struct allot_error *err)
{
    const struct rope_options *o = options;
    int64_t n_pairs = o->n_rot / 2;
    size_t bytes = sizeof(float) * (size_t)(n_ctx * n_pairs);
    double low = 0, high = 0;
    if (o->yarn)
        yarn_ramp_ends(o, &low, &high);
    *table = (struct rope_table){.n_ctx = n_ctx, .n_pairs = n_pairs, .neox = o->neox};
    table->cos = malloc(bytes);
    table->sin = malloc(bytes);
    if (table->cos == NULL || table->sin == NULL) {
        rope_table_release(table);
        return allot_fail_memory(err, 2 * bytes, "the rotary embedding");
    }
    for (int64_t i = 0; i < n_pairs; i++) {
        double frequency = pow(o->base, -2.0 * (double)i / (double)o->n_rot), magnitude = o->magnitude;
        if (o->freq_factors != NULL)
            frequency /= o->freq_factors[i];
        double unscaled = 0;
        if (o->yarn) {
            unscaled = 1 - fmin(1, fmax(0, ((double)i - low) / fmax(0.001, high - low)));
            magnitude *= 1 - 0.1 * log(o->scale);
        }
        frequency *= o->scale * (1 - unscaled) + unscaled;
        for (int64_t t = 0; t < n_ctx; t++) {
            table->cos[t * n_pairs + i] = (float)(magnitude * cos((double)t * frequency));
            table->sin[t * n_pairs + i] = (float)(magnitude * sin((double)t * frequency));
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

VECTORISED static void rotate_neighbours(float *x, const float *c, const float *s, float direction,
                                         int64_t n_pairs)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1], sine = direction * s[i];
        x[2 * i] = a * c[i] - b * sine;
        x[2 * i + 1] = a * sine + b * c[i];
    }
}

VECTORISED static void rotate_halves(float *restrict x, float *restrict y, const float *c, const float *s,
                                     float direction, int64_t n_pairs)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        float a = x[i], b = y[i], sine = direction * s[i];
        x[i] = a * c[i] - b * sine;
        y[i] = a * sine + b * c[i];
    }
}

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
            if (r->table->neox)
                rotate_halves(x, x + n_pairs, c, s, r->direction, n_pairs);
            else
                rotate_neighbours(x, c, s, r->direction, n_pairs);
        }
    }
}

static void rope_run(struct pool *pool, struct rope r)
{
    pool_run(pool, parts_of(r.n, TOKEN_BLOCK), rope_block, &r);
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
    int64_t n, width, first, cols;
    float scale;
    enum gate_act act;
};

/* Both activations are z sigmoid(f(z)): f(z) = z, or c (z + 0.044715 z^3). */
#define GELU_C 1.59576912f
#define GELU_A 0.044715f

VECTORISED static void silu_forward_range(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_inline(-gate[i])) * up[i];
}

VECTORISED static void gelu_forward_range(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float z = gate[i], f = GELU_C * (z + GELU_A * z * z * z);
        y[i] = z / (1.0f + exp_inline(-f)) * up[i];
    }
}

/* To the nearest float16: 11 significant bits, and multiples of 2^-24 below 2^-14. */
static inline float round_f16(float x)
{
    float scaled = x * 8193.0f, high = scaled - (scaled - x), low = (x + 0.75f) - 0.75f;
    return fabsf(x) < 6.103515625e-5f ? low : high;
}

VECTORISED static void gelu_f16_forward_range(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float z = round_f16(gate[i]), f = GELU_C * (z + GELU_A * z * z * z);
        float gelu = round_f16(z / (1.0f + exp_inline(-f)));
        gelu = gate[i] <= -10.0f ? 0.0f : gelu;
        y[i] = (gate[i] >= 10.0f ? gate[i] : gelu) * up[i];
    }
}

/* (z s)' = s + z s (1 - s) f'(z), s = sigmoid(f(z)). */
VECTORISED static void silu_backward_range(float *dgate, float *dup, const float *dy, const float *gate,
                                           const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + exp_inline(-gate[i])), d = dy[i];
        dgate[i] = d * up[i] * (s + gate[i] * s * (1.0f - s));
        dup[i] = d * gate[i] * s;
    }
}

VECTORISED static void gelu_backward_range(float *dgate, float *dup, const float *dy, const float *gate,
                                           const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float z = gate[i], d = dy[i], s = 1.0f / (1.0f + exp_inline(-GELU_C * (z + GELU_A * z * z * z)));
        float slope = GELU_C * (1.0f + 3.0f * GELU_A * z * z);
        dgate[i] = d * up[i] * (s + z * s * (1.0f - s) * slope);
        dup[i] = d * z * s;
    }
}

static void gate_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t i = item * VALUE_BLOCK, n = least(VALUE_BLOCK, e->n - i);
    static void (*const ranges[])(float *, const float *, const float *, int64_t) = {
        [GATE_SILU] = silu_forward_range,
        [GATE_GELU] = gelu_forward_range,
        [GATE_GELU_F16] = gelu_f16_forward_range,
    };
    ranges[e->act](e->y + i, e->a + i, e->b + i, n);
}

void gate_forward(struct pool *pool, enum gate_act act, float *y, const float *gate, const float *up,
                  int64_t n)
{
    struct elementwise e = {.y = y, .a = gate, .b = up, .n = n, .act = act};
    pool_run(pool, parts_of(n, VALUE_BLOCK), gate_forward_block, &e);
}

static void gate_backward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t i = item * VALUE_BLOCK, n = least(VALUE_BLOCK, e->n - i);
    (e->act == GATE_SILU ? silu_backward_range : gelu_backward_range)(e->y + i, e->y2 + i, e->c + i, e->a + i,
                                                                      e->b + i, n);
}

void gate_backward(struct pool *pool, enum gate_act act, float *dgate, float *dup, const float *dy,
                   const float *gate, const float *up, int64_t n)
{
    struct elementwise e = {.y = dgate, .y2 = dup, .a = gate, .b = up, .c = dy, .n = n, .act = act};
    pool_run(pool, parts_of(n, VALUE_BLOCK), gate_backward_block, &e);
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
    pool_run(pool, parts_of(n, TOKEN_BLOCK), bias_forward_block, &e);
}

void bias_backward(double *dbias, const float *dy, int64_t n, int64_t width)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < width; i++)
            dbias[i] += dy[t * width + i];
}

VECTORISED static void add_range(float *y, float scale, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = scale * a[i] + b[i];
}

static void add_forward_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t i = item * VALUE_BLOCK;
    add_range(e->y + i, e->scale, e->a + i, e->b + i, least(VALUE_BLOCK, e->n - i));
}

void add_forward(struct pool *pool, float *y, float scale, const float *a, const float *b, int64_t n)
{
    struct elementwise e = {.y = y, .a = a, .b = b, .n = n, .scale = scale};
    pool_run(pool, parts_of(n, VALUE_BLOCK), add_forward_block, &e);
}

static void scale_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t end = least((item + 1) * VALUE_BLOCK, e->n);
    for (int64_t i = item * VALUE_BLOCK; i < end; i++)
        e->y[i] *= e->scale;
}

void scale_values(struct pool *pool, float *x, float scale, int64_t n)
{
    struct elementwise e = {.y = x, .n = n, .scale = scale};
    if (scale != 1)
        pool_run(pool, parts_of(n, VALUE_BLOCK), scale_block, &e);
}

/* ---- Columns --------------------------------------------------------------------------------- */

static void columns_take_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, e->n);
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++)
        memcpy(e->y + t * e->cols, e->a + t * e->width + e->first, sizeof(float) * (size_t)e->cols);
}

void columns_take(struct pool *pool, float *narrow, const float *wide, int64_t n, int64_t width,
                  int64_t first, int64_t cols)
{
    struct elementwise e = {.y = narrow, .a = wide, .n = n, .width = width, .first = first, .cols = cols};
    pool_run(pool, parts_of(n, TOKEN_BLOCK), columns_take_block, &e);
}

static void columns_put_block(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct elementwise *e = user;
    int64_t end = least((item + 1) * TOKEN_BLOCK, e->n);
    for (int64_t t = item * TOKEN_BLOCK; t < end; t++)
        memcpy(e->y + t * e->width + e->first, e->a + t * e->cols, sizeof(float) * (size_t)e->cols);
}

void columns_put(struct pool *pool, float *wide, const float *narrow, int64_t n, int64_t width, int64_t first,
                 int64_t cols)
{
    struct elementwise e = {.y = wide, .a = narrow, .n = n, .width = width, .first = first, .cols = cols};
    pool_run(pool, parts_of(n, TOKEN_BLOCK), columns_put_block, &e);
}
