/* shard.h - one parsed GGUF file, as the files of this folder share it.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_GGUF_SHARD_H
#define ALLOT_GGUF_SHARD_H

#include "base/file.h"
#include "gguf/model.h"

struct gguf_shard {
    struct file_map map;
    uint32_t alignment;
    int64_t n_kv, n_tensors;
    struct gguf_kv *kv;          /* the first shard's are also the model's */
    struct gguf_tensor *tensors; /* in file order; NULL once they have moved into the model */
};

/* Maps and validates one file; the shard number goes into its tensors. Zero-initialised storage. */
allot_status gguf_shard_open(struct gguf_shard *shard, const char *path, int number, struct allot_error *err);
void gguf_shard_release(struct gguf_shard *shard);

/* NULL if absent. */
const struct gguf_kv *gguf_shard_kv(const struct gguf_shard *shard, const char *key);

/* Bytes of a value of a fixed-size gguf_type; 0 for strings, arrays and unknown types. */
size_t gguf_scalar_size(uint32_t type);
/* False unless kv is an integer that fits. */
bool gguf_kv_i64(const struct gguf_kv *kv, int64_t *value);

/* The layer by which llama.cpp orders tensors: sscanf(name, "blk.%d."), else -1. */
int gguf_order_layer(const char *name);

#endif
