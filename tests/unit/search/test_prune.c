/* test_prune.c - isolation rows against verdicts worked out by hand, and in any order.
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
#include "search/prune.h"

enum { MAX_ROWS = 24, UP = 0, DOWN = 1, KV = 2, N_GROUPS = 3 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */
static struct allot_error err;
static const size_t peers[N_GROUPS] = {DOWN, UP, PRUNE_ALONE};
static const struct prune_groups groups = {N_GROUPS, peers};

struct given {
    size_t group;
    const char *layout;
    int64_t bytes;
    double kl, std_err, ppl, ppl_std_err;
    enum pruning pruning;
    const char *by, *line; /* name of the row, part of the line */
};

/* Names are GROUP/LAYOUT. All of one case stand in one list. */
static const struct {
    const char *what;
    size_t n;
    struct given rows[8];
} cases[] = {
    {"dominated, tied and staying; another group does not count",
     5,
     {{KV, "Q8_0", 800, 0.010, 0.0001, 0.01, 0, PRUNING_NONE, NULL, NULL},
      {KV, "Q5_0", 600, 0.030, 0.0001, 0.03, 0, PRUNING_DOMINATED, "2/Q5_K", "its KL is lower by 0.01"},
      {KV, "Q5_K", 600, 0.020, 0.0001, 0.02, 0, PRUNING_NONE, NULL, NULL},
      {KV, "Q5_1", 650, 0.0199, 0.0001, 0.02, 0, PRUNING_EQUAL_TRUTH, "2/Q5_K", "tie: 2/Q5_K"},
      {UP, "Q4_K", 100, 0.001, 0.0001, 0, 0, PRUNING_NONE, NULL, NULL}}},
    {"hard damage by KL and by PPL; it replaces nothing",
     4,
     {{KV, "Q8_0", 800, 0.010, 0.001, 0.01, 0, PRUNING_NONE, NULL, NULL},
      {KV, "IQ1_S", 100, 1.2, 0.001, 0.2, 0, PRUNING_HARD_DAMAGE, "2/IQ1_S",
       "alone it costs KL 1.2, more than 1"},
      {KV, "IQ1_M", 150, 0.9, 0.001, 0.8, 0, PRUNING_HARD_DAMAGE, "2/IQ1_M",
       "changes ln PPL by 0.8, more than 0.693"},
      {KV, "Q2_K", 200, 0.9, 0.001, 0.6, 0, PRUNING_NONE, NULL, NULL}}},
    /* 4 % of 1000 is 40 bytes; KL 2.5 times 0.010 is 0.025. */
    {"bad trade by KL: little saved, and only then",
     4,
     {{KV, "a", 1000, 0.010, 0.0001, 0.01, 0, PRUNING_NONE, NULL, NULL},
      {KV, "b", 961, 0.026, 0.0001, 0.01, 0, PRUNING_BAD_TRADE, "2/a",
       "3.9 % smaller than 2/a for KL 0.026 instead of 0.01"},
      {KV, "c", 960, 0.0265, 0.0001, 0.01, 0, PRUNING_NONE, NULL, NULL},  /* saves enough; b is no anchor */
      {KV, "d", 925, 0.066, 0.0001, 0.02, 0, PRUNING_NONE, NULL, NULL}}}, /* 2.49 times */
    {"bad trade by PPL, beyond its error",
     3,
     {{KV, "a", 1000, 0.010, 0.0001, -0.010, 0, PRUNING_NONE, NULL, NULL},
      {KV, "b", 990, 0.011, 0.0001, 0.036, 0.0001, PRUNING_BAD_TRADE, "2/a",
       "a change of ln PPL of 0.036 instead of -0.01"},
      {KV, "c", 980, 0.012, 0.0001, 0.036, 0.001, PRUNING_NONE, NULL, NULL}}},
    {"no bad trade where the anchor's PPL is uncertain",
     2, /* 0.036 - 0.035 within 2 * 3.5 * 0.001 */
     {{KV, "a", 1000, 0.010, 0.0001, 0.010, 0.001, PRUNING_NONE, NULL, NULL},
      {KV, "b", 990, 0.011, 0.0001, 0.036, 0, PRUNING_NONE, NULL, NULL}}},
    {"over in KL, but clearly better in PPL",
     3,
     {{KV, "a", 1000, 0.010, 0.0001, 0.04, 0.001, PRUNING_NONE, NULL, NULL},
      {KV, "b", 990, 0.026, 0.0001, 0.03, 0.001, PRUNING_NONE, NULL, NULL},
      {KV, "c", 985, 0.027, 0.0001, 0.038, 0.001, PRUNING_BAD_TRADE, "2/a", "KL 0.027"}}},
    {"second chance: the same layout stays in the peer, and KL passes",
     4,
     {{DOWN, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "b", 990, 0.011, 0.0001, 0.050, 0, PRUNING_SECOND_CHANCE, "0/b", "its KL passes, and 0/b stays"},
      {UP, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {UP, "b", 990, 0.011, 0.0001, 0.020, 0, PRUNING_NONE, NULL, NULL}}},
    {"bad for the PPL of two, second chance",
     4,
     {{DOWN, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "b", 995, 0.0105, 0.0001, 0.012, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "c", 990, 0.011, 0.0001, 0.050, 0, PRUNING_SECOND_CHANCE, "0/c", NULL},
      {UP, "c", 990, 0.011, 0.0001, 0.020, 0, PRUNING_NONE, NULL, NULL}}},
    {"bad for the PPL of one and the KL of another: none",
     4,
     {{DOWN, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "b", 990, 0.020, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "c", 985, 0.026, 0.0001, 0.050, 0, PRUNING_BAD_TRADE, "1/b", NULL},
      {UP, "c", 990, 0.011, 0.0001, 0.020, 0, PRUNING_NONE, NULL, NULL}}},
    {"no second chance where KL fails",
     4,
     {{DOWN, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "b", 990, 0.026, 0.0001, 0.050, 0, PRUNING_BAD_TRADE, "1/a", NULL},
      {UP, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {UP, "b", 990, 0.011, 0.0001, 0.020, 0, PRUNING_NONE, NULL, NULL}}},
    {"no second chance by one another, nor for a group without a peer",
     6,
     {{DOWN, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {DOWN, "b", 990, 0.011, 0.0001, 0.050, 0, PRUNING_BAD_TRADE, "1/a", NULL},
      {UP, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {UP, "b", 990, 0.011, 0.0001, 0.050, 0, PRUNING_BAD_TRADE, "0/a", NULL},
      {KV, "a", 1000, 0.010, 0.0001, 0.010, 0, PRUNING_NONE, NULL, NULL},
      {KV, "b", 990, 0.011, 0.0001, 0.050, 0, PRUNING_BAD_TRADE, "2/a", NULL}}},
    {"the group as it is: nothing compares with KL 0",
     3,
     {{KV, "exact", 1000, 0, 0, 0, 0, PRUNING_NONE, NULL, NULL},
      {KV, "b", 990, 0.0005, 0.0001, 0.001, 0, PRUNING_BAD_TRADE, "2/exact", NULL},
      {KV, "Q8_0", 500, 0.001, 0.0001, 0.001, 0, PRUNING_NONE, NULL, NULL}}},
};

static void set_row(struct prune_row *row, char *name, size_t size, const struct given *g)
{
    snprintf(name, size, "%zu/%s", g->group, g->layout);
    *row = (struct prune_row){.group = g->group,
                              .layout = g->layout,
                              .file = {.name = name, .bytes = g->bytes, .kl = g->kl, .std_err = g->std_err},
                              .ppl_change = g->ppl,
                              .ppl_std_err = g->ppl_std_err};
}

static void test_by_hand(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct prune_row rows[8];
        struct pruned out[8];
        char names[8][32];
        for (size_t i = 0; i < cases[c].n; i++)
            set_row(&rows[i], names[i], sizeof names[i], &cases[c].rows[i]);
        assert_int_equal(prune_rows(out, rows, cases[c].n, &groups, &prune_defaults, &err), ALLOT_OK);
        for (size_t i = 0; i < cases[c].n; i++) {
            const struct given *want = &cases[c].rows[i];
            if (out[i].pruning != want->pruning || (want->by && strcmp(want->by, names[out[i].by]) != 0) ||
                (want->line && !strstr(out[i].line, want->line)) ||
                (out[i].pruning == PRUNING_NONE) != (out[i].line[0] == '\0'))
                fail_msg("%s: %s: %d by %s: %s", cases[c].what, names[i], (int)out[i].pruning,
                         names[out[i].by], out[i].line);
        }
    }
}

/* Rows at random, few layouts and sizes close together: each removed one leads to one that stays, of its
 * group and no bad trade of its own, and no order of the rows gives another answer. */
static void test_any_order(void **state)
{
    size_t seen[PRUNING_BAD_TRADE + 1] = {0};
    (void)state;
    for (uint64_t t = 0; t < 3000; t++) {
        const uint64_t key = seed + t;
        struct prune_row rows[MAX_ROWS], shuffled[MAX_ROWS];
        struct pruned out[MAX_ROWS], again[MAX_ROWS];
        size_t n = 0, from[MAX_ROWS];
        char names[MAX_ROWS][32];
        static const char *const layouts[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

        for (size_t l = 0; l < 8; l++)
            for (size_t g = 0; g < N_GROUPS; g++, n++) {
                const int64_t bytes = (int64_t)(1000 - 14 * l - rng_u64(key, n) % 15);
                const double kl = 0.01 * exp2((double)l * 0.4 * rng_uniform(key, 100 + n));
                const struct given row = {g,      layouts[l],
                                          bytes,  kl,
                                          0.0002, (l == 7 ? 5 : 0.5) * kl * exp(rng_normal(key, 200 + n)),
                                          0.0005, 0,
                                          NULL,   NULL};
                set_row(&rows[n], names[n], sizeof names[n], &row);
            }
        for (size_t i = 0; i < n; i++) {
            size_t k = rng_u64(key, 300 + i) % (i + 1);
            from[i] = from[k];
            from[k] = i;
        }
        for (size_t i = 0; i < n; i++)
            shuffled[i] = rows[from[i]];
        assert_int_equal(prune_rows(out, rows, n, &groups, &prune_defaults, &err), ALLOT_OK);
        assert_int_equal(prune_rows(again, shuffled, n, &groups, &prune_defaults, &err), ALLOT_OK);
        for (size_t i = 0; i < n; i++) {
            const struct pruned *p = &out[from[i]];
            size_t at = from[i], steps = 0;
            seen[p->pruning]++;
            if (again[i].pruning != p->pruning || strcmp(again[i].line, p->line) != 0)
                fail_msg("key %llu: '%s', '%s'", (unsigned long long)key, p->line, again[i].line);
            while (!prune_stays(&out[at]) && out[at].pruning != PRUNING_HARD_DAMAGE && steps++ <= n) {
                assert_int_equal(rows[out[at].by].group, rows[at].group);
                at = out[at].by;
            }
            assert_true(steps <= n);
        }
    }
    for (size_t p = 0; p <= PRUNING_BAD_TRADE; p++)
        if (p != PRUNING_HARD_DAMAGE)
            assert_true(seen[p] > 100);
}

static void test_refusals(void **state)
{
    struct prune_row row = {.group = N_GROUPS, .layout = "a", .file = {.name = "a"}};
    struct pruned out;
    (void)state;
    assert_int_equal(prune_rows(&out, &row, 1, &groups, &prune_defaults, &err), ALLOT_ERR_ARGUMENT);
    assert_string_equal(err.message, "a: there is no group 3");
    row.group = 0;
    row.ppl_change = NAN;
    assert_int_equal(prune_rows(&out, &row, 1, &groups, &prune_defaults, &err), ALLOT_ERR_NUMERIC);
    assert_int_equal(prune_rows(NULL, NULL, 0, &groups, &prune_defaults, &err), ALLOT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand), cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_refusals)};
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
