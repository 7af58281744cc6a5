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

/* ---- Rows in batches ------------------------------------------------------------------------------------ */

enum { ROWS_TOGETHER = 64 }; /* whose sums of squares are kept */

void quant_kernel_rows(const struct quant_kernel_set *set, const struct quant_kernel *kernel, const float *src,
                       void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
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
