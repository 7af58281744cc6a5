/* test_place.c - which candidates are on the Pareto front, by hand-made differences.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "measure/measure.h"

static void test_tie(void **state)
{
    (void)state;
    static const struct {
        double mean, se;
        bool tie;
    } rows[] = {{0, 0, true},  {1e-9, 0, false},  {-1e-9, 0, false}, {2, 1, true},
                {-2, 1, true}, {2.001, 1, false}, {-2.001, 1, false}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        assert_int_equal(measure_is_tie((struct measure_mean){rows[r].mean, rows[r].se}), rows[r].tie);
}

enum { N = 4, NONE = -1 };

/* Candidates of these bytes and mean KL, every difference with the same error. */
static const struct {
    const char *what;
    int64_t bytes[N];
    double kl[N], se;
    int beaten_by[N], ties_with[N];
} rows[] = {
    {"a front", {10, 20, 30, 40}, {8, 4, 2, 1}, 0.1, {NONE, NONE, NONE, NONE}, {NONE, NONE, NONE, NONE}},
    {"one above it", {10, 20, 30, 40}, {8, 4, 5, 1}, 0.1, {NONE, NONE, 1, NONE}, {NONE, NONE, NONE, NONE}},
    {"the best of several beats",
     {10, 20, 30, 40},
     {3, 2, 1, 9},
     0.1,
     {NONE, NONE, NONE, 2},
     {NONE, NONE, NONE, NONE}},
    {"whatever their order",
     {40, 30, 10, 20},
     {9, 1, 3, 2},
     0.1,
     {1, NONE, NONE, NONE},
     {NONE, NONE, NONE, NONE}},
    {"within the error nothing beats",
     {10, 20, 30, 40},
     {8, 4, 5, 1},
     0.5,
     {NONE, NONE, NONE, NONE},
     {NONE, NONE, 1, NONE}},
    {"equal files", {20, 20, 20, 20}, {4, 4, 4, 4}, 0, {NONE, NONE, NONE, NONE}, {1, 0, 0, 0}},
    {"of equal size the worse is beaten",
     {20, 20, 30, 40},
     {4, 5, 2, 1},
     0.1,
     {NONE, 0, NONE, NONE},
     {NONE, NONE, NONE, NONE}},
    {"a tie with the smallest is told",
     {30, 10, 20, 40},
     {4, 4.1, 4.05, 1},
     0.1,
     {NONE, NONE, NONE, NONE},
     {1, NONE, 1, NONE}},
    {"a larger one's tie is none",
     {10, 40, 20, 30},
     {4, 4, 2, 1},
     0.1,
     {NONE, 3, NONE, NONE},
     {NONE, 0, NONE, NONE}},
};

static size_t index_of(int expected)
{
    return expected == NONE ? SIZE_MAX : (size_t)expected;
}

static void test_places(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct measure_mean differences[N * N];
        for (size_t i = 0; i < N * N; i++)
            differences[i] = (struct measure_mean){rows[r].kl[i / N] - rows[r].kl[i % N], rows[r].se};
        const struct measure_result result = {.n_candidates = N, .differences = differences};
        for (size_t c = 0; c < N; c++) {
            const struct measure_place place = measure_place_of(&result, rows[r].bytes, c);
            if (place.beaten_by != index_of(rows[r].beaten_by[c]) ||
                place.ties_with != index_of(rows[r].ties_with[c]))
                fail_msg("%s: candidate %zu: beaten by %lld, ties with %lld", rows[r].what, c,
                         (long long)place.beaten_by, (long long)place.ties_with);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tie),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
