/* strbuf.c - growing byte strings and a few string helpers.  SPDX-License-Identifier: MIT */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

void strbuf_release(struct strbuf *sb)
{
    free(sb->data);
    *sb = (struct strbuf){0};
}

/* Makes room for n more bytes and a NUL. */
static bool reserve(struct strbuf *sb, size_t n)
{
    size_t cap = sb->cap ? sb->cap : 64;
    char *data;

    if (sb->failed)
        return false;
    if (n >= SIZE_MAX / 4 || sb->len >= SIZE_MAX / 4)
        goto fail;
    while (cap < sb->len + n + 1)
        cap *= 2;
    if (cap == sb->cap)
        return true;
    data = realloc(sb->data, cap);
    if (!data)
        goto fail;
    sb->data = data;
    sb->cap = cap;
    return true;
fail:
    sb->failed = true;
    return false;
}

void strbuf_add(struct strbuf *sb, const void *bytes, size_t n)
{
    if (!reserve(sb, n))
        return;
    if (n > 0)
        memcpy(sb->data + sb->len, bytes, n);
    sb->len += n;
    sb->data[sb->len] = '\0';
}

void strbuf_addf(struct strbuf *sb, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        sb->failed = true;
        return;
    }
    if (!reserve(sb, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(sb->data + sb->len, (size_t)n + 1, format, args);
    va_end(args);
    sb->len += (size_t)n;
}

allot_status strbuf_check(const struct strbuf *sb, struct allot_error *err)
{
    return sb->failed ? allot_fail_memory(err, sb->cap, "a growing string") : ALLOT_OK;
}

bool str_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

/* The unit that follows the number, 0 if it is none. */
static int64_t parse_unit(const char *text)
{
    static const struct {
        const char *name;
        int64_t unit;
    } units[] = {
        {"", 1},
        {"k", 1000},
        {"m", 1000000},
        {"g", 1000000000},
        {"t", 1000000000000},
        {"ki", (int64_t)1 << 10},
        {"mi", (int64_t)1 << 20},
        {"gi", (int64_t)1 << 30},
        {"ti", (int64_t)1 << 40},
    };
    size_t n = strlen(text);

    if (n > 0 && (text[n - 1] == 'b' || text[n - 1] == 'B'))
        n--;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strlen(units[i].name) == n && strncasecmp(text, units[i].name, n) == 0)
            return units[i].unit;
    return 0;
}

bool str_parse_size(const char *text, int64_t *bytes)
{
    const int64_t limit = (int64_t)1 << 62;
    size_t n_whole = strspn(text, "0123456789"), n_fraction = 0;
    const char *fraction = text + n_whole;
    int64_t unit, whole = 0, part = 0;

    if (*fraction == '.') {
        fraction++;
        n_fraction = strspn(fraction, "0123456789");
        if (n_fraction == 0)
            return false;
    }
    if (n_whole + n_fraction == 0)
        return false;
    unit = parse_unit(fraction + n_fraction);
    if (unit == 0)
        return false;
    for (size_t i = 0; i < n_whole; i++) {
        int digit = text[i] - '0';

        if (whole > (limit - digit) / 10)
            return false;
        whole = whole * 10 + digit;
    }
    if (whole > limit / unit)
        return false;
    /* floor(0.d1d2d3... * unit), exactly: nested floors of integers are the floor of the whole. */
    for (size_t i = n_fraction; i-- > 0;)
        part = ((fraction[i] - '0') * unit + part) / 10;
    if (part > limit - whole * unit)
        return false;
    *bytes = whole * unit + part;
    return true;
}

const char *str_size(char buf[static 32], int64_t bytes)
{
    static const char units[][3] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;

    if (bytes > -1000 && bytes < 1000) {
        snprintf(buf, 32, "%d B", (int)bytes);
        return buf;
    }
    value /= 1000;
    /* 999.95 would be printed as 1000.0. */
    while (unit + 1 < sizeof units / sizeof units[0] && (value >= 999.95 || value <= -999.95)) {
        value /= 1000;
        unit++;
    }
    snprintf(buf, 32, "%.1f %s", value, units[unit]);
    return buf;
}

const char *str_duration(char buf[static 32], double seconds)
{
    if (seconds < 90)
        snprintf(buf, 32, "about %.0f seconds", seconds);
    else if (seconds < 5400)
        snprintf(buf, 32, "about %.0f minutes", seconds / 60);
    else
        snprintf(buf, 32, "about %.1f hours", seconds / 3600);
    return buf;
}
