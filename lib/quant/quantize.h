/* quantize.h - writes a quantized GGUF, resumably.  SPDX-License-Identifier: MIT
 *
 * The finished file is llama-quantize's (same tensor order, layout, padding, keys). */
#ifndef ALLOT_QUANT_QUANTIZE_H
#define ALLOT_QUANT_QUANTIZE_H

#include "base/pool.h"
#include "gguf/model.h"
#include "gguf/writer.h"

struct quantize_key { /* an extra metadata entry, appended in order */
    const char *key;
    const char *str; /* a string, or NULL for the number */
    uint32_t u32;
};

/* Codes that are not each weight's nearest. */
struct quantize_rounding {
    void *user;
    int64_t bytes; /* of memory that it takes, of the model's tensors, on the threads that call it */
    /* Before a tensor whose type changes: does the rounding want its rows in this type? */
    allot_status (*begin)(void *user, const struct gguf_tensor *tensor, enum ggml_type type, bool *wanted,
                          struct allot_error *err);
    /* Rows of that tensor from `row`, all of one matrix, src (n_rows, ne[0]), and the bytes that quant_rows
     * made of them, in and out; several at once. The split into calls depends on tensor and type only. */
    allot_status (*rows)(void *user, const struct gguf_tensor *tensor, enum ggml_type type, int64_t row,
                         int64_t n_rows, const float *src, void *bytes, struct allot_error *err);
};

struct quantize_job {
    const struct gguf_model *model;
    const enum ggml_type *types; /* [model->n_tensors]; equal to the source type: copied */
    const float *const *imatrix; /* [model->n_tensors]: NULL or (ne[2], ne[0]) importances */
    uint32_t file_type;          /* general.file_type (enum llama_ftype) */
    const struct quantize_key *keys;
    size_t n_keys;
    const struct quantize_rounding *rounding; /* NULL: as ggml rounds */
    const char *out_path;
    const char *identity;  /* hash of everything the tensor bytes depend on (model, imatrix, ggml
                              version); an unfinished file of another identity is not resumed */
    int64_t sync_interval; /* bytes of finished tensors that a power cut may cost; 0: 64 MiB */
    int64_t memory;        /* bytes of the process's own memory at most; 0: no limit */
};

struct quantize_result {
    int64_t file_bytes;
    int64_t resumed_tensors; /* found finished in an earlier, interrupted run */
    int64_t floored_tensors; /* see QUANT_FLOORED */
    char sha256[65];         /* of the finished file */
};

/* Exact size of the file the job would write, padding and metadata included. */
allot_status quantize_file_size(const struct quantize_job *job, int64_t *bytes, struct allot_error *err);

/* Refuses what quantize_write would refuse of tensors and types before it begins. */
allot_status quantize_check(const struct quantize_job *job, struct allot_error *err);

/* Refuses a job that needs more than its memory on so many threads, as quantize_write does; of the job it
 * needs the model, the types, the memory and the output's name. What the process holds besides counts as it
 * is now. */
allot_status quantize_check_memory(const struct quantize_job *job, int n_threads, struct allot_error *err);

/* Refuses output = any input shard (through links too), a file that is in the way of OUT.allot-partial (an
 * input, or one that was not written here: it is kept), an absent folder, too little free space
 * or memory,
 * and weights that are not finite (naming tensor and row) before or without touching the target.
 *
 * Works in `OUT.allot-partial`: where the header belongs it first keeps a journal (magic, hash of
 * identity and final header, number of finished tensors, updated after each is written), so that a
 * killed run resumes after its last finished tensor; the header is written last, the file synced,
 * reopened and checked with gguf_model_open against the job, then renamed. Interrupted: the partial
 * file stays. Any other failure: it is removed. Output does not depend on the number of threads. */
allot_status quantize_write(const struct quantize_job *job, struct pool *pool, struct quantize_result *result,
                            const struct allot_progress *progress, struct allot_error *err);

#endif
