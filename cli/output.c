/* output.c - results on stdout: text tables and JSON.  SPDX-License-Identifier: MIT */
#include "output.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- Tables ---------------------------------------------------------------------------------- */

static void add_cell(struct table *t, char *cell)
{
    if (t->n_cells == t->cap && !t->failed) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        char **cells = realloc(t->cells, cap * sizeof *cells);
        if (cells) {
            t->cells = cells;
            t->cap = cap;
        } else {
            t->failed = true;
        }
    }
    if (!cell || t->failed) {
        t->failed = true;
        free(cell);
        return;
    }
    t->cells[t->n_cells++] = cell;
}

void table_init(struct table *t, const char *const *headings, size_t n_columns)
{
    memset(t, 0, sizeof *t);
    t->n_columns = n_columns;
    for (size_t i = 0; i < n_columns; i++)
        add_cell(t, strdup(headings[i]));
}

void table_cell(struct table *t, const char *format, ...)
{
    char *cell = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&cell, format, args) < 0)
        cell = NULL;
    va_end(args);
    add_cell(t, cell);
}

static int display_width(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static const char *cell_text(const struct table *t, size_t row, size_t column)
{
    const char *cell = t->cells[row * t->n_columns + column];
    return row == 0 ? cell + 1 : cell;
}

static void print_row(const struct table *t, size_t row, const int *widths)
{
    for (size_t c = 0; c < t->n_columns; c++) {
        const char *text = cell_text(t, row, c);
        int pad = widths[c] - display_width(text);
        bool right = t->cells[c][0] == '>';
        if (c)
            fputs("  ", stdout);
        if (right)
            printf("%*s%s", pad, "", text);
        else
            printf("%s%*s", text, c + 1 < t->n_columns ? pad : 0, "");
    }
    putchar('\n');
}

allot_status table_print(struct table *t, struct allot_error *err)
{
    int *widths = calloc(t->n_columns, sizeof *widths);
    if (t->failed || !widths) {
        free(widths);
        table_release(t);
        return allot_fail_memory(err, t->n_columns * sizeof *widths, "a table");
    }
    size_t n_rows = t->n_cells / t->n_columns;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < t->n_columns; c++) {
            int width = display_width(cell_text(t, r, c));
            if (width > widths[c])
                widths[c] = width;
        }
    for (size_t r = 0; r < n_rows; r++)
        print_row(t, r, widths);
    free(widths);
    table_release(t);
    return ALLOT_OK;
}

void table_release(struct table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    memset(t, 0, sizeof *t);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Length of the UTF-8 sequence that starts at s, or 0 if it is none that JSON may hold. */
static size_t utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char mask, lead;
        size_t n;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 1}, {0xE0, 0xC0, 2, 0x80}, {0xF0, 0xE0, 3, 0x800}, {0xF8, 0xF0, 4, 0x10000}};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if ((s[0] & forms[f].mask) != forms[f].lead)
            continue;
        uint32_t code = s[0] & (unsigned char)~forms[f].mask;
        for (size_t i = 1; i < forms[f].n; i++) {
            if ((s[i] & 0xC0) != 0x80)
                return 0;
            code = code << 6 | (s[i] & 0x3F);
        }
        bool valid = code >= forms[f].least && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
        return valid ? forms[f].n : 0;
    }
    return 0;
}

json_t *json_text(const char *text)
{
    struct strbuf sb = {0};
    strbuf_addf(&sb, "%s", "");
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (n)
            strbuf_add(&sb, s, n);
        else
            strbuf_addf(&sb, "\xEF\xBF\xBD");
        s += n ? n : 1;
    }
    json_t *value = sb.failed ? NULL : json_string(sb.data);
    strbuf_release(&sb);
    return value;
}

json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_mean(double mean, double std_err)
{
    return json_pack("{s:o,s:o}", "mean", json_number(mean), "se", json_number(std_err));
}

void json_put(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

allot_status json_print(json_t *document, struct allot_error *err)
{
    if (!document || json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) != 0) {
        json_decref(document);
        return allot_fail(err, ALLOT_ERR_IO, "standard output: cannot write the JSON document");
    }
    json_decref(document);
    putchar('\n');
    return ALLOT_OK;
}

/* ---- Shell ----------------------------------------------------------------------------------- */

void shell_quote(struct strbuf *sb, const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=+,:@%";
    if (*text && strspn(text, safe) == strlen(text)) {
        strbuf_addf(sb, "%s", text);
        return;
    }
    strbuf_addf(sb, "'");
    for (; *text; text++) {
        if (*text == '\'')
            strbuf_addf(sb, "'\\''");
        else
            strbuf_add(sb, text, 1);
    }
    strbuf_addf(sb, "'");
}
