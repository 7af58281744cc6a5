/* chunk.c - sums over chunks of tokens of g_t' D_j x_t.  SPDX-License-Identifier: MIT
 *
 * Compiled with contraction of a*b+c (CMakeLists.txt): these sums need not have another processor's bits. */
#include "cost/chunk.h"

#include <stddef.h>

#define CHUNK_JOIN(a, b) a##b
#define CHUNK_NAME(prefix, name) CHUNK_JOIN(prefix, name)

#if defined(__x86_64__)
#define NAME avx512
#define LANES 16
#define ROWS 12
#define TARGET __attribute__((target("avx512f,fma")))
#include "cost/chunk_tile.h"

#define NAME avx2
#define LANES 8
#define ROWS 6
#define TARGET __attribute__((target("avx2,fma")))
#include "cost/chunk_tile.h"
#endif

/* Any processor with sixteen registers of four floats. */
#define NAME plain
#define LANES 4
#define ROWS 6
#define TARGET
#include "cost/chunk_tile.h"

#define KERNEL(name)                                                    \
    {                                                                   \
#name, rows_##name, 2 * lanes_##name, lanes_##name, tile_##name \
    }

static const struct chunk_kernel kernels[] = {
#if defined(__x86_64__)
    KERNEL(avx512),
    KERNEL(avx2),
#endif
    KERNEL(plain),
};

const struct chunk_kernel *chunk_kernels(int *n)
{
    int first = 0, all = sizeof kernels / sizeof *kernels;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f"))
        first = 1;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        first = 2;
#endif
    *n = all - first;
    return kernels + first;
}
