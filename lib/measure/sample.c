/* sample.c - text of the model's own.  SPDX-License-Identifier: MIT */
#include "measure/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/num.h"
#include "base/rng.h"
#include "measure/window.h"

/* One group's context. */
struct worker {
    struct llama_context *context;
    struct llama_batch batch;
    allot_status status;
    struct allot_error err;
};

struct sampler {
    struct engine_model model;
    struct sample_options options;
    struct pool *pool;
    int32_t n_vocab, bos; /* -1: the model adds none */
    int32_t *plain, n_plain;
    struct worker *workers; /* [n_workers] */
    int64_t n_workers;
};

/* One run over some groups, position by position. */
struct run {
    struct sampler *sampler;
    int32_t *ids;
    int64_t first;    /* group */
    int32_t position; /* whose tokens are to be drawn */
};

int32_t sample_draw(const float *logits, int32_t n, double u)
{
    double max = -INFINITY, sum = 0, left;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        max = logits[i] > max ? logits[i] : max;
    }
    if (!isfinite(max))
        return -1;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    left = u * sum;
    for (int32_t i = 0; i < n; i++) {
        double p = exp(logits[i] - max);
        if (p > 0)
            last = i; /* lest rounding leaves a rest behind the end */
        if ((left -= p) < 0)
            return i;
    }
    return last;
}

/* ---- A sampler ----------------------------------------------------------------------------------------- */

static allot_status find_plain(struct sampler *s, struct allot_error *err)
{
    const struct llama_vocab *vocab = s->model.vocab;
    s->plain = malloc((size_t)s->n_vocab * sizeof *s->plain);
    if (s->plain == NULL)
        return allot_fail_memory(err, (size_t)s->n_vocab * sizeof *s->plain, "a vocabulary");
    for (int32_t id = 0; id < s->n_vocab; id++)
        if ((llama_vocab_get_attr(vocab, id) & LLAMA_TOKEN_ATTR_NORMAL) != 0 &&
            !llama_vocab_is_eog(vocab, id))
            s->plain[s->n_plain++] = id;
    if (s->n_plain == 0 && s->bos < 0)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: its vocabulary has no token to begin a text with: give a calibration text",
                          s->model.path);
    return ALLOT_OK;
}

static allot_status worker_open(struct worker *worker, const struct sampler *s, struct allot_error *err)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)s->options.n_ctx * SAMPLE_GROUP;
    params.n_batch = params.n_ubatch = params.n_seq_max = params.n_outputs_max = SAMPLE_GROUP;
    params.n_threads = params.n_threads_batch = 1;
    params.swa_full = false;
    text_forget_llama_error();
    worker->context = llama_init_from_model(s->model.llama, params);
    if (worker->context == NULL) {
        const char *cause = text_last_llama_error();
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: libllama cannot run it: %s", s->model.path,
                          cause[0] != '\0' ? cause : "no reason given");
    }
    worker->batch = llama_batch_init(SAMPLE_GROUP, 0, 1);
    if (worker->batch.token == NULL || worker->batch.logits == NULL)
        return allot_fail_memory(err, SAMPLE_GROUP * sizeof(llama_token), "a batch");
    return ALLOT_OK;
}

static allot_status prepare(struct sampler *s, int64_t max_groups, struct allot_error *err)
{
    const int32_t n_ctx = s->options.n_ctx;
    const int32_t n_trained = llama_model_n_ctx_train(s->model.llama);
    if (n_ctx < 2 || n_ctx > n_trained)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: was trained on %d tokens of context, the sequences have %d: use shorter ones",
                          s->model.path, n_trained, n_ctx);
    s->n_vocab = llama_vocab_n_tokens(s->model.vocab);
    s->bos = llama_vocab_get_add_bos(s->model.vocab) ? llama_vocab_bos(s->model.vocab) : -1;
    allot_status status = find_plain(s, err);
    s->n_workers = window_threads(pool_threads(s->pool), max_groups,
                                  engine_bytes(&s->model, n_ctx * SAMPLE_GROUP, SAMPLE_GROUP));
    if (status == ALLOT_OK && (s->workers = calloc((size_t)s->n_workers, sizeof *s->workers)) == NULL)
        status = allot_fail_memory(err, (size_t)s->n_workers * sizeof *s->workers, "contexts");
    for (int64_t i = 0; i < s->n_workers && status == ALLOT_OK; i++)
        status = worker_open(&s->workers[i], s, err);
    return status;
}

allot_status sampler_open(struct sampler **out, const char *model_path, const struct sample_options *options,
                          int64_t max_groups, struct pool *pool, struct allot_error *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (s == NULL)
        return allot_fail_memory(err, sizeof *s, "a sampler");
    s->options = *options;
    s->pool = pool;
    allot_status status = engine_model_open(&s->model, model_path, TEXT_LOAD_MODEL, err);
    if (status == ALLOT_OK)
        status = prepare(s, max_groups, err);
    if (status == ALLOT_OK)
        *out = s;
    else
        sampler_close(s);
    return status;
}

void sampler_close(struct sampler *s)
{
    if (s == NULL)
        return;
    for (int64_t i = 0; s->workers != NULL && i < s->n_workers; i++) {
        if (s->workers[i].batch.token != NULL)
            llama_batch_free(s->workers[i].batch);
        if (s->workers[i].context != NULL)
            llama_free(s->workers[i].context);
    }
    free(s->workers);
    free(s->plain);
    engine_model_close(&s->model);
    free(s);
}

int64_t sampler_groups(const struct sampler *s)
{
    return s->n_workers;
}

/* ---- Tokens ---------------------------------------------------------------------------------------------
 */

static int32_t first_token(const struct sampler *s, double u)
{
    return s->bos >= 0 ? s->bos : s->plain[(int32_t)(u * s->n_plain)];
}

/* An end that is the BOS too has begun the next text already. */
static bool ends_text(const struct sampler *s, int32_t id)
{
    return llama_vocab_is_eog(s->model.vocab, id) && id != s->bos;
}

/* Where this position's number comes from. */
static double uniform(const struct sampler *s, int64_t sequence, int32_t position)
{
    const uint64_t stream = rng_u64(s->options.seed, s->options.stream);
    return rng_uniform(rng_u64(stream, (uint64_t)sequence), (uint64_t)position);
}

static allot_status decode(struct worker *worker, const struct sampler *s, const int32_t *ids,
                           int32_t position)
{
    struct llama_batch *batch = &worker->batch;
    if (position == 0)
        llama_memory_clear(llama_get_memory(worker->context), true);
    batch->n_tokens = SAMPLE_GROUP;
    for (int32_t i = 0; i < SAMPLE_GROUP; i++) {
        batch->token[i] = ids[i * s->options.n_ctx + position];
        batch->pos[i] = position;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = i;
        batch->logits[i] = true;
    }
    text_forget_llama_error();
    const int32_t failed = llama_decode(worker->context, *batch);
    if (failed != 0)
        return allot_fail(&worker->err, ALLOT_ERR_INTERNAL, "%s: libllama failed to decode (%d): %s",
                          s->model.path, failed, text_last_llama_error());
    return ALLOT_OK;
}

/* Draws one position's token of every sequence of a group. */
static allot_status draw(struct worker *worker, const struct run *run, int64_t group)
{
    const struct sampler *s = run->sampler;
    const int32_t n_ctx = s->options.n_ctx, at = run->position;
    int32_t *ids = run->ids + group * SAMPLE_GROUP * n_ctx;
    allot_status status = at > 0 ? decode(worker, s, ids, at - 1) : ALLOT_OK;
    for (int32_t i = 0; i < SAMPLE_GROUP && status == ALLOT_OK; i++) {
        const double u = uniform(s, (run->first + group) * SAMPLE_GROUP + i, at);
        int32_t *id = &ids[i * n_ctx + at];
        if (at == 0 || ends_text(s, id[-1])) {
            *id = first_token(s, u);
            continue;
        }
        const float *logits = llama_get_logits_ith(worker->context, i);
        *id = logits != NULL ? sample_draw(logits, s->n_vocab, u) : -1;
        if (*id < 0)
            status =
                allot_fail(&worker->err, ALLOT_ERR_NUMERIC,
                           "%s: its output is not finite (NaN or infinite) at token %d of a text of its own",
                           s->model.path, at);
    }
    return status;
}

static void draw_item(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct run *run = user;
    struct worker *worker = &run->sampler->workers[item];
    worker->status = draw(worker, run, item);
}

allot_status sampler_run(struct sampler *s, int32_t *ids, int64_t first, int64_t n_groups, int64_t done,
                         int64_t total, const struct allot_progress *progress, struct allot_error *err)
{
    struct run run = {.sampler = s, .ids = ids, .first = first};
    for (; run.position < s->options.n_ctx; run.position++) {
        const int64_t drawn = done + run.position * n_groups * SAMPLE_GROUP;
        allot_status status = allot_report(progress, err, "sample", drawn, total);
        if (status != ALLOT_OK)
            return status;
        pool_run(s->pool, n_groups, draw_item, &run);
        for (int64_t i = 0; i < n_groups; i++)
            if (s->workers[i].status != ALLOT_OK) {
                *err = s->workers[i].err;
                return err->status;
            }
    }
    return ALLOT_OK;
}
