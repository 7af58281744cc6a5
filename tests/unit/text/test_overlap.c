/* test_overlap.c - shared tokens of windows: constructed ones, and random ones against a plain search.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "text/overlap.h"

enum { N = OVERLAP_LENGTH, SEED = 17 };

static struct allot_error err;

/* A text in which no token comes twice: ids from `first` on. */
static struct text_windows windows_from(int32_t first, int64_t n, int32_t n_ctx)
{
    struct text_windows w = {.ids = malloc(sizeof *w.ids * (size_t)(n * n_ctx)), .n = n, .n_ctx = n_ctx};
    for (int64_t i = 0; i < n * n_ctx; i++)
        w.ids[i] = first + (int32_t)i;
    return w;
}

static int64_t covered(const struct text_windows *windows, const struct text_windows *others)
{
    struct overlap o;
    assert_int_equal(overlap_measure(&o, windows, others, &err), ALLOT_OK);
    assert_int_equal(o.n_tokens, windows->n * windows->n_ctx);
    return o.n_covered;
}

/* Plainly: a token counts if some n-gram over it is anywhere in the others. */
static int64_t plainly(const struct text_windows *a, const struct text_windows *b)
{
    int64_t sum = 0;
    for (int64_t w = 0; w < a->n; w++)
        for (int32_t t = 0; t < a->n_ctx; t++) {
            bool found = false;
            for (int32_t i = t - N + 1; i <= t && !found; i++)
                for (int64_t v = 0; v < b->n && !found && i >= 0 && i + N <= a->n_ctx; v++)
                    for (int32_t k = 0; k + N <= b->n_ctx && !found; k++)
                        found = memcmp(a->ids + w * a->n_ctx + i, b->ids + v * b->n_ctx + k,
                                       N * sizeof *a->ids) == 0;
            sum += found;
        }
    return sum;
}

static void test_shifted(void **state)
{
    (void)state;
    /* calibration: tokens 0..639 in windows of 64, evaluation: 128 of them in windows of 128 that begin
     * anywhere */
    struct text_windows calibration = windows_from(0, 10, 64);
    for (int32_t shift = 0; shift < 64; shift++) {
        struct text_windows evaluation = windows_from(100 + shift, 1, 128);
        /* an edge piece of fewer than N tokens in a window of the others is in no n-gram */
        int32_t head = 64 - (100 + shift) % 64, tail = (100 + shift) % 64;
        int64_t expected = 128 - (head < N ? head : 0) - (tail < N ? tail : 0);
        assert_int_equal(covered(&evaluation, &calibration), expected);
        assert_int_equal(plainly(&evaluation, &calibration), expected);
        free(evaluation.ids);
    }
    free(calibration.ids);
}

static void test_none_and_half(void **state)
{
    (void)state;
    struct text_windows calibration = windows_from(0, 4, 64), evaluation = windows_from(1000, 2, 64);
    assert_int_equal(covered(&evaluation, &calibration), 0);
    memcpy(evaluation.ids + 64, calibration.ids + 10, 40 * sizeof(int32_t));
    assert_int_equal(covered(&evaluation, &calibration), 40);
    /* itself */
    assert_int_equal(covered(&calibration, &calibration), 256);
    /* BOS in the place of a window's first token costs that token only */
    for (int w = 0; w < 4; w++)
        calibration.ids[w * 64] = 5000;
    evaluation = (free(evaluation.ids), windows_from(0, 1, 64));
    assert_int_equal(covered(&evaluation, &calibration), 63);
    free(calibration.ids);
    free(evaluation.ids);
}

/* What texts of a kind have in common anyway: phrases of fewer than N tokens, however often. */
static void test_boilerplate(void **state)
{
    (void)state;
    struct text_windows calibration = windows_from(0, 4, 64), evaluation = windows_from(1000, 4, 64);
    for (int at = 0; at + N <= 256; at += N) {
        memcpy(calibration.ids + at, (int32_t[N - 1]){7, 7, 8}, (N - 1) * sizeof(int32_t));
        memcpy(evaluation.ids + at, (int32_t[N - 1]){7, 7, 8}, (N - 1) * sizeof(int32_t));
    }
    assert_int_equal(covered(&evaluation, &calibration), 0);
    free(calibration.ids);
    free(evaluation.ids);
}

static void test_short_windows(void **state)
{
    (void)state;
    struct text_windows small = windows_from(0, 9, N - 1), exact = windows_from(0, 9, N),
                        none = {.n_ctx = 64};
    assert_int_equal(covered(&small, &exact), 0);
    assert_int_equal(covered(&exact, &small), 0);
    assert_int_equal(covered(&exact, &exact), 9 * N);
    assert_int_equal(covered(&exact, &none), 0);
    assert_int_equal(covered(&none, &exact), 0);
    assert_true(overlap_share(&(struct overlap){0, 0}) == 0);
    assert_true(overlap_share(&(struct overlap){8, 2}) == 0.25);
    free(small.ids);
    free(exact.ids);
}

/* Two tokens only, so that n-grams share beginnings and recur. */
static void test_random(void **state)
{
    (void)state;
    print_message("seed %d\n", SEED);
    for (uint64_t round = 0; round < 40; round++) {
        struct text_windows a = windows_from(0, 3, 70), b = windows_from(0, 40, 50);
        for (int64_t i = 0; i < a.n * a.n_ctx; i++)
            a.ids[i] = rng_uniform(SEED + round, (uint64_t)i) < 0.12;
        for (int64_t i = 0; i < b.n * b.n_ctx; i++)
            b.ids[i] = rng_uniform(SEED + 100 + round, (uint64_t)i) < 0.12;
        int64_t expected = plainly(&a, &b);
        assert_int_equal(covered(&a, &b), expected);
        if (round == 0)
            assert_in_range(expected, 1, a.n * a.n_ctx - 1);
        free(a.ids);
        free(b.ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shifted), cmocka_unit_test(test_none_and_half),
                                       cmocka_unit_test(test_boilerplate),
                                       cmocka_unit_test(test_short_windows), cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
