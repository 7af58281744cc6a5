/* lanes_eight.h - eight lanes in every set of kernels, for x86 processors with AVX2.
 * SPDX-License-Identifier: MIT
 *
 * Part of a vocabulary of lanes: what is better done eight at a time, short lists for one. */

typedef float ef __attribute__((vector_size(32)));
typedef int32_t ei __attribute__((vector_size(32)));

LANE ef e_set(float x)
{
    return (ef)_mm256_set1_ps(x);
}
LANE ef e_load(const float *p)
{
    return (ef)_mm256_loadu_ps(p);
}
/* Integers of 16 bits, widened. */
LANE ei e_load_words(const uint16_t *p)
{
    return (ei)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
LANE ef e_least(ef a, ef b)
{
    return (ef)_mm256_min_ps((__m256)a, (__m256)b);
}
/* The least of all lanes, in each. */
LANE ef e_least_of_all(ef a)
{
    __m256 x = (__m256)a;
    x = _mm256_min_ps(x, _mm256_permute2f128_ps(x, x, 1));
    x = _mm256_min_ps(x, _mm256_permute_ps(x, 0x4e));
    return (ef)_mm256_min_ps(x, _mm256_permute_ps(x, 0xb1));
}
/* Lane k's verdict is bit k. */
LANE unsigned e_le(ef a, ef b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ));
}
/* Entries of a table by the lowest two bits of `at` (the table is there twice); by the lowest three. */
LANE ef e_of_four(ef table, ei at)
{
    return (ef)_mm256_permutevar_ps((__m256)table, (__m256i)at);
}
LANE ef e_of_eight(ef table, ei at)
{
    return (ef)_mm256_permutevar8x32_ps((__m256)table, (__m256i)at);
}
