/* ops.h - the parts of a transformer layer that are not matrix products, forward and backward.
 *
 * SPDX-License-Identifier: MIT
 *
 * Shapes are (tokens, channels), row-major; tokens are n_seqs sequences of n_ctx. Forward functions
 * overwrite their output; backward functions say whether they overwrite or accumulate. Work is cut
 * by token or by (sequence, head), so results do not depend on the number of threads.
 */
#ifndef ALLOT_NET_OPS_H
#define ALLOT_NET_OPS_H

#include "base/pool.h"

/* y = x / sqrt(mean(x^2) + eps) * w; inv_rms (n) keeps 1/sqrt(...) for the way back. */
void rms_norm_forward(struct pool *pool, float *y, float *inv_rms, const float *x, const float *w, int64_t n,
                      int64_t width, float eps);
/* Adds to dx. If dw is not NULL, adds the gradient of w (width) to it, in double. */
void rms_norm_backward(struct pool *pool, float *dx, double *dw, const float *dy, const float *x,
                       const float *w, const float *inv_rms, int64_t n, int64_t width);

/* What the angles of a rotary embedding depend on. */
struct rope_options {
    int64_t n_rot;             /* channels of each head that rotate */
    double base, scale;        /* scale multiplies positions (linear scaling by a factor f is 1/f) */
    double magnitude;          /* of cosines and sines */
    const float *freq_factors; /* [n_rot/2] divisors of the frequencies, or NULL */
    bool neox;                 /* pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    bool yarn;                 /* low frequencies are scaled, high ones are not (ggml's rope_yarn) */
    int64_t n_ctx_original;    /* for yarn */
};

/* Cosines and sines: (n_ctx, n_pairs) each. */
struct rope_table {
    float *cos, *sin;
    int64_t n_ctx, n_pairs;
    bool neox;
};
allot_status rope_table_init(struct rope_table *table, int64_t n_ctx, const struct rope_options *options,
                             struct allot_error *err);
void rope_table_release(struct rope_table *table);
/* Rotates the pairs of the first 2*n_pairs channels of every head of x (n, n_heads*head_dim), in place;
 * positions count from 0 in each sequence. Backward is the rotation by the negative angle. */
void rope_forward(struct pool *pool, float *x, const struct rope_table *table, int64_t n, int64_t n_heads,
                  int64_t head_dim);
void rope_backward(struct pool *pool, float *dx, const struct rope_table *table, int64_t n, int64_t n_heads,
                   int64_t head_dim);

/* Causal softmax attention with grouped heads: head h attends with key/value head h / (n_heads/n_kv_heads).
 */
struct attention {
    int64_t n_seqs, n_ctx, n_heads, n_kv_heads, head_dim;
    float scale;
    float softcap;  /* scores s become softcap tanh(s / softcap); 0: they stay */
    int64_t window; /* keys a query sees, itself included; 0: all before it */
    float *scratch; /* attention_scratch floats */
};
/* Floats of scratch space for this many threads. */
int64_t attention_scratch(int64_t n_ctx, bool softcap, int n_threads);
/* o (n, n_heads*head_dim) from q (same), k and v (n, n_kv_heads*head_dim). */
void attention_forward(struct pool *pool, float *o, const float *q, const float *k, const float *v,
                       const struct attention *a);
/* Overwrites dq, dk, dv; recomputes the probabilities. */
void attention_backward(struct pool *pool, float *dq, float *dk, float *dv, const float *d_o, const float *q,
                        const float *k, const float *v, const struct attention *a);

/* y = act(gate) * up with silu(z) = z sigmoid(z), or gelu(z) = z sigmoid(c (z + 0.044715 z^3)),
 * c = 2 sqrt(2/pi) (the form with tanh); GATE_GELU_F16 rounds z and gelu(z) to float16, as the table of
 * ggml's CPU kernels does, and has the derivative of the exact function. */
enum gate_act { GATE_SILU, GATE_GELU, GATE_GELU_F16 };
void gate_forward(struct pool *pool, enum gate_act act, float *y, const float *gate, const float *up,
                  int64_t n);
/* Overwrites dgate and dup; dup may be dy itself. */
void gate_backward(struct pool *pool, enum gate_act act, float *dgate, float *dup, const float *dy,
                   const float *gate, const float *up, int64_t n);

/* y (n,width) += bias (width). */
void bias_forward(struct pool *pool, float *y, const float *bias, int64_t n, int64_t width);
/* Adds the column sums of dy to dbias, in double. */
void bias_backward(double *dbias, const float *dy, int64_t n, int64_t width);

/* y = scale a + b over n values; y may be either. */
void add_forward(struct pool *pool, float *y, float scale, const float *a, const float *b, int64_t n);
/* x *= scale over n values. */
void scale_values(struct pool *pool, float *x, float scale, int64_t n);
/* Columns first to first+cols-1 of wide (n, width) to narrow (n, cols), and back. */
void columns_take(struct pool *pool, float *narrow, const float *wide, int64_t n, int64_t width,
                  int64_t first, int64_t cols);
void columns_put(struct pool *pool, float *wide, const float *narrow, int64_t n, int64_t width, int64_t first,
                 int64_t cols);

/* Replaces x (n) by exp(x - shift) and returns the sum (sixteen interleaved partial sums). */
double exp_shifted(float *x, int64_t n, float shift);
float max_of(const float *x, int64_t n);
/* x = cap tanh(x / cap). */
void softcap_values(float *x, int64_t n, float cap);
/* sum of exp(x - shift) without changing x. */
double sum_exp_shifted(const float *x, int64_t n, float shift);

#endif
