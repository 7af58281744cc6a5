/* writer.h - GGUF files laid out exactly as ggml (gguf.cpp) and llama-quantize lay them out.
 * SPDX-License-Identifier: MIT
 *
 * GGUF v3, 32-byte alignment, zero padding after the header and after every tensor, the last one too. */
#ifndef ALLOT_GGUF_WRITER_H
#define ALLOT_GGUF_WRITER_H

#include "base/strbuf.h"
#include "gguf/model.h"

#define GGUF_WRITER_ALIGNMENT 32

/* A header being put together. Zero-initialise. Adding a key that is already there removes the
 * old entry and appends the new one at the end, as ggml's gguf_set_* do. Failures are sticky and
 * come out of gguf_header_encode. */
struct gguf_header {
    struct gguf_header_kv *kv;
    size_t n_kv, cap_kv;
    struct gguf_header_tensor *tensors;
    size_t n_tensors, cap_tensors;
    bool failed;
};

void gguf_header_release(struct gguf_header *h);
/* Copies an entry of an open model; general.alignment becomes that of this layout. */
void gguf_header_copy_kv(struct gguf_header *h, const struct gguf_kv *kv);
void gguf_header_remove(struct gguf_header *h, const char *key);
void gguf_header_set_u32(struct gguf_header *h, const char *key, uint32_t value);
void gguf_header_set_str(struct gguf_header *h, const char *key, const char *value);
void gguf_header_set_strs(struct gguf_header *h, const char *key, const char *const *values, size_t n);
/* n_dims is stored with trailing dimensions of 1 dropped (at least 1). */
void gguf_header_add_tensor(struct gguf_header *h, const char *name, const int64_t ne[static 4],
                            enum ggml_type type);

/* Encodes the header, padded to the alignment, into sb, and gives the offset of each tensor's data
 * in the finished file (offsets may be NULL; else n_tensors entries) and the finished file's size. */
allot_status gguf_header_encode(const struct gguf_header *h, struct strbuf *sb, int64_t *offsets,
                                int64_t *file_size, struct allot_error *err);

/* Bytes of a tensor in a file: data rounded up to the alignment. */
int64_t gguf_padded(int64_t n_bytes);

#endif
