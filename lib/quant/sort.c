/* sort.c - weights in ggml's order.  SPDX-License-Identifier: MIT */
#include "quant/sort.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/rng.h"

static bool sort_stable;
static pthread_once_t sort_once = PTHREAD_ONCE_INIT;

static int compare_pairs(const void *left, const void *right)
{
    const float l = ((const struct quant_pair *)left)->value, r = ((const struct quant_pair *)right)->value;
    return l < r ? -1 : l > r;
}

void quant_sort_pairs(struct quant_pair *pairs, int n)
{
    qsort(pairs, (size_t)n, sizeof *pairs, compare_pairs);
}

/* glibc has a merge sort for as few pairs as matter here. That it still is one is tried out, with few and
 * many equal values, rising, falling and in no order; other libraries are not trusted. */
static void find_whether_stable(void)
{
#if defined(__GLIBC__)
    struct quant_pair pairs[32];
    sort_stable = true;
    for (uint64_t test = 0; test < 2048; test++) {
        const int n = test % 2 == 0 ? 16 : 32, values = 1 + (int)(test / 8 % 24);
        for (int i = 0; i < n; i++) {
            int value = (int)(rng_u64(test, (uint64_t)i) % (uint64_t)values);
            if (test / 2 % 4 < 2)
                value = (test / 2 % 4 == 0 ? i : n - 1 - i) * values / n;
            pairs[i] = (struct quant_pair){(float)value, i};
        }
        quant_sort_pairs(pairs, n);
        for (int i = 1; i < n; i++)
            sort_stable &= pairs[i - 1].value < pairs[i].value || pairs[i - 1].place < pairs[i].place;
    }
#endif
}

bool quant_sort_is_stable(void)
{
    pthread_once(&sort_once, find_whether_stable);
    return sort_stable;
}
