/* sql.c - statements on an archive, with errors that name its file.  SPDX-License-Identifier: MIT */
#include "archive/sql.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/error.h"

/* SQLite's own words where they serve, plainer ones where they do not. */
static const char *explain(sqlite3 *db, int rc, int os)
{
    rc &= 0xff;
    if (rc == SQLITE_FULL || (rc == SQLITE_IOERR && (os == ENOSPC || os == EDQUOT)))
        return "no space left on the device";
    if (rc == SQLITE_IOERR && os == EFBIG)
        return "no space left: a file may not grow that large here";
    switch (rc) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return "another program holds it";
    case SQLITE_READONLY:
        return "the file or its folder is not writable";
    case SQLITE_CANTOPEN:
        return os ? strerror(os) : sqlite3_errmsg(db);
    case SQLITE_CORRUPT:
        return "the file is damaged";
    case SQLITE_NOTADB:
        return "the file is not an archive";
    default:
        return sqlite3_errmsg(db);
    }
}

allot_status sql_fail(const struct archive *a, const char *doing, struct allot_error *err)
{
    /* SQLite does not keep the cause of every failure; errno still has it. */
    int saved = errno, os = sqlite3_system_errno(a->db);
    int rc = sqlite3_errcode(a->db);
    allot_status status = ALLOT_ERR_IO;

    if (rc == SQLITE_NOMEM)
        status = ALLOT_ERR_MEMORY;
    else if (rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB || rc == SQLITE_ERROR)
        status = ALLOT_ERR_FORMAT; /* SQLITE_ERROR: a table or column is not there */
    return allot_fail(err, status, "archive %s: cannot %s: %s", a->path, doing,
                      explain(a->db, rc, os ? os : saved));
}

static int bind_all(sqlite3_stmt *stmt, const char *kinds, va_list args)
{
    int rc = SQLITE_OK;

    for (int i = 1; *kinds && rc == SQLITE_OK; i++, kinds++) {
        if (*kinds == 't') {
            rc = sqlite3_bind_text(stmt, i, va_arg(args, const char *), -1, SQLITE_STATIC);
        } else if (*kinds == 'i') {
            rc = sqlite3_bind_int64(stmt, i, va_arg(args, int64_t));
        } else if (*kinds == 'd') {
            rc = sqlite3_bind_double(stmt, i, va_arg(args, double));
        } else {
            const void *data = va_arg(args, const void *);
            size_t size = va_arg(args, size_t);

            rc = size ? sqlite3_bind_blob64(stmt, i, data, size, SQLITE_STATIC)
                      : sqlite3_bind_zeroblob(stmt, i, 0);
        }
    }
    return rc;
}

static allot_status prepare(const struct archive *a, sqlite3_stmt **stmt, struct allot_error *err,
                            const char *doing, const char *sql, const char *kinds, va_list args)
{
    *stmt = NULL;
    if (sqlite3_prepare_v2(a->db, sql, -1, stmt, NULL) != SQLITE_OK)
        return sql_fail(a, doing, err);
    if (bind_all(*stmt, kinds, args) != SQLITE_OK) {
        sql_fail(a, doing, err);
        sqlite3_finalize(*stmt);
        *stmt = NULL;
        return err->status;
    }
    return ALLOT_OK;
}

allot_status sql_prepare(const struct archive *a, sqlite3_stmt **stmt, struct allot_error *err,
                         const char *doing, const char *sql, const char *kinds, ...)
{
    allot_status status;
    va_list args;

    va_start(args, kinds);
    status = prepare(a, stmt, err, doing, sql, kinds, args);
    va_end(args);
    return status;
}

allot_status sql_step(const struct archive *a, sqlite3_stmt *stmt, bool *row, struct allot_error *err,
                      const char *doing)
{
    int rc;

    errno = 0;
    rc = sqlite3_step(stmt);

    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? ALLOT_OK : sql_fail(a, doing, err);
}

allot_status sql_run(const struct archive *a, struct allot_error *err, const char *doing, const char *sql,
                     const char *kinds, ...)
{
    sqlite3_stmt *stmt;
    allot_status status;
    bool row = true;
    va_list args;

    va_start(args, kinds);
    status = prepare(a, &stmt, err, doing, sql, kinds, args);
    va_end(args);
    while (status == ALLOT_OK && row)
        status = sql_step(a, stmt, &row, err, doing);
    sqlite3_finalize(stmt);
    return status;
}

allot_status sql_begin(const struct archive *a, struct allot_error *err)
{
    return sql_run(a, err, "write", "BEGIN IMMEDIATE", "");
}

allot_status sql_end(const struct archive *a, allot_status status, struct allot_error *err)
{
    if (status == ALLOT_OK)
        status = sql_run(a, err, "write", "COMMIT", "");
    if (status != ALLOT_OK)
        sqlite3_exec(a->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}
