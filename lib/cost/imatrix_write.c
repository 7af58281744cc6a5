/* imatrix_write.c - importance matrices laid out as llama-imatrix lays them out.
 * SPDX-License-Identifier: MIT */
#include "cost/imatrix.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "gguf/writer.h"

#include <stdlib.h>
#include <string.h>

/* The file under way and the checksum of what went into it. */
struct sink {
    struct file_output file;
    struct hash *hash;
};

/* Writes n bytes and the padding after them. */
static allot_status sink_write(struct sink *s, const void *bytes, size_t n, struct allot_error *err)
{
    static const char zeros[GGUF_WRITER_ALIGNMENT];
    size_t n_zeros = (size_t)gguf_padded((int64_t)n) - n;
    allot_status status = file_output_write(&s->file, bytes, n, err);
    if (status == ALLOT_OK)
        status = file_output_write(&s->file, zeros, n_zeros, err);
    hash_update(s->hash, bytes, n);
    hash_update(s->hash, zeros, n_zeros);
    return status;
}

/* Everything but the data, in the order in which llama-imatrix writes it. */
static allot_status encode_header(const struct imatrix *im, struct strbuf *sb, struct allot_error *err)
{
    struct gguf_header h = {0};
    int64_t file_size;

    gguf_header_set_str(&h, "general.type", "imatrix");
    gguf_header_set_strs(&h, "imatrix.datasets", (const char *const *)im->datasets, im->n_datasets);
    gguf_header_set_u32(&h, "imatrix.chunk_count", (uint32_t)im->chunk_count);
    gguf_header_set_u32(&h, "imatrix.chunk_size", (uint32_t)im->chunk_size);
    for (size_t i = 0; i < im->n_entries; i++) {
        const struct imatrix_entry *e = &im->entries[i];
        const int64_t sums_ne[4] = {e->n_per_mat, e->n_mats, 1, 1}, counts_ne[4] = {1, e->n_mats, 1, 1};
        struct strbuf name = {0};
        strbuf_addf(&name, "%s.in_sum2", e->name);
        h.failed |= name.failed;
        gguf_header_add_tensor(&h, name.failed ? "" : name.data, sums_ne, GGML_TYPE_F32);
        name.len = 0;
        strbuf_addf(&name, "%s.counts", e->name);
        h.failed |= name.failed;
        gguf_header_add_tensor(&h, name.failed ? "" : name.data, counts_ne, GGML_TYPE_F32);
        name.len = 0;
        strbuf_addf(&name, "%s.in_sum", e->name);
        h.failed |= name.failed;
        if (e->linear)
            gguf_header_add_tensor(&h, name.failed ? "" : name.data, sums_ne, GGML_TYPE_F32);
        strbuf_release(&name);
    }
    allot_status status = gguf_header_encode(&h, sb, NULL, &file_size, err);
    gguf_header_release(&h);
    return status;
}

static allot_status write_entry(struct sink *s, const struct imatrix_entry *e, struct allot_error *err)
{
    size_t n_counts = (size_t)e->n_mats;
    float *counts = malloc(n_counts * sizeof *counts);
    if (!counts)
        return allot_fail_memory(err, n_counts * sizeof *counts, e->name);
    for (size_t i = 0; i < n_counts; i++)
        counts[i] = (float)e->counts[i];
    size_t n_bytes = (size_t)(e->n_per_mat * e->n_mats) * sizeof *e->sums;
    allot_status status = sink_write(s, e->sums, n_bytes, err);
    if (status == ALLOT_OK)
        status = sink_write(s, counts, n_counts * sizeof *counts, err);
    if (status == ALLOT_OK && e->linear)
        status = sink_write(s, e->linear, n_bytes, err);
    free(counts);
    return status;
}

allot_status imatrix_write(struct imatrix *im, const char *path, struct allot_error *err)
{
    struct sink s = {0};
    struct strbuf header = {0};
    char hex[HASH_HEX];
    allot_status status;

    if (im->n_entries == 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: an imatrix without entries is not written", path);
    if ((status = encode_header(im, &header, err)) != ALLOT_OK ||
        (status = hash_new(&s.hash, err)) != ALLOT_OK)
        goto cleanup;
    if ((status = file_output_open(&s.file, path, err)) != ALLOT_OK)
        goto cleanup;
    status = sink_write(&s, header.data, header.len, err);
    for (size_t i = 0; i < im->n_entries && status == ALLOT_OK; i++)
        status = write_entry(&s, &im->entries[i], err);
    if (status == ALLOT_OK)
        status = file_output_commit(&s.file, err);
    else
        file_output_abandon(&s.file);
cleanup:
    if (s.hash)
        hash_final(s.hash, hex);
    if (status == ALLOT_OK)
        memcpy(im->sha256, hex, sizeof im->sha256);
    strbuf_release(&header);
    return status;
}
