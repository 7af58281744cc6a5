/* bench_plan.c - how long a plan takes, for models of 211 and 1,000 tensors.
 * SPDX-License-Identifier: MIT
 *
 * Prints one row per model and budget: milliseconds, proven relative gap, bytes left unused; with costs as
 * models have them, then with random ones, then with limits on a third of the tensors each.
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

enum kind { REALISTIC, RANDOM, LIMITED };
static const char *const kind_names[] = {"realistic", "random", "limited"};

/* Realistic costs fall fourfold per bit, with noise; tensors differ widely in how much they matter. Random
 * ones know nothing of bits. */
static void fill(struct plan_item *items, struct plan_choice *choices, size_t n, enum kind kind,
                 uint64_t seed, int64_t *weights)
{
    static const int64_t sizes[] = {2048 * 2048, 2048 * 512, 5632 * 2048, 2048 * 5632, 5632 * 2048};

    *weights = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t size = sizes[i % 5];
        double scale = exp(1.2 * rng_normal(seed, i)) * (double)size;

        for (int j = 0; j < N_TYPES; j++) {
            double bpw = block_bytes[j] / 32.0;
            double noise = exp(0.2 * rng_normal(seed + 1, i * N_TYPES + (size_t)j));

            double cost = kind == RANDOM ? rng_uniform(seed + 2, i * N_TYPES + (size_t)j)
                                         : 1e-9 * scale * exp2(-2 * bpw) * noise;

            choices[i * N_TYPES + (size_t)j] = (struct plan_choice){j, size / 256 * block_bytes[j], cost};
        }
        items[i] = (struct plan_item){"tensor", &choices[i * N_TYPES], N_TYPES};
        *weights += size;
    }
}

struct bench {
    struct plan_item *items;
    struct plan_choice *choices;
    size_t *chosen, *limit_of;
    size_t n;
    int64_t weights;
};

/* A third of the tensors may have a quarter, another a third of the bytes. */
static int solve(const struct bench *b, enum kind kind, int64_t budget, struct plan_result *result,
                 struct allot_error *err)
{
    const struct plan_limit list[] = {{"first", budget / 4}, {"second", budget / 3}};
    const struct plan_limits limits = {list, 2, b->limit_of};

    if (kind != LIMITED)
        return (int)plan_solve(b->items, b->n, 0, budget, b->chosen, result, err);
    return (int)plan_solve_limited(b->items, b->n, &limits, 0, budget, b->chosen, result, NULL, err);
}

static int ladder(struct bench *b, enum kind kind, uint64_t seed)
{
    static const double bpws[] = {2.1, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7};

    fill(b->items, b->choices, b->n, kind, seed, &b->weights);
    for (size_t i = 0; i < b->n; i++)
        b->limit_of[i] = i % 3 < 2 ? i % 3 : PLAN_UNLIMITED;
    for (size_t k = 0; k < sizeof bpws / sizeof bpws[0]; k++) {
        int64_t budget = (int64_t)((double)b->weights * bpws[k] / 8);
        struct plan_result result;
        struct allot_error err;
        double start = seconds_now();

        if (solve(b, kind, budget, &result, &err)) {
            printf("%-9s %5zu tensors x %d types  %.1f bpw: %s\n", kind_names[kind], b->n, N_TYPES, bpws[k],
                   err.message);
            if (err.status != ALLOT_ERR_INFEASIBLE)
                return 1;
            continue;
        }
        printf("%-9s %5zu tensors x %d types  %.1f bpw  %7.1f ms  gap %.1e  %s  %lld bytes unused\n",
               kind_names[kind], b->n, N_TYPES, bpws[k], 1e3 * (seconds_now() - start),
               (result.cost - result.lower_bound) / result.cost, result.exact ? "exact" : "bound",
               (long long)(budget - result.bytes));
    }
    return 0;
}

static int run(size_t n, uint64_t seed)
{
    struct bench b = {.items = calloc(n, sizeof *b.items),
                      .choices = calloc(n * N_TYPES, sizeof *b.choices),
                      .chosen = calloc(n, sizeof *b.chosen),
                      .limit_of = calloc(n, sizeof *b.limit_of),
                      .n = n};
    int failed = !b.items || !b.choices || !b.chosen || !b.limit_of;

    for (int kind = REALISTIC; kind <= LIMITED && !failed; kind++)
        failed = ladder(&b, (enum kind)kind, seed);
    free(b.items);
    free(b.choices);
    free(b.chosen);
    free(b.limit_of);
    return failed;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;

    printf("seed %llu\n", (unsigned long long)seed);
    return run(211, seed) || run(1000, seed);
}
