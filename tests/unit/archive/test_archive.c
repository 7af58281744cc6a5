/* test_archive.c - costs survive kill -9, two programs share an archive, what is no archive is left alone.
 * SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "archive/archive.h"
#include "base/hash.h"
#include "base/rng.h"

static char folder[256], path[300];

static const struct archive_cost_key key = {
    .model_sha256 = "m0",
    .text_sha256 = "t0",
    .imatrix_sha256 = "",
    .method = "fisher",
    .params = "chunk=16 seed=1",
    .version = "1",
};

static struct archive *open_archive(const char *at)
{
    struct archive *a = NULL;
    struct allot_error err = {0};

    if (archive_open(&a, at, &err))
        fail_msg("%s", err.message);
    return a;
}

static int64_t open_set(struct archive *a, const struct archive_cost_key *k)
{
    struct allot_error err;
    int64_t id = -1;

    assert_int_equal(archive_cost_set(a, k, &id, &err), ALLOT_OK);
    return id;
}

static int make_folder(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(folder, sizeof folder,
             "%s/allot-\xc5\xbd"
             "elj ko?#%%-XXXXXX",
             tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/model.allot", folder);
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    char name[400];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        unlink(name);
    }
    return rmdir(folder);
}

static void write_file(const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void file_sha256(const char *at, char hex[static HASH_HEX])
{
    struct file_map map;
    struct allot_error err;

    assert_int_equal(file_map_open(&map, at, &err), ALLOT_OK);
    hash_bytes(hex, map.data, map.size);
    file_map_close(&map);
}

/* ---- Costs --------------------------------------------------------------------------------------- */

enum { N_VALUES = 777, N_TYPES = 5 };
static const char *const types[N_TYPES] = {"Q2_K", "Q3_K", "Q4_K", "Q6_K", "Q8_0"};

/* Value i of the stored u, any bit pattern: NaN payloads and denormals must come back as they went. */
static uint32_t bits_of(uint64_t tensor, uint64_t type, uint64_t i)
{
    return (uint32_t)rng_u64(1000 * tensor + type, i);
}

static void fill_rows(struct archive_cost *rows, float (*u)[N_VALUES], uint64_t tensor)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        for (uint64_t i = 0; i < N_VALUES; i++) {
            uint32_t bits = bits_of(tensor, t, i);

            memcpy(&u[t][i], &bits, sizeof bits);
        }
        rows[t] = (struct archive_cost){
            types[t], 1000 + (int64_t)t, 1e-300 * (double)(tensor + 1), 0.1, t != 1, u[t], N_VALUES - t};
    }
}

static allot_status put_tensor(struct archive *a, int64_t set, uint64_t tensor, struct allot_error *err)
{
    static float u[N_TYPES][N_VALUES];
    struct archive_cost rows[N_TYPES];
    char name[64];

    fill_rows(rows, u, tensor);
    snprintf(name, sizeof name, "blk.%03d.ffn_up.weight", (int)tensor);
    return archive_cost_put(a, set, name, rows, N_TYPES, err);
}

struct tally {
    int n, per_tensor[1000];
    bool with_u;
    char last[128];
};

static bool check_row(void *user, const char *tensor, const struct archive_cost *cost)
{
    struct tally *tally = user;
    char place[128];
    size_t type = 0;
    int number;

    assert_int_equal(sscanf(tensor, "blk.%d.ffn_up.weight", &number), 1);
    assert_in_range(number, 0, 999);
    while (type < N_TYPES && strcmp(types[type], cost->type) != 0)
        type++;
    assert_true(type < N_TYPES);
    snprintf(place, sizeof place, "%s %s", tensor, cost->type);
    assert_true(strcmp(place, tally->last) > 0);
    memcpy(tally->last, place, sizeof place);
    assert_int_equal(cost->bytes, 1000 + type);
    assert_true(cost->cost == 1e-300 * (number + 1) && cost->std_err == 0.1 && cost->feasible == (type != 1));
    if (tally->with_u) {
        assert_int_equal(cost->n_u, N_VALUES - type);
        for (uint64_t i = 0; i < cost->n_u; i++) {
            uint32_t bits;

            memcpy(&bits, &cost->u[i], sizeof bits);
            if (bits != bits_of((uint64_t)number, type, i))
                fail_msg("%s: value %d differs", place, (int)i);
        }
    } else {
        assert_true(!cost->u && cost->n_u == 0);
    }
    tally->n++;
    tally->per_tensor[number]++;
    return false;
}

static struct tally tally_set(struct archive *a, int64_t set, bool with_u)
{
    struct tally tally = {.with_u = with_u};
    struct allot_error err = {0};

    if (archive_cost_each(a, set, with_u, check_row, &tally, &err))
        fail_msg("%s", err.message);
    return tally;
}

static bool stop_at_once(void *user, const char *tensor, const struct archive_cost *cost)
{
    (void)tensor;
    (void)cost;
    return ++*(int *)user == 3;
}

static void test_costs(void **state)
{
    const char *asked[] = {"Q8_0", "Q5_K", "Q2_K", "q2_k"};
    struct archive_cost only = {"Q2_K", 5, NAN, INFINITY, false, NULL, 0};
    bool have[4] = {true, true, true, true};
    struct archive *a = open_archive(path);
    struct allot_error err;
    int64_t set = open_set(a, &key);
    int calls = 0;

    (void)state;
    for (uint64_t t = 3; t-- > 0;)
        assert_int_equal(put_tensor(a, set, t, &err), ALLOT_OK);
    assert_int_equal(put_tensor(a, set, 1, &err), ALLOT_OK); /* replaces */
    archive_close(a);

    a = open_archive(path);
    assert_int_equal(open_set(a, &key), set);
    assert_int_equal(tally_set(a, set, true).n, 3 * N_TYPES);
    assert_int_equal(tally_set(a, set, false).n, 3 * N_TYPES);
    assert_int_equal(tally_set(a, set + 1, true).n, 0);
    assert_int_equal(archive_cost_each(a, set, true, stop_at_once, &calls, &err), ALLOT_OK);
    assert_int_equal(calls, 3);
    assert_int_equal(archive_cost_have(a, set, "blk.001.ffn_up.weight", asked, 4, have, &err), ALLOT_OK);
    assert_true(have[0] && !have[1] && have[2] && !have[3]);
    assert_int_equal(archive_cost_have(a, set, "blk.009.ffn_up.weight", asked, 4, have, &err), ALLOT_OK);
    assert_false(have[0] || have[1] || have[2] || have[3]);
    /* A type that turned out infeasible loses its values, and NaN and infinity are kept apart. */
    assert_int_equal(archive_cost_put(a, set, "blk.001.ffn_up.weight", &only, 1, &err), ALLOT_OK);
    archive_close(a);
}

static bool check_infeasible(void *user, const char *tensor, const struct archive_cost *cost)
{
    if (strcmp(tensor, "x") == 0) {
        assert_true(isnan(cost->cost) && isinf(cost->std_err) && !cost->feasible && !cost->u &&
                    cost->n_u == 0);
        ++*(int *)user;
    }
    return false;
}

static void test_special_rows(void **state)
{
    float value = 1;
    struct archive_cost with = {"Q2_K", 5, 1, 1, true, &value, 1},
                        without = {"Q2_K", 5, NAN, INFINITY, false, NULL, 0};
    struct archive *a = open_archive(path);
    struct allot_error err;
    int64_t set = open_set(a, &key);
    int n = 0;

    (void)state;
    assert_int_equal(archive_cost_put(a, set, "x", &with, 1, &err), ALLOT_OK);
    assert_int_equal(archive_cost_put(a, set, "x", &without, 1, &err), ALLOT_OK);
    assert_int_equal(archive_cost_put(a, set, "y", NULL, 0, &err), ALLOT_OK);
    assert_int_equal(archive_cost_each(a, set, true, check_infeasible, &n, &err), ALLOT_OK);
    assert_int_equal(n, 1);
    archive_close(a);
}

static void test_sets(void **state)
{
    struct archive *a = open_archive(path);
    struct archive_cost_set_info *sets = NULL;
    struct archive_cost_key other = key;
    struct allot_error err;
    int64_t first = open_set(a, &key), second;
    size_t n = 0;

    (void)state;
    other.params = "chunk=16 seed=2";
    second = open_set(a, &other);
    assert_int_not_equal(first, second);
    assert_int_equal(put_tensor(a, second, 7, &err), ALLOT_OK);
    assert_int_equal(put_tensor(a, second, 8, &err), ALLOT_OK);
    assert_int_equal(archive_cost_set_touch(a, first, 4096, &err), ALLOT_OK);
    assert_int_equal(archive_cost_sets(a, "m0", &sets, &n, &err), ALLOT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(sets[0].id, first);
    assert_int_equal(sets[0].n_tokens, 4096);
    assert_int_equal(sets[1].id, second);
    assert_int_equal(sets[1].n_tensors, 2);
    assert_int_equal(sets[1].n_rows, 2 * N_TYPES);
    assert_string_equal(sets[1].params, "chunk=16 seed=2");
    assert_string_equal(sets[1].imatrix_sha256, "");
    assert_int_equal(strlen(sets[1].updated), strlen("2024-01-01T00:00:00Z"));
    free(sets);
    assert_int_equal(archive_cost_set_touch(a, second, 1, &err), ALLOT_OK);
    assert_int_equal(archive_cost_sets(a, "m0", &sets, &n, &err), ALLOT_OK);
    assert_int_equal(sets[0].id, second);
    free(sets);
    sets = NULL;
    assert_int_equal(archive_cost_sets(a, "another model", &sets, &n, &err), ALLOT_OK);
    assert_int_equal(n, 0);
    free(sets);
    archive_close(a);
}

/* ---- Interruption and company ---------------------------------------------------------------------- */

/* A child writes tensor after tensor and reports each; killed anywhere, what it reported is there, whole. */
static void test_killed(void **state)
{
    uint64_t seed = (uint64_t)time(NULL);

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 8; round++) {
        int reports[2], reported = 0;
        uint64_t patience = rng_u64(seed, (uint64_t)round) % 12;
        struct timespec more = {.tv_nsec = (long)(rng_u64(seed + 1, (uint64_t)round) % 3000000)};
        struct tally tally;
        struct archive *a;
        pid_t child;
        char byte;

        assert_int_equal(pipe(reports), 0);
        child = fork();
        if (child == 0) {
            struct allot_error err;
            int64_t set;

            if (archive_open(&a, path, &err) || archive_cost_set(a, &key, &set, &err))
                _exit(1);
            for (uint64_t t = 0; t < 1000; t++)
                if (put_tensor(a, set, t, &err) || write(reports[1], "x", 1) != 1)
                    _exit(1);
            _exit(0);
        }
        close(reports[1]);
        while ((uint64_t)reported < patience && read(reports[0], &byte, 1) == 1)
            reported++;
        nanosleep(&more, NULL);
        kill(child, SIGKILL);
        while (read(reports[0], &byte, 1) == 1)
            reported++;
        waitpid(child, NULL, 0);
        close(reports[0]);

        a = open_archive(path);
        tally = tally_set(a, open_set(a, &key), true);
        for (int t = 0; t < 1000; t++)
            if (tally.per_tensor[t] != N_TYPES && (t < reported || tally.per_tensor[t] != 0))
                fail_msg("round %d: tensor %d of %d has %d rows", round, t, reported, tally.per_tensor[t]);
        archive_close(a);
    }
}

/* Several programs create the archive at once and write to it at once; none fails, nothing is lost. */
static void test_company(void **state)
{
    enum { N = 4, EACH = 12 };
    pid_t children[N];
    struct archive *a;
    struct tally tally;

    (void)state;
    for (int c = 0; c < N; c++) {
        children[c] = fork();
        if (children[c] == 0) {
            struct allot_error err;
            int64_t set;

            if (archive_open(&a, path, &err) || archive_cost_set(a, &key, &set, &err)) {
                fprintf(stderr, "%s\n", err.message);
                _exit(1);
            }
            for (uint64_t t = 0; t < EACH; t++)
                if (put_tensor(a, set, (uint64_t)c * EACH + t, &err)) {
                    fprintf(stderr, "%s\n", err.message);
                    _exit(1);
                }
            archive_close(a);
            _exit(0);
        }
    }
    for (int c = 0; c < N; c++) {
        int status;

        waitpid(children[c], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    a = open_archive(path);
    tally = tally_set(a, open_set(a, &key), true);
    assert_int_equal(tally.n, N * EACH * N_TYPES);
    archive_close(a);
}

/* ---- Hashes, blobs, measurements ------------------------------------------------------------------- */

static void test_file_hashes(void **state)
{
    char hex[65] = "", sha[65];
    struct archive *a = open_archive(path);
    struct file_identity id = {1, 2, 3, 1ull << 63, UINT64_MAX}, changed;
    struct allot_error err;

    (void)state;
    hash_bytes(sha, "x", 1);
    assert_false(archive_file_hash(a, "/m/x.gguf", &id, hex));
    assert_int_equal(archive_file_hash_put(a, "/m/x.gguf", &id, sha, &err), ALLOT_OK);
    assert_true(archive_file_hash(a, "/m/x.gguf", &id, hex));
    assert_string_equal(hex, sha);
    assert_false(archive_file_hash(a, "/m/y.gguf", &id, hex));
    for (int field = 0; field < 5; field++) {
        changed = id;
        changed.size += field == 0;
        changed.mtime_ns += field == 1;
        changed.ctime_ns += field == 2;
        changed.device += field == 3;
        changed.inode += field == 4;
        assert_false(archive_file_hash(a, "/m/x.gguf", &changed, hex));
    }
    id.mtime_ns = 9; /* the file changed: the new hash replaces the old */
    hash_bytes(sha, "y", 1);
    assert_int_equal(archive_file_hash_put(a, "/m/x.gguf", &id, sha, &err), ALLOT_OK);
    assert_true(archive_file_hash(a, "/m/x.gguf", &id, hex));
    assert_string_equal(hex, sha);
    archive_close(a);
}

static void test_blobs(void **state)
{
    enum { N = 3000000 };
    uint8_t *bytes = malloc(N);
    struct archive *a = open_archive(path);
    struct allot_error err;
    void *data = NULL;
    size_t size = 0;

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)rng_u64(5, i);
    assert_int_equal(archive_blob(a, "imatrix", "k", &data, &size, &err), ALLOT_OK);
    assert_null(data);
    assert_int_equal(archive_blob_put(a, "imatrix", "k", bytes, N, &err), ALLOT_OK);
    assert_int_equal(archive_blob_put(a, "imatrix", "empty", NULL, 0, &err), ALLOT_OK);
    assert_int_equal(archive_blob(a, "imatrix", "k", &data, &size, &err), ALLOT_OK);
    assert_int_equal(size, N);
    assert_memory_equal(data, bytes, N);
    free(data);
    assert_int_equal(archive_blob(a, "imatrix", "empty", &data, &size, &err), ALLOT_OK);
    assert_true(data && size == 0); /* present, unlike */
    free(data);
    assert_int_equal(archive_blob(a, "other", "k", &data, &size, &err), ALLOT_OK);
    assert_null(data);
    archive_close(a);
    free(bytes);
}

static void test_measurements(void **state)
{
    struct archive *a = open_archive(path);
    struct allot_error err;
    sqlite3 *db;
    sqlite3_stmt *stmt;

    (void)state;
    assert_int_equal(archive_measurement_put(a, "b", "c", "t", "n_ctx=512", "{\"kl\":1}", &err), ALLOT_OK);
    assert_int_equal(archive_measurement_put(a, "b", "c", "t", "n_ctx=512", "{\"kl\":2}", &err), ALLOT_OK);
    assert_int_equal(archive_measurement_put(a, "b", "d", "t", "n_ctx=512", "{\"kl\":3}", &err), ALLOT_OK);
    archive_close(a);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT json FROM measurements ORDER BY candidate_sha256", -1, &stmt, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(stmt, 0), "{\"kl\":2}");
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(stmt, 0), "{\"kl\":3}");
    assert_int_equal(sqlite3_step(stmt), SQLITE_DONE);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

/* ---- What is no archive ------------------------------------------------------------------------------ */

static void run_sql(const char *sql)
{
    sqlite3 *db;
    char *message = NULL;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
}

/* Refused with this message and status, the file and its folder as before. */
static void assert_refused(allot_status status, const char *message)
{
    char before[HASH_HEX], after[HASH_HEX], side[400];
    struct archive *a = NULL;
    struct allot_error err = {0};
    allot_status got;

    file_sha256(path, before);
    got = archive_open(&a, path, &err);
    if (got != status || a || !strstr(err.message, message) || !strstr(err.message, path))
        fail_msg("status %d (want %d): %s", got, status, err.message);
    file_sha256(path, after);
    assert_string_equal(before, after);
    snprintf(side, sizeof side, "%s-wal", path);
    assert_int_not_equal(access(side, F_OK), 0);
    snprintf(side, sizeof side, "%s-journal", path);
    assert_int_not_equal(access(side, F_OK), 0);
}

static void test_foreign(void **state)
{
    static const char text[] =
        "This is a text of more than one hundred bytes, which somebody named model.allot although"
        " it is nothing of the sort, and which must stay.";

    (void)state;
    write_file(text, sizeof text);
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
    write_file("short", 5);
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
    write_file("SQLite format 3", 16);
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
    unlink(path);
    run_sql("CREATE TABLE precious (x); INSERT INTO precious VALUES (1)");
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
    run_sql("PRAGMA user_version = 1");
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
    run_sql("PRAGMA application_id = 1234567");
    assert_refused(ALLOT_ERR_FORMAT, "not an allot archive");
}

static void test_newer(void **state)
{
    struct archive *a = open_archive(path);

    (void)state;
    archive_close(a);
    run_sql("PRAGMA user_version = 2");
    assert_refused(ALLOT_ERR_UNSUPPORTED, "schema 2 is newer");
}

static void test_damaged(void **state)
{
    struct archive *a = open_archive(path);
    struct allot_error err;
    struct file_map map;
    int64_t set = open_set(a, &key);
    uint8_t *whole;
    size_t size;
    int refused = 0;

    (void)state;
    for (uint64_t t = 0; t < 5; t++)
        assert_int_equal(put_tensor(a, set, t, &err), ALLOT_OK);
    archive_close(a);
    assert_int_equal(file_map_open(&map, path, &err), ALLOT_OK);
    size = map.size;
    whole = malloc(size);
    assert_non_null(whole);
    memcpy(whole, map.data, size);
    file_map_close(&map);

    write_file((const char *)whole, size - size / 3); /* cut short */
    assert_refused(ALLOT_ERR_FORMAT, "damaged");

    /* Each page overwritten in turn. Pages of values only have no structure to damage. */
    for (size_t page = 1; page < size / 4096; page++) {
        uint8_t saved[4096];
        bool ok;

        memcpy(saved, whole + page * 4096, 4096);
        for (size_t i = 0; i < 4096; i++)
            whole[page * 4096 + i] = (uint8_t)rng_u64(page, i);
        write_file((const char *)whole, size);
        memcpy(whole + page * 4096, saved, 4096);
        ok = archive_open(&a, path, &err) == ALLOT_OK;
        if (ok)
            archive_close(a);
        else
            assert_refused(ALLOT_ERR_FORMAT, "damaged");
        refused += !ok;
    }
    print_message("%d of %zu damaged pages noticed at opening\n", refused, size / 4096 - 1);
    assert_true(refused >= 10);
    free(whole);
}

static void test_places(void **state)
{
    static const struct {
        const char *path, *message;
    } rows[] = {
        {"/absent-folder/model.allot", "/absent-folder/model.allot: folder /absent-folder: no such folder"},
        {"/proc/model.allot", "/proc/model.allot"},
        {"/dev/null", "not a regular file"},
        {"/tmp", "it is a folder"},
        {"", "empty"},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct archive *a = NULL;
        struct allot_error err = {0};
        allot_status status = archive_open(&a, rows[r].path, &err);

        if (status == ALLOT_OK || a || !strstr(err.message, rows[r].message))
            fail_msg("row %zu: status %d: %s", r, status, err.message);
    }
}

/* As an ordinary user (root may write anywhere). */
static void test_read_only_folder(void **state)
{
    char name[400];
    int status;
    pid_t child;

    (void)state;
    archive_close(open_archive(path));
    for (int exists = 1; exists >= 0; exists--) {
        snprintf(name, sizeof name, "%s%s", path, exists ? "" : "-new");
        assert_int_equal(chmod(folder, 0555), 0);
        child = fork();
        if (child == 0) {
            struct archive *a = NULL;
            struct allot_error err = {0};

            if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
                _exit(77);
            if (archive_open(&a, name, &err) == ALLOT_OK)
                _exit(2);
            if (strstr(err.message, name) && strstr(err.message, "not writable"))
                _exit(0);
            fprintf(stderr, "%s\n", err.message);
            _exit(3);
        }
        waitpid(child, &status, 0);
        assert_int_equal(chmod(folder, 0700), 0);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            skip();
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* Names that SQLite would take for something else are files like any other. */
static void test_special_names(void **state)
{
    static const char *const special[] = {":memory:", "file:x?mode=memory"};
    char old[4096];

    (void)state;
    assert_non_null(getcwd(old, sizeof old));
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < 2; i++) {
        archive_close(open_archive(special[i]));
        assert_int_equal(unlink(special[i]), 0);
    }
    write_file("", 0); /* creation interrupted at once */
    archive_close(open_archive("model.allot"));
    assert_int_equal(chdir(old), 0);
}

#define FRESH(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(test_costs),
        FRESH(test_special_rows),
        FRESH(test_sets),
        FRESH(test_killed),
        FRESH(test_company),
        FRESH(test_file_hashes),
        FRESH(test_blobs),
        FRESH(test_measurements),
        FRESH(test_foreign),
        FRESH(test_newer),
        FRESH(test_damaged),
        FRESH(test_places),
        FRESH(test_read_only_folder),
        FRESH(test_special_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
