/* bench_quant.c - nanoseconds per weight of quant_rows for every type on one core, beside ggml_quantize_chunk
 * in the same run.  SPDX-License-Identifier: MIT
 *
 * usage: bench_quant [TYPE...]
 * "ggml / allot" is the gain: 1.00 when quant_rows only calls ggml and checks the bytes. The seconds that
 * ggml takes to build its search grids, once per process, are listed apart. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "quant/quant.h"

enum { ROW = 2048, N_ROWS = 16, N = ROW * N_ROWS };

/* Long enough for the clock, short enough for the slowest types. */
static const double least_seconds = 0.1;

static float weights[N], importances[ROW];
static unsigned char bytes[N * 4];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one pass over all weights. */
static double pass(const struct quant_type *type, const float *imatrix, int with_allot)
{
    const double start = now();
    if (with_allot) {
        if (quant_rows(type->type, weights, bytes, N_ROWS, ROW, imatrix) != QUANT_OK)
            fprintf(stderr, "%s: not plainly quantized\n", type->name);
    } else {
        ggml_quantize_chunk(type->type, weights, bytes, 0, N_ROWS, ROW, imatrix);
    }
    return now() - start;
}

/* Nanoseconds per weight of both, the least of alternating passes, so that both meet the same disturbances.
 */
static void measure(const struct quant_type *type, const float *imatrix, double ns[2])
{
    double least[2] = {INFINITY, INFINITY}, spent = 0;
    for (int i = 0; i < 6 || spent < least_seconds; i++) {
        const double seconds = pass(type, imatrix, i % 2);
        least[i % 2] = seconds < least[i % 2] ? seconds : least[i % 2];
        spent += seconds;
        if (i >= 1 && spent > 20 * least_seconds)
            break;
    }
    for (int k = 0; k < 2; k++)
        ns[k] = 1e9 * least[k] / N;
}

static int chosen(const struct quant_type *type, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (quant_type_by_name(argv[i]) == type)
            return 1;
    return argc == 1;
}

int main(int argc, char **argv)
{
    size_t n_types;
    const struct quant_type *types = quant_types(&n_types);
    double total[2][2] = {{0}}, grids = 0; /* [with imatrix][ggml, allot] */
    for (int i = 1; i < argc; i++) {
        if (!quant_type_by_name(argv[i])) {
            fprintf(stderr, "bench_quant: unknown type %s; known are %s\n", argv[i], quant_type_names());
            return 2;
        }
    }
    for (int i = 0; i < N; i++)
        weights[i] = (float)(0.02 * rng_normal(1, (uint64_t)i));
    for (int i = 0; i < ROW; i++)
        importances[i] = (float)exp(2 * rng_normal(2, (uint64_t)i));

    printf("nanoseconds per weight, one core, rows of %d\n", ROW);
    printf("%-8s  %25s  %25s  %7s\n", "", "with imatrix", "without", "grid");
    printf("%-8s  %8s %8s %7s  %8s %8s %7s  %7s\n", "type", "ggml", "allot", "gain", "ggml", "allot", "gain",
           "seconds");
    for (size_t k = 0; k < n_types; k++) {
        if (!chosen(&types[k], argc, argv))
            continue;
        const double start = now();
        ggml_quantize_init(types[k].type);
        const double grid = now() - start;
        printf("%-8s", types[k].name);
        for (int without = 0; without < 2; without++) {
            double ns[2];
            if (without && types[k].aborts_without) {
                printf("  %8s %8s %7s", "-", "-", "-");
                continue;
            }
            measure(&types[k], without ? NULL : importances, ns);
            printf("  %8.1f %8.1f %7.2f", ns[0], ns[1], ns[0] / ns[1]);
            for (int who = 0; who < 2 && types[k].default_candidate; who++)
                total[!without][who] += ns[who];
        }
        printf("  %7.2f\n", grid);
        fflush(stdout);
        grids += grid;
    }
    printf("%-8s  %8.0f %8.0f %7.2f  %8.0f %8.0f %7.2f  %7.2f   (default candidates)\n", "sum", total[1][0],
           total[1][1], total[1][0] / total[1][1], total[0][0], total[0][1], total[0][0] / total[0][1],
           grids);
    return 0;
}
