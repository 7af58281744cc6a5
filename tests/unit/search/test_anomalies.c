/* test_anomalies.c - twins, rules and probes, worked out by hand.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "search/anomalies.h"

enum { N_GROUPS = 3, N_EXACT = 9 };

static struct allot_error err;

/* Options: 9 exact, 8 of 8 bits, 5, 4, ...; sizes follow. */
static size_t a_844[] = {8, 4, 4}, a_854[] = {8, 5, 4}, a_944[] = {9, 4, 4}, a_954[] = {9, 5, 4},
              a_855[] = {8, 5, 5}, a_845[] = {8, 4, 5}, a_744[] = {7, 4, 4};

static struct measured file(const char *name, const size_t *options, double kl, double std_err)
{
    struct measured m = {.name = name, .bytes = 1000, .kl = kl, .std_err = std_err, .options = options};
    for (size_t g = 0; g < N_GROUPS && options; g++)
        m.bytes += 100 * (int64_t)options[g];
    return m;
}

static void test_find(void **state)
{
    const struct measured m[] = {
        file("854", a_854, 0.110, 0.001), file("844", a_844, 0.100, 0.001), /* an anomaly: 0.01 +- 0.0014 */
        file("744", a_744, 0.099, 0.001),                                   /* within the error of 844 */
        file("855", a_855, 0.050, 0.001),                                   /* as gravity has it */
        file("none", NULL, 0.001, 0.001),                                   /* no combination */
        file("945", a_954, 0.090, 0.001),                                   /* larger and better than 854 */
    };
    struct anomaly *list = NULL;
    size_t count = 7;

    (void)state;
    assert_int_equal(anomalies_find(&list, &count, m, 6, N_GROUPS, &err), ALLOT_OK);
    assert_int_equal(count, 1);
    assert_int_equal(list[0].with_lower, 1);
    assert_int_equal(list[0].with_higher, 0);
    assert_true(list[0].swap.group == 1 && list[0].swap.lower == 4 && list[0].swap.higher == 5);
    assert_true(fabs(list[0].gain.kl + 0.01) < 1e-12 &&
                fabs(list[0].gain.std_err - hypot(0.001, 0.001)) < 1e-12);
    free(list);
    assert_int_equal(anomalies_find(&list, &count, NULL, 0, N_GROUPS, &err), ALLOT_OK);
    assert_int_equal(count, 0);
    free(list);
}

/* Contexts of the swap of group 1 from 5 to 4: (8, 4), (9, 4), (8, 5), with KL of lower and higher. */
static void test_rules(void **state)
{
    static const struct {
        const char *what;
        double lower[3], higher[3]; /* 0: not measured */
        enum anomaly_verdict verdict;
        size_t better, worse, tied, n_rules;
    } cases[] = {
        {"seen once", {0.1}, {0.2}, ANOMALY_UNPROBED, 1, 0, 0, 1},
        {"better twice", {0.1, 0.1}, {0.2, 0.2}, ANOMALY_BENEFICIAL, 2, 0, 0, 1},
        {"better twice and a tie", {0.1, 0.1, 0.1}, {0.2, 0.2, 0.1}, ANOMALY_BENEFICIAL, 2, 0, 1, 1},
        {"better once, then a tie", {0.1, 0.1}, {0.2, 0.1}, ANOMALY_NOTHING, 1, 0, 1, 1},
        {"better and worse", {0.1, 0.2}, {0.2, 0.1}, ANOMALY_NOTHING, 1, 1, 0, 1},
        {"better twice, worse once", {0.1, 0.1, 0.2}, {0.2, 0.2, 0.1}, ANOMALY_NOTHING, 2, 1, 0, 1},
        {"worse twice", {0.1, 0.2, 0.2}, {0.2, 0.1, 0.1}, ANOMALY_HARMFUL, 1, 2, 0, 1},
        {"no anomaly at all", {0.2, 0.2}, {0.1, 0.1}, ANOMALY_NOTHING, 0, 0, 0, 0},
    };
    const size_t *lower[] = {a_844, a_944, a_845}, *higher[] = {a_854, a_954, a_855};

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct measured m[6];
        struct anomaly_rule *rules = NULL;
        size_t n = 0, count = 0;
        for (size_t i = 0; i < 3; i++)
            if (cases[c].lower[i] > 0) {
                /* So far apart in other groups' errors that contexts are no twins of each other. */
                m[n++] = file("lower", lower[i], cases[c].lower[i], 0.001);
                m[n++] = file("higher", higher[i], cases[c].higher[i], 0.001);
            }
        assert_int_equal(anomaly_rules(&rules, &count, m, n, N_GROUPS, &err), ALLOT_OK);
        size_t r = 0;
        while (r < count && rules[r].swap.group != 1)
            r++;
        if (cases[c].n_rules != (size_t)(r < count))
            fail_msg("%s: %zu rules", cases[c].what, count);
        if (r < count && (rules[r].verdict != cases[c].verdict || rules[r].better != cases[c].better ||
                          rules[r].worse != cases[c].worse || rules[r].tied != cases[c].tied ||
                          rules[r].swap.lower != 4 || rules[r].swap.higher != 5))
            fail_msg("%s: verdict %d, %zu better, %zu worse, %zu tied", cases[c].what, (int)rules[r].verdict,
                     rules[r].better, rules[r].worse, rules[r].tied);
        free(rules);
    }
}

/* Alone with the lower option and the higher; then beside group 0, as the anomaly has it; beside group 2
 * nothing, which is exact there. */
static void test_probes(void **state)
{
    static const size_t exact[] = {N_EXACT, N_EXACT, N_EXACT};
    size_t with_lower[] = {8, 4, N_EXACT}, with_higher[] = {8, 5, N_EXACT};
    size_t want[2][N_GROUPS] = {{N_EXACT, 4, N_EXACT}, {N_EXACT, 5, N_EXACT}};
    size_t got[N_GROUPS];
    struct measured m[8] = {file("l", with_lower, 0.1, 0.001), file("h", with_higher, 0.2, 0.001)};
    const struct anomaly anomaly = {{1, 4, 5}, 0, 1, {-0.1, 0.0014}};
    size_t n = 2, longer[] = {8, 4, 6}, more[6][N_GROUPS];

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        assert_true(anomaly_probe(got, &anomaly, exact, m, n, N_GROUPS));
        assert_memory_equal(got, want[k], sizeof got);
        m[n++] = file("probe", want[k], 0.1, 0.001);
    }
    assert_false(anomaly_probe(got, &anomaly, exact, m, n, N_GROUPS)); /* beside 0 it is the anomaly */
    /* With group 2 changed too, either beside 0 (measured: with_lower, with_higher), and beside 2. */
    m[n] = file("longer", longer, 0.1, 0.001);
    const struct anomaly other = {{1, 4, 5}, n++, 1, {-0.1, 0.0014}};
    for (size_t k = 0; k < 2; k++) {
        assert_true(anomaly_probe(got, &other, exact, m, n, N_GROUPS));
        memcpy(more[k], got, sizeof got);
        assert_true(got[0] == N_EXACT && got[1] == 4 + k && got[2] == 6);
        m[n++] = file("probe", more[k], 0.1, 0.001);
    }
    assert_false(anomaly_probe(got, &other, exact, m, n, N_GROUPS));
}

static void test_order(void **state)
{
    struct anomaly_rule rules[] = {{.swap = {0, 8, 9}, .verdict = ANOMALY_HARMFUL},
                                   {.swap = {1, 4, 5}, .verdict = ANOMALY_BENEFICIAL}};
    (void)state;
    assert_true(anomaly_order(rules, 2, a_844, a_854, N_GROUPS) < 0);
    assert_true(anomaly_order(rules, 2, a_854, a_844, N_GROUPS) > 0);
    assert_true(anomaly_order(rules, 2, a_844, a_944, N_GROUPS) > 0);
    assert_true(anomaly_order(rules, 2, a_944, a_844, N_GROUPS) < 0);
    assert_int_equal(anomaly_order(rules, 2, a_844, a_844, N_GROUPS), 0);
    assert_int_equal(anomaly_order(rules, 2, a_844, a_954, N_GROUPS), 0); /* two groups */
    assert_int_equal(anomaly_order(rules, 2, a_744, a_844, N_GROUPS), 0); /* another swap */
    assert_int_equal(anomaly_order(NULL, 0, a_844, a_854, N_GROUPS), 0);
    rules[1].verdict = ANOMALY_NOTHING;
    assert_int_equal(anomaly_order(rules, 2, a_844, a_854, N_GROUPS), 0);
    rules[1].verdict = ANOMALY_UNPROBED;
    assert_int_equal(anomaly_order(rules, 2, a_844, a_854, N_GROUPS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find), cmocka_unit_test(test_rules),
                                       cmocka_unit_test(test_probes), cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
