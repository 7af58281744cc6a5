/* bench_compensate.c - time of compensate_rows beside what its matrix products alone would take.
 * SPDX-License-Identifier: MIT
 *
 * usage: bench-compensate [ROWS N [PASSES]]
 * The floor is 2 ROWS N^2 (PASSES + 1) operations at the rate of a square product in the same run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/gemm.h"
#include "base/rng.h"
#include "quant/compensate.h"

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,
                                       GGML_TYPE_Q6_K, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,
                                       GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                                       GGML_TYPE_MXFP4};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes);
    if (p == NULL) {
        fprintf(stderr, "bench-compensate: no memory\n");
        exit(1);
    }
    return p;
}

/* The second moment of inputs that lean on a few sources. */
static void make_moment(float *moment, int n)
{
    enum { SOURCES = 64 };
    float *mix = allocate(sizeof *mix * (size_t)n * SOURCES);
    for (int i = 0; i < n * SOURCES; i++)
        mix[i] = (float)(rng_normal(1, (uint64_t)i) * pow(1 + i % SOURCES, -0.5));
    gemm_forward_here(moment, mix, mix, n, n, SOURCES);
    for (int i = 0; i < n; i++)
        moment[(size_t)i * (size_t)n + (size_t)i] += 0.3f;
    free(mix);
}

/* Operations per second, the best of a few. */
static double product_rate(float *a, int n)
{
    enum { SIZE = 1024 };
    const int size = n < SIZE ? n : SIZE;
    float *c = allocate(sizeof *c * SIZE * SIZE);
    double best = 0;
    for (int i = 0; i < 5; i++) {
        const double start = now();
        gemm_strided(false, false, size, size, size, 1, a, n, a, n, 0, c, size);
        best = fmax(best, 2.0 * size * size * size / (now() - start));
    }
    free(c);
    return best;
}

int main(int argc, char **argv)
{
    const int rows = argc > 2 ? atoi(argv[1]) : 512, n = argc > 2 ? atoi(argv[2]) : 2048,
              passes = argc > 3 ? atoi(argv[3]) : 2;
    struct allot_error err;
    struct compensation c;
    if (rows < 1 || n < 256 || n % 256 != 0 || passes < 0) {
        fprintf(stderr, "usage: bench-compensate [ROWS N [PASSES]], N a multiple of 256\n");
        return 2;
    }
    float *moment = allocate(sizeof *moment * (size_t)n * (size_t)n);
    float *weights = allocate(sizeof *weights * (size_t)rows * (size_t)n);
    void *bytes = allocate(sizeof *weights * (size_t)rows * (size_t)n);
    for (int i = 0; i < rows * n; i++)
        weights[i] = (float)(0.02 * rng_normal(2, (uint64_t)i));
    if (gemm_init(&err) != ALLOT_OK) {
        fprintf(stderr, "bench-compensate: %s\n", err.message);
        return 1;
    }
    make_moment(moment, n);
    double start = now();
    if (compensation_init(&c, moment, n, 0, 0.01, &err) != ALLOT_OK) {
        fprintf(stderr, "bench-compensate: %s\n", err.message);
        return 1;
    }
    printf("%d rows of %d, %d passes, one core; %.2f s for the factor\n", rows, n, passes, now() - start);
    printf("%-8s %15s %12s %8s %12s %8s\n", "type", "products Gop/s", "codes s", "/ floor", "scales too", "");
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        float *scratch = allocate(sizeof *scratch * (size_t)compensate_scratch_floats(types[k], n));
        const double rate = product_rate(c.moment, n);
        const double least = 2.0 * rows * n * n * (passes + 1) / rate;
        printf("%-8s %15.1f", ggml_type_name(types[k]), 1e-9 * rate);
        for (int scales = 0; scales < 2; scales++) {
            const struct compensation_options options = {passes, scales};
            if (quant_rows(types[k], weights, bytes, rows, n, NULL) == QUANT_INFEASIBLE)
                return 1;
            start = now();
            if (compensate_rows(types[k], weights, bytes, rows, n, &c, &options, scratch, &err) != ALLOT_OK) {
                fprintf(stderr, "bench-compensate: %s\n", err.message);
                return 1;
            }
            const double spent = now() - start;
            printf(" %12.2f %8.2f", spent, spent / least);
        }
        printf("\n");
        fflush(stdout);
        free(scratch);
    }
    compensation_release(&c);
    free(moment);
    free(weights);
    free(bytes);
    return 0;
}
