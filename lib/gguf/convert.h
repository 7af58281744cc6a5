/* convert.h - tensor data to float32.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_GGUF_CONVERT_H
#define ALLOT_GGUF_CONVERT_H

#include "base/pool.h"
#include "gguf/model.h"

/* n values (whole blocks) from any type ggml can dequantize, exactly. False if it cannot. */
bool gguf_to_f32(enum ggml_type type, const void *src, float *dst, int64_t n);

/* Rows [first, first + n_rows) of a tensor to dst (n_rows, ne[0]), shared out over the pool (NULL: this
 * thread alone). Fails on a type that cannot be dequantized and on values that are not finite, naming
 * tensor and row. */
allot_status gguf_tensor_to_f32(const struct gguf_model *model, const struct gguf_tensor *tensor,
                                int64_t first, int64_t n_rows, float *dst, struct pool *pool,
                                struct allot_error *err);

#endif
