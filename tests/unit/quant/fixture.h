/* fixture.h - small GGUF models and imatrices written by ggml itself, temporary folders, and the stock
 * llama-quantize, for the tests of lib/quant.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_QUANT_FIXTURE_H
#define ALLOT_TEST_QUANT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/rng.h"
#include "gguf.h"
#include "gguf/model.h"
#include "quant/quant.h"
#include "quant/quantize.h"

/* ALLOT_TEST_SEED repeats a run. */
static inline uint64_t test_seed(void)
{
    const char *given = getenv("ALLOT_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    print_message("seed: ALLOT_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* ---- Temporary folders ---------------------------------------------------------------------------- */

static char test_folder[512];

static inline int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* cmocka group setup and teardown. */
static inline int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(test_folder, sizeof test_folder, "%s/allot-quant-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    return nftw(test_folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A path in the test's folder; the same name gives the same pointer. */
static inline const char *in_folder(const char *name)
{
    static struct {
        char name[64], path[640];
    } known[64];
    for (int i = 0; i < 64; i++) {
        if (known[i].name[0] && strcmp(known[i].name, name) != 0)
            continue;
        snprintf(known[i].name, sizeof known[i].name, "%s", name);
        snprintf(known[i].path, sizeof known[i].path, "%s/%s", test_folder, name);
        return known[i].path;
    }
    fail_msg("too many names");
    return NULL;
}

static inline bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- Models ----------------------------------------------------------------------------------------- */

struct fixture_tensor {
    const char *name;
    int64_t ne[3]; /* 0 ends */
};

/* Shapes that ordinary models do not have, but llama-quantize does not care: rows of 96, 160, 172 and 576
 * weights, experts, layers out of order. */
static const struct fixture_tensor fixture_tensors[] = {
    {"token_embd.weight", {256, 40}},
    {"output_norm.weight", {256}},
    {"output.weight", {256, 40}},
    {"blk.10.ffn_down.weight", {96, 8}},
    {"blk.2.ffn_up.weight", {172, 4}},
    {"blk.0.attn_norm.weight", {256}},
    {"blk.0.attn_q.weight", {256, 64}},
    {"blk.0.attn_k.weight", {160, 24}},
    {"blk.0.attn_v.weight", {576, 16}},
    {"blk.0.attn_output.weight", {512, 33}},
    {"blk.0.ffn_gate_inp.weight", {256, 3}},
    {"blk.0.ffn_up_exps.weight", {256, 24, 3}},
    {"blk.0.ffn_down_exps.weight", {768, 10, 3}},
    {"blk.0.ffn_gate_exps.weight", {320, 5, 3}},
};
enum { N_FIXTURE_TENSORS = sizeof fixture_tensors / sizeof fixture_tensors[0] };

static inline int64_t fixture_elements(const struct fixture_tensor *t)
{
    return t->ne[0] * (t->ne[1] ? t->ne[1] : 1) * (t->ne[2] ? t->ne[2] : 1);
}

/* Normal weights with outliers, one row of zeros and one of denormals. */
static inline void fill_weights(float *x, int64_t n, int64_t n_per_row, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(0.02 * rng_normal(seed, (uint64_t)i));
        if (rng_u64(seed + 1, (uint64_t)i) % 500 == 0)
            x[i] *= 20;
    }
    if (n >= 4 * n_per_row) {
        memset(x + n_per_row, 0, (size_t)n_per_row * sizeof *x);
        for (int64_t i = 0; i < n_per_row; i++)
            x[2 * n_per_row + i] = (float)((double)(i % 7 - 3) * 1e-42);
    }
}

/* Adds one tensor to the gguf and its data to ctx. 1-D tensors and the router stay F32 as in real models. */
static inline void add_fixture_tensor(struct gguf_context *gguf, struct ggml_context *ctx,
                                      const struct fixture_tensor *f, enum ggml_type type, uint64_t seed)
{
    const int64_t n = fixture_elements(f);
    const int n_dims = f->ne[1] == 0 ? 1 : f->ne[2] == 0 ? 2 : 3;
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    fill_weights(x, n, f->ne[0], seed);
    if (n_dims == 1 || strstr(f->name, "gate_inp") || f->ne[0] % ggml_blck_size(type) != 0)
        type = GGML_TYPE_F32;
    struct ggml_tensor *t = ggml_new_tensor(ctx, type, n_dims, f->ne);
    ggml_set_name(t, f->name);
    ggml_quantize_chunk(type, x, t->data, 0, n / f->ne[0], f->ne[0], NULL);
    gguf_add_tensor(gguf, t);
    free(x);
}

static inline void write_fixture_model(const char *path, enum ggml_type type, uint64_t seed)
{
    struct ggml_init_params params = {.mem_size = 16 << 20};
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *gguf = gguf_init_empty();
    const char *words[] = {"a", "b\xc3\xa9", ""};
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_u32(gguf, "general.file_type", 1);
    gguf_set_val_str(gguf, "general.name", "fixture");
    gguf_set_val_u32(gguf, "llama.context_length", 128);
    gguf_set_val_u32(gguf, "llama.embedding_length", 256);
    gguf_set_val_u32(gguf, "llama.block_count", 11);
    gguf_set_val_u32(gguf, "llama.feed_forward_length", 256);
    gguf_set_val_u32(gguf, "llama.attention.head_count", 4);
    gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_u32(gguf, "llama.vocab_size", 40);
    gguf_set_arr_str(gguf, "test.words", words, 3);
    gguf_set_val_u32(gguf, "general.quantization_version", 2);
    gguf_set_val_bool(gguf, "test.last", true);
    for (int i = 0; i < N_FIXTURE_TENSORS; i++)
        add_fixture_tensor(gguf, ctx, &fixture_tensors[i], type, seed + 100 * (uint64_t)i);
    assert_true(gguf_write_to_file(gguf, path, false));
    gguf_free(gguf);
    ggml_free(ctx);
}

static inline struct gguf_model *open_model(const char *path)
{
    struct gguf_model *model = NULL;
    struct allot_error err;
    if (gguf_model_open(&model, path, &err))
        fail_msg("%s", err.message);
    return model;
}

/* ---- Importances ------------------------------------------------------------------------------------ */

/* Importances of a tensor's columns, per expert; caller frees. */
static inline float *fixture_importances(const struct gguf_tensor *t, uint64_t seed)
{
    const int64_t n = t->ne[0] * t->ne[2];
    float *q = malloc((size_t)n * sizeof *q);
    assert_non_null(q);
    for (int64_t i = 0; i < n; i++)
        q[i] = (float)exp(2 * rng_normal(seed + 7, (uint64_t)i));
    return q;
}

/* An imatrix file as llama-imatrix writes it, with counts of 1, for every 2-D and 3-D tensor of the model.
 * Fills importances[n_tensors] (NULL for others). Returns the number of entries. */
static inline uint32_t write_fixture_imatrix(const char *path, const struct gguf_model *model, uint64_t seed,
                                             const float **importances)
{
    struct ggml_init_params params = {.mem_size = 32 << 20};
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *gguf = gguf_init_empty();
    const char *datasets[] = {"words.txt"};
    uint32_t n_entries = 0;
    gguf_set_val_str(gguf, "general.type", "imatrix");
    gguf_set_arr_str(gguf, "imatrix.datasets", datasets, 1);
    gguf_set_val_u32(gguf, "imatrix.chunk_count", 3);
    gguf_set_val_u32(gguf, "imatrix.chunk_size", 128);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        importances[i] = NULL;
        if (t->n_dims < 2)
            continue;
        float *q = fixture_importances(t, seed + (uint64_t)i);
        char name[256];
        struct ggml_tensor *sums = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, t->ne[0], t->ne[2]);
        snprintf(name, sizeof name, "%s.in_sum2", t->name);
        ggml_set_name(sums, name);
        memcpy(sums->data, q, ggml_nbytes(sums));
        gguf_add_tensor(gguf, sums);
        struct ggml_tensor *counts = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, t->ne[2]);
        snprintf(name, sizeof name, "%s.counts", t->name);
        ggml_set_name(counts, name);
        for (int64_t e = 0; e < t->ne[2]; e++)
            ((float *)counts->data)[e] = 1;
        gguf_add_tensor(gguf, counts);
        importances[i] = q;
        n_entries++;
    }
    assert_true(gguf_write_to_file(gguf, path, false));
    gguf_free(gguf);
    ggml_free(ctx);
    return n_entries;
}

static inline void free_importances(const float **importances, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        free((void *)(uintptr_t)importances[i]);
    free(importances);
}

/* Reads a file whole; caller frees. */
static inline uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0)
        fail_msg("cannot read %s", path);
    uint8_t *bytes = malloc((size_t)st.st_size + 1);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    fclose(f);
    assert_int_equal(*n, st.st_size);
    bytes[*n] = 0;
    return bytes;
}

/* ---- The stock tool ---------------------------------------------------------------------------------- */

/* Runs llama-quantize with the arguments (NULL-terminated), output to a log; true if it succeeded. */
static inline bool stock_quantize(const char *const *arguments)
{
    const char *argv[24] = {STOCK_TOOLS_DIR "/llama-quantize"};
    for (int i = 0; arguments[i]; i++) {
        assert_true(i < 22);
        argv[i + 1] = arguments[i];
    }
    char log[1024];
    snprintf(log, sizeof log, "%s/stock.log", test_folder);
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        fail_msg("cannot run %s", argv[0]);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The end of what the stock tool said last. */
static inline void print_stock_log(void)
{
    size_t n;
    uint8_t *text = read_file(in_folder("stock.log"), &n);
    print_message("%s\n", (char *)text + (n > 1500 ? n - 1500 : 0));
    free(text);
}

static inline void assert_same_files(const char *a, const char *b)
{
    size_t na, nb, at = 0;
    uint8_t *x = read_file(a, &na), *y = read_file(b, &nb);
    while (at < na && at < nb && x[at] == y[at])
        at++;
    if (at < na || at < nb)
        fail_msg("%s (%zu bytes) and %s (%zu bytes) differ at byte %zu", a, na, b, nb, at);
    free(x);
    free(y);
}

static inline void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Rules for all tensors whose type changes. */
static inline void write_recipe(const char *path, const struct gguf_model *model, const enum ggml_type *types)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        if (!gguf_tensor_quantizable(&model->tensors[i]))
            continue;
        fputc('^', f);
        for (const char *c = model->tensors[i].name; *c; c++)
            fprintf(f, *c == '.' ? "\\." : "%c", *c);
        fprintf(f, "$=%s\n", ggml_type_name(types[i]));
    }
    assert_int_equal(fclose(f), 0);
}

#endif
