/* test_limits.c - the knapsack with limits on groups of items, against brute force.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "plan/plan.h"

enum { MAX_ITEMS = 7, MAX_CHOICES = 5, MAX_LIMITS = 3 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */

struct small {
    struct plan_item items[MAX_ITEMS];
    struct plan_choice choices[MAX_ITEMS][MAX_CHOICES];
    size_t n, limit_of[MAX_ITEMS];
    struct plan_limit list[MAX_LIMITS];
    struct plan_limits limits;
    int64_t fixed, budget;
};

struct answer {
    bool feasible;
    double cost;
};

static bool within(const struct small *p, const size_t *pick, int64_t *bytes)
{
    int64_t of[MAX_LIMITS] = {0};

    *bytes = p->fixed;
    for (size_t i = 0; i < p->n; i++) {
        int64_t b = p->items[i].choices[pick[i]].bytes;

        *bytes += b;
        if (p->limit_of[i] != PLAN_UNLIMITED)
            of[p->limit_of[i]] += b;
    }
    for (size_t g = 0; g < p->limits.n; g++)
        if (of[g] > p->list[g].bytes)
            return false;
    return *bytes <= p->budget;
}

static double cost_of(const struct small *p, const size_t *pick)
{
    double cost = 0;

    for (size_t i = 0; i < p->n; i++)
        cost += p->items[i].choices[pick[i]].cost;
    return cost;
}

/* Walks every combination like an odometer. */
static struct answer brute_force(const struct small *p)
{
    struct answer best = {.cost = INFINITY};
    size_t pick[MAX_ITEMS] = {0}, i;

    for (;;) {
        int64_t bytes;

        if (within(p, pick, &bytes)) {
            best.feasible = true;
            best.cost = fmin(best.cost, cost_of(p, pick));
        }
        for (i = 0; i < p->n && ++pick[i] == p->items[i].n_choices; i++)
            pick[i] = 0;
        if (i == p->n)
            return best;
    }
}

static double draw_cost(uint64_t kind, uint64_t key, uint64_t c, int64_t bytes)
{
    double u = rng_uniform(key, c);

    switch (kind) {
    case 0:
        return floor(u * 8);
    case 1:
        return pow(10, -12 + 14 * u);
    case 2:
        return exp2(-2.0 * (double)bytes / 32) * exp(rng_normal(key + 7, c));
    case 3:
        return u < 0.5 ? 0 : u;
    default:
        return 1000 - (double)bytes;
    }
}

static void draw_small(struct small *p, uint64_t key)
{
    uint64_t kind = rng_u64(key, 0) % 5, c = 50;
    bool few_sizes = rng_u64(key, 1) % 3 == 0;
    int64_t least[MAX_LIMITS + 1] = {0}, most[MAX_LIMITS + 1] = {0}, all_least = 0, all_most = 0;

    p->n = 1 + rng_u64(key, 2) % MAX_ITEMS;
    p->limits = (struct plan_limits){p->list, rng_u64(key, 3) % (MAX_LIMITS + 1), p->limit_of};
    p->fixed = (int64_t)(rng_u64(key, 4) % 3) * 17;
    for (size_t i = 0; i < p->n; i++) {
        size_t limit = rng_u64(key, c++) % (p->limits.n + 1);
        int64_t low = INT64_MAX, high = 0;

        p->limit_of[i] = limit == p->limits.n ? PLAN_UNLIMITED : limit;
        p->items[i] = (struct plan_item){"t", p->choices[i], 1 + rng_u64(key, c++) % MAX_CHOICES};
        for (size_t j = 0; j < p->items[i].n_choices; j++, c++) {
            int64_t bytes =
                few_sizes ? 32 * (int64_t)(1 + rng_u64(key, c) % 3) : (int64_t)(rng_u64(key, c) % 100);

            p->choices[i][j] = (struct plan_choice){(int)j, bytes, draw_cost(kind, key + 1, c, bytes)};
            low = bytes < low ? bytes : low;
            high = bytes > high ? bytes : high;
        }
        least[limit] += low;
        most[limit] += high;
        all_least += low;
        all_most += high;
    }
    for (size_t g = 0; g < p->limits.n; g++)
        p->list[g] = (struct plan_limit){
            "limit", least[g] - (int64_t)(rng_u64(key, 10 + g) % 20 == 0) +
                         (int64_t)(rng_uniform(key, 20 + g) * (double)(most[g] - least[g] + 2))};
    p->budget =
        rng_u64(key, 5) % 5 == 0
            ? INT64_MAX
            : p->fixed + all_least + (int64_t)(rng_uniform(key, 6) * (double)(all_most - all_least + 2));
}

/* Returns the relative gap to brute force, checks all else. */
static double check_small(const struct small *p, uint64_t key)
{
    struct answer want = brute_force(p);
    struct plan_result got = {0};
    struct allot_error err = {0};
    double lambdas[MAX_LIMITS];
    size_t chosen[MAX_ITEMS];
    int64_t bytes;
    allot_status status =
        plan_solve_limited(p->items, p->n, &p->limits, p->fixed, p->budget, chosen, &got, lambdas, &err);

    if (status == ALLOT_ERR_INFEASIBLE && !want.feasible)
        return 0;
    if (status || !want.feasible)
        fail_msg("key %llu: status %d: %s", (unsigned long long)key, status, err.message);
    if (!within(p, chosen, &bytes) || bytes != got.bytes || cost_of(p, chosen) != got.cost)
        fail_msg("key %llu: the result does not describe the choice", (unsigned long long)key);
    if (got.cost < want.cost * (1 - 1e-13) || got.lower_bound > want.cost || got.lower_bound > got.cost)
        fail_msg("key %llu: cost %.17g bound %.17g, brute force %.17g", (unsigned long long)key, got.cost,
                 got.lower_bound, want.cost);
    if (got.exact && got.cost > want.cost * (1 + 1e-12))
        fail_msg("key %llu: %.17g is called exact, brute force %.17g", (unsigned long long)key, got.cost,
                 want.cost);
    for (size_t g = 0; g < p->limits.n; g++)
        assert_true(lambdas[g] >= got.lambda && got.lambda >= 0);
    assert_true(got.exact);
    return want.cost > 0 ? got.cost / want.cost - 1 : got.cost;
}

static void test_brute_force(void **state)
{
    /* Where fronts were once pruned by another bound than the one that reduced costs add to. */
    static const uint64_t known[] = {3240083953, 7595022790};
    enum { N_KNOWN = sizeof known / sizeof known[0] };
    double worst = 0;
    int n_above = 0;

    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct small p = {0};
        uint64_t key = i < N_KNOWN ? known[i] : seed + 1000003 * i;
        double gap;

        draw_small(&p, key);
        gap = check_small(&p, key);
        worst = fmax(worst, gap);
        n_above += gap > 1e-12;
    }
    print_message("20000 instances: %d above the optimum, worst by %g\n", n_above, worst);
}

/* ---- Full size --------------------------------------------------------------------------------- */

static const int block_bytes[] = {50,  56,  66,  74,  82,  84,  98,  100, 110, 112, 136, 136, 144,
                                  144, 148, 160, 164, 176, 176, 180, 192, 196, 210, 272, 512};
enum { N_TYPES = sizeof block_bytes / sizeof block_bytes[0], N_LARGE = 400 };

/* Bound and plan stay close whatever binds; a larger limit or budget never costs more. */
static void test_large(void **state)
{
    struct plan_choice(*choices)[N_TYPES] = calloc(N_LARGE, sizeof *choices);
    struct plan_item items[N_LARGE];
    size_t limit_of[N_LARGE], chosen[N_LARGE];
    int64_t weights = 0;
    double worst = 0;

    (void)state;
    assert_non_null(choices);
    for (size_t i = 0; i < N_LARGE; i++) {
        int64_t blocks = 1000 + (int64_t)(rng_u64(seed, i) % 60000);
        double scale = exp(1.2 * rng_normal(seed + 1, i)) * (double)blocks;

        for (size_t j = 0; j < N_TYPES; j++)
            choices[i][j] = (struct plan_choice){(int)j, blocks * block_bytes[j],
                                                 1e-7 * scale * exp2(-block_bytes[j] / 16.0) *
                                                     exp(0.2 * rng_normal(seed + 2, i * N_TYPES + j))};
        items[i] = (struct plan_item){"t", choices[i], N_TYPES};
        limit_of[i] = i % 4 < 3 ? i % 4 : PLAN_UNLIMITED;
        weights += blocks * 256;
    }
    for (double share = 0.16; share < 0.3; share += 0.05) {
        double previous = INFINITY;

        for (double bpw = 1.7; bpw < 9; bpw += 0.7) {
            int64_t budget = (int64_t)((double)weights * bpw / 8),
                    least = (int64_t)((double)weights * 0.3 * 1.7 / 8);
            int64_t share_bytes = (int64_t)((double)budget * share);
            int64_t limit = share_bytes > least ? share_bytes : least;
            const struct plan_limit list[] = {{"a", limit}, {"b", limit}, {"c", limit}};
            const struct plan_limits limits = {list, 3, limit_of};
            struct plan_result result;
            struct allot_error err;

            assert_int_equal(
                plan_solve_limited(items, N_LARGE, &limits, 0, budget, chosen, &result, NULL, &err),
                ALLOT_OK);
            worst = fmax(worst, (result.cost - result.lower_bound) / result.cost);
            assert_true(result.bytes <= budget);
            if (result.cost > previous * (1 + 1e-4) || (result.exact && result.cost > previous * (1 + 1e-12)))
                fail_msg("%g of %.1f bpw: more bytes cost more", share, bpw);
            previous = result.cost;
        }
    }
    print_message("%d items, three limits: worst gap %g\n", N_LARGE, worst);
    assert_true(worst < 1e-4);
    free(choices);
}

/* The gap by parts is large and the fronts cannot be kept whole: a bound remains, and it holds. */
static void test_fronts_outgrown(void **state)
{
    enum { N = 60, K = 12 };
    static struct plan_choice choices[N][K];
    struct plan_item items[N];
    size_t limit_of[N], chosen[N];
    int64_t smallest[2] = {0}, largest[2] = {0};

    (void)state;
    for (size_t i = 0; i < N; i++) {
        int64_t bytes = 1000;

        limit_of[i] = i % 2;
        for (size_t j = 0; j < K; j++) {
            choices[i][j] =
                (struct plan_choice){(int)j, bytes, 1e9 - (double)bytes + rng_uniform(seed, i * K + j)};
            bytes += 1 + (int64_t)(rng_u64(seed + 1, i * K + j) % 1000003);
        }
        items[i] = (struct plan_item){"t", choices[i], K};
        smallest[i % 2] += choices[i][0].bytes;
        largest[i % 2] += choices[i][K - 1].bytes;
    }
    for (int k = 1; k < 8; k += 3) {
        const struct plan_limit list[] = {{"a", smallest[0] + (largest[0] - smallest[0]) / 8 * k},
                                          {"b", smallest[1] + (largest[1] - smallest[1]) / 9 * k}};
        const struct plan_limits limits = {list, 2, limit_of};
        int64_t budget = list[0].bytes + list[1].bytes - (k % 3) * 777777;
        struct plan_result result;
        struct allot_error err;
        int64_t bytes[2] = {0};

        assert_int_equal(plan_solve_limited(items, N, &limits, 0, budget, chosen, &result, NULL, &err),
                         ALLOT_OK);
        for (size_t i = 0; i < N; i++)
            bytes[i % 2] += choices[i][chosen[i]].bytes;
        assert_true(bytes[0] <= list[0].bytes && bytes[1] <= list[1].bytes);
        assert_true(result.bytes <= budget && result.bytes == bytes[0] + bytes[1]);
        assert_true(result.lower_bound <= result.cost && result.lower_bound > result.cost * (1 - 1e-6));
    }
}

/* ---- Refusals ----------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    static const struct plan_choice choices[] = {{0, 100, 1}, {1, 50, 2}};
    const struct plan_item items[] = {{"a", choices, 2}, {"b", choices, 2}};
    const size_t limit_of[] = {0, PLAN_UNLIMITED};
    const struct {
        int64_t limit, budget;
        allot_status status;
        int64_t bytes;
        const char *message;
    } rows[] = {
        {50, 110, ALLOT_OK, 110, NULL},
        {100, 160, ALLOT_OK, 160, NULL},
        {50, 160, ALLOT_OK, 160, NULL},
        {60, INT64_MAX, ALLOT_OK, 160, NULL},
        {INT64_MAX, INT64_MAX, ALLOT_OK, 210, NULL},
        {49, 1000, ALLOT_ERR_INFEASIBLE, 0, "limit: the least possible is 50 B (50 bytes)"},
        {-1, 1000, ALLOT_ERR_INFEASIBLE, 0, "(50 bytes)"},
        {50, 109, ALLOT_ERR_INFEASIBLE, 0, "the smallest possible file is 110 B (110 bytes)"},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct plan_limit limit = {"limit", rows[r].limit};
        const struct plan_limits limits = {&limit, 1, limit_of};
        struct plan_result result = {0};
        struct allot_error err = {0};
        size_t chosen[2];
        allot_status status =
            plan_solve_limited(items, 2, &limits, 10, rows[r].budget, chosen, &result, NULL, &err);

        if (status != rows[r].status || (rows[r].message && !strstr(err.message, rows[r].message)) ||
            (status == ALLOT_OK && (result.bytes != rows[r].bytes || !result.exact)))
            fail_msg("row %zu: status %d, %lld bytes, message %s", r, status, (long long)result.bytes,
                     err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_fronts_outgrown),
        cmocka_unit_test(test_refusals),
    };
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
