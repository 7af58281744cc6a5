/* gemm.h - float32 matrix products, and one factorisation, on OpenBLAS, shared out over a pool.
 *
 * SPDX-License-Identifier: MIT
 *
 * OpenBLAS runs with one thread per call; products are cut into tiles whose borders depend on the
 * shapes only, and the pool shares the tiles. So results do not depend on the number of threads,
 * and many small products can run side by side. All matrices are row-major without gaps.
 */
#ifndef ALLOT_BASE_GEMM_H
#define ALLOT_BASE_GEMM_H

#include "base/pool.h"

/* Loads OpenBLAS and makes it single-threaded and, the first time, compares small products of every
 * orientation used here with plain loops: some OpenBLAS builds compute wrong products on processors newer
 * than they are. Fails if it is not installed or there is no memory for it. Call before anything below. */
allot_status gemm_init(struct allot_error *err);

/* y (m,n) = x (m,k) w(n,k)'. Overwrites y. */
void gemm_forward(struct pool *pool, float *y, const float *x, const float *w, int64_t m, int64_t n,
                  int64_t k);

/* dx (m,k) = dy (m,n) w (n,k). Overwrites dx, or adds to it if accumulate. */
void gemm_backward(struct pool *pool, float *dx, const float *dy, const float *w, int64_t m, int64_t n,
                   int64_t k, bool accumulate);

/* For callers that share out the work themselves, on the calling thread alone: */

/* y (m,n) = x (m,k) w(n,k)'. Overwrites y. */
void gemm_forward_here(float *y, const float *x, const float *w, int64_t m, int64_t n, int64_t k);

/* c (m,n) = alpha op(a) op(b) + beta c, op(a) (m,k) and op(b) (k,n) transposed in memory where said, rows
 * lda, ldb and ldc apart. */
void gemm_strided(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);

/* a (n,n), symmetric, becomes the upper triangular u with u' u = a^-1, zeros below. False: a is not positive
 * definite to float32's precision; its contents are lost. By LAPACK. */
bool gemm_inverse_factor(float *a, int64_t n);

#endif
