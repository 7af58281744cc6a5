/* test_rank.c - rank correlations and quartiles against values computed by hand.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/rank.h"

/* Ranks as one would write them down, and from them the sum of squared differences: without ties
 * 1 - 6 sum / (n (n^2 - 1)); with ties the means over tied ranks, by Pearson's formula, in fractions. */
static const struct {
    const char *name;
    size_t n;
    double x[8], y[8], want;
} rows[] = {
    {"the same order", 4, {1, 2, 3, 4}, {10, 200, 3000, 40000}, 1},
    {"the reverse", 4, {1, 2, 3, 4}, {4, 3, 2, -1e9}, -1},
    /* differences 1 1 0 0: 1 - 6 * 2 / 60 */
    {"neighbours swapped", 4, {0.1, 0.2, 0.3, 0.4}, {2, 1, 3, 4}, 0.8},
    /* ranks 3 1 4 2 5 and 2 3 5 1 4: differences 1 2 1 1 1, squares 8: 1 - 48 / 120 */
    {"five", 5, {3e-9, 1e-9, 4e-9, 2e-9, 5e-9}, {20, 30, 50, 10, 40}, 0.6},
    /* x ranks 1.5 1.5 3 4, y 1 2 3 4, about 2.5: products 1.5 + 0.5 + 0.25 + 2.25 = 4.5, squares 4.5 and 5 */
    {"one tie", 4, {7, 7, 8, 9}, {1, 2, 3, 4}, 4.5 / 4.743416490252569},
    /* ranks 2 2 2 4 5 about 3 and 1.5 1.5 3.5 3.5 5: products 1.5 + 1.5 - 0.5 + 0.5 + 4 = 7, squares 8 and 9
     */
    {"three and pairs", 5, {0, 0, 0, 1, 2}, {5, 5, 6, 6, 9}, 7 / 8.48528137423857},
    {"all of one equal", 3, {1, 1, 1}, {1, 2, 3}, NAN},
    {"one pair", 1, {1}, {1}, NAN},
    {"none", 0, {0}, {0}, NAN},
};

static void test_correlation(void **state)
{
    (void)state;
    struct allot_error err = {0};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int swap = 0; swap < 2; swap++) {
            double rho = 7;
            if (rank_correlation(&rho, swap ? rows[r].y : rows[r].x, swap ? rows[r].x : rows[r].y, rows[r].n,
                                 &err) != ALLOT_OK)
                fail_msg("%s", err.message);
            if (isnan(rows[r].want) ? !isnan(rho) : !(fabs(rho - rows[r].want) <= 1e-12))
                fail_msg("%s: %.17g, not %.17g", rows[r].name, rho, rows[r].want);
        }
}

static void test_quartiles(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        double x[8];
        struct rank_quartiles want;
    } lists[] = {
        {5, {5, 1, 4, 2, 3}, {2, 3, 4}},
        {4, {8, 1, 4, 2}, {1.75, 3, 5}},
        {2, {3, 1}, {1.5, 2, 2.5}},
        {1, {6}, {6, 6, 6}},
    };
    for (size_t r = 0; r < sizeof lists / sizeof *lists; r++) {
        double x[8];
        memcpy(x, lists[r].x, sizeof x);
        struct rank_quartiles q = rank_quartiles(x, lists[r].n);
        assert_true(fabs(q.first - lists[r].want.first) <= 1e-12);
        assert_true(fabs(q.median - lists[r].want.median) <= 1e-12);
        assert_true(fabs(q.third - lists[r].want.third) <= 1e-12);
    }
    struct rank_quartiles none = rank_quartiles(NULL, 0);
    assert_true(isnan(none.first) && isnan(none.median) && isnan(none.third));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_correlation), cmocka_unit_test(test_quartiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
