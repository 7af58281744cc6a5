/* test_tape.c - where the passes' blocks go under a limit, and that results do not depend on it.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "net/net.h"

enum { MIB = 1 << 20, N_CTX = 32, N_SEQS = 5, N_TOKENS = N_CTX * N_SEQS };

static struct allot_error err;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* ---- The places ------------------------------------------------------------------------------------ */

static char note[1024];

static void keep_note(void *user, const char *line)
{
    (void)user;
    snprintf(note, sizeof note, "%s", line);
}

/* In MiB. own 0: refused, and `file` is the least limit that the message gives. */
static const struct {
    int64_t fixed, states, activations, limit, own, file;
} rows[] = {
    {100, 50, 30, 1000, 180, 0},
    {100, 50, 30, 180, 180, 0},
    {100, 50, 30, 179, 130, 50},
    {100, 50, 30, 130, 130, 50},
    {100, 50, 30, 129, 100, 80},
    {100, 50, 30, 100, 100, 80},
    {100, 50, 30, 99, 0, 100},
    {100, 50, 30, 0, 0, 100},
    {100, 0, 30, 129, 100, 30},
    {100, 50, 0, 149, 100, 50},
    {9000000, 7000000, 8000000, 24000000, 24000000, 0},
};

static void test_places(void **state)
{
    (void)state;
    const struct allot_progress progress = {.note = keep_note};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct net_needs needs = {rows[i].fixed * MIB, rows[i].states * MIB, rows[i].activations * MIB};
        const struct memory_budget budget = {rows[i].limit * MIB, "some/folder"};
        struct net_placement place;
        char least[64];
        note[0] = '\0';
        const allot_status status = net_place(&place, &needs, &budget, "the job", &progress, &err);
        print_message("row %zu: %s\n", i, status == ALLOT_OK ? note : err.message);
        if (rows[i].own == 0) {
            snprintf(least, sizeof least, "the job: at least %lldMiB", (long long)rows[i].file);
            assert_int_equal(status, ALLOT_ERR_MEMORY);
            assert_non_null(strstr(err.message, least));
            continue;
        }
        assert_int_equal(status, ALLOT_OK);
        assert_int_equal(place.own, rows[i].own * MIB);
        assert_int_equal(place.file, rows[i].file * MIB);
        assert_int_equal(place.left, budget.limit - place.own);
        assert_int_equal(place.states_folder != NULL, place.file > 0);
        assert_int_equal(place.activations_folder != NULL, place.file > needs.states);
        assert_int_equal(strstr(note, "some/folder") != NULL, place.file > 0);
    }
}

static void test_no_limit(void **state)
{
    (void)state;
    const struct net_needs needs = {1, 2, INT64_MAX / 2};
    struct net_placement place;
    check(net_place(&place, &needs, NULL, "the job", NULL, &err));
    assert_null(place.states_folder);
    assert_int_equal(place.left, INT64_MAX - place.own);
}

/* ---- The passes ------------------------------------------------------------------------------------ */

static allot_status hash_map(void *user, const struct net_map *map, struct allot_error *e)
{
    (void)e;
    hash_update_str(user, map->tensor->name);
    hash_update(user, map->x, sizeof(float) * (size_t)(map->n_tokens * map->n_in));
    hash_update(user, map->g, sizeof(float) * (size_t)(map->n_tokens * map->n_rows));
    return ALLOT_OK;
}

static allot_status hash_lookup(void *user, const struct net_lookup *lookup, struct allot_error *e)
{
    (void)e;
    hash_update(user, lookup->g, sizeof(float) * (size_t)(lookup->n_tokens * lookup->n_in));
    return ALLOT_OK;
}

/* A hash of all inputs and gradients. */
static void run_passes(char hex[static HASH_HEX], const struct net *net, const struct net_placement *place,
                       int n_threads)
{
    struct pool *pool;
    struct net_tape tape;
    struct net_targets targets;
    struct net_observer observer = {.map = hash_map, .lookup = hash_lookup};
    int32_t ids[N_TOKENS];
    float *x = malloc(sizeof *x * (size_t)(N_TOKENS * net->n_embd));
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)(rng_u64(3, (uint64_t)i) % (uint64_t)net->n_vocab);
    const struct net_batch batch = {ids, N_SEQS, N_CTX};
    check(hash_new((struct hash **)&observer.user, &err));
    check(pool_new(&pool, n_threads, &err));
    check(net_tape_init(&tape, net, N_TOKENS, place, &err));
    assert_int_equal(tape.states.in_file, place != NULL && place->states_folder != NULL);
    check(net_forward(net, pool, &batch, x, &tape, 2 * N_CTX, NULL, NULL, &err));
    check(net_targets_draw(&targets, net, pool, x, N_TOKENS, 1, &err));
    check(net_backward(net, pool, &batch, x, &tape, &targets, &observer, NULL, &err));
    hash_final(observer.user, hex);
    assert_int_equal(strlen(hex), HASH_HEX - 1);
    net_targets_release(&targets);
    net_tape_release(&tape);
    pool_free(pool);
    free(x);
}

static void test_passes(void **state)
{
    (void)state;
    static const struct net_placement places[] = {{.states_folder = "."},
                                                  {.states_folder = ".", .activations_folder = "."}};
    struct gguf_model *model;
    struct net net;
    char expected[HASH_HEX], hex[HASH_HEX];
    check(gguf_model_open(&model, TEST_DATA_DIR "/tiny-llama-bf16.gguf", &err));
    check(net_open(&net, model, &err));
    run_passes(expected, &net, NULL, 2);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            run_passes(hex, &net, &places[i], n_threads);
            assert_string_equal(hex, expected);
        }
    net_release(&net);
    gguf_model_close(model);
}

static void test_no_folder(void **state)
{
    (void)state;
    static const struct net_placement place = {.states_folder = "no/such/folder"};
    struct gguf_model *model;
    struct net net;
    struct net_tape tape;
    check(gguf_model_open(&model, TEST_DATA_DIR "/tiny-llama-bf16.gguf", &err));
    check(net_open(&net, model, &err));
    assert_int_equal(net_tape_init(&tape, &net, N_TOKENS, &place, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "the states of all layers"));
    net_release(&net);
    gguf_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_no_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
