/* bench_plan.c - how long a plan takes, for models of 211 and 1,000 tensors.
 * SPDX-License-Identifier: MIT
 *
 * Prints one row per model and budget: milliseconds, proven relative gap, bytes left unused.
 * Usage: bench_plan [SEED] */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "plan/plan.h"

/* Bytes per block of 256 weights: IQ1_S to Q8_0, F16. */
static const int block_bytes[] = {50,  56,  66,  74,  82,  84,  98,  100, 110, 112, 136, 136, 144,
                                  144, 148, 160, 164, 176, 176, 180, 192, 196, 210, 272, 512};
enum { N_TYPES = sizeof block_bytes / sizeof block_bytes[0] };

/* Costs fall fourfold per bit, with noise; tensors differ widely in how much they matter. */
static void fill(struct plan_item *items, struct plan_choice *choices, size_t n, uint64_t seed,
                 int64_t *weights)
{
    static const int64_t sizes[] = {2048 * 2048, 2048 * 512, 5632 * 2048, 2048 * 5632, 5632 * 2048};

    *weights = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t size = sizes[i % 5];
        double scale = exp(1.2 * rng_normal(seed, i)) * (double)size;

        for (int j = 0; j < N_TYPES; j++) {
            double bpw = block_bytes[j] / 32.0;
            double noise = exp(0.2 * rng_normal(seed + 1, i * N_TYPES + (size_t)j));

            choices[i * N_TYPES + (size_t)j] =
                (struct plan_choice){j, size / 256 * block_bytes[j], 1e-9 * scale * exp2(-2 * bpw) * noise};
        }
        items[i] = (struct plan_item){"tensor", &choices[i * N_TYPES], N_TYPES};
        *weights += size;
    }
}

static int run(size_t n, uint64_t seed)
{
    static const double bpws[] = {2.1, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7};
    struct plan_item *items = calloc(n, sizeof *items);
    struct plan_choice *choices = calloc(n * N_TYPES, sizeof *choices);
    size_t *chosen = calloc(n, sizeof *chosen);
    int failed = 0;
    int64_t weights;

    if (!items || !choices || !chosen)
        return 1;
    fill(items, choices, n, seed, &weights);
    for (size_t b = 0; b < sizeof bpws / sizeof bpws[0] && !failed; b++) {
        int64_t budget = (int64_t)((double)weights * bpws[b] / 8);
        struct plan_result result;
        struct allot_error err;
        double start = seconds_now();

        if (plan_solve(items, n, 0, budget, chosen, &result, &err)) {
            fprintf(stderr, "bench_plan: %s\n", err.message);
            failed = 1;
        } else {
            printf("%5zu tensors x %d types  %.1f bpw  %7.1f ms  gap %.1e  %s  %lld bytes unused\n", n,
                   N_TYPES, bpws[b], 1e3 * (seconds_now() - start),
                   (result.cost - result.lower_bound) / result.cost, result.exact ? "exact" : "bound",
                   (long long)(budget - result.bytes));
        }
    }
    free(items);
    free(choices);
    free(chosen);
    return failed;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;

    printf("seed %llu\n", (unsigned long long)seed);
    return run(211, seed) || run(1000, seed);
}
