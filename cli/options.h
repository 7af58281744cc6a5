/* options.h - command-line options declared as rows; parsing and help read the same rows.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_OPTIONS_H
#define ALLOT_CLI_OPTIONS_H

#include "allot.h"
#include "base/strbuf.h"

enum option_kind {
    OPTION_FLAG,    /* bool */
    OPTION_STRING,  /* const char *, NULL when not given */
    OPTION_STRINGS, /* struct string_list, repeatable */
    OPTION_INT,     /* int64_t */
    OPTION_SIZE,    /* int64_t bytes, 0 when not given */
    OPTION_DOUBLE,  /* double, 0 when not given; must be above 0 */
    OPTION_NUMBER   /* double, 0 when not given; 0 or more */
};

struct option_row {
    const char *name; /* without the dashes */
    char letter;      /* 0: no short form */
    const char *arg;  /* the argument's name in help; NULL for flags */
    enum option_kind kind;
    size_t offset;        /* of the destination in the command's arguments */
    const char *fallback; /* the default, as one would type it; NULL: zero */
    int64_t min;          /* least value of an OPTION_INT */
    const char *help;     /* one sentence without the final stop */
};

struct option_set {
    const struct option_row *rows;
    size_t n_rows;
};

#define OPTION_SET(rows_)                        \
    {                                            \
        (rows_), sizeof(rows_) / sizeof *(rows_) \
    }

struct string_list {
    const char **items;
    size_t n, cap;
};

allot_status string_list_add(struct string_list *list, const char *item, struct allot_error *err);
bool string_list_has(const struct string_list *list, const char *item);
void string_list_release(struct string_list *list);

/* Fills args (zeroed) from the rows' defaults and from argv, and collects the operands and the names of the
 * options that argv gives. `--name=value`,
 * `--name value`, `-x value`, `-xvalue`; "--" ends the options. The error is a sentence for the user. */
allot_status options_parse(const struct option_set *const *sets, size_t n_sets, void *args, int argc,
                           char **argv, struct string_list *operands, struct string_list *given,
                           struct allot_error *err);

/* Calls word for each of the given options (every one once) of the sets, as options_parse would take it:
 * "--name=value", "--name". */
void options_unparse(const struct option_set *const *sets, size_t n_sets, const void *args,
                     const struct string_list *given,
                     void (*word)(void *user, const char *name, const char *text), void *user);

/* Releases the lists that options_parse filled. */
void options_release(const struct option_set *const *sets, size_t n_sets, void *args);

/* One set of rows as a help text. */
void options_help(struct strbuf *sb, const struct option_set *set);

/* Appends text wrapped at 79 columns, continuation lines indented; `column` is where the line stands now. */
void options_wrap(struct strbuf *sb, const char *text, int column, int indent);

/* The candidate nearest to `word`, or NULL if none is near. next(user, i) gives candidates until NULL. */
const char *nearest_word(const char *word, const char *(*next)(const void *user, size_t i), const void *user);

#endif
