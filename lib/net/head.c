/* head.c - the output norm and the output matrix, by blocks of the vocabulary.  SPDX-License-Identifier: MIT
 */
#include "net/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/gemm.h"
#include "net/linear.h"
#include "net/source.h"

/* Maximum and sum of exponentials above it, of one token's logits in one block. */
struct block_sum {
    float top;
    double sum;
};

static int64_t block_rows(const struct net *net)
{
    return net->n_vocab < HEAD_BLOCK ? net->n_vocab : HEAD_BLOCK;
}

int64_t head_token_bytes(const struct net *net, int64_t n)
{
    return (int64_t)sizeof(float) * n * (2 * net->n_embd + block_rows(net));
}

int64_t net_teacher_bytes(const struct net *net, int64_t n)
{
    return head_token_bytes(net, n) +
           (int64_t)sizeof(float) * (block_rows(net) * net->n_embd + net->n_embd + n + net->n_vocab);
}

int64_t head_fixed_bytes(const struct net *net, int64_t n)
{
    int64_t block = block_rows(net), group = n < HEAD_GROUP ? n : HEAD_GROUP;
    int64_t sums = (net->n_vocab + block - 1) / block * (int64_t)sizeof(struct block_sum);
    int64_t bias = net->output_bias != NULL ? net->n_vocab : 0;
    return (int64_t)sizeof(float) * (block * net->n_embd + net->n_embd + n + bias) +
           head_token_bytes(net, group) + group * sums;
}

void head_release(struct head *h)
{
    free(h->norm_weight);
    free(h->inv_rms);
    free(h->w);
    free(h->bias);
    spill_release(&h->tokens);
    *h = (struct head){0};
}

void head_norm(struct head *h, float *xn, const float *x, int64_t n)
{
    rms_norm_forward(h->pool, xn, h->inv_rms, x, h->norm_weight, n, h->net->n_embd, h->net->rms_eps);
}

allot_status head_init(struct head *h, const struct net *net, struct pool *pool, const float *x, int64_t n,
                       const char *folder, struct allot_error *err)
{
    *h = (struct head){.net = net, .pool = pool, .n = n, .block = block_rows(net)};
    size_t d = (size_t)net->n_embd;
    h->norm_weight = malloc(sizeof(float) * d);
    h->inv_rms = malloc(sizeof(float) * (size_t)n);
    h->w = malloc(sizeof(float) * (size_t)h->block * d);
    allot_status status = ALLOT_OK;
    bool biased = net->output_bias != NULL;
    if (biased)
        h->bias = malloc(sizeof(float) * (size_t)net->n_vocab);
    if (!h->norm_weight || !h->inv_rms || !h->w || (biased && !h->bias))
        status = allot_fail_memory(err, sizeof(float) * (size_t)h->block * d, "the output layer");
    if (status == ALLOT_OK)
        status = spill_new(&h->tokens, (size_t)head_token_bytes(net, n), folder,
                           "the states of the output layer", err);
    if (status == ALLOT_OK)
        status = net_rows(net, net->output_norm, 0, 1, h->norm_weight, NULL, err);
    if (status == ALLOT_OK && biased)
        status = net_rows(net, net->output_bias, 0, 1, h->bias, NULL, err);
    if (status != ALLOT_OK) {
        head_release(h);
        return status;
    }
    h->xn = h->tokens.data;
    h->dxn = h->xn + n * net->n_embd;
    h->logits = h->dxn + n * net->n_embd;
    head_norm(h, h->xn, x, n);
    return ALLOT_OK;
}

allot_status net_output_input(const struct net *net, struct pool *pool, const float *x, int64_t n, float *xn,
                              struct allot_error *err)
{
    float *weight = malloc(sizeof *weight * (size_t)net->n_embd),
          *inv_rms = malloc(sizeof *inv_rms * (size_t)n);
    allot_status status =
        weight && inv_rms
            ? net_rows(net, net->output_norm, 0, 1, weight, NULL, err)
            : allot_fail_memory(err, sizeof *weight * (size_t)(net->n_embd + n), "the output norm");
    if (status == ALLOT_OK)
        rms_norm_forward(pool, xn, inv_rms, x, weight, n, net->n_embd, net->rms_eps);
    free(weight);
    free(inv_rms);
    return status;
}

allot_status head_load_rows(struct head *h, const struct net *net, int64_t first, int64_t n_rows,
                            struct allot_error *err)
{
    allot_status status = net_rows(net, net->output, first, n_rows, h->w, h->pool, err);
    gguf_tensor_forget_rows(net->output, first, n_rows);
    return status;
}

/* What is done to the products of one token, in place. */
struct finishing {
    const struct head *h;
    float *logits;
    int64_t first, rows;
};

static void finish_token(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct finishing *f = user;
    const struct net *net = f->h->net;
    float *row = f->logits + t * f->rows;
    for (int64_t v = 0; v < f->rows && f->h->bias != NULL; v++)
        row[v] += f->h->bias[f->first + v];
    for (int64_t v = 0; v < f->rows && net->logit_scale != 1; v++)
        row[v] *= net->logit_scale;
    if (net->final_softcap > 0)
        softcap_values(row, f->rows, net->final_softcap);
}

void head_logits(const struct head *h, float *logits, const float *xn, int64_t n, int64_t first, int64_t rows)
{
    struct finishing f = {h, logits, first, rows};
    gemm_forward(h->pool, logits, xn, h->w, n, rows, h->net->n_embd);
    if (h->bias != NULL || h->net->logit_scale != 1 || h->net->final_softcap > 0)
        pool_run(h->pool, n, finish_token, &f);
}

/* Loads rows [first, first + *n_rows) of the output matrix and computes their logits (n, *n_rows). */
static allot_status head_block(struct head *h, int64_t first, int64_t *n_rows, struct allot_error *err)
{
    int64_t left = h->net->n_vocab - first;
    *n_rows = left < h->block ? left : h->block;
    allot_status status = head_load_rows(h, h->net, first, *n_rows, err);
    if (status == ALLOT_OK)
        head_logits(h, h->logits, h->xn, h->n, first, *n_rows);
    return status;
}

/* ---- Log-probabilities ---------------------------------------------------------------------------- */

allot_status net_log_probs(const struct net *net, struct pool *pool, const float *x, int64_t n,
                           float *log_probs, struct allot_error *err)
{
    struct head h;
    allot_status status = head_init(&h, net, pool, x, n, NULL, err);
    if (status != ALLOT_OK)
        return status;
    for (int64_t first = 0, rows; first < net->n_vocab && status == ALLOT_OK; first += rows) {
        status = head_block(&h, first, &rows, err);
        for (int64_t t = 0; t < n && status == ALLOT_OK; t++)
            memcpy(log_probs + t * net->n_vocab + first, h.logits + t * rows, sizeof(float) * (size_t)rows);
    }
    for (int64_t t = 0; t < n && status == ALLOT_OK; t++) {
        float *row = log_probs + t * net->n_vocab, top = max_of(row, net->n_vocab);
        double lse = top;
        double sum = 0;
        for (int64_t v = 0; v < net->n_vocab; v++)
            sum += exp((double)row[v] - top);
        lse += log(sum);
        for (int64_t v = 0; v < net->n_vocab; v++)
            row[v] = (float)(row[v] - lse);
    }
    head_release(&h);
    return status;
}

/* ---- Drawing labels --------------------------------------------------------------------------------- */

struct summing {
    const struct head *h;
    int64_t rows, b, n_blocks;
    struct block_sum *sums; /* (n, n_blocks) */
};

static void sum_token(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct summing *s = user;
    const float *row = s->h->logits + t * s->rows;
    float top = max_of(row, s->rows);
    s->sums[t * s->n_blocks + s->b] = (struct block_sum){top, sum_exp_shifted(row, s->rows, top)};
}

/* From a token's block sums: its lse, and the block and the remaining mass at which a uniform draw
 * falls. */
static int64_t choose_block(const struct block_sum *sums, int64_t n_blocks, double uniform, float *lse,
                            double *rest)
{
    float top = sums[0].top;
    for (int64_t b = 1; b < n_blocks; b++)
        top = sums[b].top > top ? sums[b].top : top;
    double total = 0;
    for (int64_t b = 0; b < n_blocks; b++)
        total += sums[b].sum * exp((double)sums[b].top - top);
    *lse = (float)(top + log(total));
    double wanted = uniform * total;
    for (int64_t b = 0; b < n_blocks; b++) {
        double mass = sums[b].sum * exp((double)sums[b].top - top);
        if (wanted < mass || b == n_blocks - 1) {
            *rest = wanted / mass; /* fraction of this block's mass */
            return b;
        }
        wanted -= mass;
    }
    return n_blocks - 1;
}

/* Tokens whose draw falls into one block, the one after the other in head's logits. */
struct drawing {
    const struct head *h;
    int64_t first, rows;
    const int64_t *tokens; /* their numbers among the head's tokens */
    const double *rest;    /* [head's tokens] fraction of the block's mass at which the draw falls */
    int32_t *labels;       /* [head's tokens] */
};

static void draw_token(void *user, int64_t i, int thread)
{
    (void)thread;
    const struct drawing *d = user;
    float *row = d->h->logits + i * d->rows;
    double wanted = exp_shifted(row, d->rows, max_of(row, d->rows)) * d->rest[d->tokens[i]], sum = 0;
    int64_t v = -1;
    while (sum <= wanted && v < d->rows - 1)
        sum += row[++v];
    d->labels[d->tokens[i]] = (int32_t)(d->first + v);
}

/* Computes the logits of the tokens whose draw falls into block b, and finishes their draw. tokens is room
 * for all. */
static allot_status draw_block(struct head *h, int64_t b, const int64_t *chosen, const double *rest,
                               int64_t *tokens, int32_t *labels, struct allot_error *err)
{
    const struct net *net = h->net;
    int64_t first = b * h->block, m = 0;
    for (int64_t t = 0; t < h->n; t++) {
        if (chosen[t] != b)
            continue;
        memcpy(h->dxn + m * net->n_embd, h->xn + t * net->n_embd, sizeof(float) * (size_t)net->n_embd);
        tokens[m++] = t;
    }
    if (m == 0)
        return ALLOT_OK;
    int64_t rows = net->n_vocab - first < h->block ? net->n_vocab - first : h->block;
    allot_status status = head_load_rows(h, net, first, rows, err);
    if (status != ALLOT_OK)
        return status;
    head_logits(h, h->logits, h->dxn, m, first, rows);
    struct drawing d = {h, first, rows, tokens, rest, labels};
    pool_run(h->pool, m, draw_token, &d);
    return ALLOT_OK;
}

/* Labels and lse of the head's tokens, of which the first stands at `position` in the batch. */
static allot_status draw_labels(struct head *h, int32_t *labels, float *lse, int64_t position, uint64_t seed,
                                struct allot_error *err)
{
    const struct net *net = h->net;
    int64_t n_blocks = (net->n_vocab + h->block - 1) / h->block;
    struct block_sum *sums = malloc(sizeof *sums * (size_t)(h->n * n_blocks));
    int64_t *chosen = malloc(sizeof *chosen * (size_t)h->n);
    int64_t *tokens = malloc(sizeof *tokens * (size_t)h->n);
    double *rest = malloc(sizeof *rest * (size_t)h->n);
    allot_status status = ALLOT_OK;
    if (!sums || !chosen || !tokens || !rest)
        status = allot_fail_memory(err, sizeof *sums * (size_t)(h->n * n_blocks), "drawing labels");
    for (int64_t b = 0; b < n_blocks && status == ALLOT_OK; b++) {
        struct summing s = {.h = h, .b = b, .n_blocks = n_blocks, .sums = sums};
        status = head_block(h, b * h->block, &s.rows, err);
        if (status == ALLOT_OK)
            pool_run(h->pool, h->n, sum_token, &s);
    }
    for (int64_t t = 0; t < h->n && status == ALLOT_OK; t++)
        chosen[t] = choose_block(sums + t * n_blocks, n_blocks, rng_uniform(seed, (uint64_t)(position + t)),
                                 &lse[t], &rest[t]);
    for (int64_t b = 0; b < n_blocks && status == ALLOT_OK; b++)
        status = draw_block(h, b, chosen, rest, tokens, labels, err);
    free(sums);
    free(chosen);
    free(tokens);
    free(rest);
    return status;
}

allot_status net_targets_draw(struct net_targets *targets, const struct net *net, struct pool *pool,
                              const float *x, int64_t n, uint64_t seed, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    *targets = (struct net_targets){.n = n};
    targets->labels = malloc(sizeof(int32_t) * (size_t)n);
    targets->lse = malloc(sizeof(float) * (size_t)n);
    if (targets->labels == NULL || targets->lse == NULL)
        status = allot_fail_memory(err, 8 * (size_t)n, "labels");
    for (int64_t first = 0; first < n && status == ALLOT_OK; first += HEAD_GROUP) {
        struct head h;
        status = head_init(&h, net, pool, x + first * net->n_embd,
                           n - first < HEAD_GROUP ? n - first : HEAD_GROUP, NULL, err);
        if (status != ALLOT_OK)
            break;
        status = draw_labels(&h, targets->labels + first, targets->lse + first, first, seed, err);
        head_release(&h);
    }
    for (int64_t t = 0; t < n && status == ALLOT_OK; t++)
        if (!isfinite(targets->lse[t]))
            status = allot_fail(err, ALLOT_ERR_NUMERIC,
                                "%s: the forward pass gives logits that are not finite", net->model->path);
    if (status != ALLOT_OK)
        net_targets_release(targets);
    return status;
}

void net_targets_release(struct net_targets *targets)
{
    free(targets->labels);
    free(targets->lse);
    *targets = (struct net_targets){0};
}

/* ---- Backward ----------------------------------------------------------------------------------------- */

struct logit_gradient {
    float *logits; /* (n, rows) in place */
    float *wanted; /* (teacher's n, rows): the teacher's logits */
    const struct net *net;
    const struct net_targets *targets;
    int64_t first, rows;
};

/* d/d logits of log p(y) is onehot(y) - p, of the teacher's mean of it q - p; then by what the logits are of
 * the products. */
static void logit_gradient_token(void *user, int64_t t, int thread)
{
    (void)thread;
    const struct logit_gradient *g = user;
    const struct net_teacher *teacher = g->targets->teacher;
    float *row = g->logits + t * g->rows, capped[HEAD_BLOCK], cap = g->net->final_softcap;
    const bool taught = teacher != NULL && t < teacher->n;
    int32_t label = taught ? -1 : g->targets->labels[t];
    if (label < 0 && !taught) {
        memset(row, 0, sizeof(float) * (size_t)g->rows);
        return;
    }
    if (cap > 0)
        memcpy(capped, row, sizeof(float) * (size_t)g->rows);
    exp_shifted(row, g->rows, g->targets->lse[t]);
    for (int64_t v = 0; v < g->rows; v++)
        row[v] = -row[v];
    if (taught) {
        const float *q = g->wanted + t * g->rows;
        exp_shifted(g->wanted + t * g->rows, g->rows, teacher->lse[t]);
        for (int64_t v = 0; v < g->rows; v++)
            row[v] += q[v];
    } else if (label >= g->first && label < g->first + g->rows) {
        row[label - g->first] += 1.0f;
    }
    for (int64_t v = 0; v < g->rows && cap > 0; v++)
        row[v] *= 1.0f - capped[v] * capped[v] / (cap * cap);
    for (int64_t v = 0; v < g->rows && g->net->logit_scale != 1; v++)
        row[v] *= g->net->logit_scale;
}

static allot_status norm_gradient(struct head *h, float *dx, const float *x,
                                  const struct net_observer *observer, struct allot_error *err)
{
    const struct net *net = h->net;
    bool wanted = observer != NULL && observer->vector != NULL;
    double *dw = wanted ? calloc((size_t)net->n_embd, sizeof *dw) : NULL;
    if (wanted && dw == NULL)
        return allot_fail_memory(err, (size_t)net->n_embd * sizeof *dw, net->output_norm->name);
    memset(dx, 0, sizeof(float) * (size_t)(h->n * net->n_embd));
    rms_norm_backward(h->pool, dx, dw, h->dxn, x, h->norm_weight, h->inv_rms, h->n, net->n_embd);
    allot_status status =
        wanted ? observer->vector(observer->user, net->output_norm, dw, net->n_embd, err) : ALLOT_OK;
    free(dw);
    return status;
}

allot_status head_backward(const struct net *net, struct pool *pool, float *dx, const float *x, int64_t n,
                           const struct net_targets *targets, const struct net_observer *observer,
                           const char *folder, struct allot_error *err)
{
    const struct net_teacher *teacher = targets->teacher;
    struct head h, taught = {0};
    allot_status status = head_init(&h, net, pool, x, n, folder, err);
    if (status == ALLOT_OK && teacher != NULL)
        status = head_init(&taught, teacher->net, pool, teacher->x, teacher->n, folder, err);
    if (status != ALLOT_OK) {
        head_release(&h);
        return status;
    }
    bool vectors = observer != NULL && observer->vector != NULL && net->output_bias != NULL;
    double *dbias = vectors ? calloc((size_t)net->n_vocab, sizeof *dbias) : NULL;
    if (vectors && dbias == NULL)
        status = allot_fail_memory(err, (size_t)net->n_vocab * sizeof *dbias, net->output_bias->name);
    for (int64_t first = 0, rows; first < net->n_vocab && status == ALLOT_OK; first += rows) {
        status = head_block(&h, first, &rows, err);
        if (status == ALLOT_OK && teacher != NULL)
            status = head_block(&taught, first, &rows, err);
        if (status != ALLOT_OK)
            break;
        struct logit_gradient g = {h.logits, taught.logits, net, targets, first, rows};
        pool_run(pool, n, logit_gradient_token, &g);
        if (vectors)
            bias_backward(dbias + first, h.logits, n, rows);
        gemm_backward(pool, h.dxn, h.logits, h.w, n, rows, net->n_embd, first > 0);
        struct net_map map = {.tensor = net->output,
                              .first_row = first,
                              .n_rows = rows,
                              .n_in = net->n_embd,
                              .n_tokens = n,
                              .w = h.w,
                              .x = h.xn,
                              .g = h.logits};
        status = observe_map(observer, &map, err);
    }
    if (status == ALLOT_OK && net->output != net->token_embd)
        status = observe_done(observer, net->output, err);
    if (status == ALLOT_OK && vectors)
        status = observer->vector(observer->user, net->output_bias, dbias, net->n_vocab, err);
    if (status == ALLOT_OK)
        status = norm_gradient(&h, dx, x, observer, err);
    free(dbias);
    head_release(&taught);
    head_release(&h);
    return status;
}
