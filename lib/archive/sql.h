/* sql.h - statements on an archive, with errors that name its file.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_ARCHIVE_SQL_H
#define ALLOT_ARCHIVE_SQL_H

#include <sqlite3.h>

#include "allot.h"

struct archive {
    sqlite3 *db;
    char *path;
    bool read_only;
};

/* Turns the connection's last error into one message: "archive PATH: cannot DOING: ...". */
allot_status sql_fail(const struct archive *a, const char *doing, struct allot_error *err);

/* Prepares one statement and binds its parameters as `kinds` lists them: t text, i int64_t, d double (NaN is
 * stored as NULL), b blob (pointer, size_t). The arguments must live until the statement is finalized. */
allot_status sql_prepare(const struct archive *a, sqlite3_stmt **stmt, struct allot_error *err,
                         const char *doing, const char *sql, const char *kinds, ...);
/* Steps once; *row tells whether there is a row. */
allot_status sql_step(const struct archive *a, sqlite3_stmt *stmt, bool *row, struct allot_error *err,
                      const char *doing);
/* Prepare, step to the end, finalize. */
allot_status sql_run(const struct archive *a, struct allot_error *err, const char *doing, const char *sql,
                     const char *kinds, ...);
/* Takes the write lock (waiting for another writer); pair with sql_end. */
allot_status sql_begin(const struct archive *a, struct allot_error *err);
/* Commits if status is ALLOT_OK, else rolls back; returns the resulting status. */
allot_status sql_end(const struct archive *a, allot_status status, struct allot_error *err);

#endif
