/* imatrix.h - importance matrices in llama.cpp's formats.  SPDX-License-Identifier: MIT
 *
 * Reads both the GGUF form and the legacy .dat form, told apart by the magic, never the suffix;
 * every length is checked and errors name the entry. Writes the GGUF form as llama-imatrix does. */
#ifndef ALLOT_COST_IMATRIX_H
#define ALLOT_COST_IMATRIX_H

#include "gguf/model.h"

struct imatrix_entry {
    char *name;        /* the weight's name */
    int64_t n_per_mat; /* columns */
    int64_t n_mats;    /* 1, or the number of experts */
    float *sums;       /* (n_mats, n_per_mat): sums of squared inputs (legacy: as stored) */
    int64_t *counts;   /* [n_mats] tokens seen (legacy: n_mats is 1 and the count is ncall) */
    float *
        linear; /* (n_mats, n_per_mat): sums of inputs, "NAME.in_sum", which only some writers add; or NULL */
};

struct imatrix {
    struct imatrix_entry *entries; /* sorted by name (strcmp) */
    size_t n_entries;
    char **datasets;
    size_t n_datasets;
    int32_t chunk_count, chunk_size;
    bool legacy;
    char sha256[65]; /* of the file read or written; "" before */
};

/* Errors: no such file, is a directory, neither format, each malformed field; non-finite or negative sums. */
allot_status imatrix_read(struct imatrix *out, const char *path, struct allot_error *err);
/* Atomic. Same bytes for the same contents. */
allot_status imatrix_write(struct imatrix *im, const char *path, struct allot_error *err);
/* Adds an entry (copies name, takes ownership of the arrays even on failure); keeps the order. */
allot_status imatrix_add(struct imatrix *im, const char *name, int64_t n_per_mat, int64_t n_mats, float *sums,
                         int64_t *counts, struct allot_error *err);
void imatrix_release(struct imatrix *im);
const struct imatrix_entry *imatrix_find(const struct imatrix *im, const char *name);

/* What llama-quantize would use for this tensor (tools/quantize/quantize.cpp load_imatrix):
 * sum / count per matrix, 1.0 for a matrix never used. *weights is (ne[2], ne[0]), caller frees;
 * NULL with a reason ("no entry", "has 1280 values, the tensor needs 64") if there is nothing usable; an
 * entry of another number of matrices is not, though llama-quantize looks at the length only. Known
 * aliases of names ("NAME (reshaped)") are understood. */
allot_status imatrix_weights(const struct imatrix *im, const struct gguf_tensor *tensor, float **weights,
                             char reason[static 128], struct allot_error *err);

/* Mean inputs (ne[2], ne[0]) of a tensor for which imatrix_weights gives something, 0 for a matrix never
 * used; caller frees. NULL if the file has none. */
allot_status imatrix_means(const struct imatrix *im, const struct gguf_tensor *tensor, float **means,
                           struct allot_error *err);

/* How often tokens took each matrix of the tensor, ne[2] numbers; all 1 where the imatrix (which may be NULL)
 * does not tell or no token took any. */
void imatrix_shares(const struct imatrix *im, const struct gguf_tensor *tensor, int64_t *shares);

/* One line for people on how much of the model's quantizable tensors (token_embd and output aside)
 * the imatrix covers, naming up to a few missing ones and whole missing blocks; "" if all. */
void imatrix_coverage(const struct imatrix *im, const struct gguf_model *model, char line[static 512]);

#endif
