/* pattern.c - regular expressions over tensor names.  SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "plan/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAX_PATTERN 65536
/* Steps one match may take: ordinary patterns need dozens, nested repetitions would take for ever. */
#define MATCH_LIMIT 100000

struct pattern {
    pcre2_code *code;
    pcre2_match_context *match;
    pcre2_match_data *data;
};

static bool is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* What ECMAScript does not have and PCRE2 would understand otherwise; NULL if there is none. */
static const char *foreign_syntax(const char *pattern)
{
    bool in_class = false;

    for (const char *p = pattern; *p; p++) {
        if (*p == '\\') {
            if (*++p == '\0')
                return NULL; /* PCRE2 reports it */
        } else if (in_class) {
            in_class = *p != ']';
        } else if (*p == '[') {
            in_class = true;
        } else if (p[0] == '(' && p[1] == '*') {
            return "nothing to repeat";
        } else if (p[0] == '(' && p[1] == '?' && p[2] != ':' && p[2] != '=' && p[2] != '!') {
            return "only (?:...), (?=...) and (?!...) are known to ECMAScript";
        }
    }
    return NULL;
}

/* Copies the pattern with the escapes that only PCRE2 gives a meaning (\h, \z, \k...) reduced to their
 * letter. */
static void translate(struct strbuf *out, const char *pattern)
{
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1]) {
            if (!is_alpha(p[1]) || strchr("bBcdDfnrsStuvwWx", p[1]))
                strbuf_add(out, p, 1);
            p++;
        }
        strbuf_add(out, p, 1);
    }
}

static allot_status compile(struct pattern *pattern, const char *text, const char *what,
                            struct allot_error *err)
{
    const uint32_t options = PCRE2_ALT_BSUX | PCRE2_MATCH_UNSET_BACKREF | PCRE2_ALLOW_EMPTY_CLASS |
                             PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP;
    struct strbuf translated = {0};
    PCRE2_UCHAR reason[256] = "";
    PCRE2_SIZE offset;
    int code;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    allot_status status;

    translate(&translated, text);
    status = strbuf_check(&translated, err);
    if (status == ALLOT_OK && !context)
        status = allot_fail_memory(err, MAX_PATTERN, "a pattern");
    if (status)
        goto cleanup;
    pcre2_set_max_pattern_length(context, MAX_PATTERN);
    pattern->code = pcre2_compile((PCRE2_SPTR)(translated.data ? translated.data : ""), translated.len,
                                  options, &code, &offset, context);
    if (!pattern->code) {
        pcre2_get_error_message(code, reason, sizeof reason);
        status =
            allot_fail(err, ALLOT_ERR_FORMAT, "%s is no regular expression: %s", what, (const char *)reason);
    }
cleanup:
    pcre2_compile_context_free(context);
    strbuf_release(&translated);
    return status;
}

allot_status pattern_new(struct pattern **out, const char *text, const char *what, struct allot_error *err)
{
    const char *foreign = foreign_syntax(text);
    struct pattern *pattern;
    allot_status status;

    if (foreign)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s is no regular expression: %s", what, foreign);
    pattern = calloc(1, sizeof *pattern);
    if (!pattern)
        return allot_fail_memory(err, sizeof *pattern, "a pattern");
    status = compile(pattern, text, what, err);
    if (status == ALLOT_OK) {
        pattern->match = pcre2_match_context_create(NULL);
        pattern->data = pcre2_match_data_create_from_pattern(pattern->code, NULL);
        if (!pattern->match || !pattern->data)
            status = allot_fail_memory(err, sizeof *pattern, "a pattern");
    }
    if (status) {
        pattern_free(pattern);
        return status;
    }
    pcre2_set_match_limit(pattern->match, MATCH_LIMIT);
    *out = pattern;
    return ALLOT_OK;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_match_context_free(pattern->match);
    pcre2_match_data_free(pattern->data);
    free(pattern);
}

enum pattern_verdict pattern_match(struct pattern *pattern, const char *name)
{
    int rc = pcre2_match(pattern->code, (PCRE2_SPTR)name, strlen(name), 0, 0, pattern->data, pattern->match);

    if (rc >= 0)
        return PATTERN_MATCHES;
    return rc == PCRE2_ERROR_NOMATCH ? PATTERN_MISSES : PATTERN_TOO_HARD;
}

void pattern_captures(const struct pattern *pattern, const char *name, struct strbuf *sb)
{
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->data);
    uint32_t n = pcre2_get_ovector_count(pattern->data);

    for (uint32_t i = 1; i < n; i++) {
        if (ends[2 * i] == PCRE2_UNSET) {
            strbuf_addf(sb, "-:");
            continue;
        }
        strbuf_addf(sb, "%zu:", (size_t)(ends[2 * i + 1] - ends[2 * i]));
        strbuf_add(sb, name + ends[2 * i], ends[2 * i + 1] - ends[2 * i]);
    }
}
