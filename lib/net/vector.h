/* vector.h - short vector loops that compilers can vectorise without relaxed floating point.
 *
 * SPDX-License-Identifier: MIT
 *
 * Sums keep LANES interleaved partial sums and fold them in a fixed order, so the result is the
 * same on every processor; contraction of a*b+c is off for the whole program.
 */
#ifndef ALLOT_NET_VECTOR_H
#define ALLOT_NET_VECTOR_H

#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

/* One body, compiled for several instruction sets and chosen when the program is loaded. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

/* exp(x) = 2^k exp(r), r = x - k ln 2 in two parts (Cody and Waite), exp(r) by its series to r^7
 * in Horner form. Clamped to [-87.3, 88.7]; relative error under 2e-7. NaN stays NaN. */
static inline float exp_inline(float x)
{
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.7f ? 88.7f : x;
    float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* to nearest */
    float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* in two halves, so that 2^k stays a normal number at both ends of the range */
    int32_t e = (int32_t)(k > -126.0f ? k : -126.0f), half = e / 2, rest = e - half; /* k may be NaN */
    int32_t bits1 = (half + 127) * (1 << 23), bits2 = (rest + 127) * (1 << 23);
    float s1, s2;
    memcpy(&s1, &bits1, sizeof s1);
    memcpy(&s2, &bits2, sizeof s2);
    return p * s1 * s2;
}

double dot(const float *a, const float *b, int64_t n);
double dot3(const float *a, const float *b, const float *c, int64_t n);

#endif
