/* chunk_tile.h - one tile's sums for one instruction set; chunk.c includes it once for each.
 *
 * SPDX-License-Identifier: MIT
 *
 * Before: NAME, LANES (floats in a register) and ROWS, chosen so that ROWS x 2 registers of gradients, two of
 * inputs and a few more fit; TARGET, the function attribute. All are undefined at the end. */
enum { CHUNK_NAME(rows_, NAME) = ROWS, CHUNK_NAME(lanes_, NAME) = LANES };
#define REGISTERS (2 * ROWS)
#define COLUMNS (2 * LANES)

typedef float CHUNK_NAME(vector_, NAME) __attribute__((vector_size(4 * LANES), may_alias));
#define VECTOR CHUNK_NAME(vector_, NAME)

TARGET static void CHUNK_NAME(tile_, NAME)(float *sums, const float *g, const float *x, const float *errors,
                                           int64_t n_runs, const int32_t *starts, int64_t n_types)
{
    for (int64_t run = 0; run < n_runs; run++) {
        VECTOR gradient[REGISTERS];
        for (int i = 0; i < REGISTERS; i++)
            gradient[i] = (VECTOR){0};
        for (int64_t t = starts[run] - starts[0]; t < starts[run + 1] - starts[0]; t++) {
            const VECTOR *xt = (const VECTOR *)(x + t * COLUMNS);
            const float *gt = g + t * ROWS;
            VECTOR left = xt[0], right = xt[1];
            for (int r = 0; r < ROWS; r++) {
                gradient[2 * r] += left * gt[r];
                gradient[2 * r + 1] += right * gt[r];
            }
        }
        const VECTOR *error = (const VECTOR *)errors;
        for (int64_t j = 0; j < n_types; j++) {
            VECTOR *sum = (VECTOR *)sums;
            /* four chains of additions, so that none waits for the one before it */
            VECTOR a = *sum, b = {0}, c = {0}, d = {0};
            for (int i = 0; i < REGISTERS; i += 4) {
                a += gradient[i] * error[i];
                b += gradient[i + 1] * error[i + 1];
                c += gradient[i + 2] * error[i + 2];
                d += gradient[i + 3] * error[i + 3];
            }
            *sum = (a + b) + (c + d);
            sums += LANES;
            error += REGISTERS;
        }
    }
}

#undef VECTOR
#undef REGISTERS
#undef COLUMNS
#undef NAME
#undef LANES
#undef ROWS
#undef TARGET
