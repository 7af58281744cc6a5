/* sort.h - weights in ggml's order.  SPDX-License-Identifier: MIT
 *
 * Inside lib/quant only. */
#ifndef ALLOT_QUANT_SORT_H
#define ALLOT_QUANT_SORT_H

#include <stdbool.h>
#include <stdint.h>

/* A weight and its place. */
struct quant_pair {
    float value;
    int32_t place;
};

/* Sorts by value as ggml does: equal values in the order that the C library's qsort gives them. */
void quant_sort_pairs(struct quant_pair *pairs, int n);

/* Whether that is the order in which they were, for up to 32 pairs. */
bool quant_sort_is_stable(void);

#endif
