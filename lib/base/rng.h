/* rng.h - counter-based random numbers: a value depends on its key and counter only, so that any
 * draw can be repeated, in any order, by any thread.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_RNG_H
#define ALLOT_BASE_RNG_H

#include <math.h>
#include <stdint.h>

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t rng_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t rng_u64(uint64_t key, uint64_t counter)
{
    return rng_mix(rng_mix(key + 0x9e3779b97f4a7c15u) + counter * 0x9e3779b97f4a7c15u);
}

/* The upper 52 bits as the middle of one of 2^52 equal intervals of (0, 1). With one bit more the largest
 * would round to 1. */
static inline double rng_unit(uint64_t bits)
{
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

/* Uniform in (0, 1), never 0 or 1. */
static inline double rng_uniform(uint64_t key, uint64_t counter)
{
    return rng_unit(rng_u64(key, counter));
}

/* Standard normal (Box-Muller). */
static inline double rng_normal(uint64_t key, uint64_t counter)
{
    double u = rng_uniform(key, 2 * counter), v = rng_uniform(key, 2 * counter + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
