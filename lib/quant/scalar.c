/* scalar.c - blocks with scalar grids.  SPDX-License-Identifier: MIT */
#include "quant/scalar.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "quant/pack.h"

/* Q8_0's lowest level is -127, as ggml writes it: -128 can be read, but not every dot product is proof
 * against it. */
static const struct scalar_type types[] = {
    {GGML_TYPE_Q2_K, 256, 84, 16, 0, 0, 3, false, 0, 15, 15, FACTOR_FP16},
    {GGML_TYPE_Q3_K, 256, 110, 16, -4, -4, 3, false, -32, 31, 0, FACTOR_FP16},
    {GGML_TYPE_Q4_K, 256, 144, 32, 0, 0, 15, false, 0, 63, 63, FACTOR_FP16},
    {GGML_TYPE_Q5_K, 256, 176, 32, 0, 0, 31, false, 0, 63, 63, FACTOR_FP16},
    {GGML_TYPE_Q6_K, 256, 210, 16, -32, -32, 31, false, -128, 127, 0, FACTOR_FP16},
    {GGML_TYPE_Q4_0, 32, 18, 32, -8, -8, 7, false, 1, 1, 0, FACTOR_FP16},
    {GGML_TYPE_Q4_1, 32, 20, 32, 0, 0, 15, false, 1, 1, 1, FACTOR_FP16},
    {GGML_TYPE_Q5_0, 32, 22, 32, -16, -16, 15, false, 1, 1, 0, FACTOR_FP16},
    {GGML_TYPE_Q5_1, 32, 24, 32, 0, 0, 31, false, 1, 1, 1, FACTOR_FP16},
    {GGML_TYPE_Q8_0, 32, 34, 32, -128, -127, 127, false, 1, 1, 0, FACTOR_FP16},
    {GGML_TYPE_IQ4_NL, 32, 18, 32, 0, 0, 15, true, 1, 1, 0, FACTOR_FP16},
    {GGML_TYPE_IQ4_XS, 256, 136, 32, 0, 0, 15, true, -32, 31, 0, FACTOR_FP16},
    {GGML_TYPE_MXFP4, 32, 17, 32, 0, 0, 14, true, 1, 1, 0, FACTOR_E8M0},
};

const struct scalar_type *scalar_type_find(enum ggml_type type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

/* ---- Tables ---------------------------------------------------------------------------------------------
 */

enum { TABLE_IQ4, TABLE_FP4, N_TABLES };

static struct scalar_levels tables[N_TABLES];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

/* Codes 0 to 15 in a block of 32 weights whose factor, of so many bytes, is 1. */
static void read_table(struct scalar_levels *levels, enum ggml_type type, const void *one, size_t n_one)
{
    uint8_t block[32] = {0};
    float weights[32];
    memcpy(block, one, n_one);
    for (int i = 0; i < 16; i++)
        block[n_one + (size_t)i] = (uint8_t)i;
    ggml_get_type_traits(type)->to_float(block, weights, 32);
    levels->n = 0;
    for (int code = 0; code < 16; code++) {
        int at = 0;
        while (at < levels->n && levels->level[at] < weights[code])
            at++;
        if (at < levels->n && levels->level[at] == weights[code])
            continue; /* the zero with a sign */
        for (int i = levels->n++; i > at; i--) {
            levels->level[i] = levels->level[i - 1];
            levels->code[i] = levels->code[i - 1];
        }
        levels->level[at] = weights[code];
        levels->code[at] = (uint8_t)code;
    }
}

static void read_tables(void)
{
    const ggml_fp16_t half_one = ggml_fp32_to_fp16(1);
    const uint8_t e8m0_one = 128; /* halved, as its levels are doubled */
    read_table(&tables[TABLE_IQ4], GGML_TYPE_IQ4_NL, &half_one, sizeof half_one);
    read_table(&tables[TABLE_FP4], GGML_TYPE_MXFP4, &e8m0_one, sizeof e8m0_one);
}

const struct scalar_levels *scalar_levels_of(const struct scalar_type *type)
{
    pthread_once(&tables_once, read_tables);
    return &tables[type->type == GGML_TYPE_MXFP4 ? TABLE_FP4 : TABLE_IQ4];
}

/* ---- Codes ----------------------------------------------------------------------------------------------
 */

static void load_codes(enum ggml_type type, uint8_t *codes, const uint8_t *p)
{
    switch (type) {
    case GGML_TYPE_Q2_K:
        load_two_bits(codes, p + 16, 0);
        break;
    case GGML_TYPE_Q3_K:
        load_two_bits(codes, p + 32, 0);
        load_one_bits(codes, p, 2);
        break;
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
        for (int j = 0; j < 4; j++)
            load_nibbles(codes + 64 * j, p + (type == GGML_TYPE_Q4_K ? 16 : 48) + 32 * j, 32);
        if (type == GGML_TYPE_Q5_K)
            load_one_bits(codes, p + 16, 4);
        break;
    case GGML_TYPE_Q6_K:
        load_nibbles(codes, p, 64);
        load_nibbles(codes + 128, p + 64, 64);
        load_two_bits(codes, p + 128, 4);
        break;
    case GGML_TYPE_IQ4_XS:
        for (int j = 0; j < 8; j++)
            load_nibbles(codes + 32 * j, p + 8 + 16 * j, 16);
        break;
    case GGML_TYPE_Q5_0:
        load_five_bits(codes, p + 2);
        break;
    case GGML_TYPE_Q5_1:
        load_five_bits(codes, p + 4);
        break;
    case GGML_TYPE_Q8_0:
        for (int i = 0; i < 32; i++)
            codes[i] = p[2 + i] ^ 0x80;
        break;
    default: /* Q4_0, IQ4_NL; Q4_1; MXFP4 */
        load_nibbles(codes, p + (type == GGML_TYPE_Q4_1 ? 4 : type == GGML_TYPE_MXFP4 ? 1 : 2), 16);
    }
}

static void store_codes(enum ggml_type type, const uint8_t *codes, uint8_t *p)
{
    switch (type) {
    case GGML_TYPE_Q2_K:
        store_two_bits(p + 16, codes, 0);
        break;
    case GGML_TYPE_Q3_K:
        store_two_bits(p + 32, codes, 0);
        store_one_bits(p, codes, 2);
        break;
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
        for (int j = 0; j < 4; j++)
            store_nibbles(p + (type == GGML_TYPE_Q4_K ? 16 : 48) + 32 * j, codes + 64 * j, 32);
        if (type == GGML_TYPE_Q5_K)
            store_one_bits(p + 16, codes, 4);
        break;
    case GGML_TYPE_Q6_K:
        store_nibbles(p, codes, 64);
        store_nibbles(p + 64, codes + 128, 64);
        store_two_bits(p + 128, codes, 4);
        break;
    case GGML_TYPE_IQ4_XS:
        for (int j = 0; j < 8; j++)
            store_nibbles(p + 8 + 16 * j, codes + 32 * j, 16);
        break;
    case GGML_TYPE_Q5_0:
        store_five_bits(p + 2, codes);
        break;
    case GGML_TYPE_Q5_1:
        store_five_bits(p + 4, codes);
        break;
    case GGML_TYPE_Q8_0:
        for (int i = 0; i < 32; i++)
            p[2 + i] = codes[i] ^ 0x80;
        break;
    default:
        store_nibbles(p + (type == GGML_TYPE_Q4_1 ? 4 : type == GGML_TYPE_MXFP4 ? 1 : 2), codes, 16);
    }
}

/* ---- Scales ---------------------------------------------------------------------------------------------
 */

static float load_half(const uint8_t *p)
{
    ggml_fp16_t half;
    memcpy(&half, p, sizeof half);
    return ggml_fp16_to_fp32(half);
}

static void store_half(uint8_t *p, float x)
{
    const ggml_fp16_t half = ggml_fp32_to_fp16(x);
    memcpy(p, &half, sizeof half);
}

/* Offsets of d and min; -1: there is none. */
static int factor_at(enum ggml_type type)
{
    return type == GGML_TYPE_Q2_K ? 80 : type == GGML_TYPE_Q3_K ? 108 : type == GGML_TYPE_Q6_K ? 208 : 0;
}

static int min_at(const struct scalar_type *type)
{
    return type->most_least == 0 ? -1 : type->type == GGML_TYPE_Q2_K ? 82 : 2;
}

static void load_integers(const struct scalar_type *type, struct scalar_block *b, const uint8_t *p)
{
    uint16_t high;
    switch (type->type) {
    case GGML_TYPE_Q2_K:
        for (int j = 0; j < 16; j++) {
            b->scales[j] = p[j] & 15;
            b->leasts[j] = p[j] >> 4;
        }
        break;
    case GGML_TYPE_Q3_K:
        load_six_bit_scales(b->scales, p + 96);
        break;
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
        load_six_bit_pairs((uint8_t *)b->scales, b->leasts, p + 4);
        break;
    case GGML_TYPE_Q6_K:
        memcpy(b->scales, p + 192, 16);
        break;
    case GGML_TYPE_IQ4_XS:
        memcpy(&high, p + 2, sizeof high);
        for (int j = 0; j < 8; j++)
            b->scales[j] = (int8_t)(((p[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4) - 32);
        break;
    default:
        b->scales[0] = 1;
        b->leasts[0] = (uint8_t)type->most_least;
    }
}

static void store_integers(const struct scalar_type *type, const struct scalar_block *b, uint8_t *p)
{
    uint16_t high = 0;
    switch (type->type) {
    case GGML_TYPE_Q2_K:
        for (int j = 0; j < 16; j++)
            p[j] = (uint8_t)(b->scales[j] | b->leasts[j] << 4);
        break;
    case GGML_TYPE_Q3_K:
        store_six_bit_scales(p + 96, b->scales);
        break;
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
        store_six_bit_pairs(p + 4, (const uint8_t *)b->scales, b->leasts);
        break;
    case GGML_TYPE_Q6_K:
        memcpy(p + 192, b->scales, 16);
        break;
    case GGML_TYPE_IQ4_XS:
        memset(p + 4, 0, 4);
        for (int j = 0; j < 8; j++) {
            const int scale = b->scales[j] + 32;
            p[4 + j / 2] |= (uint8_t)((scale & 15) << 4 * (j % 2));
            high |= (uint16_t)((scale >> 4) << 2 * j);
        }
        memcpy(p + 2, &high, sizeof high);
        break;
    default:
        break;
    }
}

void scalar_load(const struct scalar_type *type, struct scalar_block *b, const uint8_t *block)
{
    memset(b, 0, sizeof *b);
    load_codes(type->type, b->codes, block);
    load_integers(type, b, block);
    if (type->factor == FACTOR_E8M0) {
        b->d = ldexpf(1, block[0] - 128);
        return;
    }
    b->d = load_half(block + factor_at(type->type));
    if (min_at(type) >= 0)
        b->min = load_half(block + min_at(type));
    if (type->most_least == 1)
        b->min = -b->min; /* Q4_1 and Q5_1 add theirs */
}

void scalar_store(const struct scalar_type *type, const struct scalar_block *b, uint8_t *block)
{
    store_codes(type->type, b->codes, block);
    store_integers(type, b, block);
    if (type->factor == FACTOR_E8M0) {
        block[0] = (uint8_t)(ilogbf(b->d) + 128);
        return;
    }
    store_half(block + factor_at(type->type), b->d);
    if (min_at(type) >= 0)
        store_half(block + min_at(type), type->most_least == 1 ? -b->min : b->min);
}
