/* test_throughput.c - times of whole models: that there are some, and what is refused. No clock is compared
 * with anything. SPDX-License-Identifier: MIT */
#include "fixture.h"

#include "measure/throughput.h"

static void test_every_model_has_a_speed(void **state)
{
    (void)state;
    const char *paths[] = {tiny_path, write_quantized("q4.gguf", "Q4_K_S"), tiny_path};
    for (int threads = 1; threads <= 2; threads++) {
        const struct throughput_options options = {.text = write_english("text.txt", 1, 40),
                                                   .n_prompt = 64,
                                                   .n_generate =
                                                       threads == 1 ? 64 : 1, /* ggml's threads wait busily */
                                                   .n_repetitions = 3 - threads,
                                                   .n_threads = threads};
        struct throughput speeds[3] = {0};
        struct allot_error err = {0};
        int n_threads = 0;
        if (throughput_measure(speeds, &n_threads, paths, 3, &options, NULL, &err) != ALLOT_OK)
            fail_msg("%s", err.message);
        assert_int_equal(n_threads, threads);
        for (int m = 0; m < 3; m++) {
            assert_true(isfinite(speeds[m].prompt) && speeds[m].prompt > 0);
            assert_true(isfinite(speeds[m].generation) && speeds[m].generation > 0);
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    const char *text = write_english("text.txt", 1, 40), *absent = in_folder("absent.gguf");
    static const struct throughput_options good = {
        .n_prompt = 64, .n_generate = 4, .n_repetitions = 1, .n_threads = 1};
    struct {
        struct throughput_options options;
        const char *path, *message;
        allot_status status;
    } rows[] = {
        {good, absent, "absent.gguf", ALLOT_ERR_IO},
        {good, text, "text.txt", ALLOT_ERR_FORMAT},
        {good, tiny_path, "at least 4096 tokens", ALLOT_ERR_ARGUMENT},
        {good, tiny_path, "5 tokens one by one", ALLOT_ERR_ARGUMENT},
        {good, tiny_path, "0 repetitions", ALLOT_ERR_ARGUMENT},
    };
    rows[2].options.n_prompt = 4096;
    rows[3].options.n_prompt = 4;
    rows[3].options.n_generate = 5;
    rows[4].options.n_repetitions = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const char *paths[] = {tiny_path, rows[r].path};
        struct throughput speeds[2] = {{-1, -1}, {-1, -1}};
        struct allot_error err = {0};
        rows[r].options.text = text;
        assert_int_equal(throughput_measure(speeds, NULL, paths, 2, &rows[r].options, NULL, &err),
                         rows[r].status);
        assert_message(&err, rows[r].message);
        assert_true(speeds[0].prompt == -1 && speeds[1].generation == -1);
    }
}

struct turns {
    int64_t stop_at, last;
};

static bool count_turns(void *user, const char *stage, int64_t done, int64_t total)
{
    struct turns *turns = user;
    if (strcmp(stage, "time") != 0)
        return false;
    assert_int_equal(total, 2 * (3 + 1)); /* the first of each does not count */
    assert_int_equal(done, turns->last + 1);
    turns->last = done;
    return done == turns->stop_at;
}

static void test_progress_and_interruption(void **state)
{
    (void)state;
    const char *paths[] = {tiny_path, tiny_path};
    const struct throughput_options options = {.text = write_english("text.txt", 1, 40),
                                               .n_prompt = 64,
                                               .n_generate = 2,
                                               .n_repetitions = 3,
                                               .n_threads = 1};
    static const int64_t stops[] = {-1, 0, 3, 8};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct turns turns = {.stop_at = stops[i], .last = -1};
        const struct allot_progress progress = {.report = count_turns, .user = &turns};
        struct throughput speeds[2];
        struct allot_error err = {0};
        assert_int_equal(throughput_measure(speeds, NULL, paths, 2, &options, &progress, &err),
                         stops[i] < 0 ? ALLOT_OK : ALLOT_ERR_INTERRUPTED);
        assert_int_equal(turns.last, stops[i] < 0 ? 8 : stops[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_model_has_a_speed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_progress_and_interruption),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
