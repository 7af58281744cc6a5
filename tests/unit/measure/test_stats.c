/* test_stats.c - means, errors and percentiles of hand-made scores.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "measure/stats.h"

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.17g, want %.17g within %g", got, want, tolerance);
}

static struct measure_stats compute(const struct stats_input *in)
{
    struct measure_stats stats;
    struct allot_error err = {0};
    if (stats_compute(&stats, in, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return stats;
}

static void test_percentiles(void **state)
{
    (void)state;
    static const double values[] = {1, 2, 4, 8, 16};
    static const struct {
        int64_t n;
        double fraction, want;
    } rows[] = {
        {5, 0, 1},     {5, 1, 16},     {5, 0.5, 4},      {4, 0.5, 3}, {5, 0.25, 2},
        {5, 0.1, 1.4}, {5, 0.9, 12.8}, {5, 0.99, 15.68}, {1, 0.5, 1}, {2, 0.999, 1.999},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        assert_near(stats_percentile(values, rows[r].n, rows[r].fraction), rows[r].want, 1e-12);
}

/* Three windows of two tokens. */
static const struct score_token tokens[] = {
    {.kl = 1, .nll = 3, .dp = 0.1, .same_top = true},  {.kl = 3, .nll = 5, .dp = -0.1, .same_top = true},
    {.kl = 5, .nll = 4, .dp = 0.3, .same_top = false}, {.kl = 5, .nll = 4, .dp = -0.3, .same_top = true},
    {.kl = 0, .nll = 1, .dp = 0.0, .same_top = false}, {.kl = 16, .nll = 7, .dp = 0.2, .same_top = false},
};
static const struct score_token first[] = {
    {.kl = 1}, {.kl = 1}, {.kl = 4}, {.kl = 4}, {.kl = 2}, {.kl = 6},
};
static const double nll_base[] = {2, 4, 4, 4, 1, 1};

static void test_errors_over_windows(void **state)
{
    (void)state;
    struct stats_input in = {tokens, first, nll_base, 3, 2};
    struct measure_stats s = compute(&in);
    assert_int_equal(s.n_windows, 3);
    assert_int_equal(s.n_tokens, 6);
    /* window means 2, 5, 8: variance 9 */
    assert_near(s.kl.mean, 5, 1e-12);
    assert_near(s.kl.se, sqrt(9 / 3.0), 1e-12);
    /* tokens 1 3 5 5 0 16: sum of squares about 5 is 16+4+0+0+25+121 = 166 */
    assert_near(s.kl_se_tokens, sqrt(166 / 6.0 / 5.0), 1e-12);
    assert_near(s.kl_median, 4, 1e-12);
    assert_near(s.kl_max, 16, 0);
    assert_near(s.kl_p90, 10.5, 1e-12);
    assert_near(s.kl_p99, 5 + 0.95 * 11, 1e-12);
    assert_near(s.kl_p999, 5 + 0.995 * 11, 1e-12);
    /* window means 4, 4, 4 and 3, 4, 1 */
    assert_near(s.nll.mean, 4, 1e-12);
    assert_near(s.nll.se, 0, 1e-12);
    assert_near(s.nll_base.mean, 8 / 3.0, 1e-12);
    assert_near(s.nll_base.se, sqrt((1 / 9.0 + 16 / 9.0 + 25 / 9.0) / 2 / 3), 1e-12);
    /* paired: window means 1, 0, 3 */
    assert_near(s.ln_ratio.mean, 4 / 3.0, 1e-12);
    assert_near(s.ln_ratio.se, sqrt((1 / 9.0 + 16 / 9.0 + 25 / 9.0) / 2 / 3), 1e-12);
    /* 1, 1/2, 0 */
    assert_near(s.same_top.mean, 0.5, 1e-12);
    assert_near(s.same_top.se, sqrt(0.25 / 3), 1e-12);
    assert_near(s.dp_rms, sqrt((0.01 + 0.01 + 0.09 + 0.09 + 0.04) / 6), 1e-12);
    /* paired with the first candidate: window means 1, 1, 4 */
    assert_near(s.kl_minus_first.mean, 2, 1e-12);
    assert_near(s.kl_minus_first.se, sqrt(3 / 3.0), 1e-12);
}

/* One window has no spread of windows: its tokens are the samples. */
static void test_one_window(void **state)
{
    (void)state;
    struct stats_input in = {tokens, first, nll_base, 1, 6};
    struct measure_stats s = compute(&in);
    assert_near(s.kl.mean, 5, 1e-12);
    assert_near(s.kl.se, sqrt(166 / 6.0 / 5.0), 1e-12);
    assert_near(s.kl.se, s.kl_se_tokens, 0);
    assert_near(s.same_top.se, sqrt(0.25 / 5), 1e-12);
}

/* Constant differences have no error at all, however large the values: sums must not cancel. */
static void test_no_cancellation(void **state)
{
    (void)state;
    enum { N = 1000 };
    static struct score_token many[N], base[N];
    static double nll[N];
    for (int i = 0; i < N; i++) {
        many[i] = (struct score_token){.kl = 1e6 + (i % 2) * 1e-3, .nll = 1e6 + i, .same_top = true};
        base[i].kl = many[i].kl;
        nll[i] = many[i].nll - 0.5;
    }
    struct stats_input in = {many, base, nll, N / 10, 10};
    struct measure_stats s = compute(&in);
    assert_near(s.kl_se_tokens, 0.5e-3 / sqrt(N - 1), 1e-9);
    assert_near(s.ln_ratio.mean, 0.5, 0);
    assert_near(s.ln_ratio.se, 0, 0);
    assert_near(s.kl_minus_first.mean, 0, 0);
    assert_near(s.kl_minus_first.se, 0, 0);
    assert_near(s.same_top.se, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_errors_over_windows),
        cmocka_unit_test(test_one_window),
        cmocka_unit_test(test_no_cancellation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
