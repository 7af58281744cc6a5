/* merge.c - what another archive holds, taken over.  SPDX-License-Identifier: MIT
 *
 * Keys are hashes of content, so rows of equal keys say the same and the first stays. Ids of cost sets are
 * local: they are matched by the sets' keys. */
#include "archive/archive.h"

#include <sqlite3.h>
#include <string.h>
#include <unistd.h>

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

allot_status archive_merge(struct archive *a, const char *path, struct archive_merged *merged,
                           struct allot_error *err)
{
    struct archive *other;
    memset(merged, 0, sizeof *merged);
    if (access(path, F_OK) != 0)
        return allot_fail(err, ALLOT_ERR_IO, "%s: no such archive", path);
    allot_status status = archive_open_to_read(&other, path, err); /* which checks it */
    if (status != ALLOT_OK)
        return status;
    archive_close(other);
    status = sql_run(a, err, "merge", "ATTACH DATABASE ? AS other", "t", path);
    if (status != ALLOT_OK)
        return status;
    status = take_all(a, merged, err);
    struct allot_error unused;
    sql_run(a, &unused, "merge", "DETACH DATABASE other", "");
    return status;
}
