/* test_predict.c - isotonic regression against brute force, fits of known interactions, and the order that no
 * prediction may overturn.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "search/predict.h"

enum { N_GROUPS = 5, MAX_ROWS = 40 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */
static struct allot_error err;

/* ---- Isotonic regression ------------------------------------------------------------------- */

/* The optimum is constant on consecutive blocks, each at its mean: of all 2^(n-1) ways to cut, the least
 * distance among those that do not fall. */
static double brute_force(double *best, const double *y, const double *weight, size_t n)
{
    double least = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) {
        double fit[10], distance = 0;
        bool rises = true;
        for (size_t first = 0, end; first < n; first = end) {
            double sum = 0, of = 0;
            for (end = first; end == first || (end < n && !(cuts >> (end - 1) & 1)); end++) {
                sum += weight[end] * y[end];
                of += weight[end];
            }
            for (size_t i = first; i < end; i++) {
                fit[i] = sum / of;
                distance += weight[i] * (y[i] - fit[i]) * (y[i] - fit[i]);
            }
            rises = rises && (first == 0 || fit[first - 1] <= fit[first]);
        }
        if (rises && distance < least) {
            least = distance;
            memcpy(best, fit, n * sizeof *fit);
        }
    }
    return least;
}

static void test_isotonic(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 3000; t++) {
        const uint64_t key = seed + t;
        const size_t n = 1 + rng_u64(key, 0) % 8;
        double y[8], weight[8], got[8], want[8];
        size_t start[8];
        for (size_t i = 0; i < n; i++) {
            y[i] = t % 2 == 0 ? rng_uniform(key, 10 + i) : (double)(rng_u64(key, 10 + i) % 3);
            weight[i] = 1 + (double)(rng_u64(key, 30 + i) % 3);
        }
        memcpy(got, y, sizeof got);
        isotonic_regression(got, weight, start, n);
        brute_force(want, y, weight, n);
        for (size_t i = 0; i < n; i++) {
            if (!(fabs(got[i] - want[i]) < 1e-12))
                fail_msg("key %llu: %zu of %zu: %g, not %g", (unsigned long long)key, i, n, got[i], want[i]);
            assert_true(start[i] <= i && got[start[i]] == got[i]);
            assert_true(i == 0 || got[i - 1] <= got[i]);
            assert_true(i == 0 || (start[i] == i) == (got[i - 1] < got[i]));
        }
    }
}

/* ---- Fits ---------------------------------------------------------------------------------- */

struct instance {
    struct predict_term terms[MAX_ROWS][N_GROUPS];
    struct predict_row rows[MAX_ROWS];
    struct combination of[MAX_ROWS];
};

/* Pair by pair, as predict.h has it. */
static double truth(const struct predict_term *t, double a, double b, double threshold)
{
    double sum = 0, pairs = 0;
    for (size_t i = 0; i < N_GROUPS; i++) {
        sum += t[i].cost;
        for (size_t k = i + 1; k < N_GROUPS; k++)
            pairs += t[i].cost * t[k].cost * fmax(0, threshold - t[i].bits) * fmax(0, threshold - t[k].bits);
    }
    return a * sum + b * pairs;
}

/* Costs fall fourfold per bit, more or less. KL: the truth times exp(noise z). */
static void draw(struct instance *in, uint64_t key, double a, double b, double threshold, double noise)
{
    uint64_t at = 0;
    for (size_t r = 0; r < MAX_ROWS; r++) {
        const double level = 2.5 + (r % 2 == 0 ? 1 : 5) * rng_uniform(key, at++);
        for (size_t g = 0; g < N_GROUPS; g++) {
            double bits = fmin(8.5, level + 2 * rng_uniform(key, at++));
            in->terms[r][g] =
                (struct predict_term){exp2(-2 * bits) * 3 * exp(0.5 * rng_normal(key, at++)), bits};
        }
        in->of[r] = (struct combination){in->terms[r], N_GROUPS};
        in->rows[r] = (struct predict_row){in->of[r], truth(in->terms[r], a, b, threshold) *
                                                          exp(noise * rng_normal(key, at++))};
    }
}

static void test_recovery(void **state)
{
    static const struct {
        double a, b, threshold;
    } cases[] = {{1.2, 0.3, 4.5}, {0.9, 0.5, 4}, {1.5, -0.2, 5}, {1, 0, 0}};
    size_t tried = 0;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (uint64_t t = 0; t < 20; t++) {
            struct instance in;
            struct predictor p;
            bool within = true; /* the bounds of b */
            draw(&in, seed + t, cases[c].a, cases[c].b, cases[c].threshold, 0);
            for (size_t r = 0; r < MAX_ROWS; r++)
                within = within && fabs(truth(in.terms[r], 0, cases[c].b, cases[c].threshold)) <=
                                       0.5 * truth(in.terms[r], 1, 0, 0);
            if (!within)
                continue;
            tried++;
            p = predict_fit(in.rows, MAX_ROWS);
            assert_int_equal(p.n_rows, MAX_ROWS);
            if (!(p.mean_error < 1e-9) || fabs(p.a - cases[c].a) > 1e-9 ||
                (cases[c].b != 0 && (p.threshold != cases[c].threshold || fabs(p.b - cases[c].b) > 1e-6)))
                fail_msg("key %llu: a %g b %g threshold %g, mean error %g, not %g %g %g",
                         (unsigned long long)(seed + t), p.a, p.b, p.threshold, p.mean_error, cases[c].a,
                         cases[c].b, cases[c].threshold);
        }
    assert_true(tried > 40);
}

/* Coefficients beyond their bounds are not believed, whatever the rows say; of what the bounds allow, no
 * other pair on a grid has a lower squared residual at the fit's own threshold. */
static void test_bounds(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 60; t++) {
        const double a = exp(2 * rng_normal(seed + t, 1)), b = 300 * rng_normal(seed + t, 2);
        struct instance in;
        struct predictor p;
        double most_b = INFINITY, own = 0;

        draw(&in, seed + t, a, fmax(b, 0), 6, 0.3);
        p = predict_fit(in.rows, MAX_ROWS);
        assert_true(p.a >= 0.5 && p.a <= 2);
        for (size_t r = 0; r < MAX_ROWS; r++) {
            double x = truth(in.terms[r], 0, 1, p.threshold), sum = truth(in.terms[r], 1, 0, 0);
            if (x > 0)
                most_b = fmin(most_b, 0.5 * sum / x);
            own += pow(1 - (p.a * sum + p.b * x) / in.rows[r].kl, 2);
        }
        assert_true(fabs(p.b) <= most_b * (1 + 1e-12));
        for (int i = 0; i <= 30; i++)
            for (int k = -10; k <= 10 && isfinite(most_b); k++) {
                double other = 0;
                for (size_t r = 0; r < MAX_ROWS; r++)
                    other += pow(1 - truth(in.terms[r], 0.5 + 0.05 * i, most_b * k / 10, p.threshold) /
                                         in.rows[r].kl,
                                 2);
                if (other < own * (1 - 1e-9))
                    fail_msg("key %llu: a %g b %g: %.12g, but a %g b %g: %.12g",
                             (unsigned long long)(seed + t), p.a, p.b, own, 0.5 + 0.05 * i, most_b * k / 10,
                             other);
            }
    }
}

static void test_few_rows(void **state)
{
    struct instance in;
    struct predictor p;
    struct prediction out;
    (void)state;
    draw(&in, seed, 1.7, 3, 5, 0);
    p = predict_fit(in.rows, PREDICT_FEW_ROWS - 1);
    assert_true(p.a == 1 && p.b == 0 && p.n_rows == PREDICT_FEW_ROWS - 1 && p.mean_error > 0.3);
    assert_int_equal(predict_all(&out, &p, in.of, 1, &err), ALLOT_OK);
    assert_true(out.kl == out.additive);
    p = predict_fit(in.rows, PREDICT_FEW_ROWS);
    assert_true(p.a != 1);
    p = predict_fit(NULL, 0);
    assert_int_equal(p.n_rows, 0);
    assert_int_equal(predict_all(&out, &p, in.of, 1, &err), ALLOT_OK);
    assert_true(fabs(out.confidence - 1.0 / 7) < 1e-12);
    /* Rows that say nothing are not counted. */
    in.rows[0].kl = 0;
    in.terms[1][2].cost = NAN;
    p = predict_fit(in.rows, MAX_ROWS);
    assert_int_equal(p.n_rows, MAX_ROWS - 2);
}

/* ---- Predictions --------------------------------------------------------------------------- */

/* Interactions so strong that the fit alone would overturn the additive order, and does. */
static void test_order(void **state)
{
    size_t overturned = 0;
    (void)state;
    for (uint64_t t = 0; t < 100; t++) {
        struct instance in;
        struct prediction out[MAX_ROWS];
        struct predictor p;

        draw(&in, seed + t, 1, 30, 6, 0.2);
        in.terms[3][1].cost = NAN;
        memcpy(in.terms[5], in.terms[4], sizeof in.terms[4]); /* equal A */
        in.terms[5][0].bits -= 2;
        p = predict_fit(in.rows, MAX_ROWS);
        assert_int_equal(predict_all(out, &p, in.of, MAX_ROWS, &err), ALLOT_OK);
        assert_true(isnan(out[3].additive) && isnan(out[3].kl) && isnan(out[3].confidence));
        assert_true(out[4].kl == out[5].kl);
        for (size_t i = 0; i < MAX_ROWS; i++) {
            if (i == 3)
                continue;
            assert_true(out[i].kl > 0 && out[i].confidence > 0 && out[i].confidence < 1);
            for (size_t k = 0; k < MAX_ROWS; k++) {
                if (k == 3 || !(out[i].additive < out[k].additive))
                    continue;
                if (out[i].kl > out[k].kl)
                    fail_msg("key %llu: A %g < %g, but KL %g > %g", (unsigned long long)(seed + t),
                             out[i].additive, out[k].additive, out[i].kl, out[k].kl);
                overturned +=
                    truth(in.terms[i], p.a, p.b, p.threshold) > truth(in.terms[k], p.a, p.b, p.threshold);
            }
        }
    }
    assert_true(overturned > 50);
}

/* Each of the three factors alone. Terms of one group have no interaction. */
static void test_confidence(void **state)
{
    const struct predict_term one[] = {{0.1, 4}}, pair[] = {{0.10, 3}, {0.09, 3}},
                              apart[] = {{0.2, 3}, {0.01, 9}};
    const struct combination of[] = {{one, 1}, {pair, 2}, {apart, 2}};
    struct predictor p = {.n_rows = 11, .a = 1};
    struct prediction out[3];

    (void)state;
    assert_int_equal(predict_all(out, &p, of, 3, &err), ALLOT_OK);
    assert_true(fabs(out[0].confidence - 12.0 / 18) < 1e-12);
    p.a = 1.25;
    assert_int_equal(predict_all(out, &p, of, 1, &err), ALLOT_OK);
    assert_true(fabs(out[0].kl - 0.125) < 1e-12 && fabs(out[0].confidence - 12.0 / 18 / 1.25) < 1e-12);
    /* X = 0.1 * 0.09 * 1.5^2 = 0.02025: 0.19 + 0.0405 above 0.21, so both level at 0.22025; A 0.19 to 0.21.
     */
    p = (struct predictor){.n_rows = 11, .a = 1, .b = 2, .threshold = 4.5};
    assert_int_equal(predict_all(out, &p, of, 3, &err), ALLOT_OK);
    assert_true(fabs(out[1].kl - 0.22025) < 1e-12 && out[2].kl == out[1].kl);
    assert_true(fabs(out[1].confidence - 12.0 / 18 * (0.19 / 0.22025) * (0.19 / 0.21)) < 1e-12);
    assert_true(fabs(out[2].confidence - 12.0 / 18 * (0.21 / 0.22025) * (0.19 / 0.21)) < 1e-12);
    /* Bounded by half of A. */
    p.b = 1e9;
    assert_int_equal(predict_all(out, &p, of + 1, 1, &err), ALLOT_OK);
    assert_true(fabs(out[0].kl - 0.285) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_isotonic), cmocka_unit_test(test_recovery), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_few_rows), cmocka_unit_test(test_order),    cmocka_unit_test(test_confidence),
    };
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
