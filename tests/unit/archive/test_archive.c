/* test_archive.c - costs survive kill -9, two programs share an archive, all comes back as it went.
 * SPDX-License-Identifier: MIT */
#include "fixture.h"

#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <time.h>

#include "base/hash.h"

/* ---- Costs --------------------------------------------------------------------------------------- */

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

/* Types are finished when that is said, whatever rows there are, and stay so. */
static void test_finished(void **state)
{
    const char *asked[] = {"Q8_0", "Q5_K", "Q2_K"};
    static const struct {
        const char *finish[2];
        size_t n;
        bool expected[3];
    } rows[] = {
        {{NULL}, 0, {false, false, false}},
        {{"Q8_0"}, 1, {true, false, false}},
        {{"Q8_0", "Q2_K"}, 2, {true, false, true}},
        {{"Q4_K"}, 1, {true, false, true}},
    };
    struct archive_cost_key other = key;
    struct allot_error err;

    (void)state;
    other.params = "chunk=16 seed=2";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct archive *a = open_archive(path);
        bool finished[3] = {true, true, true};
        int64_t set = open_set(a, &key);

        assert_int_equal(put_tensor(a, set, 0, &err), ALLOT_OK);
        assert_int_equal(archive_cost_finish(a, set, rows[i].finish, rows[i].n, &err), ALLOT_OK);
        archive_close(a);
        a = open_archive(path);
        assert_int_equal(archive_cost_finished(a, set, asked, 3, finished, &err), ALLOT_OK);
        assert_memory_equal(finished, rows[i].expected, sizeof finished);
        assert_int_equal(archive_cost_finished(a, open_set(a, &other), asked, 3, finished, &err), ALLOT_OK);
        assert_false(finished[0] || finished[1] || finished[2]);
        archive_close(a);
    }
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
    char *json = path;

    (void)state;
    assert_int_equal(archive_measurement(a, "b", "c", "t", "n_ctx=512", &json, &err), ALLOT_OK);
    assert_null(json);
    assert_int_equal(archive_measurement_put(a, "b", "c", "t", "n_ctx=512", "{\"kl\":1}", &err), ALLOT_OK);
    assert_int_equal(archive_measurement_put(a, "b", "c", "t", "n_ctx=512", "{\"kl\":2}", &err), ALLOT_OK);
    assert_int_equal(archive_measurement_put(a, "b", "d", "t", "n_ctx=512", "{\"kl\":3}", &err), ALLOT_OK);
    assert_int_equal(archive_measurement(a, "b", "c", "t", "n_ctx=512", &json, &err), ALLOT_OK);
    assert_string_equal(json, "{\"kl\":2}");
    free(json);
    const char *const others[][4] = {{"x", "c", "t", "n_ctx=512"},
                                     {"b", "x", "t", "n_ctx=512"},
                                     {"b", "c", "x", "n_ctx=512"},
                                     {"b", "c", "t", "x"}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(
            archive_measurement(a, others[i][0], others[i][1], others[i][2], others[i][3], &json, &err),
            ALLOT_OK);
        assert_null(json);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(test_costs),       FRESH(test_finished), FRESH(test_special_rows),
        FRESH(test_sets),        FRESH(test_killed),   FRESH(test_company),
        FRESH(test_file_hashes), FRESH(test_blobs),    FRESH(test_measurements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
