/* kernels_avx512.c - the fast quantizers for processors with AVX-512.  SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,bmi,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,bmi,bmi2,prefer-vector-width=512")
#endif
#include "quant/lanes_avx512.h"

#define KERNEL_SET quant_kernels_avx512
#define KERNEL_SET_NAME "avx512"
#include "quant/kernel_set.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
