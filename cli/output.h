/* output.h - results on stdout: text tables and JSON.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_OUTPUT_H
#define ALLOT_CLI_OUTPUT_H

#include <jansson.h>

#include "allot.h"
#include "base/strbuf.h"

/* ---- Text tables: cells are kept, columns get as wide as their widest cell (UTF-8 counted by
 * character). Zero-initialise. Allocation failures are sticky and come out of table_print. */
struct table {
    char **cells; /* row by row, n_columns each; an alignment character comes first */
    size_t n_cells, cap;
    size_t n_columns;
    bool failed;
};

/* Starts a table: one heading per column, each with its alignment as first character: '<' or '>'. */
void table_init(struct table *t, const char *const *headings, size_t n_columns);
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints and releases. */
allot_status table_print(struct table *t, struct allot_error *err);
void table_release(struct table *t);

/* ---- JSON. Paths and names need not be UTF-8: offending bytes become U+FFFD. */
json_t *json_text(const char *text);
/* A number, or null when it is not finite. */
json_t *json_number(double value);
/* {"mean": ..., "se": ...} */
json_t *json_mean(double mean, double std_err);
void json_put(json_t *object, const char *key, json_t *value); /* takes value */
/* Prints the document and drops it; NULL or a failed dump is an error. */
allot_status json_print(json_t *document, struct allot_error *err);

/* Appends text quoted for a POSIX shell, bare where that is safe. */
void shell_quote(struct strbuf *sb, const char *text);

#endif
