/* compensate.h - codes of quantized rows chosen again, so that their errors make up for each other.
 * SPDX-License-Identifier: MIT
 *
 * A row w (n) meets inputs x with second moment H = E[x x'] (n,n); quantized to q, its output is off by
 * (q-w) x, whose mean square is (q-w) H (q-w)', the row's objective. quant_rows weighs the squares of the
 * errors at most by H's diagonal. Here the codes, and if wanted the scales, are changed within the same type
 * until the objective itself is low: by rounding the columns one after the other, each error being made up
 * for by the columns still to come (GPTQ: Frantar et al., arXiv 2210.17323, eq. 2 and 3 with the factor of
 * H^-1), and then by coordinate descent (QuantEase: Behdin et al., arXiv 2309.01885, eq. 10), in which no
 * change of a code ever raises the objective. Stock programs read the bytes as any others of the type. */
#ifndef ALLOT_QUANT_COMPENSATE_H
#define ALLOT_QUANT_COMPENSATE_H

#include "quant/quant.h"

/* What the rows of a tensor share. Read-only once made, so threads may share it. */
struct compensation {
    int64_t n;
    float *moment; /* (n,n), symmetric, damped */
    float *factor; /* (n,n), upper triangular u: u' u = moment^-1 */
};

/* The codes and scales of so many rows are found together. A row's bytes do not depend on the others, but a
 * call costs as much as one with the next multiple of this. */
enum { COMPENSATE_ROWS = 128 };

struct compensation_options {
    int passes;  /* of coordinate descent, after the first rounding; >= 0 */
    bool scales; /* in each pass, fit them to the codes too; else (and in MXFP4, whose scales are powers of
                    two) they stay as they are in the bytes */
};

/* moment: (n,n), symmetric, only read. Its diagonal grows by the share `shrinkage` of itself, as if what
 * inputs have in common were that much less (for moments of few tokens), and then `damping` times its mean is
 * added to it (0.01 is usual); inputs that are always 0 get a positive diagonal. If the matrix is not
 * positive definite even so, the damping is raised tenfold until it is. ALLOT_ERR_NUMERIC: values that are
 * not finite, or a diagonal with negative ones. 8 n^2 bytes are held until release. gemm_init must have
 * succeeded. */
allot_status compensation_init(struct compensation *c, const float *moment, int64_t n, double shrinkage,
                               double damping, struct allot_error *err);
void compensation_release(struct compensation *c);

/* Types whose weights are single levels of a grid: Q2_K to Q6_K, Q4_0 to Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4.
 */
bool compensate_fits(enum ggml_type type);

/* Floats of scratch space that a call needs, whatever the number of rows. */
int64_t compensate_scratch_floats(enum ggml_type type, int64_t n_per_row);

/* src: (n_rows, n_per_row), the weights; n_per_row is c->n and whole blocks. bytes: the rows as quant_rows
 * left them, changed in place; a row whose objective does not fall (such as one that is not finite) keeps
 * its bytes. Runs on the calling thread; rows can be shared out among threads in any way. */
allot_status compensate_rows(enum ggml_type type, const float *src, void *bytes, int64_t n_rows,
                             int64_t n_per_row, const struct compensation *c,
                             const struct compensation_options *options, float *scratch,
                             struct allot_error *err);

/* The sum over rows e of errors (n_rows, n) of e H e', for any symmetric moment H (n,n), as one held out to
 * judge by. scratch: COMPENSATE_ROWS * n floats. */
double compensation_objective(const float *moment, const float *errors, int64_t n_rows, int64_t n,
                              float *scratch);

#endif
