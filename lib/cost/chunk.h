/* chunk.h - sums over chunks of tokens of g_t' D_j x_t, for many matrices D_j at once.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. The innermost loops of the projections: a tile of a chunk's gradient G' X is formed
 * in registers and multiplied with the same tile of every D_j at once, so that gradients are never stored.
 * This costs 2 flops per weight and token, and 2 per weight, chunk and D_j, all from the first-level cache.
 */
#ifndef ALLOT_COST_CHUNK_H
#define ALLOT_COST_CHUNK_H

#include <stdint.h>

/* Kernels differ in the shape of their tile, which is the layout of their operands. */
struct chunk_kernel {
    const char *name;
    int rows, columns, lanes; /* lanes: partial sums, to be added by the caller */
    /* Adds to sums (n_runs, n_types, lanes) the sums of g_t' D_j x_t over each run of tokens, starts[i] <= t
     * < starts[i+1]. g (tokens, rows) and x (tokens, columns) begin with token starts[0]; errors (n_types,
     * rows, columns) holds the D_j. sums, x and errors are aligned to `lanes` floats. */
    void (*tile)(float *sums, const float *g, const float *x, const float *errors, int64_t n_runs,
                 const int32_t *starts, int64_t n_types);
};

/* The kernels that this processor can run, best first; *n is at least 1. */
const struct chunk_kernel *chunk_kernels(int *n);

#endif
