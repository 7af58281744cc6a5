/* strbuf.h - growing byte strings and a few string helpers.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_STRBUF_H
#define ALLOT_BASE_STRBUF_H

#include "allot.h"

/* Zero-initialise to start. data is NUL-terminated whenever it is not NULL. Allocation failures
 * are sticky: they set `failed`, later calls do nothing, and the owner checks once at the end. */
struct strbuf {
    char *data;
    size_t len, cap;
    bool failed;
};

void strbuf_release(struct strbuf *sb);
void strbuf_add(struct strbuf *sb, const void *bytes, size_t n);
void strbuf_addf(struct strbuf *sb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ALLOT_ERR_MEMORY if any earlier call failed to grow. */
allot_status strbuf_check(const struct strbuf *sb, struct allot_error *err);

bool str_ends_with(const char *s, const char *suffix);

/* "6GB" is 6e9, "6GiB" 6*2^30, plain numbers bytes; K, M, G, T, decimal fractions, any case, an
 * optional final B. False if the text is anything else, negative, or above 2^62. */
bool str_parse_size(const char *text, int64_t *bytes);

/* Writes "104.9 MB" style text (decimal units) into buf and returns buf. */
const char *str_size(char buf[static 32], int64_t bytes);

/* Writes "about 12 seconds", "... minutes", or "about 1.5 hours" into buf and returns buf. */
const char *str_duration(char buf[static 32], double seconds);

#endif
