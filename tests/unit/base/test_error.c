/* test_error.c - messages are one clean line, cut where they must be.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

enum { CAPACITY = sizeof((struct allot_error *)0)->message };

static void test_control_characters(void **state)
{
    static const char *const rows[][2] = {
        {"plain", "plain"},
        {"two\nlines\r", "two?lines?"},
        {"\x1b[31mred\x7f", "?[31mred?"},
        {"\xc5\xbd"
         "eljko",
         "\xc5\xbd"
         "eljko"}, /* UTF-8 stays */
        {"\xc2\x9b"
         "31m",
         "?\x9b"
         "31m"}, /* C1 controls do not */
        {"\xc2\xa0", "\xc2\xa0"},
        {"tab\there", "tab?here"},
        {"", ""},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct allot_error err;

        assert_int_equal(allot_fail(&err, ALLOT_ERR_FORMAT, "%s", rows[r][0]), ALLOT_ERR_FORMAT);
        assert_int_equal(err.status, ALLOT_ERR_FORMAT);
        assert_string_equal(err.message, rows[r][1]);
    }
}

/* Lengths around the capacity, and characters of two bytes across the cut. */
static void test_truncation(void **state)
{
    (void)state;
    for (size_t n = CAPACITY - 4; n < CAPACITY + 4; n++) {
        char text[CAPACITY + 8];
        struct allot_error err;

        memset(text, 'x', n);
        text[n] = '\0';
        allot_fail(&err, ALLOT_ERR_IO, "%s", text);
        if (n < CAPACITY) {
            assert_string_equal(err.message, text);
        } else {
            assert_int_equal(strlen(err.message), CAPACITY - 1);
            assert_string_equal(err.message + CAPACITY - 4, "...");
        }
    }
    for (size_t shift = 0; shift < 2; shift++) {
        char text[2 * CAPACITY + 1];
        struct allot_error err;
        size_t length;

        for (size_t i = 0; i < sizeof text - 1; i++)
            text[i] = "\xc5\xbe"[i % 2];
        text[sizeof text - 1] = '\0';
        allot_fail(&err, ALLOT_ERR_IO, "%s%s", shift ? "x" : "", text);
        length = strlen(err.message);
        assert_string_equal(err.message + length - 3, "...");
        assert_int_equal((unsigned char)err.message[length - 4], 0xbe); /* a whole character */
    }
}

/* A message may quote the one it replaces. */
static void test_own_message(void **state)
{
    struct allot_error err;

    (void)state;
    allot_fail(&err, ALLOT_ERR_IO, "cause");
    allot_fail(&err, ALLOT_ERR_FORMAT, "file x: %s", err.message);
    assert_string_equal(err.message, "file x: cause");
    assert_int_equal(allot_fail_memory(&err, 1234, "a front"), ALLOT_ERR_MEMORY);
    assert_non_null(strstr(err.message, "1234 bytes for a front"));
}

struct seen {
    int64_t done;
    char note[64];
};

static bool stop_at_three(void *user, const char *stage, int64_t done, int64_t total)
{
    ((struct seen *)user)->done = done;
    assert_string_equal(stage, "costs");
    assert_int_equal(total, 9);
    return done == 3;
}

static void keep_note(void *user, const char *line)
{
    strncpy(((struct seen *)user)->note, line, sizeof((struct seen *)user)->note - 1);
}

static void test_progress(void **state)
{
    struct seen seen = {0};
    const struct allot_progress progress = {stop_at_three, keep_note, &seen}, silent = {0};
    struct allot_error err;

    (void)state;
    assert_int_equal(allot_report(&progress, &err, "costs", 2, 9), ALLOT_OK);
    assert_int_equal(seen.done, 2);
    assert_int_equal(allot_report(&progress, &err, "costs", 3, 9), ALLOT_ERR_INTERRUPTED);
    assert_string_equal(err.message, "interrupted: costs");
    assert_int_equal(allot_report(&silent, &err, "costs", 3, 9), ALLOT_OK);
    assert_int_equal(allot_report(NULL, &err, "costs", 3, 9), ALLOT_OK);
    allot_note(&progress, "%d\nnotes", 2);
    assert_string_equal(seen.note, "2?notes");
    allot_note(&silent, "nobody listens");
    allot_note(NULL, "nobody listens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_own_message),
        cmocka_unit_test(test_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
