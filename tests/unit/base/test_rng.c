/* test_rng.c - random draws: open intervals, moments, and values that never change.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"

/* The bits from which the ends of the interval are made. */
static void test_uniform_is_open(void **state)
{
    static const uint64_t rows[] = {
        0, 1, 1ull << 11, 1ull << 12, 1ull << 63, UINT64_MAX - (1ull << 12), UINT64_MAX};
    double last = 0;
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double u = rng_unit(rows[r]);
        assert_true(u > 0 && u < 1);
        assert_true(u >= last);
        assert_true(u + rng_unit(~rows[r]) == 1); /* symmetric, so without bias */
        assert_true(isfinite(log(u)) && log(u) < 0);
        last = u;
    }
    assert_true(rng_unit(UINT64_MAX) == 1 - 0x1p-53);
}

static void test_moments(void **state)
{
    enum { N = 200000 };
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = rng_uniform(3, i) - 0.5, z = rng_normal(4, i);
        u1 += u / N;
        u2 += u * u / N;
        n1 += z / N;
        n2 += z * z / N;
        n4 += z * z * z * z / N;
    }
    /* Five standard errors. */
    assert_true(fabs(u1) < 5 * sqrt(1. / 12 / N) && fabs(u2 - 1. / 12) < 5 * sqrt(1. / 180 / N));
    assert_true(fabs(n1) < 5 * sqrt(1. / N) && fabs(n2 - 1) < 5 * sqrt(2. / N));
    assert_true(fabs(n4 - 3) < 5 * sqrt(96. / N));
}

/* SplitMix64's published first values for the state 0 fix the mixing function. */
static void test_mixing(void **state)
{
    (void)state;
    assert_true(rng_mix(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu);
    assert_true(rng_mix(2 * 0x9e3779b97f4a7c15u) == 0x6e789e6aa1b965f4u);
    assert_true(rng_u64(1, 2) != rng_u64(2, 1) && rng_u64(1, 2) == rng_u64(1, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform_is_open),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_mixing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
