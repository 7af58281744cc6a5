/* test_interact.c - plans with interactions against brute force, and against samples of nothing but noise.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "plan/interact.h"

enum { N_ITEMS = 5, N_CHOICES = 4, HALF = 40, N_SAMPLES = 2 * HALF, N_PLANS = 1024 }; /* 4^5 */

static struct allot_error err;

struct instance {
    struct plan_choice choices[N_ITEMS][N_CHOICES];
    struct plan_item items[N_ITEMS];
    float values[N_ITEMS][N_CHOICES * N_SAMPLES];
    const float *rows[N_ITEMS];
    struct plan_samples samples;
};

/* common: how much of an error all items share. same: the second half of the samples is the first again. */
static void make(struct instance *in, uint64_t seed, double common, bool same)
{
    uint64_t at = 0;
    for (size_t i = 0; i < N_ITEMS; i++) {
        for (size_t j = 0; j < N_CHOICES; j++) {
            float *z = in->values[i] + j * N_SAMPLES;
            double size = 0.1 * pow(0.5, (double)j) * (0.5 + rng_uniform(seed, at++)), cost = 0;
            double share = common * (rng_uniform(seed, at++) - 0.3);
            for (size_t s = 0; s < N_SAMPLES; s++) {
                z[s] = s >= HALF && same
                           ? z[s - HALF]
                           : (float)(size * (share * rng_normal(~seed, s) + rng_normal(seed, at++)));
                cost += (double)z[s] * z[s] / N_SAMPLES;
            }
            in->choices[i][j] = (struct plan_choice){
                .type = (int)j, .bytes = (int64_t)(10 * (j + 1) + rng_u64(seed, at++) % 5), .cost = cost};
        }
        in->items[i] = (struct plan_item){"t", in->choices[i], N_CHOICES};
        in->rows[i] = in->values[i];
    }
    in->samples = (struct plan_samples){in->rows, N_SAMPLES};
}

static double cost_together(const struct instance *in, const size_t *chosen)
{
    double cost = 0;
    for (size_t s = 0; s < N_SAMPLES; s++) {
        double sum = 0;
        for (size_t i = 0; i < N_ITEMS; i++)
            sum += (double)in->values[i][chosen[i] * N_SAMPLES + s];
        cost += sum * sum / N_SAMPLES;
    }
    return cost;
}

static int64_t bytes_of(const struct instance *in, const size_t *chosen)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < N_ITEMS; i++)
        bytes += in->choices[i][chosen[i]].bytes;
    return bytes;
}

static double brute_force(const struct instance *in, int64_t most)
{
    double best = INFINITY;
    for (size_t plan = 0; plan < N_PLANS; plan++) {
        size_t chosen[N_ITEMS], rest = plan;
        for (size_t i = 0; i < N_ITEMS; i++, rest /= N_CHOICES)
            chosen[i] = rest % N_CHOICES;
        if (bytes_of(in, chosen) <= most)
            best = fmin(best, cost_together(in, chosen));
    }
    return best;
}

/* Where unseen samples are the seen ones again, all interactions are true, and the search must find nearly
 * all there is to gain. */
static void test_brute_force(void **state)
{
    (void)state;
    struct instance *in = malloc(sizeof *in);
    double gained = 0, possible = 0;
    int n_optimal = 0, n = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct plan_result additive;
        struct plan_interaction found;
        size_t chosen[N_ITEMS];
        const int64_t most = 100 + (int64_t)(rng_u64(seed, 1) % 80);
        make(in, seed, 1.5, true);
        assert_int_equal(plan_solve(in->items, N_ITEMS, 0, most, chosen, &additive, &err), ALLOT_OK);
        const double before = cost_together(in, chosen);
        assert_int_equal(plan_interact(&found, in->items, N_ITEMS, &in->samples, most, chosen, &err),
                         ALLOT_OK);
        const double after = cost_together(in, chosen), best = brute_force(in, most);
        assert_true(bytes_of(in, chosen) <= most);
        assert_true(fabs(found.cost - after) < 1e-9 * after);
        assert_true(after <= before * (1 + 1e-9));
        gained += before - after;
        possible += before - best;
        n_optimal += after <= best * (1 + 1e-9);
        n++;
    }
    print_message("%d of %d plans optimal, %.1f %% of what there was to gain\n", n_optimal, n,
                  100 * gained / possible);
    assert_true(possible > 0 && gained > 0.7 * possible);
    free(in);
}

/* Independent errors: what looks like interactions is noise. */
static void test_noise(void **state)
{
    (void)state;
    struct instance *in = malloc(sizeof *in);
    int n_changed = 0;
    double loss = 0, total = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct plan_result additive;
        struct plan_interaction found;
        size_t chosen[N_ITEMS], kept[N_ITEMS];
        make(in, 1000 + seed, 0, false);
        assert_int_equal(plan_solve(in->items, N_ITEMS, 0, 120, chosen, &additive, &err), ALLOT_OK);
        memcpy(kept, chosen, sizeof kept);
        assert_int_equal(plan_interact(&found, in->items, N_ITEMS, &in->samples, 120, chosen, &err),
                         ALLOT_OK);
        n_changed += memcmp(kept, chosen, sizeof kept) != 0;
        for (size_t i = 0; i < N_ITEMS; i++) {
            loss += in->choices[i][chosen[i]].cost - in->choices[i][kept[i]].cost;
            total += in->choices[i][kept[i]].cost;
        }
    }
    print_message("noise changed %d of 300 plans and cost %.2f %%\n", n_changed, 100 * loss / total);
    assert_true(n_changed < 100 && loss < 0.03 * total);
    free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_brute_force), cmocka_unit_test(test_noise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
