/* kernels_avx2.c - the fast quantizers for processors with AVX2.  SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2")
#endif
#include "quant/lanes_avx2.h"

#define KERNEL_SET quant_kernels_avx2
#define KERNEL_SET_NAME "avx2"
#include "quant/kernel_set.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
