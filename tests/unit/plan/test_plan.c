/* test_plan.c - the knapsack against brute force, and its certificate at full size.
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

enum { MAX_ITEMS = 6, MAX_CHOICES = 7 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */

/* ---- Against brute force ------------------------------------------------------------------- */

struct small {
    struct plan_item items[MAX_ITEMS];
    struct plan_choice choices[MAX_ITEMS][MAX_CHOICES];
    size_t n;
    int64_t fixed, budget;
    bool exact_sums; /* whole-number costs: no sum rounds, so that ties are ties in any order */
};

struct answer {
    bool feasible;
    double cost;
    int64_t bytes, smallest;
};

/* Walks every combination like an odometer, the costs summed in item order. */
static struct answer brute_force(const struct small *p)
{
    struct answer best = {.cost = INFINITY, .smallest = INT64_MAX};
    size_t pick[MAX_ITEMS] = {0}, i;

    for (;;) {
        int64_t bytes = p->fixed;
        double cost = 0;

        for (i = 0; i < p->n; i++) {
            bytes += p->items[i].choices[pick[i]].bytes;
            cost += p->items[i].choices[pick[i]].cost;
        }
        if (bytes < best.smallest)
            best.smallest = bytes;
        if (bytes <= p->budget && (cost < best.cost || (cost == best.cost && bytes < best.bytes))) {
            best.feasible = true;
            best.cost = cost;
            best.bytes = bytes;
        }
        for (i = 0; i < p->n && ++pick[i] == p->items[i].n_choices; i++)
            pick[i] = 0;
        if (i == p->n)
            return best;
    }
}

/* What costs look like: the kinds that break careless solvers. */
enum cost_kind { SMALL_INTEGERS, HUGE_RANGE, REALISTIC, MANY_ZEROS, PROPORTIONAL, N_COST_KINDS };

static double draw_cost(enum cost_kind kind, uint64_t key, uint64_t c, int64_t bytes)
{
    double u = rng_uniform(key, c);

    switch (kind) {
    case SMALL_INTEGERS:
        return floor(u * 8);
    case HUGE_RANGE:
        return pow(10, -12 + 14 * u);
    case REALISTIC:
        return exp2(-2.0 * (double)bytes / 32) * exp(rng_normal(key + 7, c));
    case MANY_ZEROS:
        return u < 0.5 ? 0 : u;
    default: /* every exchange rate alike */
        return 1000 - (double)bytes;
    }
}

static void draw_small(struct small *p, uint64_t key)
{
    enum cost_kind kind = (enum cost_kind)(rng_u64(key, 0) % N_COST_KINDS);
    bool few_sizes = rng_u64(key, 1) % 3 == 0;
    int64_t smallest = 0, largest = 0;
    uint64_t c = 10;

    p->exact_sums = kind == SMALL_INTEGERS || kind == PROPORTIONAL;
    p->n = 1 + rng_u64(key, 2) % MAX_ITEMS;
    p->fixed = (int64_t)(rng_u64(key, 3) % 3) * 17;
    for (size_t i = 0; i < p->n; i++) {
        int64_t low = INT64_MAX, high = 0;

        p->items[i] = (struct plan_item){"t", p->choices[i], 1 + rng_u64(key, c++) % MAX_CHOICES};
        for (size_t j = 0; j < p->items[i].n_choices; j++, c++) {
            int64_t bytes =
                few_sizes ? 32 * (int64_t)(1 + rng_u64(key, c) % 3) : (int64_t)(rng_u64(key, c) % 100);

            p->choices[i][j] = (struct plan_choice){(int)j, bytes, draw_cost(kind, key + 1, c, bytes)};
            low = bytes < low ? bytes : low;
            high = bytes > high ? bytes : high;
        }
        smallest += low;
        largest += high;
    }
    /* From a little infeasible through exactly tight to all that can be wanted. */
    switch (rng_u64(key, 4) % 4) {
    case 0:
        p->budget = p->fixed + smallest;
        break;
    case 1:
        p->budget = p->fixed + smallest - 1 - (int64_t)(rng_u64(key, 5) % 3);
        break;
    default:
        p->budget = p->fixed + smallest + (int64_t)(rng_uniform(key, 6) * (double)(largest - smallest + 3));
    }
}

static void check_small(const struct small *p, uint64_t key)
{
    struct answer want = brute_force(p);
    struct plan_result got = {0};
    struct allot_error err = {0};
    size_t chosen[MAX_ITEMS];
    allot_status status = plan_solve(p->items, p->n, p->fixed, p->budget, chosen, &got, &err);
    int64_t bytes = p->fixed;
    double cost = 0;
    char number[32];

    if (!want.feasible) {
        snprintf(number, sizeof number, "(%lld bytes)", (long long)want.smallest);
        if (status != ALLOT_ERR_INFEASIBLE || !strstr(err.message, number))
            fail_msg("key %llu: status %d: %s", (unsigned long long)key, status, err.message);
        return;
    }
    if (status)
        fail_msg("key %llu: %s", (unsigned long long)key, err.message);
    for (size_t i = 0; i < p->n; i++) {
        assert_true(chosen[i] < p->items[i].n_choices);
        bytes += p->items[i].choices[chosen[i]].bytes;
        cost += p->items[i].choices[chosen[i]].cost;
    }
    if (bytes != got.bytes || cost != got.cost || bytes > p->budget)
        fail_msg("key %llu: the result does not describe the choice", (unsigned long long)key);
    if (!got.exact || fabs(cost - want.cost) > 1e-13 * want.cost ||
        (p->exact_sums && (cost != want.cost || bytes > want.bytes)))
        fail_msg("key %llu: cost %.17g bytes %lld, brute force %.17g %lld", (unsigned long long)key, cost,
                 (long long)bytes, want.cost, (long long)want.bytes);
    if (got.lower_bound > want.cost || got.lower_bound > got.cost || got.lower_bound < got.cost * (1 - 1e-12))
        fail_msg("key %llu: bound %.17g, cost %.17g", (unsigned long long)key, got.lower_bound, got.cost);
}

static void test_brute_force(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct small p = {0};
        uint64_t key = seed + 1000003 * i;

        draw_small(&p, key);
        check_small(&p, key);
    }
}

/* ---- Full size ---------------------------------------------------------------------------------- */

/* Bytes per 256 weights of the types from IQ1_S to Q8_0, and F16. */
static const int block_bytes[] = {50,  56,  66,  74,  82,  84,  98,  100, 110, 112, 136, 136, 144,
                                  144, 148, 160, 164, 176, 176, 180, 192, 196, 210, 272, 512};
enum { N_TYPES = sizeof block_bytes / sizeof block_bytes[0] };

struct large {
    struct plan_item *items;
    struct plan_choice *choices;
    size_t n;
    int64_t weights;
};

/* Costs as models have them, or such that know nothing of bytes. */
static void fill_large(struct large *p, size_t n, bool random, uint64_t key)
{
    *p = (struct large){calloc(n, sizeof *p->items), calloc(n * N_TYPES, sizeof *p->choices), n, 0};
    assert_true(p->items && p->choices);
    for (size_t i = 0; i < n; i++) {
        int64_t blocks = 1000 + (int64_t)(rng_u64(key, i) % 60000);
        double scale = exp(1.2 * rng_normal(key + 1, i)) * (double)blocks;

        for (size_t j = 0; j < N_TYPES; j++) {
            double bpw = block_bytes[j] / 32.0, noise = exp(0.2 * rng_normal(key + 2, i * N_TYPES + j));

            double cost =
                random ? rng_uniform(key + 3, i * N_TYPES + j) : 1e-7 * scale * exp2(-2 * bpw) * noise;

            p->choices[i * N_TYPES + j] =
                (struct plan_choice){(int)j, (blocks * block_bytes[j] + 31) / 32 * 32, cost};
        }
        p->items[i] = (struct plan_item){"t", &p->choices[i * N_TYPES], N_TYPES};
        p->weights += blocks * 256;
    }
}

static void release_large(struct large *p)
{
    free(p->items);
    free(p->choices);
}

/* The gap is proven and tiny, more bytes never cost more, and a second run gives the same answer. */
static void check_ladder(const struct large *p, double max_gap)
{
    size_t *chosen = calloc(p->n, sizeof *chosen), *again = calloc(p->n, sizeof *again);
    double previous = INFINITY, worst = 0;

    assert_true(chosen && again);
    for (double bpw = 1.6; bpw < 16.5; bpw += 0.31) {
        int64_t budget = 12345 + (int64_t)((double)p->weights * bpw / 8);
        struct plan_result result, repeated;
        struct allot_error err;
        double gap;

        assert_int_equal(plan_solve(p->items, p->n, 12345, budget, chosen, &result, &err), ALLOT_OK);
        assert_int_equal(plan_solve(p->items, p->n, 12345, budget, again, &repeated, &err), ALLOT_OK);
        assert_memory_equal(chosen, again, p->n * sizeof *chosen);
        assert_true(result.bytes <= budget);
        assert_true(result.lower_bound <= result.cost);
        gap = (result.cost - result.lower_bound) / result.cost;
        worst = fmax(worst, gap);
        if (gap > max_gap)
            fail_msg("%.2f bpw: gap %g", bpw, gap);
        if (result.cost > previous * (1 + (result.exact ? 1e-12 : max_gap)))
            fail_msg("%.2f bpw: more bytes cost more (%.17g > %.17g)", bpw, result.cost, previous);
        previous = result.cost;
    }
    print_message("%zu items: worst gap %g\n", p->n, worst);
    free(chosen);
    free(again);
}

static void test_large(void **state)
{
    static const size_t sizes[] = {1, 7, 43, 211, 1000};

    (void)state;
    for (size_t s = 0; s < 2 * (sizeof sizes / sizeof sizes[0]); s++) {
        struct large p;

        fill_large(&p, sizes[s / 2], s % 2 == 1, seed + s);
        check_ladder(&p, 1e-4);
        release_large(&p);
    }
}

/* Budgets a few blocks apart, where what fits changes from one to the next. */
static void test_monotone(void **state)
{
    size_t chosen[40];
    double previous = INFINITY;
    struct large p;

    (void)state;
    fill_large(&p, 40, false, seed);
    for (int64_t k = 0; k < 2000; k++) {
        int64_t budget = p.weights * 3 / 8 + k * 997;
        struct plan_result result;
        struct allot_error err;

        assert_int_equal(plan_solve(p.items, p.n, 0, budget, chosen, &result, &err), ALLOT_OK);
        assert_true(result.exact && result.lambda > 0);
        if (result.cost > previous * (1 + 1e-14))
            fail_msg("%lld bytes more cost more (%.17g > %.17g)", (long long)k * 997, result.cost, previous);
        previous = result.cost;
    }
    release_large(&p);
}

/* All exchange rates alike and sizes without a common divisor: bounds cannot prune, so the limits must act,
 * and the bound must still be below the cost. */
static int count_inexact(size_t n, uint64_t key)
{
    enum { MOST = 400, K = 12 };
    static struct plan_choice choices[MOST][K];
    struct plan_item items[MOST];
    int64_t smallest = 0, largest = 0;
    size_t chosen[MOST];
    int n_inexact = 0;

    for (size_t i = 0; i < n; i++) {
        int64_t bytes = 1000;

        for (size_t j = 0; j < K; j++) {
            choices[i][j] =
                (struct plan_choice){(int)j, bytes, 1e9 - (double)bytes + rng_uniform(key, i * K + j)};
            bytes += 1 + (int64_t)(rng_u64(key + 1, i * K + j) % 1000003);
        }
        items[i] = (struct plan_item){"t", choices[i], K};
        smallest += choices[i][0].bytes;
        largest += choices[i][K - 1].bytes;
    }
    for (int k = 1; k < 4; k++) {
        int64_t budget = smallest + (largest - smallest) / 4 * k;
        struct plan_result result;
        struct allot_error err;

        assert_int_equal(plan_solve(items, n, 0, budget, chosen, &result, &err), ALLOT_OK);
        assert_true(result.bytes <= budget);
        assert_true(result.lower_bound <= result.cost);
        assert_true(result.lower_bound > result.cost * (1 - 1e-6));
        n_inexact += !result.exact;
    }
    return n_inexact;
}

/* Few items reach the front's limit alone, many that on remembered states too. Now and then a plan is so good
 * that nothing given up could have been better. */
static void test_state_limits(void **state)
{
    static const size_t sizes[] = {10, 400};

    (void)state;
    for (size_t s = 0; s < 2; s++) {
        int n_inexact = count_inexact(sizes[s], seed);

        print_message("%zu hard items: %d of 3 without proof\n", sizes[s], n_inexact);
        assert_true(n_inexact >= 1);
    }
}

/* ---- Refusals ----------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    static const struct plan_choice good = {0, 100, 1}, negative_bytes = {0, -1, 1},
                                    negative_cost = {0, 1, -1}, nan_cost = {0, 1, NAN},
                                    inf_cost = {0, 1, INFINITY}, huge = {0, INT64_MAX - 50, 1};
    const struct {
        const struct plan_choice *choice;
        size_t n_choices;
        int64_t fixed, budget;
        allot_status status;
        const char *message;
    } rows[] = {
        {&good, 1, 0, 100, ALLOT_OK, NULL},
        {&good, 1, 10, 110, ALLOT_OK, NULL},
        {&good, 1, 10, 109, ALLOT_ERR_INFEASIBLE, "(110 bytes)"},
        {&good, 1, 10, -5, ALLOT_ERR_INFEASIBLE, "(110 bytes)"},
        {&good, 1, 10, INT64_MIN, ALLOT_ERR_INFEASIBLE, "(110 bytes)"},
        {&good, 1, 0, INT64_MAX, ALLOT_OK, NULL},
        {&good, 0, 0, 100, ALLOT_ERR_ARGUMENT, "tensor blk.0 has no type"},
        {&good, 1, -1, 100, ALLOT_ERR_ARGUMENT, "negative"},
        {&negative_bytes, 1, 0, 100, ALLOT_ERR_ARGUMENT, "tensor blk.0"},
        {&negative_cost, 1, 0, 100, ALLOT_ERR_NUMERIC, "tensor blk.0"},
        {&nan_cost, 1, 0, 100, ALLOT_ERR_NUMERIC, "tensor blk.0"},
        {&inf_cost, 1, 0, 100, ALLOT_ERR_NUMERIC, "tensor blk.0"},
        {&huge, 1, 100, 1000, ALLOT_ERR_ARGUMENT, "tensor blk.0"},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct plan_item item = {"blk.0", rows[r].choice, rows[r].n_choices};
        struct plan_result result;
        struct allot_error err = {0};
        size_t chosen;
        allot_status status = plan_solve(&item, 1, rows[r].fixed, rows[r].budget, &chosen, &result, &err);

        if (status != rows[r].status || (rows[r].message && !strstr(err.message, rows[r].message)))
            fail_msg("row %zu: status %d, message %s", r, status, err.message);
    }
}

static void test_nothing(void **state)
{
    struct plan_result result;
    struct allot_error err;

    (void)state;
    assert_int_equal(plan_solve(NULL, 0, 5, 5, NULL, &result, &err), ALLOT_OK);
    assert_int_equal(result.bytes, 5);
    assert_true(result.exact && result.cost == 0 && result.lower_bound == 0);
    assert_int_equal(plan_solve(NULL, 0, 6, 5, NULL, &result, &err), ALLOT_ERR_INFEASIBLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),  cmocka_unit_test(test_large),    cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_state_limits), cmocka_unit_test(test_refusals), cmocka_unit_test(test_nothing),
    };
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
