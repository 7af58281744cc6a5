/* models.h - GGUF files with any tensors of any types, all of them zeros.  SPDX-License-Identifier: MIT */
#ifndef TESTS_SEARCH_MODELS_H
#define TESTS_SEARCH_MODELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "ggml.h"
#include "gguf.h"
#include "gguf/model.h"

/* What is to be in a file. */
struct maker {
    struct ggml_context *ctx;
    struct gguf_context *file;
};

static inline struct maker maker_start(const char *architecture)
{
    struct maker m = {.ctx = ggml_init((struct ggml_init_params){
                          .mem_size = 4000 * ggml_tensor_overhead(), .mem_buffer = NULL, .no_alloc = true}),
                      .file = gguf_init_empty()};
    assert_non_null(m.ctx);
    if (architecture)
        gguf_set_val_str(m.file, "general.architecture", architecture);
    return m;
}

static inline void maker_add(struct maker *m, const char *name, enum ggml_type type, int64_t ne0, int64_t ne1)
{
    struct ggml_tensor *t =
        ne1 ? ggml_new_tensor_2d(m->ctx, type, ne0, ne1) : ggml_new_tensor_1d(m->ctx, type, ne0);
    ggml_set_name(t, name);
    gguf_add_tensor(m->file, t);
}

/* Writes and opens it; the file is `name` of the test's folder. */
static inline struct gguf_model *maker_open(struct maker *m, const char *name)
{
    const char *path = in_folder(name);
    struct gguf_model *model = NULL;
    struct allot_error err = {0};
    struct stat st;
    assert_true(gguf_write_to_file(m->file, path, true));
    int64_t bytes = 0;
    for (int64_t i = 0; i < gguf_get_n_tensors(m->file); i++)
        bytes += (int64_t)GGML_PAD(gguf_get_tensor_size(m->file, i), GGUF_DEFAULT_ALIGNMENT);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size + bytes), 0);
    gguf_free(m->file);
    ggml_free(m->ctx);
    if (gguf_model_open(&model, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return model;
}

enum { WIDTH = 256, WIDE = 512, VOCAB = 64 };

/* A small model's usual matrices, whose types a function says, and its norms. */
static inline struct gguf_model *make_model(const char *name, const char *architecture, int layers, bool tied,
                                            enum ggml_type (*type)(const char *role, int layer))
{
    static const struct {
        const char *role;
        int64_t ne0, ne1;
    } rows[] = {{"attn_q", WIDTH, WIDTH},  {"attn_k", WIDTH, WIDTH},      {"attn_v", WIDTH, WIDTH},
                {"ffn_down", WIDE, WIDTH}, {"attn_output", WIDTH, WIDTH}, {"ffn_gate", WIDTH, WIDE},
                {"ffn_up", WIDTH, WIDE}};
    struct maker m = maker_start(architecture);
    maker_add(&m, "token_embd.weight", type("token_embd", -1), WIDTH, VOCAB);
    maker_add(&m, "output_norm.weight", GGML_TYPE_F32, WIDTH, 0);
    if (!tied)
        maker_add(&m, "output.weight", type("output", -1), WIDTH, VOCAB);
    for (int l = 0; l < layers; l++) {
        char full[GGML_MAX_NAME];
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            snprintf(full, sizeof full, "blk.%d.%s.weight", l, rows[r].role);
            maker_add(&m, full, type(rows[r].role, l), rows[r].ne0, rows[r].ne1);
        }
        snprintf(full, sizeof full, "blk.%d.attn_norm.weight", l);
        maker_add(&m, full, GGML_TYPE_F32, WIDTH, 0);
    }
    return maker_open(&m, name);
}

static inline enum ggml_type all_bf16(const char *role, int layer)
{
    (void)role;
    (void)layer;
    return GGML_TYPE_BF16;
}

/* Another type from layer to layer and from role to role. */
static inline enum ggml_type varied(const char *role, int layer)
{
    static const enum ggml_type types[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,   GGML_TYPE_Q2_K, GGML_TYPE_Q5_K,
                                           GGML_TYPE_Q8_0, GGML_TYPE_IQ4_XS, GGML_TYPE_Q3_K};
    return types[(strlen(role) + (size_t)(unsigned char)role[5] + (size_t)(layer + 1)) % 7];
}

static inline enum ggml_type all_q4(const char *role, int layer)
{
    (void)role;
    (void)layer;
    return GGML_TYPE_Q4_K;
}

#endif
