/* speed_table.h - decode time per byte of each type on one machine, measured or read from a file.
 * SPDX-License-Identifier: MIT
 *
 * The file is JSON: {"ns_per_byte": {"Q4_K": 0.21, ...}}, nanoseconds that one token takes per byte of
 * weights of the type; names in either case. "format", "cpu", "threads", "matrix_bytes" and "version", which
 * allot writes beside it, are for people. */
#ifndef ALLOT_CLI_SPEED_TABLE_H
#define ALLOT_CLI_SPEED_TABLE_H

#include "ggml.h"
#include "output.h"

struct speed_table {
    double ns_per_byte[GGML_TYPE_COUNT]; /* 0: the table does not tell */
    const char *path;                    /* it was read from; NULL: measured here */
    int n_threads;                       /* of one measured here, and */
    int64_t matrix_bytes;
};

/* Measures the marked types with lib/measure's speed.h. matrix_bytes < 1 and n_threads < 1: as many as fit.
 */
allot_status speed_table_measure(struct speed_table *table, const bool types[static GGML_TYPE_COUNT],
                                 int64_t matrix_bytes, int n_threads, const struct allot_progress *progress,
                                 struct allot_error *err);

/* path must stay. The error names what is no speed. */
allot_status speed_table_read(struct speed_table *table, const char *path, struct allot_error *err);

/* The document of the file; NULL without memory. */
json_t *speed_table_json(const struct speed_table *table);
allot_status speed_table_write(const struct speed_table *table, const char *path, struct allot_error *err);

#endif
