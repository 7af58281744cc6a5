/* store.h - scales and codes for the blocks of the types.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). */
#include "quant/pack.h"

/* ggml's nearest integer of one value. */
LANE int32_t nearest_one(float x)
{
    float shifted = x + ROUNDING;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x007fffff) - 0x00400000;
}

LANE int32_t clamped_one(int32_t a, int32_t lowest, int32_t highest)
{
    return a < lowest ? lowest : a > highest ? highest : a;
}

/* Returns what will be read back. */
LANE float store_fp16(uint8_t *p, float x)
{
    ggml_fp16_t half = ggml_fp32_to_fp16(x);
    memcpy(p, &half, sizeof half);
    return ggml_fp16_to_fp32(half);
}

LANE void at_most(uint8_t *p, int n, uint8_t most)
{
    for (int i = 0; i < n; i++)
        p[i] = p[i] < most ? p[i] : most;
}
