/* test_strings.c - growing strings, sizes in and out.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"

static void test_parse_size(void **state)
{
    enum { NO = -1 };
    static const struct {
        const char *text;
        int64_t bytes; /* NO: refused */
    } rows[] = {
        {"0", 0},
        {"123", 123},
        {"6GB", 6000000000},
        {"6GiB", 6442450944},
        {"6g", 6000000000},
        {"6gib", 6442450944},
        {"6Gi", 6442450944},
        {"6.5g", 6500000000},
        {"10KB", 10000},
        {"10kib", 10240},
        {"1.5T", 1500000000000},
        {"1tib", 1099511627776},
        {"5B", 5},
        {".5k", 500},
        {"0.1GiB", 107374182}, /* floor of 107374182.4 */
        {"0.3", 0},
        {"1.9999999999999999999999999B", 1},
        {"0.000000000000000001T", 0},
        {"4.7GB", 4700000000}, /* exactly, though 4.7 is no binary fraction */
        {"1.1TB", 1100000000000},
        {"4611686018427387904", (int64_t)1 << 62},
        {"4611686018427387905", NO},
        {"4611686018427387904.9", (int64_t)1 << 62},
        {"4194304TiB", (int64_t)1 << 62},
        {"4194304.000001TiB", NO},
        {"4194305TiB", NO},
        {"99999999999999999999999999", NO},
        {"9223372036854775807G", NO},
        {"000000000000000000000000000007", 7},
        {"", NO},
        {"B", NO},
        {"GB", NO},
        {".", NO},
        {".G", NO},
        {"1.", NO},
        {"1.GB", NO},
        {"-1", NO},
        {"+1", NO},
        {"-1GB", NO},
        {"6e9", NO},
        {"1e999", NO},
        {"12 MB", NO},
        {" 12", NO},
        {"12\n", NO},
        {"12MBB", NO},
        {"12iB", NO},
        {"12i", NO},
        {"12Mb ", NO},
        {"1,5G", NO},
        {"1.5.5G", NO},
        {"0x10", NO},
        {"nan", NO},
        {"inf", NO},
        {"6PB", NO},
        {"\xef\xbc\x91", NO},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        int64_t bytes = -77;
        bool ok = str_parse_size(rows[r].text, &bytes);

        if (ok != (rows[r].bytes != NO) || bytes != (ok ? rows[r].bytes : -77))
            fail_msg("'%s': %s, %" PRId64, rows[r].text, ok ? "taken" : "refused", bytes);
    }
}

static void test_size(void **state)
{
    static const struct {
        int64_t bytes;
        const char *text;
    } rows[] = {
        {0, "0 B"},
        {999, "999 B"},
        {-5, "-5 B"},
        {1000, "1.0 kB"},
        {104900000, "104.9 MB"},
        {999949999, "999.9 MB"},
        {999950000, "1.0 GB"},
        {6000000000, "6.0 GB"},
        {-6000000000, "-6.0 GB"},
        {1234567890123, "1.2 TB"},
        {INT64_MAX, "9.2 EB"},
        {INT64_MIN, "-9.2 EB"},
    };
    char buf[32];

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        assert_string_equal(str_size(buf, rows[r].bytes), rows[r].text);
}

static void test_duration(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {
        {0.2, "about 0 seconds"},   {89, "about 89 seconds"},  {91, "about 2 minutes"},
        {5399, "about 90 minutes"}, {5400, "about 1.5 hours"}, {360000, "about 100.0 hours"},
    };
    char buf[32];

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        assert_string_equal(str_duration(buf, rows[r].seconds), rows[r].text);
}

static void test_ends_with(void **state)
{
    (void)state;
    assert_true(str_ends_with("a.weight", ".weight"));
    assert_true(str_ends_with("a", ""));
    assert_true(str_ends_with("", ""));
    assert_false(str_ends_with("weight", ".weight"));
    assert_false(str_ends_with("a.weights", ".weight"));
}

static void test_strbuf(void **state)
{
    struct strbuf sb = {0};
    struct allot_error err;

    (void)state;
    for (int i = 0; i < 10000; i++) {
        strbuf_addf(&sb, "%d,", i);
        strbuf_add(&sb, "\0x", 2); /* bytes, not strings */
        assert_int_equal(sb.data[sb.len], '\0');
    }
    assert_int_equal(sb.len, 10 * 2 + 90 * 3 + 900 * 4 + 9000 * 5 + 10000 * 2);
    assert_memory_equal(sb.data, "0,\0x1,\0x", 8);
    assert_int_equal(strbuf_check(&sb, &err), ALLOT_OK);
    strbuf_release(&sb);
    assert_true(!sb.data && sb.len == 0 && !sb.failed);

    strbuf_add(&sb, "", 0);
    assert_string_equal(sb.data, "");
    strbuf_release(&sb);
    strbuf_release(&sb); /* a zeroed one may be released */
}

/* A failure to grow sticks, and later calls do nothing. */
static void test_strbuf_failure(void **state)
{
    struct strbuf sb = {0};
    struct allot_error err;

    (void)state;
    strbuf_add(&sb, "abc", 3);
    strbuf_add(&sb, "abc", SIZE_MAX / 2);
    strbuf_add(&sb, "d", 1);
    strbuf_addf(&sb, "%d", 5);
    assert_string_equal(sb.data, "abc");
    assert_int_equal(strbuf_check(&sb, &err), ALLOT_ERR_MEMORY);
    strbuf_release(&sb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_size), cmocka_unit_test(test_size),
        cmocka_unit_test(test_duration),   cmocka_unit_test(test_ends_with),
        cmocka_unit_test(test_strbuf),     cmocka_unit_test(test_strbuf_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
