/* merge.c - what another archive holds, taken over.  SPDX-License-Identifier: MIT
 *
 * Keys are hashes of content, so rows of equal keys say the same and the first stays. Ids of cost sets are
 * local: they are matched by the sets' keys. */
#include "archive/archive.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archive/sql.h"
#include "base/error.h"

#define SET_COLUMNS "model_sha256, text_sha256, imatrix_sha256, method, params, version"
/* The other's sets o beside ours m. */
#define SETS_OF_BOTH "other.cost_sets o JOIN main.cost_sets m USING (" SET_COLUMNS ")"

/* Runs it and counts the rows that are new. */
static allot_status take(const struct archive *a, int64_t *n, const char *sql, struct allot_error *err)
{
    allot_status status = sql_run(a, err, "merge", sql, "");
    if (status == ALLOT_OK && n != NULL)
        *n += sqlite3_changes64(a->db);
    return status;
}

static allot_status take_costs(const struct archive *a, struct archive_merged *merged,
                               struct allot_error *err)
{
    /* Sets that come along are older than all there are: which costs `plan` takes does not change. */
    allot_status status =
        take(a, &merged->cost_sets,
             "INSERT OR IGNORE INTO main.cost_sets (" SET_COLUMNS ", updated, use_order, n_tokens)"
             " SELECT " SET_COLUMNS ", updated, use_order - (SELECT max(use_order) FROM other.cost_sets) +"
             " (SELECT coalesce(min(use_order), 1) FROM main.cost_sets) - 1, n_tokens FROM other.cost_sets",
             err);
    if (status == ALLOT_OK)
        status =
            take(a, &merged->costs,
                 "INSERT OR IGNORE INTO main.costs (set_id, tensor, type, bytes, cost, std_err, feasible)"
                 " SELECT m.id, c.tensor, c.type, c.bytes, c.cost, c.std_err, c.feasible"
                 " FROM " SETS_OF_BOTH " JOIN other.costs c ON c.set_id = o.id ORDER BY c.id",
                 err);
    if (status == ALLOT_OK)
        status =
            take(a, NULL,
                 "INSERT OR IGNORE INTO main.cost_values (cost_id, u) SELECT own.id, v.u"
                 " FROM " SETS_OF_BOTH " JOIN other.costs c ON c.set_id = o.id"
                 " JOIN other.cost_values v ON v.cost_id = c.id"
                 " JOIN main.costs own ON own.set_id = m.id AND own.tensor = c.tensor AND own.type = c.type",
                 err);
    if (status == ALLOT_OK)
        status = take(a, NULL,
                      "INSERT OR IGNORE INTO main.finished_types (set_id, type) SELECT m.id, f.type"
                      " FROM " SETS_OF_BOTH " JOIN other.finished_types f ON f.set_id = o.id",
                      err);
    return status;
}

static allot_status take_all(const struct archive *a, struct archive_merged *merged, struct allot_error *err)
{
    allot_status status = sql_begin(a, err);
    if (status != ALLOT_OK)
        return status;
    status = take_costs(a, merged, err);
    if (status == ALLOT_OK)
        status = take(a, &merged->measurements,
                      "INSERT OR IGNORE INTO main.measurements SELECT * FROM other.measurements", err);
    if (status == ALLOT_OK)
        status = take(a, &merged->blobs, "INSERT OR IGNORE INTO main.blobs SELECT * FROM other.blobs", err);
    return sql_end(a, status, err);
}

allot_status archive_merge_check(const char *path, struct allot_error *err)
{
    struct archive *other = NULL;
    struct stat st;
    if (stat(path, &st) != 0 || st.st_size == 0) /* an empty file would be made an archive */
        return allot_fail(err, ALLOT_ERR_IO, "%s: no such archive", path);
    allot_status status = archive_open_to_read(&other, path, err);
    archive_close(other);
    return status;
}

struct watch {
    const struct allot_progress *progress;
    bool stopped;
};

/* SQLite calls it now and then, and gives up if it is not 0. */
static int asks_to_stop(void *user)
{
    struct watch *watch = user;
    struct allot_error unused;
    watch->stopped = watch->stopped || allot_report(watch->progress, &unused, "merge", 0, 1) != ALLOT_OK;
    return watch->stopped;
}

/* Each table must be one with rows of its own: a view, or a table that code makes up, could have no end. And
 * what is read as numbers must be numbers. */
static allot_status check_tables(const struct archive *a, const char *path, struct allot_error *err)
{
    static const char sql[] =
        "SELECT (SELECT count(*) FROM other.sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE "
        "VIRTUAL%'"
        " AND name IN ('blobs', 'cost_sets', 'finished_types', 'costs', 'cost_values', 'measurements')) = 6";
    static const char values[] =
        "SELECT NOT EXISTS (SELECT 1 FROM other.costs WHERE typeof(bytes) <> 'integer' OR bytes <= 0 OR"
        " typeof(cost) NOT IN ('real', 'integer', 'null') OR abs(cost) > 1e30 OR"
        " typeof(std_err) NOT IN ('real', 'integer', 'null') OR typeof(tensor) <> 'text' OR typeof(type) <> "
        "'text')"
        " AND NOT EXISTS (SELECT 1 FROM other.blobs WHERE typeof(kind) <> 'text' OR typeof(key) <> 'text' OR"
        " typeof(data) <> 'blob') AND NOT EXISTS (SELECT 1 FROM other.measurements WHERE typeof(json) <> "
        "'text')";
    const char *const checks[] = {sql, values};
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < sizeof checks / sizeof *checks && status == ALLOT_OK; i++) {
        sqlite3_stmt *stmt;
        bool row = false, good = false;
        status = sql_prepare(a, &stmt, err, "merge", checks[i], "");
        if (status == ALLOT_OK)
            status = sql_step(a, stmt, &row, err, "merge");
        if (status == ALLOT_OK)
            good = row && sqlite3_column_int64(stmt, 0) == 1;
        sqlite3_finalize(stmt);
        if (status == ALLOT_OK && !good)
            status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: the archive is damaged: %s", path,
                                i == 0 ? "a table is not what it should be"
                                       : "values are not what they should be");
    }
    return status;
}

allot_status archive_merge(struct archive *a, const char *path, struct archive_merged *merged,
                           const struct allot_progress *progress, struct allot_error *err)
{
    memset(merged, 0, sizeof *merged);
    char *plain = malloc(strlen(path) + 3); /* what begins so is no URI */
    if (plain == NULL)
        return allot_fail_memory(err, strlen(path), "a path");
    sprintf(plain, "%s%s", path[0] == '/' ? "" : "./", path);
    allot_status status = sql_run(a, err, "merge", "ATTACH DATABASE ? AS other", "t", plain);
    free(plain);
    if (status != ALLOT_OK)
        return status;
    struct watch watch = {progress, false};
    struct allot_error unused;
    sqlite3_progress_handler(a->db, 100000, asks_to_stop, &watch);
    status = check_tables(a, path, err);
    if (status == ALLOT_OK)
        status = take_all(a, merged, err);
    sqlite3_progress_handler(a->db, 0, NULL, NULL);
    sql_run(a, &unused, "merge", "DETACH DATABASE other", "");
    return watch.stopped
               ? allot_fail(err, ALLOT_ERR_INTERRUPTED, "interrupted; nothing of %s was taken over", path)
               : status;
}
