/* attention.c - causal softmax attention, forward and backward.  SPDX-License-Identifier: MIT */
#include "net/ops.h"

#include <string.h>

#include "base/gemm.h"
#include "net/vector.h"

struct attention_pass {
    const struct attention *a;
    float *o, *dq, *dk, *dv;
    const float *q, *k, *v, *d_o;
};

/* Matrices (T,T) that a thread needs: probabilities, their gradients, and capped scores. */
static int64_t n_matrices(bool softcap)
{
    return softcap ? 3 : 2;
}

int64_t attention_scratch(int64_t n_ctx, bool softcap, int n_threads)
{
    return n_matrices(softcap) * n_ctx * n_ctx * n_threads;
}

static float *scratch_of(const struct attention *a, int thread)
{
    return a->scratch + n_matrices(a->softcap > 0) * a->n_ctx * a->n_ctx * thread;
}

/* The first key that query i sees. */
static int64_t first_key(const struct attention *a, int64_t i)
{
    return a->window > 0 && i >= a->window ? i - a->window + 1 : 0;
}

/* p (T,T) = softmax(s), s = scale q k', capped, for the keys that each query sees; zero elsewhere. capped
 * receives the capped scores unless it is NULL. */
static void probabilities(float *p, float *capped, const float *q, const float *k, const struct attention *a)
{
    int t = (int)a->n_ctx, hd = (int)a->head_dim;
    int ldq = (int)(a->n_heads * a->head_dim), ldk = (int)(a->n_kv_heads * a->head_dim);
    gemm_strided(false, true, t, t, hd, a->scale, q, ldq, k, ldk, 0.0f, p, t);
    for (int64_t i = 0; i < t; i++) {
        float *row = p + i * t;
        int64_t first = first_key(a, i), n = i + 1 - first;
        if (a->softcap > 0)
            softcap_values(row + first, n, a->softcap);
        if (capped != NULL)
            memcpy(capped + i * t + first, row + first, sizeof(float) * (size_t)n);
        float inv = (float)(1.0 / exp_shifted(row + first, n, max_of(row + first, n)));
        memset(row, 0, sizeof(float) * (size_t)first);
        for (int64_t j = first; j <= i; j++)
            row[j] *= inv;
        memset(row + i + 1, 0, sizeof(float) * (size_t)(t - i - 1));
    }
}

static void attention_forward_head(void *user, int64_t item, int thread)
{
    const struct attention_pass *w = user;
    const struct attention *a = w->a;
    int64_t seq = item / a->n_heads, h = item % a->n_heads, kv = h / (a->n_heads / a->n_kv_heads);
    int t = (int)a->n_ctx, hd = (int)a->head_dim;
    int ldq = (int)(a->n_heads * a->head_dim), ldk = (int)(a->n_kv_heads * a->head_dim);
    int64_t at_q = seq * t * ldq + h * hd, at_k = seq * t * ldk + kv * hd;
    float *p = scratch_of(a, thread);
    probabilities(p, NULL, w->q + at_q, w->k + at_k, a);
    gemm_strided(false, false, t, hd, t, 1.0f, p, t, w->v + at_k, ldk, 0.0f, w->o + at_q, ldq);
}

void attention_forward(struct pool *pool, float *o, const float *q, const float *k, const float *v,
                       const struct attention *a)
{
    struct attention_pass pass = {.a = a, .o = o, .q = q, .k = k, .v = v};
    pool_run(pool, a->n_seqs * a->n_heads, attention_forward_head, &pass);
}

/* d cap tanh(s/cap) / ds = 1 - tanh^2, for the entries from first to end. */
static void softcap_slope(float *d, const float *capped, int64_t first, int64_t end, float cap)
{
    for (int64_t j = first; j < end; j++)
        d[j] *= 1.0f - capped[j] * capped[j] / (cap * cap);
}

/* With o = p v and p = softmax(s): dv = p' do, dp = do v', ds = p (dp - rowsum(dp p)),
 * dq = scale ds k, dk = scale ds' q. Heads that share a key/value head follow one another here, so
 * that their sums into dk and dv keep their order. */
static void attention_backward_group(void *user, int64_t item, int thread)
{
    const struct attention_pass *w = user;
    const struct attention *a = w->a;
    int64_t group = a->n_heads / a->n_kv_heads, seq = item / a->n_kv_heads, kv = item % a->n_kv_heads;
    int t = (int)a->n_ctx, hd = (int)a->head_dim;
    int ldq = (int)(a->n_heads * a->head_dim), ldk = (int)(a->n_kv_heads * a->head_dim);
    int64_t at_k = seq * t * ldk + kv * hd;
    float *p = scratch_of(a, thread), *dp = p + a->n_ctx * a->n_ctx;
    float *capped = a->softcap > 0 ? dp + a->n_ctx * a->n_ctx : NULL;
    for (int64_t g = 0; g < group; g++) {
        int64_t at_q = seq * t * ldq + (kv * group + g) * hd;
        float beta = g == 0 ? 0.0f : 1.0f;
        probabilities(p, capped, w->q + at_q, w->k + at_k, a);
        gemm_strided(true, false, t, hd, t, 1.0f, p, t, w->d_o + at_q, ldq, beta, w->dv + at_k, ldk);
        gemm_strided(false, true, t, t, hd, 1.0f, w->d_o + at_q, ldq, w->v + at_k, ldk, 0.0f, dp, t);
        for (int64_t i = 0; i < t; i++) {
            float *prow = p + i * t, *drow = dp + i * t;
            float mean = (float)dot(prow, drow, i + 1);
            for (int64_t j = 0; j < t; j++)
                drow[j] = prow[j] * (drow[j] - mean);
            if (capped != NULL)
                softcap_slope(drow, capped + i * t, first_key(a, i), i + 1, a->softcap);
        }
        gemm_strided(false, false, t, hd, t, a->scale, dp, t, w->k + at_k, ldk, 0.0f, w->dq + at_q, ldq);
        gemm_strided(true, false, t, hd, t, a->scale, dp, t, w->q + at_q, ldq, beta, w->dk + at_k, ldk);
    }
}

void attention_backward(struct pool *pool, float *dq, float *dk, float *dv, const float *d_o, const float *q,
                        const float *k, const float *v, const struct attention *a)
{
    struct attention_pass pass = {.a = a, .dq = dq, .dk = dk, .dv = dv, .q = q, .k = k, .v = v, .d_o = d_o};
    pool_run(pool, a->n_seqs * a->n_kv_heads, attention_backward_group, &pass);
}
