/* model.h - a GGUF model opened for reading: every field validated, data mapped.
 *
 * SPDX-License-Identifier: MIT
 *
 * GGUF versions 2 and 3, little endian, one file or all shards of a split (named
 * PREFIX-00001-of-00003.gguf; any shard may be given). Nothing is trusted: magic, version, counts,
 * string lengths, array lengths, nesting, duplicate keys and tensor names, type ids, dimensions
 * (positive, product without overflow, ne[0] a multiple of the block), alignment (a power of two, 8 or more),
 * offsets (aligned, inside the file, not overlapping) are checked, and the error names file and
 * tensor or key. ggml's own reader is the tests' oracle, not used here, because it aborts on some
 * hostile files and cannot say which tensor is at fault.
 */
#ifndef ALLOT_GGUF_MODEL_H
#define ALLOT_GGUF_MODEL_H

#include "allot.h"
#include "ggml.h"

struct gguf_tensor {
    char *name;
    int n_dims;    /* as stored, 1..4 (a scalar stored without dimensions: 1) */
    int64_t ne[4]; /* ne[0] is the row length; unused dimensions are 1 */
    enum ggml_type type;
    int64_t n_elements, n_rows; /* n_rows = ne[1]*ne[2]*ne[3] */
    int64_t row_bytes, n_bytes; /* without padding */
    const uint8_t *data;        /* mapped, read-only */
    int shard;
    int64_t file_offset; /* in its shard */
    int layer;           /* N of "blk.N.", else -1 */
};

/* One metadata entry. raw points into the mapping at the encoded value (for arrays: element type
 * and count included), so that a copy of raw_size bytes is a copy of the value. */
struct gguf_kv {
    char *key;
    uint32_t type; /* enum gguf_type of gguf.h */
    const uint8_t *raw;
    size_t raw_size;
};

struct gguf_model {
    char *path; /* as given */
    int n_shards;
    struct gguf_shard *shards;
    int64_t n_kv;
    struct gguf_kv *kv; /* of the first shard, in file order */
    int64_t n_tensors;
    struct gguf_tensor *tensors; /* llama-quantize's order: (layer number or -1, then name) */
    uint32_t alignment;
    int64_t total_bytes; /* of all shards on disk */
};

/* Opens the file, and its sister shards if split.count > 1 (a missing one is named). */
allot_status gguf_model_open(struct gguf_model **out, const char *path, struct allot_error *err);
void gguf_model_close(struct gguf_model *model);

/* The path by which a shard (0 <= shard < n_shards) was opened. */
const char *gguf_model_shard_path(const struct gguf_model *model, int shard);

/* NULL if absent. */
const struct gguf_kv *gguf_model_kv(const struct gguf_model *model, const char *key);
const struct gguf_tensor *gguf_model_tensor(const struct gguf_model *model, const char *name);

/* Scalars, converted among the integer types (and f32/f64 for f64). True if present and in range. */
bool gguf_model_i64(const struct gguf_model *model, const char *key, int64_t *value);
bool gguf_model_f64(const struct gguf_model *model, const char *key, double *value);
bool gguf_model_bool(const struct gguf_model *model, const char *key, bool *value);
/* Copies a string value, NUL-terminated; caller frees. NULL if absent, not a string, or no memory. */
char *gguf_model_str(const struct gguf_model *model, const char *key);
/* Element count of an array, -1 if absent or not an array. */
int64_t gguf_model_array_len(const struct gguf_model *model, const char *key);

/* The elements of an array, as they lie in the file. */
struct gguf_array {
    uint32_t type; /* of each, enum gguf_type of gguf.h */
    int64_t n;
    const uint8_t *data; /* not aligned; lengths were checked when the file was opened */
};
/* False if absent or not an array. */
bool gguf_model_array(const struct gguf_model *model, const char *key, struct gguf_array *array);
/* The next string of an array of strings, which has *len bytes and no NUL behind them; *at starts as the
 * array's data. */
const char *gguf_array_next_string(const uint8_t **at, size_t *len);

/* Drops the mapped pages of a tensor (madvise), so that a streaming pass stays small. */
void gguf_tensor_forget(const struct gguf_tensor *tensor);
void gguf_tensor_forget_rows(const struct gguf_tensor *tensor, int64_t first, int64_t n_rows);

/* llama.cpp v0.4.0's rule (src/llama-quant.cpp, tensor_allows_quantization): would llama-quantize
 * change this tensor's type? */
bool gguf_tensor_quantizable(const struct gguf_tensor *tensor);

/* SHA-256 over the bytes of all shards in order (of one file: the checksum model hubs publish).
 * Reads everything; callers cache it by file identity. */
allot_status gguf_model_sha256(const struct gguf_model *model, char hex[static 65],
                               const struct allot_progress *progress, struct allot_error *err);

#endif
