/* compensate_avx2.c - the steps of compensate.c for processors with AVX2.  SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define COMPENSATE_STEPS compensate_steps_avx2
#include "quant/compensate_loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
