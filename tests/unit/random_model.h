/* random_model.h - small GGUF models with random weights, for tests.  SPDX-License-Identifier: MIT */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/rng.h"
#include "gguf/writer.h"

struct random_model {
    int layers, width, ff, vocab, heads, kv_heads, head_dim;
    bool tied, biases, rope_factors;
    float linear_scale; /* 0: none */
    float attn_factor;  /* of the rope scaling; 0: not said */
    uint64_t seed;
};

static inline void set_f32(struct gguf_header *h, const char *key, float value)
{
    uint8_t raw[4];
    memcpy(raw, &value, 4);
    struct gguf_kv kv = {.key = (char *)(uintptr_t)key, .type = 6 /* float32 */, .raw = raw, .raw_size = 4};
    gguf_header_copy_kv(h, &kv);
}

/* Declares a tensor; its data follow in the same order. */
struct random_tensor {
    char name[64];
    int64_t rows, cols;
    float mean, sd;
};

static inline void declare(struct random_tensor *list, int *n, const char *name, int64_t rows, int64_t cols,
                           float mean, float sd)
{
    struct random_tensor *t = &list[(*n)++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->cols = cols;
    t->mean = mean;
    t->sd = sd;
}

static inline int declare_model(struct random_tensor *list, const struct random_model *m)
{
    int n = 0;
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    declare(list, &n, "token_embd.weight", m->vocab, m->width, 0, 1.0f);
    declare(list, &n, "output_norm.weight", 1, m->width, 1.0f, 0.2f);
    if (!m->tied)
        declare(list, &n, "output.weight", m->vocab, m->width, 0, 0.15f);
    if (m->rope_factors)
        declare(list, &n, "rope_freqs.weight", 1, m->head_dim / 2, 2.0f, 0.3f);
    struct {
        const char *name;
        int64_t rows, cols;
        bool bias;
    } maps[] = {{"attn_q", q, m->width, true},       {"attn_k", kv, m->width, true},
                {"attn_v", kv, m->width, true},      {"attn_output", m->width, q, true},
                {"ffn_gate", m->ff, m->width, true}, {"ffn_up", m->ff, m->width, true},
                {"ffn_down", m->width, m->ff, true}};
    for (int il = 0; il < m->layers; il++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", il);
        declare(list, &n, name, 1, m->width, 1.0f, 0.2f);
        snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", il);
        declare(list, &n, name, 1, m->width, 1.0f, 0.2f);
        for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", il, maps[i].name);
            declare(list, &n, name, maps[i].rows, maps[i].cols, 0, 0.9f / sqrtf((float)maps[i].cols));
            if (!m->biases)
                continue;
            snprintf(name, sizeof name, "blk.%d.%s.bias", il, maps[i].name);
            declare(list, &n, name, 1, maps[i].rows, 0, 0.1f);
        }
    }
    return n;
}

/* Writes an F32 model without a vocabulary that libllama and allot can both run. False on failure. */
static inline bool random_model_write(const char *path, const struct random_model *m)
{
    struct random_tensor *list = calloc((size_t)(8 + 16 * m->layers), sizeof *list);
    int n = declare_model(list, m);
    struct gguf_header h = {0};
    struct strbuf head = {0};
    struct allot_error err;
    struct file_output out = {0};
    gguf_header_set_str(&h, "general.architecture", "llama");
    gguf_header_set_u32(&h, "llama.vocab_size", (uint32_t)m->vocab);
    gguf_header_set_u32(&h, "llama.context_length", 1024);
    gguf_header_set_u32(&h, "llama.embedding_length", (uint32_t)m->width);
    gguf_header_set_u32(&h, "llama.block_count", (uint32_t)m->layers);
    gguf_header_set_u32(&h, "llama.feed_forward_length", (uint32_t)m->ff);
    gguf_header_set_u32(&h, "llama.attention.head_count", (uint32_t)m->heads);
    gguf_header_set_u32(&h, "llama.attention.head_count_kv", (uint32_t)m->kv_heads);
    gguf_header_set_u32(&h, "llama.attention.key_length", (uint32_t)m->head_dim);
    gguf_header_set_u32(&h, "llama.attention.value_length", (uint32_t)m->head_dim);
    gguf_header_set_u32(&h, "llama.rope.dimension_count", (uint32_t)m->head_dim);
    set_f32(&h, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    set_f32(&h, "llama.rope.freq_base", 5000.0f);
    if (m->linear_scale > 0) {
        gguf_header_set_str(&h, "llama.rope.scaling.type", "linear");
        set_f32(&h, "llama.rope.scaling.factor", m->linear_scale);
    }
    if (m->attn_factor > 0)
        set_f32(&h, "llama.rope.scaling.attn_factor", m->attn_factor);
    gguf_header_set_str(&h, "tokenizer.ggml.model", "no_vocab");
    for (int i = 0; i < n; i++) {
        int64_t ne[4] = {list[i].cols, list[i].rows, 1, 1};
        gguf_header_add_tensor(&h, list[i].name, ne, GGML_TYPE_F32);
    }
    int64_t size;
    bool ok = gguf_header_encode(&h, &head, NULL, &size, &err) == ALLOT_OK &&
              file_output_open(&out, path, &err) == ALLOT_OK &&
              file_output_write(&out, head.data, head.len, &err) == ALLOT_OK;
    for (int i = 0; i < n && ok; i++) {
        int64_t count = list[i].rows * list[i].cols, padded = gguf_padded(4 * count) / 4;
        float *data = calloc((size_t)padded, sizeof *data);
        for (int64_t j = 0; j < count; j++)
            data[j] =
                list[i].mean + list[i].sd * (float)rng_normal(m->seed * 1000 + (uint64_t)i, (uint64_t)j);
        ok = file_output_write(&out, data, (size_t)padded * 4, &err) == ALLOT_OK;
        free(data);
    }
    ok = ok && file_output_commit(&out, &err) == ALLOT_OK;
    file_output_abandon(&out);
    if (!ok)
        fprintf(stderr, "random model: %s\n", err.message);
    gguf_header_release(&h);
    strbuf_release(&head);
    free(list);
    return ok;
}

#endif
