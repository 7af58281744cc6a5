/* options.c - command-line options declared as rows.  SPDX-License-Identifier: MIT */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { HELP_WIDTH = 79, HELP_COLUMN = 26 };

allot_status string_list_add(struct string_list *list, const char *item, struct allot_error *err)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 8;
        const char **items = realloc(list->items, cap * sizeof *items);
        if (!items)
            return allot_fail_memory(err, cap * sizeof *items, "the arguments");
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = item;
    return ALLOT_OK;
}

bool string_list_has(const struct string_list *list, const char *item)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->items[i], item) == 0)
            return true;
    return false;
}

void string_list_release(struct string_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

/* ---- Nearest words --------------------------------------------------------------------------- */

/* Levenshtein's distance; words longer than the row are as good as unrelated. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[64];
    size_t na = strlen(a), nb = strlen(b);
    if (nb >= sizeof row / sizeof *row || na >= sizeof row / sizeof *row)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const char *nearest_word(const char *word, const char *(*next)(const void *user, size_t i), const void *user)
{
    size_t n = strlen(word), best_distance = n / 3 + 1;
    const char *best = NULL, *candidate;
    for (size_t i = 0; n > 1 && (candidate = next(user, i)) != NULL; i++) {
        size_t distance = strncmp(candidate, word, n) == 0 ? 1 : edit_distance(word, candidate);
        if (distance <= best_distance && (!best || distance < best_distance)) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}

/* ---- Parsing --------------------------------------------------------------------------------- */

struct row_lookup {
    const struct option_set *const *sets;
    size_t n_sets;
};

static const struct option_row *row_at(const struct row_lookup *all, size_t i)
{
    for (size_t s = 0; s < all->n_sets; s++) {
        if (i < all->sets[s]->n_rows)
            return &all->sets[s]->rows[i];
        i -= all->sets[s]->n_rows;
    }
    return NULL;
}

static const char *row_name(const void *user, size_t i)
{
    const struct option_row *row = row_at(user, i);
    return row ? row->name : NULL;
}

static const struct option_row *row_by_name(const struct row_lookup *all, const char *name, size_t n)
{
    const struct option_row *row;
    for (size_t i = 0; (row = row_at(all, i)) != NULL; i++)
        if (strlen(row->name) == n && memcmp(row->name, name, n) == 0)
            return row;
    return NULL;
}

static const struct option_row *row_by_letter(const struct row_lookup *all, char letter)
{
    const struct option_row *row;
    for (size_t i = 0; (row = row_at(all, i)) != NULL; i++)
        if (letter && row->letter == letter)
            return row;
    return NULL;
}

static allot_status set_int(const struct option_row *row, int64_t *to, const char *value,
                            struct allot_error *err)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno == ERANGE)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: '%s' is not a whole number", row->name, value);
    if (number < row->min || number > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: %s is out of range (at least %" PRId64 ")",
                          row->name, value, row->min);
    *to = number;
    return ALLOT_OK;
}

static allot_status set_double(const struct option_row *row, double *to, const char *value,
                               struct allot_error *err)
{
    char *end;
    double number = strtod(value, &end);
    const bool zero = row->kind == OPTION_NUMBER && number == 0;
    if (end == value || *end || !isfinite(number) || (number <= 0 && !zero))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: '%s' is not %s", row->name, value,
                          row->kind == OPTION_NUMBER ? "a number from 0" : "a number above 0");
    *to = number;
    return ALLOT_OK;
}

static allot_status set_value(const struct option_row *row, void *args, const char *value,
                              struct allot_error *err)
{
    void *to = (char *)args + row->offset;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)to = true;
        return ALLOT_OK;
    case OPTION_STRING:
        if (!*value)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: the argument is empty", row->name);
        *(const char **)to = value;
        return ALLOT_OK;
    case OPTION_STRINGS:
        if (!*value)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: the argument is empty", row->name);
        return string_list_add(to, value, err);
    case OPTION_INT:
        return set_int(row, to, value, err);
    case OPTION_SIZE:
        if (!str_parse_size(value, to) || *(int64_t *)to == 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "--%s: '%s' is not a size (such as 6GB, 5.5GiB or 104857600)", row->name,
                              value);
        return ALLOT_OK;
    case OPTION_DOUBLE:
    case OPTION_NUMBER:
        return set_double(row, to, value, err);
    }
    return allot_fail(err, ALLOT_ERR_INTERNAL, "--%s: unknown kind of option", row->name);
}

static allot_status unknown_option(const struct row_lookup *all, const char *word, struct allot_error *err)
{
    char name[64] = "";
    if (strncmp(word, "--", 2) == 0)
        strncat(name, word + 2, strcspn(word + 2, "=") < 63 ? strcspn(word + 2, "=") : 63);
    const char *near = *name ? nearest_word(name, row_name, all) : NULL;
    if (near)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "unknown option '%s'; did you mean --%s?", word, near);
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "unknown option '%s'", word);
}

/* One word of argv that starts with a dash, and its value if that is the next word. */
static allot_status parse_option(const struct row_lookup *all, void *args, int argc, char **argv, int *at,
                                 struct string_list *given, struct allot_error *err)
{
    const char *word = argv[*at], *value = NULL;
    const struct option_row *row;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        row = row_by_name(all, word + 2, n);
        value = word[2 + n] ? word + 3 + n : NULL;
    } else {
        row = row_by_letter(all, word[1]);
        value = word[2] ? word + 2 : NULL;
    }
    if (!row)
        return unknown_option(all, word, err);
    if (string_list_add(given, row->name, err) != ALLOT_OK)
        return err->status;
    if (row->kind == OPTION_FLAG) {
        if (value)
            return word[1] == '-' ? allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s takes no argument", row->name)
                                  : unknown_option(all, word, err);
        return set_value(row, args, "", err);
    }
    if (!value) {
        if (*at + 1 >= argc)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s needs an argument (%s)", row->name, row->arg);
        value = argv[++*at];
    }
    return set_value(row, args, value, err);
}

allot_status options_parse(const struct option_set *const *sets, size_t n_sets, void *args, int argc,
                           char **argv, struct string_list *operands, struct string_list *given,
                           struct allot_error *err)
{
    const struct row_lookup all = {sets, n_sets};
    const struct option_row *row;
    allot_status status = ALLOT_OK;
    for (size_t i = 0; status == ALLOT_OK && (row = row_at(&all, i)) != NULL; i++)
        if (row->fallback)
            status = set_value(row, args, row->fallback, err);
    bool only_operands = false;
    for (int i = 0; status == ALLOT_OK && i < argc; i++) {
        if (!only_operands && strcmp(argv[i], "--") == 0)
            only_operands = true;
        else if (!only_operands && argv[i][0] == '-' && argv[i][1])
            status = parse_option(&all, args, argc, argv, &i, given, err);
        else if (!argv[i][0])
            status = allot_fail(err, ALLOT_ERR_ARGUMENT, "an argument is empty");
        else
            status = string_list_add(operands, argv[i], err);
    }
    return status;
}

/* What set_value would take for the value; for OPTION_STRINGS the i-th. */
static void format_value(struct strbuf *sb, const struct option_row *row, const void *args, size_t i)
{
    const void *from = (const char *)args + row->offset;
    strbuf_addf(sb, row->kind == OPTION_FLAG ? "--%s" : "--%s=", row->name);
    switch (row->kind) {
    case OPTION_FLAG:
        break;
    case OPTION_STRING:
        strbuf_addf(sb, "%s", *(const char *const *)from);
        break;
    case OPTION_STRINGS:
        strbuf_addf(sb, "%s", ((const struct string_list *)from)->items[i]);
        break;
    case OPTION_INT:
    case OPTION_SIZE:
        strbuf_addf(sb, "%lld", (long long)*(const int64_t *)from);
        break;
    case OPTION_DOUBLE:
    case OPTION_NUMBER:
        strbuf_addf(sb, "%.17g", *(const double *)from);
        break;
    }
}

void options_unparse(const struct option_set *const *sets, size_t n_sets, const void *args,
                     const struct string_list *given,
                     void (*word)(void *user, const char *name, const char *text), void *user)
{
    const struct row_lookup all = {sets, n_sets};
    const struct option_row *row;
    for (size_t r = 0; (row = row_at(&all, r)) != NULL; r++) {
        const struct string_list *list = (const void *)((const char *)args + row->offset);
        const size_t n = row->kind == OPTION_STRINGS ? list->n : 1;
        for (size_t i = 0; i < n && string_list_has(given, row->name); i++) {
            struct strbuf sb = {0};
            format_value(&sb, row, args, i);
            if (sb.data)
                word(user, row->name, sb.data);
            strbuf_release(&sb);
        }
    }
}

void options_release(const struct option_set *const *sets, size_t n_sets, void *args)
{
    const struct row_lookup all = {sets, n_sets};
    const struct option_row *row;
    for (size_t i = 0; (row = row_at(&all, i)) != NULL; i++)
        if (row->kind == OPTION_STRINGS)
            string_list_release((struct string_list *)((char *)args + row->offset));
}

/* ---- Help ------------------------------------------------------------------------------------ */

void options_wrap(struct strbuf *sb, const char *text, int column, int indent)
{
    bool line_start = true;
    while (*text) {
        int n = (int)strcspn(text, " \n");
        if (!line_start && column + 1 + n > HELP_WIDTH) {
            strbuf_addf(sb, "\n%*s", indent, "");
            column = indent;
            line_start = true;
        }
        if (n) {
            strbuf_addf(sb, "%s%.*s", line_start ? "" : " ", n, text);
            column += n + !line_start;
            line_start = false;
        }
        text += n;
        if (*text == '\n') {
            strbuf_addf(sb, "\n%*s", text[1] == '\n' ? 0 : indent, "");
            column = indent;
            line_start = true;
        }
        text += *text != '\0';
    }
    strbuf_addf(sb, "\n");
}

void options_help(struct strbuf *sb, const struct option_set *set)
{
    for (size_t i = 0; i < set->n_rows; i++) {
        const struct option_row *row = &set->rows[i];
        size_t start = sb->len;
        if (row->letter)
            strbuf_addf(sb, "  -%c, --%s", row->letter, row->name);
        else
            strbuf_addf(sb, "      --%s", row->name);
        if (row->arg)
            strbuf_addf(sb, " %s", row->arg);
        int width = (int)(sb->len - start);
        if (width > HELP_COLUMN - 2)
            strbuf_addf(sb, "\n%*s", HELP_COLUMN, "");
        else
            strbuf_addf(sb, "%*s", HELP_COLUMN - width, "");
        struct strbuf text = {0};
        strbuf_addf(&text, "%s", row->help);
        if (row->kind == OPTION_STRINGS)
            strbuf_addf(&text, " (may be repeated)");
        if (row->fallback)
            strbuf_addf(&text, " (default %s)", row->fallback);
        options_wrap(sb, text.data ? text.data : "", HELP_COLUMN, HELP_COLUMN);
        strbuf_release(&text);
    }
}
