/* kernels.h - the fast quantizers: what they have in common, and how one set is chosen.
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/quant only. A type's weights are cut into units, sub-blocks whose scales are searched for
 * independently; a lane of a vector carries a unit, and every lane keeps ggml's scalar order of operations,
 * so the bytes are ggml's. One set of kernels per instruction set is compiled from the same headers:
 *
 *   lanes_SET.h      the vector vocabulary
 *   numbers.h        rounding, codes
 *   batch_fill.h     weights and their importances laid out for the lanes
 *   pack.h           integers of a few bits in blocks
 *   store.h          codes into blocks
 *   round_plain.h    types of which nothing is searched for
 *   search_*.h       the searches, one per family of types
 *   kernels_SET.c    includes all of them and defines the set
 */
#ifndef ALLOT_QUANT_KERNELS_H
#define ALLOT_QUANT_KERNELS_H

#include "quant/quant.h"

/* Weights of eight super-blocks, few enough that everything about them stays in the cache. */
enum { BATCH = 2048, SUPER_BLOCK = 256, MAX_UNITS = BATCH / 16 };

/* How much an error of a weight x counts in a search; q is its importance, s the sum of squares over the
 * weight's super-block. */
enum weighting {
    WEIGHT_GGML,      /* no kernel: ggml itself */
    WEIGHT_ROW,       /* q sqrt(mean square of the row + x^2) */
    WEIGHT_BLOCK,     /* q sqrt(2 * mean square of 32 weights + x^2) */
    WEIGHT_SUPER,     /* q sqrt(s/256 + x^2) */
    WEIGHT_SUPER_2,   /* q sqrt(2 s/256 + x^2) */
    WEIGHT_RAW,       /* q */
    WEIGHT_NONE,      /* nothing is weighed, nor laid out in tiles */
    WEIGHT_SQUARE,    /* x^2 */
    WEIGHT_MAGNITUDE, /* |x| */
    WEIGHT_UNIT_RMS,  /* root mean square of the unit + |x| */
    WEIGHT_HALF_SUPER /* (2 s/256) / 4 + x^2 */
};

/* So many weights, whole blocks of the type and at most BATCH, laid out for one family of searches. */
struct batch {
    int unit, n_units;                 /* weights in a unit; units */
    bool weighted;                     /* with importances */
    const struct batch_source *source; /* where the weights are from */
    int64_t start;                     /* the first one's place there */
    const float *src;                  /* the weights as they came, n_units * unit of them */
    /* Tiles of LANES units each, [tile][weight in the unit][lane]; lanes without a unit hold zeros. */
    _Alignas(64) float x[BATCH], w[BATCH];
    _Alignas(64) float weight[BATCH]; /* w in the order of src */
};

/* Where a batch's weights come from. */
struct batch_source {
    const float *src;         /* n_rows rows of n_per_row weights */
    const float *imatrix;     /* [n_per_row], or NULL */
    const float *row_squares; /* of each row: the sum of squares; for WEIGHT_ROW only */
    int64_t n_per_row;
};

typedef void batch_fill_function(struct batch *b, const struct batch_source *source, int64_t start, int count,
                                 int unit, enum weighting weighting);
/* Writes the blocks of the batch's weights to out. */
typedef void quant_encode(const struct batch *b, uint8_t *out);

struct quant_kernel {
    enum ggml_type type;
    int unit;
    enum weighting without, with; /* importances */
    quant_encode *encode;
};

struct quant_kernel_set {
    const char *name;
    const struct quant_kernel *kernels;
    size_t n;
    batch_fill_function *fill;
    void (*row_squares)(float *sums, const float *src, int64_t n_rows, int64_t n_per_row);
};

/* The sets that this program holds and the processor can run, best first; the last is always ggml alone,
 * NULL. ALLOT_QUANT_KERNELS=NAME in the environment leaves out those before NAME ("ggml": all); a name that
 * is none of them changes nothing. */
const struct quant_kernel_set *const *quant_kernel_sets(void);

/* As ggml_quantize_chunk, by a kernel of the set. Weights must be finite and below QUANT_KERNEL_MOST in
 * magnitude: sums of the squares of a super-block must not overflow. */
#define QUANT_KERNEL_MOST 1e17f
void quant_kernel_rows(const struct quant_kernel_set *set, const struct quant_kernel *kernel,
                       const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix);

/* The batches that the kernel and all that are alike want of such rows, one after the other; start: the index
 * of the batch's first weight. */
typedef void batch_function(void *user, const struct batch *batch, int64_t start);
void quant_kernel_batches(const struct quant_kernel_set *set, const struct quant_kernel *kernel,
                          const float *src, int64_t n_rows, int64_t n_per_row, const float *imatrix,
                          batch_function *function, void *user);
bool quant_kernels_alike(const struct quant_kernel *a, const struct quant_kernel *b, bool importances);

/* Does the kernel give the linked ggml's bytes on blocks that show contraction and other orders of additions?
 * ggml may build its grids for that, seconds long. False without memory. */
bool quant_kernel_serves(const struct quant_kernel_set *set, const struct quant_kernel *kernel);

/* The kernel of the best set for a type with or without importances; NULL if ggml is to be called: because
 * there is none, because ALLOT_QUANT_KERNELS says so, or because kernels gave other bytes than the linked
 * ggml when the first of them was asked for. *set: what it belongs to. Thread-safe. */
const struct quant_kernel *quant_kernel_find(enum ggml_type type, bool with_importances,
                                             const struct quant_kernel_set **set);

#endif
