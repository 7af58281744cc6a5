/* fixture.h - a folder of its own for every test, an archive in it, costs to store.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_ARCHIVE_FIXTURE_H
#define ALLOT_TEST_ARCHIVE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "archive/archive.h"
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

static inline struct archive *open_archive(const char *at)
{
    struct archive *a = NULL;
    struct allot_error err = {0};

    if (archive_open(&a, at, &err))
        fail_msg("%s", err.message);
    return a;
}

static inline int64_t open_set(struct archive *a, const struct archive_cost_key *k)
{
    struct allot_error err;
    int64_t id = -1;

    assert_int_equal(archive_cost_set(a, k, &id, &err), ALLOT_OK);
    return id;
}

static inline int make_folder(void **state)
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

static inline int remove_folder(void **state)
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

enum { N_VALUES = 777, N_TYPES = 5 };
static const char *const types[N_TYPES] = {"Q2_K", "Q3_K", "Q4_K", "Q6_K", "Q8_0"};

/* Value i of the stored u, any bit pattern: NaN payloads and denormals must come back as they went. */
static inline uint32_t bits_of(uint64_t tensor, uint64_t type, uint64_t i)
{
    return (uint32_t)rng_u64(1000 * tensor + type, i);
}

static inline void fill_rows(struct archive_cost *rows, float (*u)[N_VALUES], uint64_t tensor)
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

static inline allot_status put_tensor(struct archive *a, int64_t set, uint64_t tensor,
                                      struct allot_error *err)
{
    static float u[N_TYPES][N_VALUES];
    struct archive_cost rows[N_TYPES];
    char name[64];

    fill_rows(rows, u, tensor);
    snprintf(name, sizeof name, "blk.%03d.ffn_up.weight", (int)tensor);
    return archive_cost_put(a, set, name, rows, N_TYPES, err);
}

#define FRESH(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif
