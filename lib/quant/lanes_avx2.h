/* lanes_avx2.h - the vector vocabulary of the kernels, eight lanes.  SPDX-License-Identifier: MIT
 *
 * Values behave as the scalar operations of C without contraction: the arithmetic operators of vf and vi are
 * lane by lane; most and least are MAX and MIN as ggml writes them, (a > b) ? a : b. */
#ifndef ALLOT_QUANT_LANES_H
#define ALLOT_QUANT_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef vi vm; /* all bits of a lane, or none */

#define LANE static inline __attribute__((always_inline))

LANE vf f_set(float x)
{
    return (vf)_mm256_set1_ps(x);
}
LANE vi i_set(int32_t x)
{
    return (vi)_mm256_set1_epi32(x);
}
LANE vf f_load(const float *p)
{
    return (vf)_mm256_loadu_ps(p);
}
LANE void f_store(float *p, vf x)
{
    _mm256_storeu_ps(p, (__m256)x);
}
/* The lowest byte of each lane. */
LANE void store_bytes(uint8_t *p, vi a)
{
    const __m256i first = _mm256_set1_epi32(0x0c080400), order = _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8((__m256i)a, first), order);
    _mm_storel_epi64((__m128i *)p, _mm256_castsi256_si128(bytes));
}
LANE vf f_most(vf a, vf b)
{
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
LANE vf f_least(vf a, vf b)
{
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}
LANE vi i_most(vi a, vi b)
{
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
LANE vi i_least(vi a, vi b)
{
    return (vi)_mm256_min_epi32((__m256i)a, (__m256i)b);
}
LANE vf f_sqrt(vf a)
{
    return (vf)_mm256_sqrt_ps((__m256)a);
}
LANE vf f_abs(vf a)
{
    return (vf)_mm256_andnot_ps(_mm256_set1_ps(-0.0f), (__m256)a);
}

/* Ordered comparisons: false where a NaN is. */
LANE vm f_lt(vf a, vf b)
{
    return (vm)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ);
}
LANE vm f_le(vf a, vf b)
{
    return (vm)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ);
}
/* Unordered: true where a NaN is, as C's !=. */
LANE vm f_ne(vf a, vf b)
{
    return (vm)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NEQ_UQ);
}
LANE vm i_eq(vi a, vi b)
{
    return (vm)_mm256_cmpeq_epi32((__m256i)a, (__m256i)b);
}
LANE vm i_lt(vi a, vi b)
{
    return (vm)_mm256_cmpgt_epi32((__m256i)b, (__m256i)a);
}
LANE vm m_none(void)
{
    return i_set(0);
}
LANE vm m_and(vm a, vm b)
{
    return a & b;
}
LANE vm m_or(vm a, vm b)
{
    return a | b;
}
LANE vm m_andnot(vm a, vm b) /* a and not b */
{
    return a & ~b;
}
LANE vm m_not(vm a)
{
    return ~a;
}
/* Lane k's verdict is bit k. */
LANE unsigned m_bits(vm m)
{
    return (unsigned)_mm256_movemask_ps((__m256)m);
}
LANE vf f_pick(vm m, vf a, vf b) /* m ? a : b */
{
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m);
}
LANE vi i_pick(vm m, vi a, vi b)
{
    return (vi)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)m);
}

LANE vi i_load(const int32_t *p)
{
    return (vi)_mm256_loadu_si256((const __m256i *)p);
}
LANE void i_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)a);
}

/* Entries of a table by the lowest two (three, four) bits of the lanes of `at`. A table fills as many vectors
 * as it needs, its first entries repeated if it needs less than one. */
LANE vf f_of_four(const vf *table, vi at)
{
    return (vf)_mm256_permutevar_ps((__m256)*table, (__m256i)at);
}
LANE vf f_of_eight(const vf *table, vi at)
{
    return (vf)_mm256_permutevar8x32_ps((__m256)*table, (__m256i)at);
}
LANE vf f_of_sixteen(const vf *table, vi at)
{
    return (vf)_mm256_blendv_ps((__m256)f_of_eight(table, at), (__m256)f_of_eight(table + 1, at),
                                (__m256)(at << 28));
}
LANE vi i_count(vi a, vm m) /* a + 1 where m, else a */
{
    return a - m;
}
/* Lane j of row k becomes lane k of row j. */
LANE void f_transpose(vf *rows)
{
    __m256 a[8], *r = (__m256 *)rows;
    for (int k = 0; k < 8; k += 2) {
        a[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
        a[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
    }
    for (int k = 0; k < 8; k += 4)
        for (int j = 0; j < 2; j++) {
            __m256d b = (__m256d)a[k + j], c = (__m256d)a[k + j + 2];
            r[k + 2 * j] = (__m256)_mm256_unpacklo_pd(b, c);
            r[k + 2 * j + 1] = (__m256)_mm256_unpackhi_pd(b, c);
        }
    for (int k = 0; k < 4; k++) {
        __m256 b = r[k], c = r[k + 4];
        r[k] = _mm256_permute2f128_ps(b, c, 0x20);
        r[k + 4] = _mm256_permute2f128_ps(b, c, 0x31);
    }
}
/* The least of all lanes, in each. */
LANE vf f_least_of_all(vf a)
{
    __m256 x = (__m256)a;
    x = _mm256_min_ps(x, _mm256_permute2f128_ps(x, x, 1));
    x = _mm256_min_ps(x, _mm256_permute_ps(x, 0x4e));
    return (vf)_mm256_min_ps(x, _mm256_permute_ps(x, 0xb1));
}

/* Stores the lanes where m holds one after another; returns how many. Others may follow them, up to LANES. */
LANE int i_squeeze(int32_t *to, vm m, vi a)
{
    static const uint32_t order[16] = {0,      0x00,     0x01,     0x0100,    0x02,   0x0200,
                                       0x0201, 0x020100, 0x03,     0x0300,    0x0301, 0x030100,
                                       0x0302, 0x030200, 0x030201, 0x03020100};
    const unsigned bits = m_bits(m), low = bits & 15, high = bits >> 4;
    __m128i at = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)order[low]));
    _mm_storeu_ps((float *)to, _mm_permutevar_ps(_mm256_castps256_ps128((__m256)a), at));
    to += __builtin_popcount(low);
    at = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)order[high]));
    _mm_storeu_ps((float *)to, _mm_permutevar_ps(_mm256_extractf128_ps((__m256)a, 1), at));
    return __builtin_popcount(bits);
}

/* 0, 1, 2, ... */
LANE vi i_lanes(void)
{
    return (vi)_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
/* Bits shifted by the lanes of n: none are left where that is 32 or more, or negative. */
LANE vi i_up(vi a, vi n)
{
    return (vi)_mm256_sllv_epi32((__m256i)a, (__m256i)n);
}
LANE vi i_down(vi a, vi n)
{
    return (vi)_mm256_srlv_epi32((__m256i)a, (__m256i)n);
}
/* Lane k of row at[k]; a row is LANES values. */
LANE vf f_of_rows(const float *rows, vi at)
{
    return (vf)_mm256_i32gather_ps(rows, (__m256i)(at * LANES + i_lanes()), 4);
}

#include "quant/lanes_eight.h"

#endif
