/* kernel_set.h - the kernels of one instruction set; kernels_SET.c includes it once.
 * SPDX-License-Identifier: MIT
 *
 * Before: a vocabulary of lanes (lanes_avx2.h says what it must have), KERNEL_SET, the name of the variable
 * that holds the set, and KERNEL_SET_NAME, its name for people. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/grids.h"
#include "quant/kernels.h"
#include "quant/sort.h"

#include "quant/numbers.h"

#include "quant/batch_fill.h"
#include "quant/store.h"

#include "quant/round_plain.h"

#include "quant/search_refit.h"

#include "quant/search_affine.h"

#include "quant/search_scale.h"

#include "quant/search_iq4.h"

#include "quant/search_grid.h"

#include "quant/search_splits.h"

#include "quant/search_ternary.h"

static const struct quant_kernel kernels[] = {
    {GGML_TYPE_Q4_0, 32, WEIGHT_NONE, WEIGHT_ROW, encode_q4_0},
    {GGML_TYPE_Q5_0, 32, WEIGHT_NONE, WEIGHT_ROW, encode_q5_0},
    {GGML_TYPE_Q4_1, 32, WEIGHT_NONE, WEIGHT_ROW, encode_q4_1},
    {GGML_TYPE_Q5_1, 32, WEIGHT_NONE, WEIGHT_ROW, encode_q5_1},
    {GGML_TYPE_Q8_0, 32, WEIGHT_NONE, WEIGHT_NONE, encode_q8_0},
    {GGML_TYPE_Q2_K, 16, WEIGHT_MAGNITUDE, WEIGHT_SUPER, encode_q2_k},
    {GGML_TYPE_Q3_K, 16, WEIGHT_SQUARE, WEIGHT_SUPER_2, encode_q3_k},
    {GGML_TYPE_Q4_K, 32, WEIGHT_UNIT_RMS, WEIGHT_SUPER_2, encode_q4_k},
    {GGML_TYPE_Q5_K, 32, WEIGHT_UNIT_RMS, WEIGHT_SUPER_2, encode_q5_k},
    {GGML_TYPE_Q6_K, 16, WEIGHT_SQUARE, WEIGHT_RAW, encode_q6_k},
    {GGML_TYPE_IQ4_NL, 32, WEIGHT_SQUARE, WEIGHT_BLOCK, encode_iq4_nl},
    {GGML_TYPE_IQ4_XS, 32, WEIGHT_SQUARE, WEIGHT_SUPER_2, encode_iq4_xs},
    {GGML_TYPE_IQ2_XXS, 32, WEIGHT_GGML, WEIGHT_SUPER, encode_iq2_xxs},
    {GGML_TYPE_IQ2_XS, 16, WEIGHT_GGML, WEIGHT_SUPER, encode_iq2_xs},
    {GGML_TYPE_IQ2_S, 16, WEIGHT_HALF_SUPER, WEIGHT_SUPER_2, encode_iq2_s},
    {GGML_TYPE_IQ3_XXS, 32, WEIGHT_SQUARE, WEIGHT_SUPER_2, encode_iq3_xxs},
    {GGML_TYPE_IQ3_S, 32, WEIGHT_SQUARE, WEIGHT_SUPER_2, encode_iq3_s},
    {GGML_TYPE_IQ1_S, 32, WEIGHT_GGML, WEIGHT_SUPER_2, encode_iq1_s},
    {GGML_TYPE_IQ1_M, 16, WEIGHT_SQUARE, WEIGHT_SUPER_2, encode_iq1_m},
};

const struct quant_kernel_set KERNEL_SET = {
    .name = KERNEL_SET_NAME,
    .kernels = kernels,
    .n = sizeof kernels / sizeof *kernels,
    .fill = batch_fill,
    .row_squares = sums_of_squares,
};
