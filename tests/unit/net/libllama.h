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

/* ggml rounds the argument and the value of GELU to 16 bits (a table). lib/net does it too, but from inputs
 * that differ in their last digits, and what falls to the other side in one layer moves all that follow. As a
 * callback of libllama's, this replaces gelu(gate) * up by what it is in float32. */
static inline bool unrounded_gelu(struct ggml_tensor *t, bool ask, void *user)
{
    (void)user;
    bool is_gelu = t->op == GGML_OP_GLU && ggml_get_glu_op(t) == GGML_GLU_OP_GEGLU && t->src[1] != NULL;
    if (ask || !is_gelu)
        return is_gelu || !ask;
    const float *gate = t->src[0]->data, *up = t->src[1]->data;
    float *out = t->data;
    assert_true(ggml_is_contiguous(t->src[0]) && ggml_is_contiguous(t->src[1]));
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        double z = gate[i], inner = 0.79788456080286535588 * z * (1 + 0.044715 * z * z);
        out[i] = (float)(0.5 * z * (1 + tanh(inner)) * up[i]);
    }
    return true;
}

/* Log-probabilities (N_CTX, vocab) as libllama computes them with an F32 cache and no flash attention; NULL
 * if it does not load the model. */
static inline float *libllama_log_probs(const char *path, const int32_t *ids,
                                        ggml_backend_sched_eval_callback callback)
{
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (model == NULL)
        return NULL;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = N_CTX;
    cp.cb_eval = callback;
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
static inline float *net_log_probs_of(const struct net *net, const int32_t *ids, int n_threads)
{
    struct allot_error err = {0};
    struct net_batch batch = {ids, 1, N_CTX};
    struct pool *pool = NULL;
    float *x = malloc(sizeof *x * (size_t)(N_CTX * net->n_embd));
    float *out = malloc(sizeof *out * (size_t)(N_CTX * net->n_vocab));
    if (pool_new(&pool, n_threads, &err) != ALLOT_OK ||
        net_forward(net, pool, &batch, x, NULL, N_CTX, NULL, NULL, &err) != ALLOT_OK ||
        net_log_probs(net, pool, x, N_CTX, out, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    pool_free(pool);
    free(x);
    return out;
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

static inline struct difference compare(const struct net *net, const char *path, const int32_t *ids,
                                        int n_threads, ggml_backend_sched_eval_callback callback)
{
    float *ours = net_log_probs_of(net, ids, n_threads), *theirs = libllama_log_probs(path, ids, callback);
    assert_non_null(theirs);
    struct difference d = difference_of(ours, theirs, N_CTX * net->n_vocab);
    free(ours);
    free(theirs);
    return d;
}

static inline bool has_gelu(const struct gguf_model *model)
{
    char *arch = gguf_model_str(model, "general.architecture");
    bool found = arch != NULL && strncmp(arch, "gemma", 5) == 0;
    free(arch);
    return found;
}

/* Prints the differences; false if one is too large or the model is refused. given_ids NULL: random ones.
 * With GELU the limit is gelu_limit, and the usual one where neither side rounds it. */
static inline bool agrees(const char *name, const char *path, const int32_t *given_ids, int n_threads,
                          double gelu_limit)
{
    struct allot_error err = {0};
    struct gguf_model *model = NULL;
    struct net net = {0};
    int32_t ids[N_CTX];
    if (gguf_model_open(&model, path, &err) != ALLOT_OK || net_open(&net, model, &err) != ALLOT_OK) {
        print_message("%s: %s\n", name, err.message);
        gguf_model_close(model);
        return false;
    }
    random_ids(ids, net.n_vocab);
    if (given_ids != NULL)
        memcpy(ids, given_ids, sizeof ids);
    struct difference d = compare(&net, path, ids, n_threads, NULL), exact = d;
    print_message("%s: largest difference %.2g, mean %.2g\n", name, d.worst, d.mean);
    if (has_gelu(model)) {
        net.exact_gelu = true;
        exact = compare(&net, path, ids, n_threads, unrounded_gelu);
        print_message("    where neither rounds GELU: largest %.2g, mean %.2g\n", exact.worst, exact.mean);
    }
    bool good = d.worst < (has_gelu(model) ? gelu_limit : 2e-3) && exact.worst < 2e-3 && exact.mean < 1e-4;
    if (!good)
        print_message("    TOO LARGE\n");
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
