/* dither.c - makes a BF16 reference model from a quantized GGUF. SPDX-License-Identifier: MIT
 *
 * usage: dither IN.gguf OUT.gguf SEED
 *
 * A model that was rounded once already lies on a grid, and quantizing it again to the same grid costs
 * nothing: useless as a reference. So every weight is moved by a uniform draw from within its own
 * quantization step, half a step to each side, as if the original had been there: the draw has the
 * distribution that rounding errors have. The draws depend on seed, tensor name and position only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "gguf/model.h"
#include "gguf/writer.h"
#include "quant/quant.h"

enum { FILE_TYPE_BF16 = 32, QUANTIZATION_VERSION = 2, MAX_BLOCK = 256, MAX_BLOCK_BYTES = 512 };

/* Where a block keeps its codes. All these types decode to offset + step * code, with offset and step
 * constant within a (sub-)block, so that the step is the difference between the values of the
 * highest code and code 0, divided by the highest code; no scale has to be parsed. */
struct code_layout {
    enum ggml_type type;
    int at, bytes;        /* the code bytes within the block */
    unsigned char lowest; /* their value when every code is the lowest */
    unsigned char highest;
    int steps; /* from the lowest code to the highest */
};

static const struct code_layout layouts[] = {
    {GGML_TYPE_Q4_0, 2, 16, 0x00, 0xff, 15},   {GGML_TYPE_Q4_1, 4, 16, 0x00, 0xff, 15},
    {GGML_TYPE_Q5_0, 2, 20, 0x00, 0xff, 31},   {GGML_TYPE_Q5_1, 4, 20, 0x00, 0xff, 31},
    {GGML_TYPE_Q8_0, 2, 32, 0x00, 0x7f, 127},  {GGML_TYPE_Q4_K, 16, 128, 0x00, 0xff, 15},
    {GGML_TYPE_Q5_K, 16, 160, 0x00, 0xff, 31}, {GGML_TYPE_Q6_K, 0, 192, 0x00, 0xff, 63},
};

static const struct code_layout *layout_of(enum ggml_type type)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].type == type)
            return &layouts[i];
    return NULL;
}

static bool is_float(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

/* The quantization step of each weight of a block. */
static allot_status block_steps(const struct code_layout *layout, const uint8_t *block, int64_t n_bytes,
                                int64_t n, float *steps, struct allot_error *err)
{
    uint8_t copy[MAX_BLOCK_BYTES];
    float lowest[MAX_BLOCK];
    memcpy(copy, block, (size_t)n_bytes);
    memset(copy + layout->at, layout->lowest, (size_t)layout->bytes);
    allot_status status = quant_to_f32(layout->type, copy, lowest, n, err);
    if (status)
        return status;
    memset(copy + layout->at, layout->highest, (size_t)layout->bytes);
    status = quant_to_f32(layout->type, copy, steps, n, err);
    for (int64_t i = 0; !status && i < n; i++)
        steps[i] = fabsf(steps[i] - lowest[i]) / (float)layout->steps;
    return status;
}

static uint64_t tensor_key(uint64_t seed, const char *name)
{
    uint64_t key = rng_mix(seed);
    for (; *name; name++)
        key = rng_mix(key ^ (uint8_t)*name);
    return key;
}

/* One tensor as BF16, row by row, to out and then padding. */
static allot_status write_dithered(const struct gguf_tensor *t, uint64_t seed, struct file_output *out,
                                   struct allot_error *err)
{
    const struct code_layout *layout = layout_of(t->type);
    int64_t width = t->ne[0], block = ggml_blck_size(t->type);
    int64_t block_bytes = (int64_t)ggml_type_size(t->type);
    uint64_t key = tensor_key(seed, t->name);
    float *row = calloc((size_t)width, sizeof *row), steps[MAX_BLOCK];
    ggml_bf16_t *narrow = calloc((size_t)width, sizeof *narrow);
    allot_status status = row && narrow ? ALLOT_OK : allot_fail_memory(err, (size_t)width * 6, "a row");
    for (int64_t r = 0; !status && r < t->n_rows; r++) {
        const uint8_t *src = t->data + r * t->row_bytes;
        status = quant_to_f32(t->type, src, row, width, err);
        for (int64_t at = 0; layout && !status && at < width; at += block) {
            status = block_steps(layout, src + at / block * block_bytes, block_bytes, block, steps, err);
            for (int64_t i = 0; !status && i < block; i++)
                row[at + i] += (float)(rng_uniform(key, (uint64_t)(r * width + at + i)) - 0.5) * steps[i];
        }
        if (!status) {
            ggml_fp32_to_bf16_row_ref(row, narrow, width);
            status = file_output_write(out, narrow, (size_t)width * sizeof *narrow, err);
        }
    }
    free(row);
    free(narrow);
    return status;
}

/* A matrix becomes BF16; a vector keeps its (float) type. */
static enum ggml_type output_type(const struct gguf_tensor *t)
{
    return t->n_dims > 1 ? GGML_TYPE_BF16 : t->type;
}

static allot_status make_header(struct gguf_header *header, const struct gguf_model *model,
                                struct allot_error *err)
{
    for (int64_t i = 0; i < model->n_kv; i++)
        gguf_header_copy_kv(header, &model->kv[i]);
    static const char *const dropped[] = {"split.no",
                                          "split.count",
                                          "split.tensors.count",
                                          "quantize.imatrix.file",
                                          "quantize.imatrix.dataset",
                                          "quantize.imatrix.entries_count",
                                          "quantize.imatrix.chunks_count"};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        gguf_header_remove(header, dropped[i]);
    /* As llama-quantize leaves a BF16 file: these two last. */
    gguf_header_set_u32(header, "general.quantization_version", QUANTIZATION_VERSION);
    gguf_header_set_u32(header, "general.file_type", FILE_TYPE_BF16);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        if (!layout_of(t->type) && !is_float(t->type))
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: %s: the step of type %s is not known",
                              model->path, t->name, ggml_type_name(t->type));
        if (t->n_dims == 1 && layout_of(t->type))
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: %s: a quantized vector", model->path, t->name);
        gguf_header_add_tensor(header, t->name, t->ne, output_type(t));
    }
    return ALLOT_OK;
}

static allot_status dither(const char *in, const char *out_path, uint64_t seed, struct allot_error *err)
{
    static const char zeros[GGUF_WRITER_ALIGNMENT];
    struct gguf_model *model = NULL;
    struct gguf_header header = {0};
    struct strbuf encoded = {0};
    struct file_output out = {0};
    int64_t file_size;
    allot_status status = gguf_model_open(&model, in, err);
    if (!status && file_same(in, out_path))
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: is the input", out_path);
    if (!status)
        status = make_header(&header, model, err);
    if (!status)
        status = gguf_header_encode(&header, &encoded, NULL, &file_size, err);
    if (!status)
        status = file_require_space(out_path, file_size, err);
    if (!status)
        status = file_output_open(&out, out_path, err);
    if (!status)
        status = file_output_write(&out, encoded.data, encoded.len, err);
    for (int64_t i = 0; !status && i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        int64_t n_bytes = (int64_t)ggml_row_size(output_type(t), t->ne[0]) * t->n_rows;
        if (t->n_dims > 1)
            status = write_dithered(t, seed, &out, err);
        else
            status = file_output_write(&out, t->data, (size_t)t->n_bytes, err);
        if (!status)
            status = file_output_write(&out, zeros, (size_t)(gguf_padded(n_bytes) - n_bytes), err);
        gguf_tensor_forget(t);
    }
    if (!status)
        status = file_output_commit(&out, err);
    file_output_abandon(&out);
    strbuf_release(&encoded);
    gguf_header_release(&header);
    gguf_model_close(model);
    return status;
}

int main(int argc, char **argv)
{
    struct allot_error err;
    char *end = NULL;
    uint64_t seed = argc == 4 ? strtoull(argv[3], &end, 10) : 0;
    if (argc != 4 || end == argv[3] || *end) {
        fprintf(stderr, "usage: dither IN.gguf OUT.gguf SEED\n");
        return 2;
    }
    if (dither(argv[1], argv[2], seed, &err)) {
        fprintf(stderr, "dither: %s\n", err.message);
        return 1;
    }
    return 0;
}
