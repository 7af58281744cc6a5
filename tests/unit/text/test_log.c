/* test_log.c - which of libllama's log lines explains a failure.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "llama.h"
#include "text/text.h"

/* Logs as libllama does. */
static void say(enum ggml_log_level level, const char *text)
{
    ggml_log_callback callback;
    void *user;
    llama_log_get(&callback, &user);
    callback(level, text, user);
}

static void test_lines(void **state)
{
    (void)state;
    static const struct {
        const char *said[3];
        enum ggml_log_level level;
        const char *kept;
    } rows[] = {
        {{"load: cannot read it\n", "load: failed\n"}, GGML_LOG_LEVEL_ERROR, "cannot read it"},
        {{"load: loading\n"}, GGML_LOG_LEVEL_INFO, ""},
        {{"\n", "no function: said here\n"}, GGML_LOG_LEVEL_ERROR, "no function: said here"},
        {{"llama_model_load: error loading model: unknown architecture: 'abacus'\n"},
         GGML_LOG_LEVEL_ERROR,
         "unknown architecture: 'abacus'"},
        {{"llama_model_load: error loading model: check_dims: tensor 'x' not found\n"},
         GGML_LOG_LEVEL_ERROR,
         "tensor 'x' not found"},
        {{"llama_model_load: error loading model: error loading model vocabulary: unknown tokenizer: 'xx'\n"},
         GGML_LOG_LEVEL_ERROR,
         "vocabulary: unknown tokenizer: 'xx'"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        text_forget_llama_error();
        for (int i = 0; i < 3 && rows[r].said[i] != NULL; i++)
            say(rows[r].level, rows[r].said[i]);
        assert_string_equal(text_last_llama_error(), rows[r].kept);
    }
    text_forget_llama_error();
    assert_string_equal(text_last_llama_error(), "");
    say(GGML_LOG_LEVEL_ERROR, "one ");
    say(GGML_LOG_LEVEL_CONT, "line\n");
    say(GGML_LOG_LEVEL_CONT, "and another\n");
    assert_string_equal(text_last_llama_error(), "one line");
}

/* Another thread neither sees the error nor forgets it. */
static void *fail_too(void *user)
{
    const char **kept = user;
    kept[0] = text_last_llama_error()[0] == '\0' ? "nothing" : "an error of another thread";
    text_forget_llama_error();
    say(GGML_LOG_LEVEL_ERROR, "its own\n");
    kept[1] = strcmp(text_last_llama_error(), "its own") == 0 ? "its own" : "another";
    return NULL;
}

static void test_threads_keep_their_own(void **state)
{
    (void)state;
    const char *kept[2] = {NULL, NULL};
    pthread_t thread;
    text_forget_llama_error();
    say(GGML_LOG_LEVEL_ERROR, "mine\n");
    assert_int_equal(pthread_create(&thread, NULL, fail_too, kept), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(kept[0], "nothing");
    assert_string_equal(kept[1], "its own");
    assert_string_equal(text_last_llama_error(), "mine");
}

static int start(void **state)
{
    (void)state;
    text_capture_llama_log();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_threads_keep_their_own),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
