/* kl.c - how far the outputs of other networks are from that of one.  SPDX-License-Identifier: MIT
 *
 * With d = z - z' the difference of two networks' logits and p = exp(z) / sum exp(z),
 *
 *     KL(p || p') = sum p d + ln sum p exp(-d) = a + ln(1 + g - a),    a = sum p d,  g = sum p (exp(-d) - 1 +
 * d),
 *
 * where nothing large cancels: the terms of g are positive and of the size of d^2, and both sums see the same
 * p, whose rounding therefore only weighs tokens of the vocabulary a little differently. The sums run in
 * double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "net/head.h"
#include "net/ops.h"
#include "net/source.h"
#include "net/vector.h"

/* ---- The terms of one token ---------------------------------------------------------------------------- */

/* exp(-d) - 1 + d = d^2 (1/2! - d/3! + d^2/4! - ...), the series to d^12: for |d| < 1/2 good to double. */
static const double near_limit = 0.5;
static inline double near_term(double d)
{
    double s = 1.0 / 87178291200;
    s = 1.0 / 6227020800 - d * s;
    s = 1.0 / 479001600 - d * s;
    s = 1.0 / 39916800 - d * s;
    s = 1.0 / 3628800 - d * s;
    s = 1.0 / 362880 - d * s;
    s = 1.0 / 40320 - d * s;
    s = 1.0 / 5040 - d * s;
    s = 1.0 / 720 - d * s;
    s = 1.0 / 120 - d * s;
    s = 1.0 / 24 - d * s;
    s = 1.0 / 6 - d * s;
    s = 0.5 - d * s;
    return d * d * s;
}

struct terms {
    double a, g; /* as above, times sum exp(z - top) */
};

/* One token of the vocabulary; NaN goes the far way, and on into the sums. p may have run out of range far
 * below the top, where z' need not be. */
static inline void add_term(struct terms *sum, double p, float z, float other, float top)
{
    double d = (double)z - other;
    sum->a += p * d;
    if (fabs(d) < near_limit)
        sum->g += p * near_term(d);
    else
        sum->g += exp((double)other - top) - p + p * d;
}

/* Over n tokens of the vocabulary, p = exp(z - top): interleaved partial sums, folded in order. A stretch of
 * LANES tokens that are all near goes without branches. */
VECTORISED static struct terms sum_terms(const float *p, const float *z, const float *other, float top,
                                         int64_t n)
{
    double a[LANES] = {0}, g[LANES] = {0};
    struct terms sum = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int far = 0;
        for (int l = 0; l < LANES; l++)
            far |= !(fabsf(z[i + l] - other[i + l]) < 0.5f);
        for (int l = 0; l < LANES && !far; l++) {
            double d = (double)z[i + l] - other[i + l], weight = p[i + l];
            a[l] += weight * d;
            g[l] += weight * near_term(d);
        }
        for (int l = 0; l < LANES && far; l++)
            add_term(&sum, p[i + l], z[i + l], other[i + l], top);
    }
    for (int l = 0; l < LANES; l++) {
        sum.a += a[l];
        sum.g += g[l];
    }
    for (; i < n; i++)
        add_term(&sum, p[i], z[i], other[i], top);
    return sum;
}

/* ---- The walk -------------------------------------------------------------------------------------------
 */

/* Of one token: the largest logit so far, the sum of the exponentials over it, and what the sums so far,
 * which were over an earlier one, have to be multiplied with. */
struct token_sum {
    float top;
    double sum, factor;
};

struct walk {
    struct head head; /* logits: the net's */
    struct pool *pool;
    const float *x;
    int64_t n, n_others;
    struct token_sum *tokens;  /* [n] */
    struct terms *terms;       /* (n_others, n) */
    float *p, *logits;         /* (HEAD_COMPARED, block): exp(z - top); the other's logits */
    const struct net *rows_of; /* whose rows of the block are in head.w */
    int64_t first, rows;       /* the block of the vocabulary */
    int64_t at, m;             /* the group of tokens */
    int64_t other;
};

/* In double: beside a p near 1 floats lose all others, and where these are all that differs, KL with them. */
VECTORISED static double sum_of(const float *p, int64_t n)
{
    double partial[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            partial[l] += p[i + l];
    for (int l = 0; l < LANES; l++)
        sum += partial[l];
    for (; i < n; i++)
        sum += p[i];
    return sum;
}

static void base_token(void *user, int64_t t, int thread)
{
    (void)thread;
    struct walk *w = user;
    struct token_sum *token = &w->tokens[w->at + t];
    const float *z = w->head.logits + t * w->rows;
    float *p = w->p + t * w->rows, top = max_of(z, w->rows);
    bool first = w->first == 0;
    memcpy(p, z, sizeof *p * (size_t)w->rows);
    if (!first && top < token->top)
        top = token->top;
    token->factor = first ? 0 : exp((double)token->top - top);
    token->top = top;
    exp_shifted(p, w->rows, top);
    token->sum = token->sum * token->factor + sum_of(p, w->rows);
}

static void other_token(void *user, int64_t t, int thread)
{
    (void)thread;
    struct walk *w = user;
    const struct token_sum *token = &w->tokens[w->at + t];
    struct terms *sum = &w->terms[w->other * w->n + w->at + t];
    struct terms more = sum_terms(w->p + t * w->rows, w->head.logits + t * w->rows, w->logits + t * w->rows,
                                  token->top, w->rows);
    sum->a = sum->a * token->factor + more.a;
    sum->g = sum->g * token->factor + more.g;
}

/* Logits of one group in one block, from the rows of a net's output matrix. */
static allot_status group_logits(struct walk *w, const struct net *net, const float *x, float *logits,
                                 struct allot_error *err)
{
    struct head *h = &w->head;
    const struct net *owner = net_replaces(net, net->output) ? net : h->net;
    allot_status status = ALLOT_OK;
    if (w->rows_of != owner)
        status = head_load_rows(h, owner, w->first, w->rows, err);
    w->rows_of = status == ALLOT_OK ? owner : NULL;
    if (status != ALLOT_OK)
        return status;
    head_norm(h, h->xn, x + w->at * net->n_embd, w->m);
    head_logits(h, logits, h->xn, w->m, w->first, w->rows);
    return ALLOT_OK;
}

static allot_status walk_group(struct walk *w, const struct net_other *others, struct allot_error *err)
{
    allot_status status = group_logits(w, w->head.net, w->x, w->head.logits, err);
    if (status == ALLOT_OK)
        pool_run(w->pool, w->m, base_token, w);
    for (w->other = 0; w->other < w->n_others && status == ALLOT_OK; w->other++) {
        status = group_logits(w, others[w->other].net, others[w->other].x, w->logits, err);
        if (status == ALLOT_OK)
            pool_run(w->pool, w->m, other_token, w);
    }
    return status;
}

static allot_status walk(struct walk *w, const struct net_other *others, struct allot_error *err)
{
    const struct net *net = w->head.net;
    allot_status status = ALLOT_OK;
    for (w->first = 0; w->first < net->n_vocab && status == ALLOT_OK; w->first += w->rows) {
        w->rows = least(net->n_vocab - w->first, w->head.block);
        w->rows_of = NULL;
        for (w->at = 0; w->at < w->n && status == ALLOT_OK; w->at += w->m) {
            w->m = least(w->n - w->at, HEAD_COMPARED);
            status = walk_group(w, others, err);
        }
    }
    return status;
}

static allot_status check_others(const struct net_other *others, int64_t n, struct allot_error *err)
{
    for (int64_t v = 0; v < n; v++) {
        const struct net *net = others[v].net;
        if (net_replaces(net, net->output_norm) ||
            (net->output_bias != NULL && net_replaces(net, net->output_bias)))
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "%s: a source must leave %s and the output's bias alone", net->model->path,
                              net->output_norm->name);
    }
    return ALLOT_OK;
}

int64_t head_divergence_bytes(const struct net *net, int64_t n, int64_t n_others)
{
    int64_t group = least(n, HEAD_COMPARED), block = least(net->n_vocab, HEAD_BLOCK);
    int64_t bias = net->output_bias != NULL ? net->n_vocab : 0;
    int64_t floats = block * net->n_embd + net->n_embd + group + bias + 2 * group * block;
    return (int64_t)sizeof(float) * floats + head_token_bytes(net, group) +
           n * (int64_t)sizeof(struct token_sum) + n * n_others * (int64_t)sizeof(struct terms);
}

allot_status net_divergence(double *kl, const struct net *net, struct pool *pool, const float *x, int64_t n,
                            const struct net_other *others, int64_t n_others, struct allot_error *err)
{
    struct walk w = {.pool = pool, .x = x, .n = n, .n_others = n_others};
    int64_t group = least(n, HEAD_COMPARED);
    allot_status status = check_others(others, n_others, err);
    if (status == ALLOT_OK)
        status = head_init(&w.head, net, pool, x, group, NULL, err);
    if (status != ALLOT_OK)
        return status;
    size_t bytes = sizeof(float) * (size_t)(group * w.head.block);
    w.tokens = calloc((size_t)n, sizeof *w.tokens);
    w.terms = calloc((size_t)(n * n_others) + 1, sizeof *w.terms);
    w.p = malloc(bytes);
    w.logits = malloc(bytes);
    if (!w.tokens || !w.terms || !w.p || !w.logits)
        status = allot_fail_memory(err, bytes, "the logits to compare");
    else
        status = walk(&w, others, err);
    for (int64_t i = 0; i < n * n_others && status == ALLOT_OK; i++) {
        double sum = w.tokens[i % n].sum, a = w.terms[i].a / sum, value = a + log1p(w.terms[i].g / sum - a);
        kl[i] = value < 0 ? 0 : value; /* rounding may leave it under 0; NaN stays */
    }
    free(w.tokens);
    free(w.terms);
    free(w.p);
    free(w.logits);
    head_release(&w.head);
    return status;
}
