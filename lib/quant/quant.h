/* quant.h - the ggml types as candidates; quantizing and dequantizing rows.
 * SPDX-License-Identifier: MIT
 *
 * Bytes equal those of ggml_quantize_chunk of the linked ggml, except where QUANT_FLOORED says otherwise.
 * Rows are independent of each other. */
#ifndef ALLOT_QUANT_QUANT_H
#define ALLOT_QUANT_QUANT_H

#include "allot.h"
#include "ggml.h"
#include "llama.h" /* enum llama_ftype only */

/* One row per type that llama-quantize can write. */
struct quant_type {
    enum ggml_type type;
    const char *name; /* ggml's own, upper case: "Q4_K" */
    int block;        /* weights per block */
    int block_bytes;
    enum ggml_type fallback; /* for rows that are no whole blocks: see quant_type_fallback */
    bool uses_imatrix;       /* result depends on the imatrix */
    bool needs_imatrix;      /* llama-quantize refuses it without: see quant_type_needs_imatrix */
    bool aborts_without;     /* ggml itself aborts without: never call it so */
    bool searches_grid;      /* ggml aborts when the sums of its search overflow */
    int zero_group;    /* ggml loses as many (aligned) weights if all of them have importance 0; 0: never */
    const char *ftype; /* a llama-quantize ftype whose default type this is, so that a recipe's rules count
                          over it; NULL if there is none (F32, F16, BF16: rules would be ignored) */
    enum llama_ftype file_type; /* general.file_type of that ftype, or of "mostly this type" */
    bool default_candidate;     /* offered when the caller names no types (quant.c says which and why) */
    int scale_at[2];            /* byte offsets in a block of the fields that can turn NaN or Inf; -1: none */
    uint16_t scale_mask;        /* such a field is invalid when all these bits are set */
};

/* All types, by rising bits per weight. */
const struct quant_type *quant_types(size_t *n);
const struct quant_type *quant_type_find(enum ggml_type type); /* NULL if not one of them */
/* Case-blind by name; NULL if unknown. */
const struct quant_type *quant_type_by_name(const char *name);
/* "Q4_0, Q4_1, ...": for messages about unknown names. Static storage. */
const char *quant_type_names(void);

/* Does llama-quantize want importances for a tensor of this name, given a type that needs them? Not for
 * token embeddings and the output (src/llama-quant.cpp, tensor_requires_imatrix). */
bool quant_name_needs_imatrix(const char *tensor_name);
/* Can the tensor become this type only with importances: because llama-quantize refuses it without, or
 * because ggml would abort the process? False for types that are not of the table. */
bool quant_type_needs_imatrix(enum ggml_type type, const char *tensor_name);

/* Does a row of n weights consist of whole blocks? */
bool quant_type_fits(enum ggml_type type, int64_t n_per_row);
/* llama-quantize's fallback for a row that does not fit (itself if it fits). It has none for Q1_0 and NVFP4
 * and stops; here those become F16, as its 32-weight types do. */
enum ggml_type quant_type_fallback(enum ggml_type type, int64_t n_per_row);

/* To F32, exactly, from any type with a to_float (F32, F16, BF16 and all quantized ones). n is a
 * multiple of the block. */
allot_status quant_to_f32(enum ggml_type type, const void *src, float *dst, int64_t n,
                          struct allot_error *err);

/* Compares the kernels with ggml and builds the tables that searches of these types need, once per process.
 * The first quant_rows would do it too, but where ggml itself is called it takes seconds for each IQ1 or IQ2
 * type, and here the job can be seen and stopped. */
allot_status quant_prepare(const enum ggml_type *types, size_t n_types, const struct allot_progress *progress,
                           struct allot_error *err);

enum quant_result {
    QUANT_OK,      /* the bytes ggml_quantize_chunk gives */
    QUANT_FLOORED, /* some rows have other bytes, from floored importances: with the given ones llama-quantize
                      would refuse them, or lose the weights of a group that has zeros only */
    QUANT_INFEASIBLE /* NaN or Inf scales even so: this type cannot hold these weights */
};

/* Quantizes n_rows rows of n_per_row weights to dst (n_rows * ggml_row_size bytes). imatrix: n_per_row
 * importances shared by these rows, or NULL. Weights must be finite. The caller has checked
 * quant_type_fits and aborts_without. Each row's bytes are checked with quant_row_valid; a row that fails
 * is retried with quant_floor_imatrix, and so is one with which ggml's grid searches would overflow and abort
 * the process. Importances that are negative, not finite, or all zero in a zero_group are floored for all
 * rows; single zeros stay. What becomes of a row does not depend on the others, but one infeasible row makes
 * the call infeasible. dst of an infeasible call is unspecified. Thread-safe. */
enum quant_result quant_rows(enum ggml_type type, const float *src, void *dst, int64_t n_rows,
                             int64_t n_per_row, const float *imatrix);

/* One of the types that the same rows become. */
struct quant_target {
    enum ggml_type type;
    float *error;             /* (n_rows, n_per_row): what comes back from the type minus what was given */
    enum quant_result result; /* as quant_rows; infeasible: errors are unspecified */
};

/* What quant_rows would make of the rows in each type, as errors only: weights are looked at once for all
 * types that weigh them alike, and errors are formed while they are in the cache. */
void quant_rows_all(struct quant_target *targets, size_t n, const float *src, int64_t n_rows,
                    int64_t n_per_row, const float *imatrix);

/* ggml_validate_row_data's verdict on n_bytes of a type of the table, without its messages on stderr. */
bool quant_row_valid(enum ggml_type type, const void *row, size_t n_bytes);

/* Index of the first value that is not finite, or -1. */
int64_t quant_first_nonfinite(const float *x, int64_t n);

/* Importances as quantizers can stand them: non-finite or negative values and zeros are replaced by a
 * small positive floor relative to the row's mean (1 if all are zero). Returns how many changed. */
int64_t quant_floor_imatrix(float *imatrix, int64_t n);

#endif
