/* random_model.h - small GGUF models with random weights, for tests.  SPDX-License-Identifier: MIT
 *
 * Of every architecture that lib/net knows. What tensors one has stands in a table; what else its metadata
 * say is a string of the caller's. */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/rng.h"
#include "gguf.h"
#include "gguf/writer.h"

struct random_model {
    int layers, width, ff, vocab, heads, kv_heads, head_dim; /* ff: of one expert where there are experts */
    bool tied, fused_qkv;
    bool biases;          /* everywhere libllama takes them */
    bool rope_factors;    /* rope_freqs.weight */
    bool long_factors;    /* rope_factors_long.weight and rope_factors_short.weight */
    int n_rot;            /* 0: head_dim */
    int experts, used;    /* 0: dense */
    int shared_ff;        /* 0: no shared expert */
    bool idle_expert;     /* expert 1 is never taken */
    bool tokens;          /* a list of tokens, without which lib/text takes no model; still no tokenizer */
    float embd_sd;        /* of the token embedding; 0: 1 */
    const char *arch;     /* NULL: llama */
    const char *settings; /* more metadata, "KEY=VALUE !KEY=VALUE", without "ARCH."; !: ignored by libllama */
    const struct gguf_model *tokenizer; /* whose tokenizer to take; NULL: none */
    uint64_t seed;
};

/* What sets an architecture's tensors apart. */
enum random_part {
    QK_NORM = 1,       /* attn_q_norm, attn_k_norm: of one head's width */
    QK_NORM_WHOLE = 2, /* the same of all heads' width */
    POST_NORMS = 4,    /* post_attention_norm, post_ffw_norm */
    GATE_UP = 8,       /* ffn_up holds gate and up */
    EXPERT_FF = 16,    /* expert_feed_forward_length; feed_forward_length says something else */
    SHARED_GATE = 32,  /* ffn_gate_inp_shexp */
    BIAS_QKV = 64,
    BIAS_OUT = 128, /* attn_output.bias */
    BIAS_FFN = 256,
    BIAS_LOGITS = 512 /* output.bias */
};

static const struct random_arch {
    const char *name;
    unsigned parts;
} random_archs[] = {
    {"llama", BIAS_QKV | BIAS_OUT | BIAS_FFN},
    {"qwen2", BIAS_QKV | BIAS_LOGITS},
    {"qwen3", BIAS_QKV | QK_NORM},
    {"gemma2", BIAS_QKV | POST_NORMS},
    {"gemma3", BIAS_QKV | QK_NORM | POST_NORMS},
    {"phi3", BIAS_QKV | GATE_UP},
    {"granite", BIAS_QKV | BIAS_OUT | BIAS_FFN},
    {"smollm3", BIAS_QKV},
    {"glm4", BIAS_QKV | POST_NORMS | GATE_UP},
    {"qwen2moe", BIAS_QKV | EXPERT_FF | SHARED_GATE},
    {"qwen3moe", BIAS_QKV | QK_NORM | EXPERT_FF},
    {"olmoe", QK_NORM_WHOLE},
    {"granitemoe", BIAS_QKV | BIAS_OUT},
};

static inline const char *random_arch_name(const struct random_model *m)
{
    return m->arch ? m->arch : "llama";
}

static inline unsigned random_parts(const struct random_model *m)
{
    for (size_t i = 0; i < sizeof random_archs / sizeof *random_archs; i++)
        if (strcmp(random_archs[i].name, random_arch_name(m)) == 0)
            return random_archs[i].parts;
    fprintf(stderr, "random model: no architecture %s\n", random_arch_name(m));
    abort();
}

/* ---- Metadata --------------------------------------------------------------------------------------- */

static inline void random_set(struct gguf_header *h, const struct random_model *m, const char *suffix,
                              enum gguf_type type, const void *value, size_t size)
{
    char key[128];
    uint8_t raw[4];
    snprintf(key, sizeof key, "%s.%s", random_arch_name(m), suffix);
    memcpy(raw, value, size);
    struct gguf_kv kv = {.key = key, .type = type, .raw = raw, .raw_size = size};
    gguf_header_copy_kv(h, &kv);
}

static inline void random_set_u32(struct gguf_header *h, const struct random_model *m, const char *suffix,
                                  int value)
{
    random_set(h, m, suffix, GGUF_TYPE_UINT32, &value, sizeof value);
}

static inline void random_set_f32(struct gguf_header *h, const struct random_model *m, const char *suffix,
                                  float value)
{
    random_set(h, m, suffix, GGUF_TYPE_FLOAT32, &value, sizeof value);
}

/* VALUE is true or false, a whole number (uint32), another number (float32), or a string. */
static inline void random_set_text(struct gguf_header *h, const struct random_model *m, const char *suffix,
                                   const char *value)
{
    char key[128], *end;
    bool truth = strcmp(value, "true") == 0;
    float number = strtof(value, &end);
    snprintf(key, sizeof key, "%s.%s", random_arch_name(m), suffix);
    if (truth || strcmp(value, "false") == 0)
        random_set(h, m, suffix, GGUF_TYPE_BOOL, &truth, 1);
    else if (strspn(value, "0123456789") == strlen(value))
        random_set_u32(h, m, suffix, atoi(value));
    else if (*end == '\0')
        random_set_f32(h, m, suffix, number);
    else
        gguf_header_set_str(h, key, value);
}

static inline void random_set_settings(struct gguf_header *h, const struct random_model *m)
{
    char *copy = strdup(m->settings ? m->settings : ""), *rest;
    for (char *key = strtok_r(copy, " ", &rest); key != NULL; key = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(key, '=');
        *value++ = '\0';
        random_set_text(h, m, key + (*key == '!'), value);
    }
    free(copy);
}

/* "0", "1", ...: an array of strings as GGUF has it. */
static inline void random_tokens(struct gguf_header *h, int n)
{
    const uint32_t type = GGUF_TYPE_STRING;
    const uint64_t count = (uint64_t)n;
    uint8_t *raw = malloc(12 + 20 * (size_t)n), *at = raw;
    memcpy(at, &type, 4);
    memcpy(at + 4, &count, 8);
    at += 12;
    for (int i = 0; i < n; i++) {
        const uint64_t len = (uint64_t)sprintf((char *)at + 8, "%d", i);
        memcpy(at, &len, 8);
        at += 8 + len;
    }
    struct gguf_kv kv = {.key = (char *)(uintptr_t) "tokenizer.ggml.tokens",
                         .type = GGUF_TYPE_ARRAY,
                         .raw = raw,
                         .raw_size = (size_t)(at - raw)};
    gguf_header_copy_kv(h, &kv);
    free(raw);
}

static inline void random_metadata(struct gguf_header *h, const struct random_model *m)
{
    bool expert_ff = (random_parts(m) & EXPERT_FF) != 0;
    gguf_header_set_str(h, "general.architecture", random_arch_name(m));
    gguf_header_set_str(h, "tokenizer.ggml.model", "no_vocab");
    random_set_u32(h, m, "vocab_size", m->vocab);
    random_set_u32(h, m, "context_length", 1024);
    random_set_u32(h, m, "embedding_length", m->width);
    random_set_u32(h, m, "block_count", m->layers);
    random_set_u32(h, m, "feed_forward_length", expert_ff ? 7 * m->ff : m->ff);
    random_set_u32(h, m, "attention.head_count", m->heads);
    random_set_u32(h, m, "attention.head_count_kv", m->kv_heads);
    random_set_u32(h, m, "attention.key_length", m->head_dim);
    random_set_u32(h, m, "attention.value_length", m->head_dim);
    random_set_u32(h, m, "rope.dimension_count", m->n_rot ? m->n_rot : m->head_dim);
    random_set_f32(h, m, "attention.layer_norm_rms_epsilon", 1e-5f);
    random_set_f32(h, m, "rope.freq_base", 5000.0f);
    if (m->experts > 0) {
        random_set_u32(h, m, "expert_count", m->experts);
        random_set_u32(h, m, "expert_used_count", m->used);
        if (expert_ff)
            random_set_u32(h, m, "expert_feed_forward_length", m->ff);
        if (m->shared_ff > 0)
            random_set_u32(h, m, "expert_shared_feed_forward_length", m->shared_ff);
    }
    if (m->tokens)
        random_tokens(h, m->vocab);
    for (int64_t i = 0; m->tokenizer != NULL && i < m->tokenizer->n_kv; i++)
        if (strncmp(m->tokenizer->kv[i].key, "tokenizer.", strlen("tokenizer.")) == 0)
            gguf_header_copy_kv(h, &m->tokenizer->kv[i]);
    random_set_settings(h, m);
}

/* ---- Tensors ---------------------------------------------------------------------------------------- */

struct random_tensor {
    char name[96];
    int64_t rows, cols, n; /* n matrices */
    float mean, sd;
    bool idle_row; /* row 1 is negative */
};

struct random_list {
    struct random_tensor *tensors;
    int n, cap;
    const struct random_model *model;
};

static inline struct random_tensor *declare(struct random_list *l, int layer, const char *name, int64_t n,
                                            int64_t rows, int64_t cols, float mean, float sd)
{
    if (l->n == l->cap)
        l->tensors = realloc(l->tensors, sizeof *l->tensors * (size_t)(l->cap = 2 * l->cap + 64));
    struct random_tensor *t = &l->tensors[l->n++];
    *t = (struct random_tensor){.rows = rows, .cols = cols, .n = n, .mean = mean, .sd = sd};
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    return t;
}

static inline void declare_norm(struct random_list *l, int layer, const char *name, int64_t cols)
{
    declare(l, layer, name, 1, 1, cols, 1.0f, 0.2f);
}

/* NAME.weight, n matrices of them, and NAME.bias. */
static inline void declare_maps(struct random_list *l, int layer, const char *name, int64_t n, int64_t rows,
                                int64_t cols, bool bias)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    declare(l, layer, full, n, rows, cols, 0, 0.9f / sqrtf((float)cols));
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias && l->model->biases)
        declare(l, layer, full, 1, 1, rows, 0, 0.1f);
}

static inline void declare_attention(struct random_list *l, int il)
{
    const struct random_model *m = l->model;
    unsigned parts = random_parts(m);
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    declare_norm(l, il, "attn_norm.weight", m->width);
    if (m->fused_qkv) {
        declare_maps(l, il, "attn_qkv", 1, q + 2 * kv, m->width, parts & BIAS_QKV);
    } else {
        declare_maps(l, il, "attn_q", 1, q, m->width, parts & BIAS_QKV);
        declare_maps(l, il, "attn_k", 1, kv, m->width, parts & BIAS_QKV);
        declare_maps(l, il, "attn_v", 1, kv, m->width, parts & BIAS_QKV);
    }
    if (parts & (QK_NORM | QK_NORM_WHOLE)) {
        declare_norm(l, il, "attn_q_norm.weight", parts & QK_NORM ? m->head_dim : q);
        declare_norm(l, il, "attn_k_norm.weight", parts & QK_NORM ? m->head_dim : kv);
    }
    declare_maps(l, il, "attn_output", 1, m->width, q, parts & BIAS_OUT);
    if (parts & POST_NORMS)
        declare_norm(l, il, "post_attention_norm.weight", m->width);
}

static inline void declare_experts(struct random_list *l, int il)
{
    const struct random_model *m = l->model;
    /* the router's logits have a deviation of about 1.5 */
    declare(l, il, "ffn_gate_inp.weight", 1, m->experts, m->width, 0, 1.5f / sqrtf((float)m->width))
        ->idle_row = m->idle_expert;
    declare_maps(l, il, "ffn_gate_exps", m->experts, m->ff, m->width, false);
    declare_maps(l, il, "ffn_up_exps", m->experts, m->ff, m->width, false);
    declare_maps(l, il, "ffn_down_exps", m->experts, m->width, m->ff, false);
    if (m->shared_ff == 0)
        return;
    declare_maps(l, il, "ffn_gate_shexp", 1, m->shared_ff, m->width, false);
    declare_maps(l, il, "ffn_up_shexp", 1, m->shared_ff, m->width, false);
    declare_maps(l, il, "ffn_down_shexp", 1, m->width, m->shared_ff, false);
    if (random_parts(m) & SHARED_GATE)
        declare_maps(l, il, "ffn_gate_inp_shexp", 1, 1, m->width, false);
}

static inline void declare_feed_forward(struct random_list *l, int il)
{
    const struct random_model *m = l->model;
    unsigned parts = random_parts(m);
    declare_norm(l, il, "ffn_norm.weight", m->width);
    if (m->experts > 0) {
        declare_experts(l, il);
    } else if (parts & GATE_UP) {
        declare_maps(l, il, "ffn_up", 1, 2 * m->ff, m->width, false);
        declare_maps(l, il, "ffn_down", 1, m->width, m->ff, false);
    } else {
        declare_maps(l, il, "ffn_gate", 1, m->ff, m->width, parts & BIAS_FFN);
        declare_maps(l, il, "ffn_up", 1, m->ff, m->width, parts & BIAS_FFN);
        declare_maps(l, il, "ffn_down", 1, m->width, m->ff, parts & BIAS_FFN);
    }
    if (parts & POST_NORMS) /* small: a GELU that ggml rounds the other way must not show much */
        declare(l, il, "post_ffw_norm.weight", 1, 1, m->width, 0.3f, 0.1f);
}

static inline struct random_list declare_model(const struct random_model *m)
{
    struct random_list l = {.model = m};
    float embd_sd = m->embd_sd > 0 ? m->embd_sd : 1.0f;
    int64_t n_pairs = (m->n_rot ? m->n_rot : m->head_dim) / 2;
    /* an idle expert needs a direction that all tokens share */
    declare(&l, -1, "token_embd.weight", 1, m->vocab, m->width, m->idle_expert ? 0.8f * embd_sd : 0, embd_sd);
    declare_norm(&l, -1, "output_norm.weight", m->width);
    if (!m->tied)
        declare(&l, -1, "output.weight", 1, m->vocab, m->width, 0, 0.15f);
    if (m->biases && random_parts(m) & BIAS_LOGITS)
        declare(&l, -1, "output.bias", 1, 1, m->vocab, 0, 0.5f);
    if (m->rope_factors)
        declare(&l, -1, "rope_freqs.weight", 1, 1, n_pairs, 2.0f, 0.3f);
    if (m->long_factors) {
        declare(&l, -1, "rope_factors_long.weight", 1, 1, n_pairs, 3.0f, 0.5f);
        declare(&l, -1, "rope_factors_short.weight", 1, 1, n_pairs, 1.2f, 0.1f);
    }
    for (int il = 0; il < m->layers; il++) {
        declare_attention(&l, il);
        declare_feed_forward(&l, il);
    }
    return l;
}

static inline float random_weight(const struct random_tensor *t, uint64_t key, int64_t i)
{
    if (t->idle_row && i / t->cols == 1)
        return -0.5f;
    return t->mean + t->sd * (float)rng_normal(key, (uint64_t)i);
}

/* Writes an F32 model without a vocabulary that libllama and allot can both run. False on failure. */
static inline bool random_model_write(const char *path, const struct random_model *m)
{
    struct random_list l = declare_model(m);
    struct gguf_header h = {0};
    struct strbuf head = {0};
    struct allot_error problem;
    struct file_output out = {0};
    random_metadata(&h, m);
    for (int i = 0; i < l.n; i++) {
        int64_t ne[4] = {l.tensors[i].cols, l.tensors[i].rows, l.tensors[i].n, 1};
        gguf_header_add_tensor(&h, l.tensors[i].name, ne, GGML_TYPE_F32);
    }
    int64_t size;
    bool ok = gguf_header_encode(&h, &head, NULL, &size, &problem) == ALLOT_OK &&
              file_output_open(&out, path, &problem) == ALLOT_OK &&
              file_output_write(&out, head.data, head.len, &problem) == ALLOT_OK;
    for (int i = 0; i < l.n && ok; i++) {
        const struct random_tensor *t = &l.tensors[i];
        int64_t count = t->n * t->rows * t->cols, padded = gguf_padded(4 * count) / 4;
        float *data = calloc((size_t)padded, sizeof *data);
        for (int64_t j = 0; j < count; j++)
            data[j] = random_weight(t, m->seed * 1000 + (uint64_t)i, j);
        ok = file_output_write(&out, data, (size_t)padded * 4, &problem) == ALLOT_OK;
        free(data);
    }
    ok = ok && file_output_commit(&out, &problem) == ALLOT_OK;
    file_output_abandon(&out);
    if (!ok)
        fprintf(stderr, "random model: %s\n", problem.message);
    gguf_header_release(&h);
    strbuf_release(&head);
    free(l.tensors);
    return ok;
}

#endif
