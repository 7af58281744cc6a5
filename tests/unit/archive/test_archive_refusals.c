/* test_archive_refusals.c - what is no archive, damaged, newer or out of reach is named and left alone.
 * SPDX-License-Identifier: MIT */
#include "fixture.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/hash.h"

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
            if (exists && (archive_open_to_read(&a, name, &err) != ALLOT_OK || !archive_is_read_only(a) ||
                           archive_blob_put(a, "kind", "key", "x", 1, &err) != ALLOT_ERR_IO))
                _exit(4);
            archive_close(a);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(test_foreign),          FRESH(test_newer),         FRESH(test_damaged), FRESH(test_places),
        FRESH(test_read_only_folder), FRESH(test_special_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
