/* test_knapsack.c - cost tables under constraints, against brute force over types.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "type_plan.h"

/* Linked from main.c in the program. */
void command_end_progress(const struct allot_progress *progress)
{
    (void)progress;
}

enum { N = 5, K = 4 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */

static const enum ggml_type types[K] = {GGML_TYPE_Q2_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_BF16};
static char *const names[N] = {"blk.0.attn_k.weight", "blk.0.attn_q.weight", "blk.1.attn_k.weight",
                               "blk.1.attn_q.weight", "output.weight"};
enum { SOURCE = 3 };

/* One of each kind of constraint, at random there or not. */
struct demands {
    bool pins_k, min_1, max_all, ties_layers, limits_0;
    int64_t limit;
    char limit_text[64];
};

struct instance {
    struct gguf_tensor tensors[N];
    struct gguf_model model;
    struct tensor_costs measured[N];
    struct cost_table table;
    struct constraints constraints;
    struct constraint_arguments arguments;
    struct demands demands;
    double cost[N][K]; /* as edited */
    int64_t bytes[N][K];
    int64_t budget;
};

static void draw_model(struct instance *p, uint64_t key)
{
    uint64_t c = 100;

    for (size_t i = 0; i < N; i++) {
        int64_t rows = 2 + (int64_t)(rng_u64(key, c++) % 4);

        p->tensors[i] = (struct gguf_tensor){.name = names[i],
                                             .n_dims = 2,
                                             .ne = {256, rows, 1, 1},
                                             .type = types[SOURCE],
                                             .n_elements = 256 * rows,
                                             .n_rows = rows,
                                             .n_bytes = 512 * rows};
        assert_true(gguf_tensor_quantizable(&p->tensors[i]));
        for (size_t j = 0; j < K; j++) {
            p->bytes[i][j] = ((int64_t)ggml_row_size(types[j], 256) * rows + 31) / 32 * 32;
            p->cost[i][j] = j == SOURCE ? 0 : rng_uniform(key, c++) * exp2(-(double)j);
            if (j != SOURCE)
                p->measured[i].choices[p->measured[i].n++] =
                    (struct plan_choice){(int)types[j], p->bytes[i][j], p->cost[i][j]};
        }
    }
    p->model = (struct gguf_model){.path = "m", .n_tensors = N, .tensors = p->tensors};
    p->table.tensors = p->measured;
    for (size_t j = 0; j < K; j++)
        p->table.types[types[j]] = true;
}

static void demand(struct string_list *list, const char *text)
{
    struct allot_error err;

    assert_int_equal(string_list_add(list, text, &err), ALLOT_OK);
}

static void draw_demands(struct instance *p, uint64_t key)
{
    struct demands *d = &p->demands;

    *d = (struct demands){.pins_k = rng_u64(key, 1) & 1,
                          .min_1 = rng_u64(key, 2) & 1,
                          .max_all = rng_u64(key, 3) & 1,
                          .ties_layers = rng_u64(key, 4) & 1,
                          .limits_0 = rng_u64(key, 5) & 1};
    if (d->pins_k)
        demand(&p->arguments.pins, "attn_k=Q4_K");
    if (d->min_1)
        demand(&p->arguments.mins, "blk\\.1=q4_k");
    if (d->max_all)
        demand(&p->arguments.maxs, "Q6_K");
    if (d->ties_layers)
        demand(&p->arguments.ties, "blk\\.(\\d)\\.attn");
    if (d->limits_0) {
        d->limit = 100 + (int64_t)(rng_u64(key, 6) % 2500);
        snprintf(d->limit_text, sizeof d->limit_text, "blk\\.0=%lld", (long long)d->limit);
        demand(&p->arguments.budgets, d->limit_text);
    }
    p->budget = 300 + (int64_t)(rng_u64(key, 7) % 6000);
}

/* Does a type per tensor keep the demands? */
static bool keeps(const struct instance *p, const size_t *pick)
{
    const struct demands *d = &p->demands;
    int64_t total = 0, layer_0 = 0;

    for (size_t i = 0; i < N; i++) {
        bool is_k = i == 0 || i == 2, in_layers = i < 4;
        bool pinned = d->pins_k && (is_k || (d->ties_layers && in_layers));

        if (pinned && pick[i] != 1)
            return false;
        if (!pinned && d->min_1 && (i == 2 || i == 3) && pick[i] < 1)
            return false;
        if (!pinned && d->max_all && pick[i] > 2)
            return false;
        total += p->bytes[i][pick[i]];
        layer_0 += i < 2 ? p->bytes[i][pick[i]] : 0;
    }
    if (d->ties_layers && (pick[0] != pick[1] || pick[2] != pick[3]))
        return false;
    return total <= p->budget && (!d->limits_0 || layer_0 <= d->limit);
}

static double brute_force(const struct instance *p)
{
    double best = INFINITY;

    for (size_t code = 0; code < (size_t)pow(K, N); code++) {
        size_t pick[N], rest = code;
        double cost = 0;

        for (size_t i = 0; i < N; i++, rest /= K) {
            pick[i] = rest % K;
            cost += p->cost[i][pick[i]];
        }
        if (keeps(p, pick))
            best = fmin(best, cost);
    }
    return best;
}

static size_t type_index(enum ggml_type type)
{
    for (size_t j = 0; j < K; j++)
        if (types[j] == type)
            return j;
    fail_msg("an unknown type");
    return 0;
}

/* A price per type and tensor, of either sign, into the knapsack and the table of brute force. */
static void edit_costs(struct instance *p, struct knapsack *k, uint64_t key)
{
    for (size_t i = 0; i < k->n; i++)
        for (size_t c = 0; c < k->items[i].n_choices; c++)
            for (size_t t = 0; t < k->items[i].n_tensors; t++) {
                int64_t tensor = k->items[i].tensors[t];
                size_t j = type_index(k->items[i].choices[c].type);
                double price = rng_normal(key, (uint64_t)tensor * K + j);

                k->items[i].choices[c].cost += price;
                p->cost[tensor][j] += price;
            }
}

static void check_answer(const struct instance *p, const struct knapsack *k, uint64_t key)
{
    double want = brute_force(p), cost = 0;
    struct knapsack_answer answer;
    struct allot_error err = {0};
    size_t pick[N];
    allot_status status = knapsack_solve(&answer, k, 0, p->budget, &err);

    if (status == ALLOT_ERR_INFEASIBLE && !isfinite(want))
        return;
    if (status || !isfinite(want))
        fail_msg("key %llu: status %d: %s; brute force %g", (unsigned long long)key, status, err.message,
                 want);
    for (size_t i = 0; i < N; i++) {
        size_t item = k->item_of[i];

        pick[i] = type_index(k->items[item].choices[answer.chosen[item]].type);
        cost += p->cost[i][pick[i]];
    }
    if (!keeps(p, pick))
        fail_msg("key %llu: a demand is not kept", (unsigned long long)key);
    if (!answer.result.exact || fabs(cost - want) > 1e-12 || fabs(answer.result.cost - want) > 1e-12 ||
        answer.result.lower_bound > want + 1e-12 || answer.result.lower_bound < want - 1e-9)
        fail_msg("key %llu: cost %.17g, reported %.17g, bound %.17g, brute force %.17g",
                 (unsigned long long)key, cost, answer.result.cost, answer.result.lower_bound, want);
    knapsack_answer_release(&answer);
}

static void test_brute_force(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 1000; n++) {
        uint64_t key = seed + 1000003 * n;
        struct instance *p = calloc(1, sizeof *p);
        struct allot_error err = {0};
        struct knapsack k;

        assert_non_null(p);
        draw_model(p, key);
        draw_demands(p, key);
        assert_int_equal(constraints_parse(&p->constraints, NULL, &p->arguments, &err), ALLOT_OK);
        if (constraints_bind(&p->constraints, &p->model, &err) != ALLOT_OK ||
            knapsack_init(&k, &p->model, &p->table, &p->constraints, &err) != ALLOT_OK)
            fail_msg("key %llu: %s", (unsigned long long)key, err.message);
        check_answer(p, &k, key);
        edit_costs(p, &k, key + 1);
        check_answer(p, &k, key);
        knapsack_release(&k);
        constraints_release(&p->constraints);
        string_list_release(&p->arguments.pins);
        string_list_release(&p->arguments.mins);
        string_list_release(&p->arguments.maxs);
        string_list_release(&p->arguments.ties);
        string_list_release(&p->arguments.budgets);
        free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_brute_force)};
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
