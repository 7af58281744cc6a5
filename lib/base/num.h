/* num.h - small arithmetic on sizes.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_NUM_H
#define ALLOT_BASE_NUM_H

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Pieces of `size` that cover n. */
static inline int64_t parts_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* The least multiple of `size` that is not below n. */
static inline int64_t rounded_up(int64_t n, int64_t size)
{
    return parts_of(n, size) * size;
}

#endif
