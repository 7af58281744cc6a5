/* pack.h - integers of a few bits into the blocks of the types, as ggml-common.h lays them out, and back.
 * SPDX-License-Identifier: MIT
 *
 * Also part of a set of kernels (kernels.h), compiled there for its instructions. */
#ifndef ALLOT_QUANT_PACK_H
#define ALLOT_QUANT_PACK_H

#include <stdint.h>
#include <string.h>

#include "quant/kernels.h"

#ifndef LANE
#define LANE static inline __attribute__((always_inline))
#endif

/* 2 n codes of four bits: the first half in the lower nibbles. */
LANE void store_nibbles(uint8_t *p, const uint8_t *codes, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)((codes[i] & 15) | codes[i + n] << 4);
}

LANE void load_nibbles(uint8_t *codes, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++) {
        codes[i] = p[i] & 15;
        codes[i + n] = p[i] >> 4;
    }
}

/* 32 codes of five bits: the fifth ones in a word before the nibbles. */
LANE void store_five_bits(uint8_t *p, const uint8_t *codes)
{
    uint32_t high = 0;
    for (int i = 0; i < 32; i++)
        high |= (uint32_t)(codes[i] >> 4 & 1) << i;
    memcpy(p, &high, sizeof high);
    store_nibbles(p + 4, codes, 16);
}

LANE void load_five_bits(uint8_t *codes, const uint8_t *p)
{
    uint32_t high;
    memcpy(&high, p, sizeof high);
    load_nibbles(codes, p + 4, 16);
    for (int i = 0; i < 32; i++)
        codes[i] |= (uint8_t)((high >> i & 1) << 4);
}

/* One bit, of number `bit`, of every code of a super-block: bit k of byte i is that of code 32 k + i. */
LANE void store_one_bits(uint8_t *p, const uint8_t *codes, int bit)
{
    for (int i = 0; i < 32; i++) {
        unsigned bits = 0;
        for (int k = 0; k < 8; k++)
            bits |= (unsigned)(codes[32 * k + i] >> bit & 1) << k;
        p[i] = (uint8_t)bits;
    }
}

/* Adds that bit to codes whose lower ones are loaded. */
LANE void load_one_bits(uint8_t *codes, const uint8_t *p, int bit)
{
    for (int i = 0; i < 32; i++)
        for (int k = 0; k < 8; k++)
            codes[32 * k + i] |= (uint8_t)((p[i] >> k & 1) << bit);
}

/* Two bits, from number `bit` on, of every code of a super-block, four of each half in a byte. */
LANE void store_two_bits(uint8_t *p, const uint8_t *codes, int bit)
{
    for (int half = 0; half < SUPER_BLOCK; half += 128, p += 32, codes += 128)
        for (int i = 0; i < 32; i++)
            p[i] = (uint8_t)((codes[i] >> bit & 3) | (codes[i + 32] >> bit & 3) << 2 |
                             (codes[i + 64] >> bit & 3) << 4 | (codes[i + 96] >> bit & 3) << 6);
}

/* Adds these bits to the codes. */
LANE void load_two_bits(uint8_t *codes, const uint8_t *p, int bit)
{
    for (int half = 0; half < SUPER_BLOCK; half += 128, p += 32, codes += 128)
        for (int i = 0; i < 32; i++)
            for (int k = 0; k < 4; k++)
                codes[i + 32 * k] |= (uint8_t)((p[i] >> 2 * k & 3) << bit);
}

/* Sixteen integers from -32 to 31, stored plus 32, in twelve bytes. */
LANE void store_six_bit_scales(uint8_t *p, const int8_t *scales)
{
    uint8_t a[16];
    for (int j = 0; j < 16; j++)
        a[j] = (uint8_t)(scales[j] + 32);
    for (int j = 0; j < 8; j++)
        p[j] = (uint8_t)((a[j] & 15) | a[j + 8] << 4);
    for (int j = 0; j < 4; j++)
        p[j + 8] = (uint8_t)(a[j] >> 4 | a[j + 4] >> 4 << 2 | a[j + 8] >> 4 << 4 | a[j + 12] >> 4 << 6);
}

LANE void load_six_bit_scales(int8_t *scales, const uint8_t *p)
{
    for (int j = 0; j < 16; j++) {
        const int low = p[j % 8] >> (j < 8 ? 0 : 4) & 15, high = p[8 + j % 4] >> 2 * (j / 4) & 3;
        scales[j] = (int8_t)((low | high << 4) - 32);
    }
}

/* Eight pairs of six bits in twelve bytes. Larger ones spill into their neighbours as ggml lets them. */
LANE void store_six_bit_pairs(uint8_t *p, const uint8_t *a, const uint8_t *b)
{
    for (int j = 0; j < 4; j++) {
        p[j] = (uint8_t)(a[j] | (a[j + 4] >> 4) << 6);
        p[j + 4] = (uint8_t)(b[j] | (b[j + 4] >> 4) << 6);
        p[j + 8] = (uint8_t)((a[j + 4] & 15) | (b[j + 4] & 15) << 4);
    }
}

LANE void load_six_bit_pairs(uint8_t *a, uint8_t *b, const uint8_t *p)
{
    for (int j = 0; j < 4; j++) {
        a[j] = p[j] & 63;
        b[j] = p[j + 4] & 63;
        a[j + 4] = (uint8_t)((p[j + 8] & 15) | p[j] >> 6 << 4);
        b[j + 4] = (uint8_t)(p[j + 8] >> 4 | p[j + 4] >> 6 << 4);
    }
}

#endif
