/* archive.c - opening an archive; hashes of files, blobs and measurements in it.
 * SPDX-License-Identifier: MIT */
#include "archive/archive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "archive/sql.h"
#include "base/error.h"
#include "base/file.h"
#include "base/strbuf.h"

/* "allt": marks our files among SQLite's (PRAGMA application_id). */
#define APPLICATION_ID 0x616c6c74
#define SCHEMA_VERSION 1 /* PRAGMA user_version */
#define BUSY_TIMEOUT_MS 60000

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

/* Per-chunk values (u: little-endian float32) have a table of their own, so that reading costs alone
 * does not page through them. */
static const char schema[] =
    "CREATE TABLE file_hashes (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,"
    " ctime_ns INTEGER NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL, sha256 TEXT NOT NULL);"
    "CREATE TABLE blobs (kind TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, key));"
    "CREATE TABLE cost_sets (id INTEGER PRIMARY KEY, model_sha256 TEXT NOT NULL, text_sha256 TEXT NOT NULL,"
    " imatrix_sha256 TEXT NOT NULL, method TEXT NOT NULL, params TEXT NOT NULL, version TEXT NOT NULL,"
    " updated TEXT NOT NULL, use_order INTEGER NOT NULL, n_tokens INTEGER NOT NULL,"
    " UNIQUE (model_sha256, text_sha256, imatrix_sha256, method, params, version));"
    "CREATE TABLE finished_types (set_id INTEGER NOT NULL REFERENCES cost_sets (id), type TEXT NOT NULL,"
    " PRIMARY KEY (set_id, type));"
    "CREATE TABLE costs (id INTEGER PRIMARY KEY, set_id INTEGER NOT NULL REFERENCES cost_sets (id),"
    " tensor TEXT NOT NULL, type TEXT NOT NULL, bytes INTEGER NOT NULL, cost REAL, std_err REAL,"
    " feasible INTEGER NOT NULL, UNIQUE (set_id, tensor, type));"
    "CREATE TABLE cost_values (cost_id INTEGER PRIMARY KEY REFERENCES costs (id), u BLOB NOT NULL);"
    "CREATE TABLE measurements (base_sha256 TEXT NOT NULL, candidate_sha256 TEXT NOT NULL,"
    " text_sha256 TEXT NOT NULL, settings TEXT NOT NULL, json TEXT NOT NULL, updated TEXT NOT NULL,"
    " PRIMARY KEY (base_sha256, candidate_sha256, text_sha256, settings));"
    "PRAGMA application_id = " STRINGIFY(APPLICATION_ID) ";"
                                                         "PRAGMA user_version = " STRINGIFY(
                                                             SCHEMA_VERSION) ";";

static allot_status refuse_other(const char *path, struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_FORMAT, "%s is not an allot archive", path);
}

static allot_status check_marks(const char *path, int64_t application, int64_t version,
                                struct allot_error *err)
{
    if (application != APPLICATION_ID)
        return refuse_other(path, err);
    if (version > SCHEMA_VERSION)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "archive %s: schema %lld is newer than this program's (%d); use a newer allot",
                          path, (long long)version, SCHEMA_VERSION);
    return ALLOT_OK;
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* SQLite needs to create files beside the archive, and is vague about why it cannot. */
static allot_status check_folder(const char *path, struct allot_error *err)
{
    char *folder = file_folder(path);
    allot_status status = ALLOT_OK;

    if (!folder)
        return allot_fail_memory(err, strlen(path) + 1, "a path");
    if (access(folder, W_OK | X_OK) != 0)
        status = allot_fail(err, ALLOT_ERR_IO, "cannot open archive %s: folder %s: %s", path, folder,
                            errno == ENOENT                     ? "no such folder"
                            : errno == EACCES || errno == EROFS ? "it is not writable"
                                                                : strerror(errno));
    free(folder);
    return status;
}

/* Looks at the file's first bytes before SQLite may touch it: what is plainly not ours is left alone,
 * not even a journal appears beside it. Marks of zero are for SQLite to judge (they may still be in
 * the write-ahead log). */
static allot_status peek(const char *path, struct allot_error *err)
{
    unsigned char head[100];
    struct stat st;
    FILE *file;
    size_t n;

    if (stat(path, &st) != 0)
        return ALLOT_OK; /* absent: will be created, or SQLite says why not */
    if (!S_ISREG(st.st_mode))
        return allot_fail(err, ALLOT_ERR_IO, "cannot open archive %s: it is %s", path,
                          S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    file = fopen(path, "rbe");
    if (!file)
        return allot_fail(err, ALLOT_ERR_IO, "cannot open archive %s: %s", path, strerror(errno));
    n = fread(head, 1, sizeof head, file);
    fclose(file);
    if (n == 0)
        return ALLOT_OK; /* creation was interrupted at once */
    if (n < sizeof head || memcmp(head, "SQLite format 3", 16) != 0)
        return refuse_other(path, err);
    if (big_endian(head + 68) == 0 && big_endian(head + 60) == 0)
        return ALLOT_OK;
    return check_marks(path, big_endian(head + 68), big_endian(head + 60), err);
}

static allot_status query_int(const struct archive *a, const char *sql, int64_t *value,
                              struct allot_error *err)
{
    sqlite3_stmt *stmt;
    bool row = false;
    allot_status status = sql_prepare(a, &stmt, err, "read", sql, "");

    if (status == ALLOT_OK)
        status = sql_step(a, stmt, &row, err, "read");
    if (status == ALLOT_OK)
        *value = row ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_finalize(stmt);
    return status;
}

/* Structure of the whole file: a damaged archive must be refused before anything is added to it. */
static allot_status check_integrity(const struct archive *a, struct allot_error *err)
{
    sqlite3_stmt *stmt;
    bool row = false;
    allot_status status = sql_prepare(a, &stmt, err, "read", "PRAGMA quick_check(1)", "");
    const char *text;

    if (status == ALLOT_OK)
        status = sql_step(a, stmt, &row, err, "read");
    if (status == ALLOT_OK) {
        text = row ? (const char *)sqlite3_column_text(stmt, 0) : NULL;
        if (!text || strcmp(text, "ok") != 0)
            status = allot_fail(err, ALLOT_ERR_FORMAT, "archive %s: the file is damaged (%s)", a->path,
                                text ? text : "no answer");
    }
    sqlite3_finalize(stmt);
    return status;
}

/* The write-ahead log: readers do not block the writer, and FULL syncs at every commit. SQLite does not wait
 * for its turn in this switch, so two programs that create one archive together would fail here. */
static allot_status use_wal(const struct archive *a, struct allot_error *err)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    int rc = SQLITE_BUSY;

    for (int waited = 0; rc == SQLITE_BUSY && waited < BUSY_TIMEOUT_MS; waited += 20) {
        rc = sqlite3_exec(a->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
        if (rc == SQLITE_BUSY)
            nanosleep(&pause, NULL);
    }
    return rc == SQLITE_OK ? ALLOT_OK : sql_fail(a, "open it", err);
}

/* Creates the tables unless another program just did. */
static allot_status create_schema(const struct archive *a, struct allot_error *err)
{
    int64_t version = 0, n_objects = 0;
    allot_status status = sql_begin(a, err);

    if (status)
        return status;
    status = query_int(a, "PRAGMA user_version", &version, err);
    if (status == ALLOT_OK)
        status = query_int(a, "SELECT count(*) FROM sqlite_master", &n_objects, err);
    if (status == ALLOT_OK && version == 0) {
        if (n_objects > 0)
            status = refuse_other(a->path, err);
        else if (sqlite3_exec(a->db, schema, NULL, NULL, NULL) != SQLITE_OK)
            status = sql_fail(a, "create it", err);
    }
    return sql_end(a, status, err);
}

static allot_status prepare_database(const struct archive *a, struct allot_error *err)
{
    int64_t version = 0, application = 0, n_objects = 0;
    allot_status status;

    sqlite3_busy_timeout(a->db, BUSY_TIMEOUT_MS);
    status = query_int(a, "SELECT count(*) FROM sqlite_master", &n_objects, err);
    if (status == ALLOT_OK)
        status = query_int(a, "PRAGMA user_version", &version, err);
    if (status == ALLOT_OK)
        status = query_int(a, "PRAGMA application_id", &application, err);
    if (status)
        return status;
    if (n_objects > 0 || version != 0 || application != 0) {
        status = check_marks(a->path, application, version, err);
        if (status == ALLOT_OK)
            status = check_integrity(a, err);
        if (status)
            return status;
    }
    if (a->read_only)
        return version == 0 ? refuse_other(a->path, err) : ALLOT_OK;
    status = use_wal(a, err);
    if (status == ALLOT_OK && version == 0)
        status = create_schema(a, err);
    if (status == ALLOT_OK)
        status = query_int(a, "PRAGMA user_version", &version, err);
    if (status == ALLOT_OK)
        status = query_int(a, "PRAGMA application_id", &application, err);
    if (status == ALLOT_OK)
        status = check_marks(a->path, application, version, err);
    if (status == ALLOT_OK &&
        sqlite3_exec(a->db, "PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF", NULL, NULL, NULL))
        status = sql_fail(a, "open it", err);
    return status;
}

/* SQLite's name of the file, in which no character of the path is special. Read-only, it takes locks and the
 * write-ahead log, for which it needs files that it may not make, only where a log is. */
static char *database_name(const char *path, bool read_only)
{
    struct strbuf name = {0};
    struct stat st;
    char *log = NULL;

    /* With a slash ":memory:" is a file like any other. */
    strbuf_addf(&name, "file:%s", path[0] == '/' ? "" : "./");
    for (const char *p = path; *p; p++)
        strbuf_addf(&name, "%%%02x", (unsigned char)*p);
    if (read_only && asprintf(&log, "%s-wal", path) >= 0) {
        bool has_log = stat(log, &st) == 0 && st.st_size > 0;

        strbuf_addf(&name, "?mode=ro%s", has_log ? "" : "&immutable=1");
        free(log);
    }
    if (name.failed)
        strbuf_release(&name);
    return name.data;
}

static allot_status open_database(struct archive **out, const char *path, bool read_only,
                                  struct allot_error *err)
{
    const int flags = (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    struct archive *a = calloc(1, sizeof *a);
    char *name = database_name(path, read_only);
    allot_status status = ALLOT_OK;

    if (!a || !name || !(a->path = strdup(path))) {
        status = allot_fail_memory(err, sizeof *a + strlen(path), "an archive");
        goto cleanup;
    }
    a->read_only = read_only;
    if (sqlite3_open_v2(name, &a->db, flags | SQLITE_OPEN_URI, NULL) != SQLITE_OK)
        status = a->db ? sql_fail(a, "open it", err) : allot_fail_memory(err, 0, "an archive");
    else
        status = prepare_database(a, err);
cleanup:
    free(name);
    if (status)
        archive_close(a);
    else
        *out = a;
    return status;
}

allot_status archive_open(struct archive **out, const char *path, struct allot_error *err)
{
    allot_status status;

    if (path[0] == '\0')
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "the path of the archive is empty");
    status = peek(path, err);
    if (status == ALLOT_OK)
        status = check_folder(path, err);
    return status ? status : open_database(out, path, false, err);
}

allot_status archive_open_to_read(struct archive **out, const char *path, struct allot_error *err)
{
    struct allot_error why;
    allot_status status;

    if (access(path, F_OK) != 0 || (access(path, W_OK) == 0 && check_folder(path, &why) == ALLOT_OK))
        return archive_open(out, path, err);
    status = peek(path, err);
    return status ? status : open_database(out, path, true, err);
}

bool archive_is_read_only(const struct archive *a)
{
    return a->read_only;
}

const char *archive_path(const struct archive *a)
{
    return a->path;
}

void archive_close(struct archive *a)
{
    if (!a)
        return;
    sqlite3_close(a->db);
    free(a->path);
    free(a);
}

/* Relative paths depend on the working directory; caller frees. */
static char *absolute(const char *path)
{
    char *resolved = realpath(path, NULL);

    return resolved ? resolved : strdup(path);
}

bool archive_file_hash(struct archive *a, const char *path, const struct file_identity *id,
                       char hex[static 65])
{
    char *key = absolute(path);
    struct allot_error err;
    sqlite3_stmt *stmt = NULL;
    bool row = false;

    if (key &&
        sql_prepare(a, &stmt, &err, "read",
                    "SELECT sha256 FROM file_hashes WHERE path = ? AND size = ? AND mtime_ns = ?"
                    " AND ctime_ns = ? AND device = ? AND inode = ? AND length(sha256) = 64",
                    "tiiiii", key, id->size, id->mtime_ns, id->ctime_ns, (int64_t)id->device,
                    (int64_t)id->inode) == ALLOT_OK &&
        sql_step(a, stmt, &row, &err, "read") == ALLOT_OK && row)
        snprintf(hex, 65, "%s", (const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    free(key);
    return row;
}

allot_status archive_file_hash_put(struct archive *a, const char *path, const struct file_identity *id,
                                   const char *hex, struct allot_error *err)
{
    char *key = absolute(path);
    allot_status status;

    if (!key)
        return allot_fail_memory(err, strlen(path) + 1, "a path");
    status = sql_run(a, err, "store a file's hash", "REPLACE INTO file_hashes VALUES (?, ?, ?, ?, ?, ?, ?)",
                     "tiiiiit", key, id->size, id->mtime_ns, id->ctime_ns, (int64_t)id->device,
                     (int64_t)id->inode, hex);
    free(key);
    return status;
}

allot_status archive_blob(struct archive *a, const char *kind, const char *key, void **data, size_t *size,
                          struct allot_error *err)
{
    sqlite3_stmt *stmt;
    bool row = false;
    void *copy = NULL;
    size_t n = 0;
    allot_status status = sql_prepare(a, &stmt, err, "read a blob",
                                      "SELECT data FROM blobs WHERE kind = ? AND key = ?", "tt", kind, key);

    if (status == ALLOT_OK)
        status = sql_step(a, stmt, &row, err, "read a blob");
    if (status == ALLOT_OK && row) {
        const void *blob = sqlite3_column_blob(stmt, 0);

        n = (size_t)sqlite3_column_bytes(stmt, 0);
        copy = malloc(n + 1);
        if (!copy)
            status = allot_fail_memory(err, n, "a blob of the archive");
        else if (n > 0)
            memcpy(copy, blob, n);
    }
    sqlite3_finalize(stmt);
    if (status)
        return status;
    *data = copy;
    *size = n;
    return ALLOT_OK;
}

allot_status archive_blob_put(struct archive *a, const char *kind, const char *key, const void *data,
                              size_t size, struct allot_error *err)
{
    return sql_run(a, err, "store a blob", "REPLACE INTO blobs VALUES (?, ?, ?)", "ttb", kind, key, data,
                   size);
}

allot_status archive_blob_each(struct archive *a, const char *kind,
                               bool (*row)(void *user, const char *key, const void *data, size_t size),
                               void *user, struct allot_error *err)
{
    sqlite3_stmt *stmt;
    bool more = true, stop = false;
    allot_status status = sql_prepare(a, &stmt, err, "read blobs",
                                      "SELECT key, data FROM blobs WHERE kind = ? ORDER BY key", "t", kind);

    while (status == ALLOT_OK && !stop) {
        status = sql_step(a, stmt, &more, err, "read blobs");
        if (status || !more)
            break;
        const char *key = (const char *)sqlite3_column_text(stmt, 0);
        const void *data = sqlite3_column_blob(stmt, 1);

        stop = row(user, key ? key : "", data ? data : "", (size_t)sqlite3_column_bytes(stmt, 1));
    }
    sqlite3_finalize(stmt);
    return status;
}

allot_status archive_measurement_put(struct archive *a, const char *base_sha256, const char *candidate_sha256,
                                     const char *text_sha256, const char *settings, const char *json,
                                     struct allot_error *err)
{
    return sql_run(a, err, "store a measurement",
                   "REPLACE INTO measurements VALUES (?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))",
                   "ttttt", base_sha256, candidate_sha256, text_sha256, settings, json);
}

allot_status archive_measurement(struct archive *a, const char *base_sha256, const char *candidate_sha256,
                                 const char *text_sha256, const char *settings, char **json,
                                 struct allot_error *err)
{
    sqlite3_stmt *stmt;
    bool row = false;
    char *copy = NULL;
    allot_status status = sql_prepare(a, &stmt, err, "read a measurement",
                                      "SELECT json FROM measurements WHERE base_sha256 = ? AND"
                                      " candidate_sha256 = ? AND text_sha256 = ? AND settings = ?",
                                      "tttt", base_sha256, candidate_sha256, text_sha256, settings);

    if (status == ALLOT_OK)
        status = sql_step(a, stmt, &row, err, "read a measurement");
    if (status == ALLOT_OK && row) {
        const char *text = (const char *)sqlite3_column_text(stmt, 0);

        copy = text ? strdup(text) : NULL;
        if (!copy)
            status = allot_fail_memory(err, (size_t)sqlite3_column_bytes(stmt, 0), "a measurement");
    }
    sqlite3_finalize(stmt);
    if (status == ALLOT_OK)
        *json = copy;
    return status;
}
