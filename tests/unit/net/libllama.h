/* libllama.h - log-probabilities of F32 models, ours and libllama's.  SPDX-License-Identifier: MIT */
#ifndef TESTS_NET_LIBLLAMA_H
#define TESTS_NET_LIBLLAMA_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "llama.h"
#include "net/net.h"

enum { N_CTX = 256 };

static inline void random_ids(int32_t ids[static N_CTX], int64_t n_vocab)
{
    for (int i = 0; i < N_CTX; i++)
        ids[i] = (int32_t)(rng_u64(11, (uint64_t)i) % (uint64_t)n_vocab);
}

/* One sequence of N_CTX tokens, all of whose logits are wanted. */
static inline struct llama_batch libllama_batch(const int32_t *ids)
{
    struct llama_batch batch = llama_batch_init(N_CTX, 0, 1);
    batch.n_tokens = N_CTX;
    for (int i = 0; i < N_CTX; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    return batch;
}

/* Log-probabilities (N_CTX, vocab) as libllama computes them with an F32 cache and no flash attention; NULL
 * if it does not load the model. */
static inline float *libllama_log_probs(const char *path, const int32_t *ids)
{
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (model == NULL)
        return NULL;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = N_CTX;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.n_threads = cp.n_threads_batch = 1; /* more would busy-wait for each other */
    struct llama_context *ctx = llama_init_from_model(model, cp);
    assert_non_null(ctx);
    int64_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch batch = libllama_batch(ids);
    assert_int_equal(llama_decode(ctx, batch), 0);
    float *out = malloc(sizeof *out * (size_t)(N_CTX * n_vocab));
    for (int t = 0; t < N_CTX; t++) {
        const float *logits = llama_get_logits_ith(ctx, t);
        double sum = 0, top = logits[0];
        for (int64_t v = 0; v < n_vocab; v++)
            top = fmax(top, logits[v]);
        for (int64_t v = 0; v < n_vocab; v++)
            sum += exp(logits[v] - top);
        for (int64_t v = 0; v < n_vocab; v++)
            out[t * n_vocab + v] = (float)(logits[v] - top - log(sum));
    }
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return out;
}

/* The same of lib/net. */
static inline allot_status net_log_probs_of(const struct net *net, const int32_t *ids, int n_threads,
                                            float *out, struct allot_error *err)
{
    struct net_batch batch = {ids, 1, N_CTX};
    struct pool *pool = NULL;
    float *x = malloc(sizeof *x * (size_t)(N_CTX * net->n_embd));
    allot_status status = pool_new(&pool, n_threads, err);
    if (status == ALLOT_OK)
        status = net_forward(net, pool, &batch, x, NULL, N_CTX, NULL, NULL, err);
    if (status == ALLOT_OK)
        status = net_log_probs(net, pool, x, N_CTX, out, err);
    pool_free(pool);
    free(x);
    return status;
}

struct difference {
    double worst, mean;
};

static inline struct difference difference_of(const float *a, const float *b, int64_t n)
{
    struct difference d = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        double one = fabs((double)a[i] - b[i]);
        d.worst = one <= d.worst ? d.worst : one; /* NaN sticks */
        d.mean += one / (double)n;
    }
    return d;
}

/* Prints the differences; false if one is too large or the model is refused. ids NULL: random ones. */
static inline bool agrees(const char *name, const char *path, const int32_t *given_ids, int n_threads)
{
    struct allot_error err = {0};
    struct gguf_model *model = NULL;
    struct net net = {0};
    int32_t ids[N_CTX];
    bool good = false;
    if (gguf_model_open(&model, path, &err) != ALLOT_OK || net_open(&net, model, &err) != ALLOT_OK) {
        print_message("%s: %s\n", name, err.message);
        gguf_model_close(model);
        return false;
    }
    random_ids(ids, net.n_vocab);
    if (given_ids != NULL)
        memcpy(ids, given_ids, sizeof ids);
    float *ours = malloc(sizeof *ours * (size_t)(N_CTX * net.n_vocab));
    if (net_log_probs_of(&net, ids, n_threads, ours, &err) != ALLOT_OK) {
        print_message("%s: %s\n", name, err.message);
    } else {
        float *theirs = libllama_log_probs(path, ids);
        assert_non_null(theirs);
        struct difference d = difference_of(ours, theirs, N_CTX * net.n_vocab);
        free(theirs);
        good = d.worst < 2e-3 && d.mean < 1e-4;
        print_message("%s: largest difference %.2g, mean %.2g%s\n", name, d.worst, d.mean,
                      good ? "" : " TOO LARGE");
    }
    free(ours);
    net_release(&net);
    gguf_model_close(model);
    return good;
}

static inline void print_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static inline void print_nothing(enum ggml_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

#endif
