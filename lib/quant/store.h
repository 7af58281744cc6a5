/* store.h - codes into the blocks of the types, as ggml-common.h lays them out.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). */

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

/* 2 n codes of four bits: the first half in the lower nibbles. */
LANE void store_nibbles(uint8_t *p, const uint8_t *codes, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)((codes[i] & 15) | codes[i + n] << 4);
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

/* Two bits, from number `bit` on, of every code of a super-block, four of each half in a byte. */
LANE void store_two_bits(uint8_t *p, const uint8_t *codes, int bit)
{
    for (int half = 0; half < SUPER_BLOCK; half += 128, p += 32, codes += 128)
        for (int i = 0; i < 32; i++)
            p[i] = (uint8_t)((codes[i] >> bit & 3) | (codes[i + 32] >> bit & 3) << 2 |
                             (codes[i + 64] >> bit & 3) << 4 | (codes[i + 96] >> bit & 3) << 6);
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
