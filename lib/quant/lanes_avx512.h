/* lanes_avx512.h - the vector vocabulary of the kernels, sixteen lanes; see lanes_avx2.h.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_QUANT_LANES_H
#define ALLOT_QUANT_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef __mmask16 vm;

#define LANE static inline __attribute__((always_inline))

LANE vf f_set(float x)
{
    return (vf)_mm512_set1_ps(x);
}
LANE vi i_set(int32_t x)
{
    return (vi)_mm512_set1_epi32(x);
}
LANE vf f_load(const float *p)
{
    return (vf)_mm512_loadu_ps(p);
}
LANE void f_store(float *p, vf x)
{
    _mm512_storeu_ps(p, (__m512)x);
}
LANE void store_bytes(uint8_t *p, vi a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)a));
}
LANE vf f_most(vf a, vf b)
{
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
LANE vf f_least(vf a, vf b)
{
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
LANE vi i_most(vi a, vi b)
{
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
LANE vi i_least(vi a, vi b)
{
    return (vi)_mm512_min_epi32((__m512i)a, (__m512i)b);
}
LANE vf f_sqrt(vf a)
{
    return (vf)_mm512_sqrt_ps((__m512)a);
}
LANE vf f_abs(vf a)
{
    return (vf)_mm512_abs_ps((__m512)a);
}
LANE vm f_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
}
LANE vm f_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ);
}
LANE vm f_ne(vf a, vf b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ);
}
LANE vm i_eq(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b);
}
LANE vm i_lt(vi a, vi b)
{
    return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b);
}
LANE vm m_none(void)
{
    return 0;
}
LANE vm m_and(vm a, vm b)
{
    return a & b;
}
LANE vm m_or(vm a, vm b)
{
    return a | b;
}
LANE vm m_andnot(vm a, vm b)
{
    return (vm)(a & ~b);
}
LANE vm m_not(vm a)
{
    return (vm)~a;
}
LANE unsigned m_bits(vm m)
{
    return m;
}
LANE vf f_pick(vm m, vf a, vf b)
{
    return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a);
}
LANE vi i_pick(vm m, vi a, vi b)
{
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}
LANE vi i_load(const int32_t *p)
{
    return (vi)_mm512_loadu_si512(p);
}
LANE void i_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, (__m512i)a);
}
LANE vf f_of_four(const vf *table, vi at)
{
    return (vf)_mm512_permutevar_ps((__m512)*table, (__m512i)at);
}
LANE vf f_of_eight(const vf *table, vi at)
{
    return (vf)_mm512_permutexvar_ps((__m512i)at, (__m512)*table);
}
LANE vf f_of_sixteen(const vf *table, vi at)
{
    return (vf)_mm512_permutexvar_ps((__m512i)at, (__m512)*table);
}
LANE vi i_count(vi a, vm m)
{
    return (vi)_mm512_mask_add_epi32((__m512i)a, m, (__m512i)a, _mm512_set1_epi32(1));
}
LANE void f_transpose(vf *rows)
{
    __m512 a[16], *r = (__m512 *)rows;
    for (int k = 0; k < 16; k += 2) {
        a[k] = _mm512_unpacklo_ps(r[k], r[k + 1]);
        a[k + 1] = _mm512_unpackhi_ps(r[k], r[k + 1]);
    }
    for (int k = 0; k < 16; k += 4)
        for (int j = 0; j < 2; j++) {
            __m512d b = (__m512d)a[k + j], c = (__m512d)a[k + j + 2];
            r[k + 2 * j] = (__m512)_mm512_unpacklo_pd(b, c);
            r[k + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(b, c);
        }
    for (int k = 0; k < 4; k++) {
        __m512 b = _mm512_shuffle_f32x4(r[k], r[k + 4], 0x88), c = _mm512_shuffle_f32x4(r[k], r[k + 4], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0x88);
        __m512 e = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0xdd);
        r[k] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[k + 4] = _mm512_shuffle_f32x4(c, e, 0x88);
        r[k + 8] = _mm512_shuffle_f32x4(b, d, 0xdd);
        r[k + 12] = _mm512_shuffle_f32x4(c, e, 0xdd);
    }
}
LANE vf f_least_of_all(vf a)
{
    __m512 x = (__m512)a;
    x = _mm512_min_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = _mm512_min_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_min_ps(x, _mm512_permute_ps(x, 0x4e));
    return (vf)_mm512_min_ps(x, _mm512_permute_ps(x, 0xb1));
}
LANE int i_squeeze(int32_t *to, vm m, vi a)
{
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(m, (__m512i)a));
    return __builtin_popcount(m);
}

LANE vi i_lanes(void)
{
    return (vi)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
LANE vi i_up(vi a, vi n)
{
    return (vi)_mm512_sllv_epi32((__m512i)a, (__m512i)n);
}
LANE vi i_down(vi a, vi n)
{
    return (vi)_mm512_srlv_epi32((__m512i)a, (__m512i)n);
}
LANE vf f_of_rows(const float *rows, vi at)
{
    return (vf)_mm512_i32gather_ps((__m512i)(at * LANES + i_lanes()), rows, 4);
}

#include "quant/lanes_eight.h"

#endif
