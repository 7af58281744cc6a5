/* kernels.c - which kernels are used, and rows cut into batches for them.  SPDX-License-Identifier: MIT */
#include "quant/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "quant/grids.h"

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
    const bool has_bmi = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && has_bmi)
        sets[n++] = &quant_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && has_bmi)
        sets[n++] = &quant_kernels_avx2;
#endif
    sets[n] = NULL;
    if (first == NULL || first[0] == '\0')
        return;
    int skip = 0;
    while (sets[skip] != NULL && strcmp(sets[skip]->name, first) != 0)
        skip++;
    if (skip == n && strcmp(first, "ggml") != 0)
        return;
    memmove(sets, sets + skip, sizeof *sets * (size_t)(n - skip + 1));
}

const struct quant_kernel_set *const *quant_kernel_sets(void)
{
    pthread_once(&sets_once, find_sets);
    return sets;
}

/* ---- Rows in batches ------------------------------------------------------------------------------------
 */

enum { ROWS_TOGETHER = 64 }; /* whose sums of squares are kept */

static enum weighting weighting_of(const struct quant_kernel *kernel, bool importances)
{
    return importances ? kernel->with : kernel->without;
}

void quant_kernel_batches(const struct quant_kernel_set *set, const struct quant_kernel *kernel,
                          const float *src, int64_t n_rows, int64_t n_per_row, const float *imatrix,
                          batch_function *function, void *user)
{
    const enum weighting weighting = weighting_of(kernel, imatrix != NULL);
    float squares[ROWS_TOGETHER];
    struct batch batch;
    for (int64_t row = 0; row < n_rows; row += ROWS_TOGETHER) {
        const int64_t n = least(ROWS_TOGETHER, n_rows - row) * n_per_row;
        const struct batch_source source = {src + row * n_per_row, imatrix, squares, n_per_row};
        if (weighting == WEIGHT_ROW)
            set->row_squares(squares, source.src, n / n_per_row, n_per_row);
        for (int64_t start = 0; start < n; start += BATCH) {
            set->fill(&batch, &source, start, (int)least(BATCH, n - start), kernel->unit, weighting);
            function(user, &batch, row * n_per_row + start);
        }
    }
}

bool quant_kernels_alike(const struct quant_kernel *a, const struct quant_kernel *b, bool importances)
{
    return a->unit == b->unit && weighting_of(a, importances) == weighting_of(b, importances);
}

struct encoding {
    const struct quant_kernel *kernel;
    uint8_t *out;
};

static void encode_batch(void *user, const struct batch *batch, int64_t start)
{
    const struct encoding *e = user;
    e->kernel->encode(batch, e->out + ggml_row_size(e->kernel->type, start));
}

void quant_kernel_rows(const struct quant_kernel_set *set, const struct quant_kernel *kernel,
                       const float *src, void *dst, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    struct encoding e = {kernel, dst};
    quant_kernel_batches(set, kernel, src, n_rows, n_per_row, imatrix, encode_batch, &e);
}

/* ---- Are the bytes those of the linked ggml? ------------------------------------------------------------
 */

enum { TEST_WEIGHTS = 4 * BATCH + SUPER_BLOCK, TEST_KINDS = 4 };

/* Weights with which products added without rounding in between would show: those of one sign with little
 * between them, whose fits are ill-conditioned, and ordinary ones. */
static void test_weights(float *x, float *q)
{
    for (int64_t i = 0; i < TEST_WEIGHTS; i++) {
        const int64_t kind = i / SUPER_BLOCK % TEST_KINDS;
        const float noise = (float)rng_normal(101, (uint64_t)i);
        x[i] = kind == 0   ? 0.02f * noise
               : kind == 1 ? 1 + 1e-6f * noise
               : kind == 2 ? -3 + 1e-3f * noise
                           : noise;
        q[i] = 1e-3f + (float)rng_uniform(102, (uint64_t)i);
    }
}

static bool same_bytes(const struct quant_kernel_set *set, const struct quant_kernel *kernel, const float *x,
                       const float *q, uint8_t *theirs, uint8_t *ours)
{
    for (int with = 0; with < 2; with++) {
        if (weighting_of(kernel, with) == WEIGHT_GGML)
            continue;
        const size_t n = ggml_quantize_chunk(kernel->type, x, theirs, 0, 1, TEST_WEIGHTS, with ? q : NULL);
        quant_kernel_rows(set, kernel, x, ours, 1, TEST_WEIGHTS, with ? q : NULL);
        if (memcmp(theirs, ours, n) != 0)
            return false;
    }
    return true;
}

bool quant_kernel_serves(const struct quant_kernel_set *set, const struct quant_kernel *kernel)
{
    float *x = malloc(sizeof *x * 4 * TEST_WEIGHTS);
    if (x == NULL)
        return false;
    float *q = x + TEST_WEIGHTS;
    uint8_t *theirs = (uint8_t *)(q + TEST_WEIGHTS), *ours = theirs + sizeof *x * TEST_WEIGHTS;
    test_weights(x, q);
    const bool same = same_bytes(set, kernel, x, q, theirs, ours);
    free(x);
    return same;
}

static bool trusted[GGML_TYPE_COUNT];
static pthread_once_t test_once = PTHREAD_ONCE_INIT;

/* Searches for which ggml builds its grids, seconds long, are trusted with the others: all are compiled
 * alike. */
static void test_kernels(void)
{
    const struct quant_kernel_set *set = quant_kernel_sets()[0];
    bool all = true;
    for (size_t i = 0; i < set->n; i++) {
        const struct quant_kernel *k = &set->kernels[i];
        if (quant_type_find(k->type)->searches_grid)
            continue;
        trusted[k->type] = quant_kernel_serves(set, k);
        all = all && trusted[k->type];
    }
    for (size_t i = 0; i < set->n; i++)
        if (quant_type_find(set->kernels[i].type)->searches_grid)
            trusted[set->kernels[i].type] = all;
}

const struct quant_kernel *quant_kernel_find(enum ggml_type type, bool with_importances,
                                             const struct quant_kernel_set **set)
{
    *set = quant_kernel_sets()[0];
    if (*set == NULL)
        return NULL;
    for (size_t i = 0; i < (*set)->n; i++) {
        const struct quant_kernel *k = &(*set)->kernels[i];
        if (k->type != type)
            continue;
        if (weighting_of(k, with_importances) == WEIGHT_GGML)
            return NULL;
        pthread_once(&test_once, test_kernels);
        const bool grid = quant_type_find(type)->searches_grid;
        return trusted[type] && (!grid || quant_grid_of(type)) ? k : NULL;
    }
    return NULL;
}
