/* chunk_tile.h - one tile's sums for one instruction set; chunk.c includes it once for each.
 *
 * SPDX-License-Identifier: MIT
 *
 * Before: NAME, LANES (floats in a register) and ROWS, chosen so that ROWS x 2 registers of gradients, two of
 * inputs and a few more fit; TARGET, the function attribute. All are undefined at the end. */
enum { CHUNK_NAME(rows_, NAME) = ROWS, CHUNK_NAME(lanes_, NAME) = LANES };
#define COLUMNS (2 * LANES)

typedef float CHUNK_NAME(vector_, NAME) __attribute__((vector_size(4 * LANES), may_alias));
#define VECTOR CHUNK_NAME(vector_, NAME)

TARGET static void CHUNK_NAME(tile_, NAME)(float *sums, const float *g, const float *x, const float *errors,
                                           int64_t n_runs, const int32_t *starts, int64_t n_types)
{
    for (int64_t run = 0; run < n_runs; run++) {
        VECTOR gradient[ROWS][2];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
            gradient[r][0] = gradient[r][1] = (VECTOR){0};
        for (int64_t t = starts[run] - starts[0]; t < starts[run + 1] - starts[0]; t++) {
            const VECTOR *xt = (const VECTOR *)(x + t * COLUMNS);
            const float *gt = g + t * ROWS;
            VECTOR left = xt[0], right = xt[1];
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                gradient[r][0] += left * gt[r];
                gradient[r][1] += right * gt[r];
            }
        }
        const VECTOR *error = (const VECTOR *)errors;
        for (int64_t j = 0; j < n_types; j++) {
            VECTOR *sum = (VECTOR *)sums;
            /* four chains of additions, so that none waits for the one before it */
            VECTOR a = *sum, b = {0}, c = {0}, d = {0};
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r += 2) {
                a += gradient[r][0] * error[2 * r];
                b += gradient[r][1] * error[2 * r + 1];
                c += gradient[r + 1][0] * error[2 * r + 2];
                d += gradient[r + 1][1] * error[2 * r + 3];
            }
            *sum = (a + b) + (c + d);
            sums += LANES;
            error += 2 * ROWS;
        }
    }
}

#undef VECTOR
#undef COLUMNS
#undef NAME
#undef LANES
#undef ROWS
#undef TARGET
