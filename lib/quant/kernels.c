/* kernels.c - which kernels are used, and rows cut into batches for them.  SPDX-License-Identifier: MIT */
#include "quant/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/rng.h"

#if defined(__x86_64__)
extern const struct quant_kernel_set quant_kernels_avx512, quant_kernels_avx2;
#endif

/* ---- The sets ----------------------------------------------------------------------------------------- */

enum { MOST_SETS = 3 };

static const struct quant_kernel_set *sets[MOST_SETS + 1];
static pthread_once_t sets_once = PTHREAD_ONCE_INIT;

static void find_sets(void)
{
    const char *first = getenv("ALLOT_QUANT_KERNELS");
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        sets[n++] = &quant_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        sets[n++] = &quant_kernels_avx2;
#endif
    sets[n] = NULL;
    if (first == NULL || first[0] == '\0')
        return;
    int skip = 0;
    while (sets[skip] != NULL && strcmp(sets[skip]->name, first) != 0)
        skip++;
    memmove(sets, sets + skip, sizeof *sets * (size_t)(n - skip + 1));
}

const struct quant_kernel_set *const *quant_kernel_sets(void)
{
    pthread_once(&sets_once, find_sets);
    return sets;
}

/* ---- Sorting --------------------------------------------------------------------------------------------
 */

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

/* ---- Rows in batches ------------------------------------------------------------------------------------
 */

enum { ROWS_TOGETHER = 64 }; /* whose sums of squares are kept */

void quant_kernel_rows(const struct quant_kernel_set *set, const struct quant_kernel *kernel,
                       const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    const enum weighting weighting = imatrix ? kernel->with : kernel->without;
    const size_t row_bytes = ggml_row_size(kernel->type, n_per_row);
    float squares[ROWS_TOGETHER];
    struct batch batch;
    for (int64_t row = 0; row < n_rows; row += ROWS_TOGETHER) {
        const int64_t n = least(ROWS_TOGETHER, n_rows - row) * n_per_row;
        const struct batch_source source = {src + row * n_per_row, imatrix, squares, n_per_row};
        uint8_t *out = (uint8_t *)dst + (size_t)row * row_bytes;
        if (weighting == WEIGHT_ROW)
            set->row_squares(squares, source.src, n / n_per_row, n_per_row);
        for (int64_t start = 0; start < n; start += BATCH) {
            set->fill(&batch, &source, start, (int)least(BATCH, n - start), kernel->unit, weighting);
            kernel->encode(&batch, out + ggml_row_size(kernel->type, start));
        }
    }
}
