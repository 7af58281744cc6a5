/* test_dominance.c - survivors against the definition, on random files in random order; cases by hand.
 * SPDX-License-Identifier: MIT */
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
#include "search/dominance.h"

enum { MAX_FILES = 14, MAX_WINDOWS = 12 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */
static struct allot_error err;

struct instance {
    struct measured m[MAX_FILES];
    double windows[MAX_FILES][MAX_WINDOWS];
    char names[MAX_FILES][24];
    size_t n, n_windows;
};

/* Windows are hard or easy for all files alike; few sizes, and small differences, so that all rules are met.
 */
static void draw(struct instance *in, uint64_t key)
{
    const bool few_sizes = rng_u64(key, 0) % 2 == 0;
    const double noise = rng_u64(key, 1) % 3 == 0 ? 0.3 : 0.03;
    uint64_t at = 10;

    in->n = 1 + rng_u64(key, 2) % MAX_FILES;
    in->n_windows = 2 + rng_u64(key, 3) % (MAX_WINDOWS - 1);
    for (size_t i = 0; i < in->n; i++) {
        const int64_t bytes =
            (int64_t)(1000 + rng_u64(key, at++) % (few_sizes ? 6 : 4000) * (few_sizes ? 500 : 1));
        const double level = exp2(-(double)bytes / 1000) * (0.8 + 0.4 * rng_uniform(key, at++));
        double sum = 0;
        for (size_t w = 0; w < in->n_windows; w++) {
            in->windows[i][w] = level * (0.5 + rng_uniform(~key, w) + noise * rng_normal(key, at++));
            sum += in->windows[i][w];
        }
        snprintf(in->names[i], sizeof in->names[i], "f%zu", i);
        in->m[i] = (struct measured){.name = in->names[i],
                                     .family = (enum family)(rng_u64(key, at++) % 5),
                                     .bytes = bytes,
                                     .kl = sum / (double)in->n_windows,
                                     .windows = in->windows[i],
                                     .n_windows = in->n_windows};
    }
}

/* The test of the difference in two passes, from the definition. */
static bool lower(const struct measured *a, const struct measured *b)
{
    const double n = (double)a->n_windows;
    double mean = 0, squares = 0;
    for (size_t w = 0; w < a->n_windows; w++)
        mean += (a->windows[w] - b->windows[w]) / n;
    for (size_t w = 0; w < a->n_windows; w++)
        squares += pow(a->windows[w] - b->windows[w] - mean, 2);
    return -mean > 2 * sqrt(squares / (n - 1) / n);
}

static bool dominates(const struct measured *a, const struct measured *b)
{
    return a->bytes <= b->bytes && lower(a, b);
}

static bool tie(const struct measured *a, const struct measured *b)
{
    return !lower(a, b) && !lower(b, a);
}

/* a has the right to replace b where they tie. */
static bool comes_first(const struct measured *a, const struct measured *b)
{
    return a->bytes < b->bytes ||
           (a->bytes == b->bytes &&
            (a->family < b->family || (a->family == b->family &&
                                       (a->kl < b->kl || (a->kl == b->kl && strcmp(a->name, b->name) < 0)))));
}

static void check_removed(const struct instance *in, const struct verdict *v, size_t i, uint64_t key)
{
    const struct measured *m = in->m, *by = &m[v[i].by];
    size_t steps = 0, at = i;

    if (v[i].by == i || strstr(v[i].line, by->name) == NULL)
        fail_msg("key %llu: %s names no replacement: %s", (unsigned long long)key, m[i].name, v[i].line);
    if (v[i].removal == REMOVAL_DOMINATED && !dominates(by, &m[i]))
        fail_msg("key %llu: %s does not dominate %s", (unsigned long long)key, by->name, m[i].name);
    if (v[i].removal == REMOVAL_TIED && !(tie(by, &m[i]) && comes_first(by, &m[i])))
        fail_msg("key %llu: %s does not win a tie with %s", (unsigned long long)key, by->name, m[i].name);
    while (v[at].removal != REMOVAL_NONE && steps++ <= in->n)
        at = v[at].by;
    if (v[at].removal != REMOVAL_NONE)
        fail_msg("key %llu: %s is replaced in a circle", (unsigned long long)key, m[i].name);
}

static void check_survivor(const struct instance *in, const struct verdict *v, size_t i, uint64_t key)
{
    const struct measured *m = in->m;
    for (size_t k = 0; k < in->n; k++) {
        if (dominates(&m[k], &m[i]) || (m[k].bytes < m[i].bytes && m[k].kl <= m[i].kl))
            fail_msg("key %llu: %s survives although %s is better", (unsigned long long)key, m[i].name,
                     m[k].name);
        if (k != i && v[k].removal == REMOVAL_NONE && tie(&m[i], &m[k]))
            fail_msg("key %llu: %s and %s survive a tie", (unsigned long long)key, m[i].name, m[k].name);
    }
    assert_string_equal(v[i].line, "");
}

static void check_pareto(const struct instance *in, const bool *pareto)
{
    for (size_t i = 0; i < in->n; i++) {
        bool want = true;
        for (size_t k = 0; k < in->n; k++)
            want = want && !(in->m[k].bytes < in->m[i].bytes && in->m[k].kl <= in->m[i].kl) &&
                   !(in->m[k].bytes <= in->m[i].bytes && in->m[k].kl < in->m[i].kl);
        assert_int_equal(pareto[i], want);
    }
}

/* Which files stay must not depend on where they stand, nor may their replacements. */
static void check_shuffled(const struct instance *in, const struct verdict *v, double spacing, uint64_t key)
{
    struct measured shuffled[MAX_FILES];
    struct verdict again[MAX_FILES];
    size_t from[MAX_FILES];

    for (size_t i = 0; i < in->n; i++) {
        size_t k = rng_u64(key, 900 + i) % (i + 1);
        from[i] = from[k];
        from[k] = i;
    }
    for (size_t i = 0; i < in->n; i++)
        shuffled[i] = in->m[from[i]];
    assert_int_equal(survivors_find(again, NULL, shuffled, in->n, spacing, &err), ALLOT_OK);
    for (size_t i = 0; i < in->n; i++) {
        if (again[i].removal != v[from[i]].removal || strcmp(again[i].line, v[from[i]].line) != 0)
            fail_msg("key %llu: %s depends on the order: '%s', '%s'", (unsigned long long)key,
                     shuffled[i].name, v[from[i]].line, again[i].line);
        if (again[i].removal != REMOVAL_NONE)
            assert_string_equal(shuffled[again[i].by].name, in->m[v[from[i]].by].name);
    }
}

static void check_spacing(const struct instance *in, const struct verdict *v, const struct verdict *without,
                          double spacing)
{
    int64_t least = INT64_MAX, most = 0;
    for (size_t i = 0; i < in->n; i++)
        if (without[i].removal == REMOVAL_NONE) {
            least = in->m[i].bytes < least ? in->m[i].bytes : least;
            most = in->m[i].bytes > most ? in->m[i].bytes : most;
        }
    for (size_t i = 0; i < in->n; i++) {
        /* Spacing only takes from the survivors, and says so. */
        if (without[i].removal != REMOVAL_NONE)
            assert_int_equal(v[i].removal, without[i].removal);
        else
            assert_true(v[i].removal == REMOVAL_NONE || v[i].removal == REMOVAL_CROWDED);
        for (size_t k = 0; k < i; k++)
            if (v[i].removal == REMOVAL_NONE && v[k].removal == REMOVAL_NONE)
                assert_true(fabs((double)(in->m[i].bytes - in->m[k].bytes)) >=
                            spacing * (double)(most - least));
    }
}

/* What survived is judged once more, alone: dominance after spacing. */
static void check_again(const struct instance *in, const struct verdict *v)
{
    const struct measured *left[MAX_FILES];
    struct verdict again[MAX_FILES];
    size_t n = 0;
    for (size_t i = 0; i < in->n; i++)
        if (v[i].removal == REMOVAL_NONE)
            left[n++] = &in->m[i];
    assert_true(n > 0);
    assert_int_equal(dominance_judge(again, left, n, &err), ALLOT_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(again[i].removal, REMOVAL_NONE);
}

static void test_random_files(void **state)
{
    size_t seen[REMOVAL_CROWDED + 1] = {0};
    (void)state;
    for (uint64_t t = 0; t < 4000; t++) {
        const double spacing = t % 2 == 0 ? 0.02 : 0.3 * rng_uniform(seed + t, 1);
        const uint64_t key = seed + t;
        struct instance in;
        struct verdict without[MAX_FILES], v[MAX_FILES];
        bool pareto[MAX_FILES];

        draw(&in, key);
        assert_int_equal(survivors_find(without, pareto, in.m, in.n, 0, &err), ALLOT_OK);
        assert_int_equal(survivors_find(v, NULL, in.m, in.n, spacing, &err), ALLOT_OK);
        for (size_t i = 0; i < in.n; i++) {
            if (without[i].removal == REMOVAL_NONE)
                check_survivor(&in, without, i, key);
            /* What dominates is not dominated. */
            if (without[i].removal == REMOVAL_DOMINATED)
                assert_int_not_equal(without[without[i].by].removal, REMOVAL_DOMINATED);
            if (v[i].removal == REMOVAL_NONE)
                check_survivor(&in, v, i, key);
            else
                check_removed(&in, v, i, key);
            seen[v[i].removal]++;
        }
        check_pareto(&in, pareto);
        check_spacing(&in, v, without, spacing);
        check_shuffled(&in, v, spacing, key);
        check_again(&in, v);
    }
    for (size_t r = 0; r <= REMOVAL_CROWDED; r++) /* the instances are such that all rules are met */
        assert_true(seen[r] > 100);
}

/* ---- By hand: KL with an error of its own instead of windows --------------------------------- */

struct by_hand {
    const char *what;
    double spacing;
    size_t n;
    struct {
        const char *name;
        enum family family;
        int64_t bytes;
        double kl, std_err;
        enum removal removal;
        const char *by, *line; /* part of the line */
    } files[6];
};

static const struct by_hand cases[] = {
    {"a plain mix that is best somewhere survives among hybrids",
     0.02,
     4,
     {{"hybrid-3", FAMILY_HYBRID, 3000000, 0.30, 0.001, REMOVAL_NONE, NULL, NULL},
      {"Q4_K_M", FAMILY_PLAIN, 4000000, 0.10, 0.001, REMOVAL_NONE, NULL, NULL},
      {"hybrid-4", FAMILY_HYBRID, 4100000, 0.12, 0.001, REMOVAL_DOMINATED, "Q4_K_M",
       "dominated: Q4_K_M is 100.0 kB smaller, and its KL is lower by 0.02 +- 0.0014"},
      {"plan-5", FAMILY_PLAN, 5000000, 0.05, 0.001, REMOVAL_NONE, NULL, NULL}}},
    {"a tie of one size goes to the plainer, though its KL is higher",
     0,
     3,
     {{"hybrid", FAMILY_HYBRID, 4000, 0.100, 0.002, REMOVAL_TIED, "plain",
       "tie: plain has its size and is plainer, and KL differs by no more than the error (+0.001 +- 0.0028)"},
      {"plain", FAMILY_PLAIN, 4000, 0.101, 0.002, REMOVAL_NONE, NULL, NULL},
      {"learned", FAMILY_LEARNED, 4000, 0.102, 0.002, REMOVAL_TIED, "plain", "plainer"}}},
    {"a tie goes to the smaller, though the other is plainer and nominally better",
     0,
     2,
     {{"plan", FAMILY_PLAN, 3999, 0.102, 0.002, REMOVAL_NONE, NULL, NULL},
      {"plain", FAMILY_PLAIN, 4000, 0.101, 0.002, REMOVAL_TIED, "plan", "tie: plan is 1 B smaller"}}},
    {"of one size, beyond the error, the better stays although less plain",
     0,
     2,
     {{"plan", FAMILY_PLAN, 4000, 0.09, 0.002, REMOVAL_NONE, NULL, NULL},
      {"plain", FAMILY_PLAIN, 4000, 0.10, 0.002, REMOVAL_DOMINATED, "plan",
       "has its size, and its KL is lower"}}},
    {"what ties only with a file that was removed stays",
     0,
     3, /* a ~ b, b ~ c, c better than a */
     {{"a", FAMILY_PLAIN, 1000, 0.110, 0.002, REMOVAL_NONE, NULL, NULL},
      {"b", FAMILY_PLAIN, 2000, 0.106, 0.002, REMOVAL_TIED, "a", "tie"},
      {"c", FAMILY_PLAIN, 3000, 0.102, 0.002, REMOVAL_NONE, NULL, NULL}}},
    {"identical in all but the name",
     0,
     2,
     {{"b", FAMILY_PLAIN, 1000, 0.1, 0.01, REMOVAL_TIED, "a", "a has its size"},
      {"a", FAMILY_PLAIN, 1000, 0.1, 0.01, REMOVAL_NONE, NULL, NULL}}},
    /* From (1000, 0.4) to (2000, 0.1) the line falls 0.0003 a byte, in 10 bytes 0.003. */
    {"crowded: the larger saves more than the line",
     0.02,
     4,
     {{"first", FAMILY_PLAIN, 1000, 0.400, 0, REMOVAL_NONE, NULL, NULL},
      {"x", FAMILY_PLAIN, 1500, 0.200, 0, REMOVAL_CROWDED, "y", "spacing: y is only 10 B larger"},
      {"y", FAMILY_HYBRID, 1510, 0.196, 0, REMOVAL_NONE, NULL, NULL},
      {"last", FAMILY_PLAIN, 2000, 0.100, 0, REMOVAL_NONE, NULL, NULL}}},
    {"crowded: the larger saves less than the line",
     0.02,
     4,
     {{"first", FAMILY_PLAIN, 1000, 0.400, 0, REMOVAL_NONE, NULL, NULL},
      {"x", FAMILY_PLAIN, 1500, 0.200, 0, REMOVAL_NONE, NULL, NULL},
      {"y", FAMILY_HYBRID, 1510, 0.1975, 0, REMOVAL_CROWDED, "x", "spacing: x is only 10 B smaller"},
      {"last", FAMILY_PLAIN, 2000, 0.100, 0, REMOVAL_NONE, NULL, NULL}}},
    {"crowded at the end",
     0.02,
     3, /* from (1000, 0.4) to (2000, 0.1) 0.0003 a byte; the last 5 save 0.001 */
     {{"first", FAMILY_PLAIN, 1000, 0.400, 0, REMOVAL_NONE, NULL, NULL},
      {"x", FAMILY_PLAIN, 1995, 0.101, 0, REMOVAL_NONE, NULL, NULL},
      {"last", FAMILY_PLAIN, 2000, 0.100, 0, REMOVAL_CROWDED, "x", "smaller"}}},
    {"far enough apart",
     0.02,
     3,
     {{"first", FAMILY_PLAIN, 1000, 0.400, 0, REMOVAL_NONE, NULL, NULL},
      {"x", FAMILY_PLAIN, 1020, 0.399, 0, REMOVAL_NONE, NULL, NULL},
      {"last", FAMILY_PLAIN, 2000, 0.100, 0, REMOVAL_NONE, NULL, NULL}}},
};

static void test_by_hand(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct measured m[6] = {0};
        struct verdict v[6];
        for (size_t i = 0; i < cases[c].n; i++)
            m[i] = (struct measured){.name = cases[c].files[i].name,
                                     .family = cases[c].files[i].family,
                                     .bytes = cases[c].files[i].bytes,
                                     .kl = cases[c].files[i].kl,
                                     .std_err = cases[c].files[i].std_err};
        assert_int_equal(survivors_find(v, NULL, m, cases[c].n, cases[c].spacing, &err), ALLOT_OK);
        for (size_t i = 0; i < cases[c].n; i++) {
            if (v[i].removal != cases[c].files[i].removal)
                fail_msg("%s: %s: removal %d: %s", cases[c].what, m[i].name, (int)v[i].removal, v[i].line);
            if (v[i].removal == REMOVAL_NONE)
                continue;
            if (strcmp(m[v[i].by].name, cases[c].files[i].by) != 0 ||
                !strstr(v[i].line, cases[c].files[i].line))
                fail_msg("%s: %s: by %s: %s", cases[c].what, m[i].name, m[v[i].by].name, v[i].line);
        }
    }
}

/* A file halfway between two is half of each; paired, only its own offset of 0.01, 0.03 per window remains.
 */
static void test_line(void **state)
{
    static const double from[] = {0.5, 0.9}, to[] = {0.1, 0.3}, on[] = {0.31, 0.63};
    const struct measured a = {.name = "a", .bytes = 100, .kl = 0.7, .windows = from, .n_windows = 2};
    const struct measured b = {.name = "b", .bytes = 200, .kl = 0.2, .windows = to, .n_windows = 2};
    const struct measured c = {.name = "c", .bytes = 150, .kl = 0.47, .windows = on, .n_windows = 2};
    const struct measured alone = {.name = "c", .bytes = 150, .kl = 0.47, .std_err = 0.03};
    struct difference d = measured_over_line(&c, &a, &b);

    (void)state;
    assert_true(fabs(d.kl - 0.02) < 1e-12);
    assert_true(fabs(d.std_err - 0.01) < 1e-12); /* of 0.01 and 0.03: sqrt(2 * 0.01^2 / 1 / 2) */
    assert_true(fabs(measured_line(&a, &b, 175) - 0.325) < 1e-12);
    /* Unpaired: 0.03 with half of 0.2 and half of 0.1. */
    d = measured_over_line(&alone, &a, &b);
    assert_true(fabs(d.std_err - sqrt(0.03 * 0.03 + 0.1 * 0.1 + 0.05 * 0.05)) < 1e-12);
    d = measured_difference(&a, &b);
    assert_true(fabs(d.kl - 0.5) < 1e-12 && fabs(d.std_err - 0.1) < 1e-12);
}

static void test_refusals(void **state)
{
    struct measured m[2] = {{.name = "a", .bytes = 5, .kl = 1}, {.name = "b", .bytes = 5, .kl = NAN}};
    struct verdict v[2];
    (void)state;
    assert_int_equal(survivors_find(v, NULL, m, 2, 0, &err), ALLOT_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "b: its KL is nan"));
    m[1] = (struct measured){.name = "b", .bytes = -1};
    assert_int_equal(survivors_find(v, NULL, m, 2, 0, &err), ALLOT_ERR_ARGUMENT);
    m[1] = (struct measured){.name = "b", .windows = &m[0].kl};
    assert_int_equal(survivors_find(v, NULL, m, 2, 0, &err), ALLOT_ERR_ARGUMENT);
    assert_int_equal(survivors_find(v, NULL, m, 1, 1, &err), ALLOT_ERR_ARGUMENT);
    assert_int_equal(survivors_find(NULL, NULL, NULL, 0, 0.02, &err), ALLOT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_files), cmocka_unit_test(test_by_hand),
                                       cmocka_unit_test(test_line), cmocka_unit_test(test_refusals)};
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
