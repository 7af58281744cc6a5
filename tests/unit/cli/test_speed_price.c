/* test_speed_price.c - decode times of plans and the price on them, against brute force over types; speed
 * tables. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "folder.h"
#include "gguf.h"
#include "speed_price.h"
#include "type_plan.h"

/* Linked from main.c in the program. */
void command_end_progress(const struct allot_progress *progress)
{
    (void)progress;
}

enum { N = 7, K = 4, SOURCE = 3, WIDTH = 256, ROUTER = 5, USED = 2, EXPERTS = 5 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */

static const enum ggml_type types[K] = {GGML_TYPE_Q2_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_BF16};

/* The tensors, and what a token reads of them. */
static const struct {
    char *name;
    int64_t rows, depth;
    double share;
} cast[N] = {
    {"token_embd.weight", 7, 1, 1.0 / 7},
    {"output.weight", 7, 1, 1},
    {"blk.0.attn_q.weight", 3, 1, 1},
    {"blk.0.ffn_down_exps.weight", 2, EXPERTS, (double)USED / EXPERTS},
    {"blk.0.ffn_down_shexp.weight", 4, 1, 1},
    {"blk.0.ffn_gate_inp.weight", EXPERTS, 1, 1}, /* a router: keeps F32 */
    {"blk.0.ffn_norm.weight", 1, 1, 1},           /* a vector: keeps F32, and is not counted */
};

struct instance {
    uint8_t arch[8 + 4], used[4];
    struct gguf_kv kv[2];
    struct gguf_tensor tensors[N];
    struct gguf_model model;
    struct tensor_costs measured[N];
    struct cost_table costs;
    struct constraints constraints;
    struct constraint_arguments arguments;
    struct speed_table speeds;
    double cost[N][K], ms[N][K];
    int64_t bytes[N][K], budget;
};

static void draw_tensor(struct instance *p, size_t i, uint64_t key)
{
    const int64_t rows = cast[i].rows * cast[i].depth;

    p->tensors[i] = (struct gguf_tensor){.name = cast[i].name,
                                         .n_dims = cast[i].depth > 1  ? 3
                                                   : cast[i].rows > 1 ? 2
                                                                      : 1,
                                         .ne = {WIDTH, cast[i].rows, cast[i].depth, 1},
                                         .type = i >= ROUTER ? GGML_TYPE_F32 : types[SOURCE],
                                         .n_elements = WIDTH * rows,
                                         .n_rows = rows,
                                         .n_bytes = (i >= ROUTER ? 4 : 2) * WIDTH * rows};
    assert_int_equal(gguf_tensor_quantizable(&p->tensors[i]), i < ROUTER);
    for (size_t j = 0; j < K && i < ROUTER; j++) {
        const double bytes = (double)ggml_row_size(types[j], WIDTH) * (double)rows;

        p->bytes[i][j] = (int64_t)(bytes + 31) / 32 * 32;
        p->ms[i][j] = bytes * cast[i].share * p->speeds.ns_per_byte[types[j]] / 1e6;
        p->cost[i][j] = j == SOURCE ? 0 : rng_uniform(key, 50 + i * K + j) * exp2(-2.0 * (double)j);
        if (j != SOURCE)
            p->measured[i].choices[p->measured[i].n++] =
                (struct plan_choice){(int)types[j], p->bytes[i][j], p->cost[i][j]};
    }
}

static struct instance *draw(uint64_t key)
{
    struct instance *p = calloc(1, sizeof *p);
    struct allot_error err = {0};
    const uint64_t length = 4;
    const uint32_t used = USED;

    assert_non_null(p);
    memcpy(p->arch, &length, 8);
    memcpy(p->arch + 8, "some", 4);
    memcpy(p->used, &used, 4);
    p->kv[0] = (struct gguf_kv){"general.architecture", GGUF_TYPE_STRING, p->arch, sizeof p->arch};
    p->kv[1] = (struct gguf_kv){"some.expert_used_count", GGUF_TYPE_UINT32, p->used, sizeof p->used};
    p->model =
        (struct gguf_model){.path = "m", .n_kv = 2, .kv = p->kv, .n_tensors = N, .tensors = p->tensors};
    p->costs = (struct cost_table){.tensors = p->measured};
    p->speeds.ns_per_byte[GGML_TYPE_F32] = 0.5;
    for (size_t j = 0; j < K; j++) {
        p->costs.types[types[j]] = true;
        p->speeds.ns_per_byte[types[j]] = 0.05 + rng_uniform(key, 10 + j);
    }
    for (size_t i = 0; i < N; i++)
        draw_tensor(p, i, key);
    p->budget = 9000 + (int64_t)(rng_u64(key, 1) % 12000);
    assert_int_equal(constraints_parse(&p->constraints, NULL, &p->arguments, &err), ALLOT_OK);
    assert_int_equal(constraints_bind(&p->constraints, &p->model, &err), ALLOT_OK);
    return p;
}

static void release(struct instance *p)
{
    constraints_release(&p->constraints);
    free(p);
}

/* Least cost + price * ms within the budget; the router's time is in every plan. */
static double brute_force(const struct instance *p, double price, double router_ms)
{
    double best = INFINITY;

    for (size_t code = 0; code < (size_t)pow(K, ROUTER); code++) {
        double objective = price * router_ms;
        int64_t bytes = 0;
        size_t rest = code;

        for (size_t i = 0; i < ROUTER; i++, rest /= K) {
            objective += p->cost[i][rest % K] + price * p->ms[i][rest % K];
            bytes += p->bytes[i][rest % K];
        }
        if (bytes <= p->budget)
            best = fmin(best, objective);
    }
    return best;
}

/* Solves, checks, and gives the plan's time. */
static double check_price(const struct instance *p, struct knapsack *k, double price, uint64_t key)
{
    const double router_ms = EXPERTS * WIDTH * 4 * 0.5 / 1e6, want = brute_force(p, price, router_ms);
    struct knapsack_answer answer;
    struct allot_error err = {0};
    double cost = 0, ms = router_ms;

    k->ms_price = price;
    if (knapsack_solve(&answer, k, 0, p->budget, &err) != ALLOT_OK)
        fail_msg("key %llu: %s", (unsigned long long)key, err.message);
    for (size_t i = 0; i < ROUTER; i++) {
        const struct knapsack_item *item = &k->items[k->item_of[i]];
        const enum ggml_type type = item->choices[answer.chosen[k->item_of[i]]].type;

        for (size_t j = 0; j < K; j++) {
            cost += types[j] == type ? p->cost[i][j] : 0;
            ms += types[j] == type ? p->ms[i][j] : 0;
        }
    }
    /* what is called cost is KL alone */
    if (!answer.result.exact || fabs(answer.result.cost - cost) > 1e-12 || fabs(answer.ms - ms) > 1e-12 ||
        fabs(answer.objective - want) > 1e-9 * fabs(want) || answer.result.lower_bound > want * (1 + 1e-12) ||
        answer.result.lower_bound < want * (1 - 1e-9))
        fail_msg("key %llu, price %g: cost %.17g (%.17g), ms %.17g (%.17g), objective %.17g, bound %.17g, "
                 "brute force %.17g",
                 (unsigned long long)key, price, answer.result.cost, cost, answer.ms, ms, answer.objective,
                 answer.result.lower_bound, want);
    knapsack_answer_release(&answer);
    return ms;
}

static void test_brute_force(void **state)
{
    int n_faster = 0;

    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        const uint64_t key = seed + 1000003 * n;
        struct instance *p = draw(key);
        struct allot_error err = {0};
        struct knapsack k;
        double last = INFINITY, first = 0;

        assert_int_equal(knapsack_init(&k, &p->model, &p->costs, &p->constraints, &err), ALLOT_OK);
        assert_int_equal(speed_fill_times(&k, &p->speeds, &err), ALLOT_OK);
        for (double price = 0; price<1e8; price = price> 0 ? 10 * price : 0.01) {
            const double ms = check_price(p, &k, price, key);

            if (ms > last * (1 + 1e-12))
                fail_msg("key %llu: slower for a price of %g", (unsigned long long)key, price);
            first = price > 0 ? first : ms;
            last = ms;
        }
        n_faster += last < first;
        knapsack_release(&k);
        release(p);
    }
    assert_true(n_faster > 100);
}

/* Token embeddings that are the output too are read whole. */
static void test_active_share(void **state)
{
    struct instance *p = draw(seed);

    (void)state;
    for (size_t i = 0; i < N; i++)
        assert_true(fabs(speed_active_share(&p->model, &p->tensors[i]) - cast[i].share) < 1e-15);
    p->tensors[1].name = "blk.0.attn_output.weight";
    assert_true(speed_active_share(&p->model, &p->tensors[0]) == 1);
    p->kv[1].key = "some.other";
    assert_true(speed_active_share(&p->model, &p->tensors[3]) == 1);
    p->tensors[2].n_rows = 1; /* a vector */
    assert_true(speed_tensor_ms(&p->speeds, &p->model, &p->tensors[2], GGML_TYPE_Q4_K) == 0);
    release(p);
}

/* Open choices need a time; those that are barred do not. */
static void test_unknown_times(void **state)
{
    struct instance *p = draw(seed);
    struct allot_error err = {0};
    struct knapsack k;

    (void)state;
    p->speeds.ns_per_byte[GGML_TYPE_Q2_K] = 0;
    assert_int_equal(knapsack_init(&k, &p->model, &p->costs, &p->constraints, &err), ALLOT_OK);
    assert_int_equal(speed_fill_times(&k, &p->speeds, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "Q2_K"));
    for (size_t i = 0; i < k.n; i++)
        k.items[i].choices[0].bar = CHOICE_BELOW_MIN;
    assert_int_equal(speed_fill_times(&k, &p->speeds, &err), ALLOT_OK);
    assert_true(isnan(k.items[0].choices[0].ms));
    p->speeds.ns_per_byte[GGML_TYPE_F32] = 0;
    assert_int_equal(speed_fill_times(&k, &p->speeds, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "ffn_gate_inp"));
    knapsack_release(&k);
    release(p);
}

static const char *write_text(const char *text)
{
    const char *path = in_folder("table.json");
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static void test_table_file(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "no JSON"},
        {"{\"ns_per_byte\": {\"Q4_K\": 1}", "no JSON"},
        {"{\"ns_per_byte\": {\"Q4_K\": 1, \"Q4_K\": 2}}", "no JSON"},
        {"[1]", "no object"},
        {"{}", "no object"},
        {"{\"ns_per_byte\": 3}", "no object"},
        {"{\"ns_per_byte\": {\"Q4_X\": 1}}", "'Q4_X' is no type"},
        {"{\"ns_per_byte\": {\"Q4_K\": 0}}", "of Q4_K are not a number above 0"},
        {"{\"ns_per_byte\": {\"Q4_K\": -1}}", "of Q4_K are not a number above 0"},
        {"{\"ns_per_byte\": {\"Q4_K\": \"1\"}}", "of Q4_K are not a number above 0"},
        {"{\"ns_per_byte\": {\"Q4_K\": 1e999}}", "no JSON"},
    };
    struct speed_table table, again;
    struct allot_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (speed_table_read(&table, write_text(bad[i].text), &err) != ALLOT_ERR_FORMAT ||
            !strstr(err.message, bad[i].message))
            fail_msg("%s: %s", bad[i].text, err.message);
    assert_int_equal(speed_table_read(&table, in_folder("absent"), &err), ALLOT_ERR_IO);
    assert_int_equal(speed_table_read(&table,
                                      write_text("{\"ns_per_byte\": {\"q4_k\": 2, \"F32\": 0.25}, \"x\": 1}"),
                                      &err),
                     ALLOT_OK);
    assert_true(table.ns_per_byte[GGML_TYPE_Q4_K] == 2 && table.ns_per_byte[GGML_TYPE_F32] == 0.25 &&
                table.ns_per_byte[GGML_TYPE_Q6_K] == 0);
    assert_int_equal(speed_table_write(&table, in_folder("table.json"), &err), ALLOT_OK);
    assert_int_equal(speed_table_read(&again, in_folder("table.json"), &err), ALLOT_OK);
    assert_memory_equal(table.ns_per_byte, again.ns_per_byte, sizeof table.ns_per_byte);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_active_share),
        cmocka_unit_test(test_unknown_times),
        cmocka_unit_test(test_table_file),
    };
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
