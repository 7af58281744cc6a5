/* costs.c - the costs in an archive.  SPDX-License-Identifier: MIT */
#include "archive/archive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/sql.h"
#include "base/error.h"

#define SET_KEY                                                                                              \
    "model_sha256 = ? AND text_sha256 = ? AND imatrix_sha256 = ? AND method = ? AND params = ? AND version " \
    "= ?"
#define NOW "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')"
#define NEXT_USE "(SELECT coalesce(max(use_order), 0) + 1 FROM cost_sets)"

static allot_status find_set(const struct archive *a, const struct archive_cost_key *key, int64_t *set_id,
                             bool *found, struct allot_error *err)
{
    sqlite3_stmt *stmt;
    allot_status status = sql_prepare(a, &stmt, err, "read costs", "SELECT id FROM cost_sets WHERE " SET_KEY,
                                      "tttttt", key->model_sha256, key->text_sha256, key->imatrix_sha256,
                                      key->method, key->params, key->version);

    if (status == ALLOT_OK)
        status = sql_step(a, stmt, found, err, "read costs");
    if (status == ALLOT_OK && *found)
        *set_id = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return status;
}

allot_status archive_cost_set(struct archive *a, const struct archive_cost_key *key, int64_t *set_id,
                              struct allot_error *err)
{
    bool found = false;
    allot_status status = find_set(a, key, set_id, &found, err);

    if (status || found)
        return status;
    /* Another program may have created it since. */
    status =
        sql_run(a, err, "store costs",
                "INSERT OR IGNORE INTO cost_sets (model_sha256, text_sha256, imatrix_sha256, method, params,"
                " version, updated, use_order, n_tokens) VALUES (?, ?, ?, ?, ?, ?, " NOW ", " NEXT_USE ", 0)",
                "tttttt", key->model_sha256, key->text_sha256, key->imatrix_sha256, key->method, key->params,
                key->version);
    if (status == ALLOT_OK)
        status = find_set(a, key, set_id, &found, err);
    if (status == ALLOT_OK && !found)
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "archive %s: a new set of costs is gone", a->path);
    return status;
}

allot_status archive_cost_set_touch(struct archive *a, int64_t set_id, int64_t n_tokens,
                                    struct allot_error *err)
{
    return sql_run(a, err, "store costs",
                   "UPDATE cost_sets SET updated = " NOW ", use_order = " NEXT_USE
                   ", n_tokens = ? WHERE id = ?",
                   "ii", n_tokens, set_id);
}

/* Marks those of the n types that a statement gives in its first column; finalizes it. */
static allot_status mark_types(const struct archive *a, sqlite3_stmt *stmt, const char *const *types,
                               size_t n, bool *marks, struct allot_error *err)
{
    bool row = true;
    allot_status status = ALLOT_OK;

    memset(marks, 0, n * sizeof *marks);
    while (status == ALLOT_OK) {
        const char *type;

        status = sql_step(a, stmt, &row, err, "read costs");
        if (status || !row)
            break;
        type = (const char *)sqlite3_column_text(stmt, 0);
        for (size_t i = 0; type && i < n; i++)
            marks[i] |= strcmp(types[i], type) == 0;
    }
    sqlite3_finalize(stmt);
    return status;
}

allot_status archive_cost_have(struct archive *a, int64_t set_id, const char *tensor,
                               const char *const *types, size_t n, bool *have, struct allot_error *err)
{
    sqlite3_stmt *stmt;
    allot_status status =
        sql_prepare(a, &stmt, err, "read costs", "SELECT type FROM costs WHERE set_id = ? AND tensor = ?",
                    "it", set_id, tensor);

    return status ? status : mark_types(a, stmt, types, n, have, err);
}

allot_status archive_cost_finish(struct archive *a, int64_t set_id, const char *const *types, size_t n,
                                 struct allot_error *err)
{
    allot_status status = sql_begin(a, err);

    if (status)
        return status;
    for (size_t i = 0; i < n && status == ALLOT_OK; i++)
        status = sql_run(a, err, "store costs", "INSERT OR IGNORE INTO finished_types VALUES (?, ?)", "it",
                         set_id, types[i]);
    return sql_end(a, status, err);
}

allot_status archive_cost_finished(struct archive *a, int64_t set_id, const char *const *types, size_t n,
                                   bool *finished, struct allot_error *err)
{
    sqlite3_stmt *stmt;
    allot_status status = sql_prepare(a, &stmt, err, "read costs",
                                      "SELECT type FROM finished_types WHERE set_id = ?", "i", set_id);

    return status ? status : mark_types(a, stmt, types, n, finished, err);
}

static allot_status put_row(const struct archive *a, int64_t set_id, const char *tensor,
                            const struct archive_cost *row, struct allot_error *err)
{
    static const char doing[] = "store costs";
    /* REPLACE would leave the values of the replaced row behind. */
    allot_status status = sql_run(a, err, doing,
                                  "DELETE FROM cost_values WHERE cost_id IN"
                                  " (SELECT id FROM costs WHERE set_id = ? AND tensor = ? AND type = ?)",
                                  "itt", set_id, tensor, row->type);

    if (status == ALLOT_OK)
        status = sql_run(a, err, doing,
                         "REPLACE INTO costs (set_id, tensor, type, bytes, cost, std_err, feasible)"
                         " VALUES (?, ?, ?, ?, ?, ?, ?)",
                         "ittiddi", set_id, tensor, row->type, row->bytes, row->cost, row->std_err,
                         (int64_t)row->feasible);
    if (status == ALLOT_OK && row->u && row->n_u > 0)
        status = sql_run(a, err, doing, "INSERT INTO cost_values (cost_id, u) VALUES (?, ?)", "ib",
                         (int64_t)sqlite3_last_insert_rowid(a->db), row->u, row->n_u * sizeof *row->u);
    return status;
}

allot_status archive_cost_put(struct archive *a, int64_t set_id, const char *tensor,
                              const struct archive_cost *rows, size_t n, struct allot_error *err)
{
    allot_status status = sql_begin(a, err);

    if (status)
        return status;
    for (size_t i = 0; i < n && status == ALLOT_OK; i++)
        status = put_row(a, set_id, tensor, &rows[i], err);
    return sql_end(a, status, err);
}

/* A NaN was stored as NULL. */
static double column_double(sqlite3_stmt *stmt, int column)
{
    return sqlite3_column_type(stmt, column) == SQLITE_NULL ? (double)NAN
                                                            : sqlite3_column_double(stmt, column);
}

/* Points *u into a buffer that grows as needed: SQLite does not promise alignment. */
static allot_status copy_values(sqlite3_stmt *stmt, int column, float **buffer, size_t *capacity,
                                struct archive_cost *cost, struct allot_error *err)
{
    const void *blob = sqlite3_column_blob(stmt, column);
    size_t n = (size_t)sqlite3_column_bytes(stmt, column) / sizeof(float);
    float *grown;

    if (!blob || n == 0)
        return ALLOT_OK;
    if (n > *capacity) {
        grown = realloc(*buffer, n * sizeof(float));
        if (!grown)
            return allot_fail_memory(err, n * sizeof(float), "costs of the archive");
        *buffer = grown;
        *capacity = n;
    }
    memcpy(*buffer, blob, n * sizeof(float));
    cost->u = *buffer;
    cost->n_u = n;
    return ALLOT_OK;
}

allot_status archive_cost_each(struct archive *a, int64_t set_id, bool with_u,
                               bool (*row)(void *user, const char *tensor, const struct archive_cost *cost),
                               void *user, struct allot_error *err)
{
    static const char plain[] = "SELECT tensor, type, bytes, cost, std_err, feasible FROM costs"
                                " WHERE set_id = ? ORDER BY tensor, type";
    static const char with_values[] =
        "SELECT tensor, type, bytes, cost, std_err, feasible, u FROM costs"
        " LEFT JOIN cost_values ON cost_id = costs.id WHERE set_id = ? ORDER BY tensor, type";
    float *values = NULL;
    size_t capacity = 0;
    sqlite3_stmt *stmt;
    bool more = true, stop = false;
    allot_status status = sql_prepare(a, &stmt, err, "read costs", with_u ? with_values : plain, "i", set_id);

    while (status == ALLOT_OK && !stop) {
        struct archive_cost cost = {0};
        const char *tensor;

        status = sql_step(a, stmt, &more, err, "read costs");
        if (status || !more)
            break;
        tensor = (const char *)sqlite3_column_text(stmt, 0);
        cost.type = (const char *)sqlite3_column_text(stmt, 1);
        cost.bytes = sqlite3_column_int64(stmt, 2);
        cost.cost = column_double(stmt, 3);
        cost.std_err = column_double(stmt, 4);
        cost.feasible = sqlite3_column_int(stmt, 5) != 0;
        if (with_u)
            status = copy_values(stmt, 6, &values, &capacity, &cost, err);
        if (status == ALLOT_OK && tensor && cost.type)
            stop = row(user, tensor, &cost);
    }
    sqlite3_finalize(stmt);
    free(values);
    return status;
}

static void copy_text(char *dst, size_t size, sqlite3_stmt *stmt, int column)
{
    const char *text = (const char *)sqlite3_column_text(stmt, column);

    snprintf(dst, size, "%s", text ? text : "");
}

static void read_set(sqlite3_stmt *stmt, struct archive_cost_set_info *set)
{
    set->id = sqlite3_column_int64(stmt, 0);
    copy_text(set->model_sha256, sizeof set->model_sha256, stmt, 1);
    copy_text(set->text_sha256, sizeof set->text_sha256, stmt, 2);
    copy_text(set->imatrix_sha256, sizeof set->imatrix_sha256, stmt, 3);
    copy_text(set->method, sizeof set->method, stmt, 4);
    copy_text(set->params, sizeof set->params, stmt, 5);
    copy_text(set->version, sizeof set->version, stmt, 6);
    copy_text(set->updated, sizeof set->updated, stmt, 7);
    set->n_tokens = sqlite3_column_int64(stmt, 8);
    set->n_tensors = sqlite3_column_int64(stmt, 9);
    set->n_rows = sqlite3_column_int64(stmt, 10);
}

allot_status archive_cost_sets(struct archive *a, const char *model_sha256,
                               struct archive_cost_set_info **sets, size_t *n, struct allot_error *err)
{
    struct archive_cost_set_info *list = NULL, *grown;
    size_t count = 0, capacity = 0;
    sqlite3_stmt *stmt;
    bool row = true;
    allot_status status = sql_prepare(
        a, &stmt, err, "read costs",
        "SELECT id, model_sha256, text_sha256, imatrix_sha256, method, params, version, updated, n_tokens,"
        " (SELECT count(DISTINCT tensor) FROM costs WHERE set_id = cost_sets.id),"
        " (SELECT count(*) FROM costs WHERE set_id = cost_sets.id)"
        " FROM cost_sets WHERE model_sha256 = ? ORDER BY use_order DESC, id DESC",
        "t", model_sha256);

    while (status == ALLOT_OK) {
        status = sql_step(a, stmt, &row, err, "read costs");
        if (status || !row)
            break;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 8;
            grown = realloc(list, capacity * sizeof *list);
            if (!grown) {
                status = allot_fail_memory(err, capacity * sizeof *list, "sets of costs");
                break;
            }
            list = grown;
        }
        read_set(stmt, &list[count++]);
    }
    sqlite3_finalize(stmt);
    if (status) {
        free(list);
        return status;
    }
    *sets = list;
    *n = count;
    return ALLOT_OK;
}
