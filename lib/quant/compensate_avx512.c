/* compensate_avx512.c - the steps of compensate.c for processors with AVX-512.  SPDX-License-Identifier: MIT
 */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,prefer-vector-width=512")
#endif
#define COMPENSATE_STEPS compensate_steps_avx512
#include "quant/compensate_loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
