/* test_score.c - scores of single positions against hand-made numbers and long double sums.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "measure/score.h"

/* ALLOT_TEST_SEED repeats a run. */
static uint64_t test_seed(void)
{
    const char *given = getenv("ALLOT_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    print_message("seed: ALLOT_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static bool score(struct score_token *token, struct score_base *base, const float *a, const float *b,
                  int32_t n, int32_t text)
{
    static double p[5000];
    *base = (struct score_base){.logits = a, .p = p, .n_vocab = n, .text = text};
    return score_base(base) && score_candidate(token, base, b);
}

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.17g, want %.17g within %g", got, want, tolerance);
}

static void test_known_numbers(void **state)
{
    (void)state;
    const float ln2 = (float)M_LN2;
    const struct {
        float base[4], candidate[4];
        int32_t n, text;
        double kl, nll_base, nll, dp;
        bool same_top;
    } rows[] = {
        /* 1/2 1/4 1/4 against 1/4 1/4 1/2 */
        {{ln2, 0, 0}, {0, 0, ln2}, 3, 0, 0.25 * M_LN2, M_LN2, 2 * M_LN2, -0.25, false},
        {{ln2, 0, 0}, {0, 0, ln2}, 3, 2, 0.25 * M_LN2, 2 * M_LN2, M_LN2, 0.25, false},
        /* a shift of all logits changes nothing, however large */
        {{ln2, 0, 0}, {0, -ln2, -ln2}, 3, 1, 0, 2 * M_LN2, 2 * M_LN2, 0, true},
        {{1000, 1000}, {-1000, -1000}, 2, 1, 0, M_LN2, M_LN2, 0, true},
        /* 40 nats apart: a 16-nat clip would leave 16 ln units of it */
        {{40, 0}, {0, 40}, 2, 0, 40, 0, 40, -1, false},
        /* a token that the base excludes costs nothing; the candidate may exclude it too */
        {{0, 0, -INFINITY},
         {0, 0, 0},
         3,
         0,
         0.40546510810816438,
         M_LN2,
         1.0986122886681098,
         1 / 3.0 - 0.5,
         true},
        {{0, 0, -INFINITY}, {0, 0, -INFINITY}, 3, 0, 0, M_LN2, M_LN2, 0, true},
        /* the first of equals is the top */
        {{1, 1, 0}, {1, 1, 0}, 3, 0, 0, 0.86199480405136, 0.86199480405136, 0, true},
        {{1, 1, 0}, {0.9999999f, 1, 0}, 3, 0, 0, 0.86199480405136, 0.86199480405136, 0, false},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct score_token token;
        struct score_base base;
        assert_true(score(&token, &base, rows[r].base, rows[r].candidate, rows[r].n, rows[r].text));
        /* the logits of the rows are floats: ln 2 is off by 2e-8 */
        assert_near(token.kl, rows[r].kl, 1e-7);
        assert_near(base.nll, rows[r].nll_base, 1e-7);
        assert_near(token.nll, rows[r].nll, 2e-7);
        assert_near(token.dp, rows[r].dp, 1e-7);
        assert_int_equal(token.same_top, rows[r].same_top);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    const struct {
        float base[3], candidate[3];
    } rows[] = {
        {{NAN, 0, 0}, {0, 0, 0}},
        {{0, NAN, 0}, {0, 0, 0}},
        {{0, 0, 0}, {0, 0, NAN}},
        {{0, 0, 0}, {NAN, 0, 0}},
        {{0, INFINITY, 0}, {0, 0, 0}},
        {{0, 0, 0}, {0, INFINITY, 0}},
        {{0, 0, 0}, {0, -INFINITY, 0}}, /* an infinite divergence */
        {{-INFINITY, 0, 0}, {0, 0, 0}}, /* the text's token is impossible */
        {{-INFINITY, -INFINITY, -INFINITY}, {0, 0, 0}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct score_token token;
        struct score_base base;
        assert_false(score(&token, &base, rows[r].base, rows[r].candidate, 3, 0));
    }
}

static long double ln_sum_exp(const float *logits, int32_t n)
{
    long double max = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        max = fmaxl(max, logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += expl(logits[i] - max);
    return max + logl(sum);
}

/* sum p (log p - log p'), term by term. */
static long double reference_kl(const float *a, const float *b, int32_t n)
{
    long double la = ln_sum_exp(a, n), lb = ln_sum_exp(b, n), kl = 0;
    for (int32_t i = 0; i < n; i++)
        kl += expl(a[i] - la) * ((a[i] - la) - (b[i] - lb));
    return kl;
}

static void test_random_logits(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static float a[5000], b[5000];
    static const float spreads[] = {0.1f, 1, 4, 12, 40}, distances[] = {0, 1e-4f, 1e-2f, 1, 20};
    int wide = 0;
    for (uint64_t trial = 0; trial < 300; trial++) {
        uint64_t key = seed + trial;
        int32_t n = 2 + (int32_t)(rng_u64(key, 1) % 4999), text = (int32_t)(rng_u64(key, 2) % (uint64_t)n);
        float spread = spreads[rng_u64(key, 3) % 5], distance = distances[rng_u64(key, 4) % 5];
        for (int32_t i = 0; i < n; i++) {
            a[i] = spread * (float)rng_normal(key, 10 + (uint64_t)i);
            b[i] = a[i] + distance * (float)rng_normal(key + 77, 10 + (uint64_t)i);
        }
        struct score_token token;
        struct score_base base;
        assert_true(score(&token, &base, a, b, n, text));
        long double kl = reference_kl(a, b, n), la = ln_sum_exp(a, n), lb = ln_sum_exp(b, n);
        assert_near(token.kl, (double)kl, 1e-12 + 1e-12 * (double)kl);
        assert_near(base.nll, (double)(la - a[text]), 1e-11);
        assert_near(token.nll, (double)(lb - b[text]), 1e-11);
        assert_near(token.dp, (double)(expl(b[text] - lb) - expl(a[text] - la)), 1e-12);
        if (distance == 0.0f) {
            assert_true(token.kl == 0.0);
            assert_true(token.same_top);
        }
        wide += spread > 10.0f;
    }
    assert_true(wide > 0); /* logits far more than 16 nats apart were among them */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_random_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
