/* error.c - filling struct allot_error.  SPDX-License-Identifier: MIT */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Ends an overlong line with "..." at a UTF-8 character boundary. */
static void end_with_dots(char *line, size_t capacity)
{
    size_t end = capacity - 4;

    while (end > 0 && ((unsigned char)line[end] & 0xc0) == 0x80)
        end--;
    memcpy(line + end, "...", 4);
}

/* Terminals obey control characters, and messages carry names from files: none get through. */
static void format_line(char *line, size_t capacity, const char *format, va_list args)
{
    int n = vsnprintf(line, capacity, format, args);

    if (n < 0)
        line[0] = '\0';
    else if ((size_t)n >= capacity)
        end_with_dots(line, capacity);
    for (unsigned char *p = (unsigned char *)line; *p; p++)
        if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
            *p = '?';
}

allot_status allot_fail(struct allot_error *err, allot_status status, const char *format, ...)
{
    char line[sizeof err->message]; /* an argument may be the old message */
    va_list args;

    va_start(args, format);
    format_line(line, sizeof line, format, args);
    va_end(args);
    memcpy(err->message, line, sizeof line);
    err->status = status;
    return status;
}

allot_status allot_fail_memory(struct allot_error *err, size_t bytes, const char *what)
{
    return allot_fail(err, ALLOT_ERR_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

allot_status allot_report(const struct allot_progress *progress, struct allot_error *err, const char *stage,
                          int64_t done, int64_t total)
{
    if (progress && progress->report && progress->report(progress->user, stage, done, total))
        return allot_fail(err, ALLOT_ERR_INTERRUPTED, "interrupted: %s", stage);
    return ALLOT_OK;
}

void allot_note(const struct allot_progress *progress, const char *format, ...)
{
    char line[1024];
    va_list args;

    if (!progress || !progress->note)
        return;
    va_start(args, format);
    format_line(line, sizeof line, format, args);
    va_end(args);
    progress->note(progress->user, line);
}
