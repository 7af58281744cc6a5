/* test_imatrix_malformed.c - every way in which an importance matrix can be wrong, and the one line it gets.
 * SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include <math.h>

#include "cost/imatrix.h"

static struct synth synth;

static void expect(const char *what, allot_status status, const char *message)
{
    struct imatrix im = {0};
    struct allot_error err;
    char path[64];
    int fd = synth_memfd(path);
    synth_fill(fd, synth.data, synth.n);
    allot_status got = imatrix_read(&im, path, &err);
    if (got != status)
        fail_msg("%s: status %d (%s), expected %d", what, got, got ? err.message : "read", status);
    if (got != ALLOT_OK) {
        synth_check_message(err.message, path);
        if (!strstr(err.message, message))
            fail_msg("%s: \"%s\" does not say \"%s\"", what, err.message, message);
        assert_int_equal(im.n_entries, 0);
    }
    imatrix_release(&im);
    close(fd);
}

struct bad_field {
    const char *field;
    size_t size;
    uint64_t value;
    allot_status status;
    const char *message;
};

#define NAN_BITS 0x7fc00000
#define INF_BITS 0x7f800000
#define MINUS_ONE_BITS 0xbf800000
#define HUGE_BITS 0x7e967699 /* 1e38 */

static void run_rows(const struct bad_field *rows, size_t n, void (*make)(void))
{
    for (size_t i = 0; i < n; i++) {
        char what[100];
        make();
        synth_patch(&synth, rows[i].field, &rows[i].value, rows[i].size);
        snprintf(what, sizeof what, "%s = %llu", rows[i].field, (unsigned long long)rows[i].value);
        expect(what, rows[i].status, rows[i].message);
    }
}

/* ---- Legacy ------------------------------------------------------------------------------------------ */

static void legacy_entry(const char *name, uint32_t n_calls, uint32_t n_values)
{
    synth_u32(&synth, synth_label(name, ".len"), (uint32_t)strlen(name));
    synth_bytes(&synth, synth_label(name, ".text"), name, strlen(name));
    synth_u32(&synth, synth_label(name, ".calls"), n_calls);
    synth_u32(&synth, synth_label(name, ".count"), n_values);
    for (uint32_t i = 0; i < n_values; i++) {
        float value = (float)i + 0.5f;
        synth_bytes(&synth, i == 0 ? synth_label(name, ".values") : NULL, &value, sizeof value);
    }
}

static void make_legacy(void)
{
    synth.n = 0;
    synth.n_marks = 0;
    synth_u32(&synth, "n", 3);
    legacy_entry("blk.0.a.weight", 5, 8);
    legacy_entry("blk.0.b.weight", 0, 4);
    legacy_entry("blk.1.a.weight", 5, 8);
    synth_u32(&synth, "chunks", 5);
    synth_u32(&synth, "dataset.len", 9);
    synth_bytes(&synth, "dataset", "calib.txt", 9);
}

static const struct bad_field legacy_rows[] = {
    {"n", 4, 3, ALLOT_OK, NULL},
    {"n", 4, 0, ALLOT_ERR_FORMAT, "not an imatrix (neither GGUF nor the older .dat form)"},
    {"n", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "not an imatrix"},
    {"n", 4, 4, ALLOT_ERR_FORMAT, "entry 4 of 4 (after 'blk.1.a.weight') has no readable name"},
    {"n", 4, INT32_MAX, ALLOT_ERR_FORMAT, "entry 4 of 2147483647 (after 'blk.1.a.weight')"},
    {"n", 4, 2, ALLOT_ERR_FORMAT, "what follows the last entry, 'blk.0.b.weight', is not a chunk count"},
    {"blk.0.a.weight.len", 4, 0, ALLOT_ERR_FORMAT, "not an imatrix"},
    {"blk.0.a.weight.len", 4, 100000, ALLOT_ERR_FORMAT, "not an imatrix"},
    {"blk.0.a.weight.text", 1, '\n', ALLOT_ERR_FORMAT, "not an imatrix"},
    {"blk.0.b.weight.len", 4, 0, ALLOT_ERR_FORMAT,
     "entry 2 of 3 (after 'blk.0.a.weight') has no readable name"},
    {"blk.0.b.weight.len", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "entry 2 of 3 (after 'blk.0.a.weight')"},
    {"blk.0.b.weight.len", 4, 15, ALLOT_ERR_FORMAT, "entry 2 of 3 (after 'blk.0.a.weight')"},
    {"blk.0.b.weight.text", 14, 0, ALLOT_ERR_FORMAT, "entry 2 of 3"},
    {"blk.0.a.weight.count", 4, 9, ALLOT_ERR_FORMAT,
     "entry 2 of 3 (after 'blk.0.a.weight') has no readable name"},
    {"blk.0.a.weight.count", 4, 7, ALLOT_ERR_FORMAT,
     "entry 2 of 3 (after 'blk.0.a.weight') has no readable name"},
    {"blk.0.a.weight.count", 4, 0, ALLOT_ERR_FORMAT, "entry 'blk.0.a.weight' has count 5 and 0 values"},
    {"blk.0.a.weight.count", 4, UINT32_MAX, ALLOT_ERR_FORMAT,
     "entry 'blk.0.a.weight' has count 5 and -1 values"},
    {"blk.1.a.weight.count", 4, 1000, ALLOT_ERR_FORMAT,
     "entry 'blk.1.a.weight' claims 1000 values, 3951 bytes more"},
    {"blk.1.a.weight.count", 4, INT32_MAX, ALLOT_ERR_FORMAT,
     "entry 'blk.1.a.weight' claims 2147483647 values"},
    {"blk.0.a.weight.calls", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "entry 'blk.0.a.weight' has count -1"},
    {"blk.0.b.weight.values", 4, NAN_BITS, ALLOT_ERR_FORMAT, "entry 'blk.0.b.weight' has the value nan at 0"},
    {"blk.0.b.weight.values", 4, INF_BITS, ALLOT_ERR_FORMAT, "entry 'blk.0.b.weight' has the value inf at 0"},
    {"blk.0.b.weight.values", 4, MINUS_ONE_BITS, ALLOT_ERR_FORMAT,
     "entry 'blk.0.b.weight' has the value -1 at 0"},
    {"blk.1.a.weight.text", 8, 0x2e612e302e6b6c62 /* blk.0.a. */, ALLOT_ERR_FORMAT,
     "entry 'blk.0.a.weight' appears twice"},
    {"chunks", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "what follows the last entry"},
    {"dataset.len", 4, 8, ALLOT_ERR_FORMAT, "what follows the last entry"},
    {"dataset.len", 4, 10, ALLOT_ERR_FORMAT, "what follows the last entry"},
};

static void test_legacy(void **state)
{
    (void)state;
    run_rows(legacy_rows, sizeof legacy_rows / sizeof *legacy_rows, make_legacy);
}

/* Cut anywhere, a file is refused, except where older files end too. */
static void test_legacy_lengths(void **state)
{
    (void)state;
    make_legacy();
    size_t whole = synth.n, end = synth_find(&synth, "chunks"), n_read = 0;
    for (size_t length = 0; length <= whole; length++) {
        struct imatrix im = {0};
        struct allot_error err;
        char path[64];
        int fd = synth_memfd(path);
        synth_fill(fd, synth.data, length);
        if (imatrix_read(&im, path, &err) == ALLOT_OK) {
            n_read++;
            assert_true(length == end || length == end + 4 || length == whole);
            assert_int_equal(im.n_entries, 3);
            assert_int_equal(im.chunk_count, length == end ? 0 : 5);
            assert_int_equal(im.n_datasets, length == whole);
        } else {
            synth_check_message(err.message, path);
        }
        imatrix_release(&im);
        close(fd);
    }
    assert_int_equal(n_read, 3);
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

static void make_gguf(void)
{
    static const uint64_t sums_ne[] = {4, 2}, counts_ne[] = {1, 2};
    const float sums[] = {1, 2, 3, 4, 5, 6, 7, 8}, counts[] = {3, 0};
    synth_start(&synth, 3, 4, 4);
    synth_kv_str(&synth, "general.type", "imatrix");
    synth_kv_array(&synth, "imatrix.datasets", 8, 2);
    synth_str(&synth, NULL, "one");
    synth_str(&synth, NULL, "");
    synth_kv_u32(&synth, "imatrix.chunk_count", 7);
    synth_kv_u32(&synth, "imatrix.chunk_size", 512);
    synth_tensor(&synth, "w.in_sum2", 2, sums_ne, 0, 0);
    synth_tensor(&synth, "w.counts", 2, counts_ne, 0, 32);
    synth_tensor(&synth, "something.else", 2, counts_ne, 0, 64);
    synth_tensor(&synth, "w.in_sum", 2, sums_ne, 0, 96);
    synth_pad(&synth, 32);
    synth_bytes(&synth, "sums", sums, sizeof sums);
    synth_bytes(&synth, "counts", counts, sizeof counts);
    synth_pad(&synth, 32);
    synth_bytes(&synth, NULL, counts, sizeof counts);
    synth_pad(&synth, 32);
    synth_bytes(&synth, "linear", sums, sizeof sums);
    synth_pad(&synth, 32);
}

static const struct bad_field gguf_rows[] = {
    {"version", 4, 3, ALLOT_OK, NULL},
    {"version", 4, 1, ALLOT_ERR_UNSUPPORTED, "version 1"},
    {"w.in_sum2.ggml_type", 4, 26, ALLOT_ERR_FORMAT, "entry 'w' is not F32"},
    {"w.counts.ggml_type", 4, 26, ALLOT_ERR_FORMAT, "entry 'w' is not F32"},
    {"w.counts.ne1", 8, 3, ALLOT_ERR_FORMAT, "entry 'w' has 8 sums for 3 counts"},
    {"w.counts.text", 1, 'v', ALLOT_ERR_FORMAT, "'v.counts' is there, but not 'v.in_sum2'"},
    {"w.in_sum2.text", 1, 'v', ALLOT_ERR_FORMAT, "is there, but not"},
    {"w.counts.text", 8, 0x7374736f636b6f77 /* some other name */, ALLOT_ERR_FORMAT,
     "is there, but not 'w.counts'"},
    {"imatrix.datasets.text", 8, 0, ALLOT_ERR_FORMAT, "NUL"},
    {"imatrix.datasets.text", 1, 'X', ALLOT_ERR_FORMAT, "key 'imatrix.datasets' is missing"},
    {"imatrix.chunk_count.text", 1, 'X', ALLOT_ERR_FORMAT, "key 'imatrix.chunk_count' is missing"},
    {"imatrix.chunk_size.text", 1, 'X', ALLOT_ERR_FORMAT, "key 'imatrix.chunk_size' is missing"},
    {"imatrix.chunk_count.value", 4, UINT32_MAX, ALLOT_ERR_FORMAT,
     "key 'imatrix.chunk_count' is not a count"},
    {"imatrix.chunk_size.type", 4, 6, ALLOT_ERR_FORMAT, "key 'imatrix.chunk_size' is not a count"},
    {"sums", 4, NAN_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the value nan at 0"},
    {"sums", 4, INF_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the value inf at 0"},
    {"sums", 4, MINUS_ONE_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the value -1 at 0"},
    {"counts", 4, NAN_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the count nan at 0"},
    {"counts", 4, MINUS_ONE_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the count -1 at 0"},
    {"counts", 4, HUGE_BITS, ALLOT_ERR_FORMAT, "entry 'w' has the count 1e+38 at 0"},
    {"w.in_sum.ggml_type", 4, 26, ALLOT_ERR_FORMAT, "entry 'w.in_sum' is not F32"},
    {"w.in_sum.ne1", 8, 1, ALLOT_ERR_FORMAT, "entry 'w' has 4 sums of inputs and 8 of their squares"},
    {"w.in_sum.text", 1, 'v', ALLOT_OK, NULL}, /* nobody's: ignored */
    {"linear", 4, NAN_BITS, ALLOT_ERR_FORMAT, "entry 'w.in_sum' has the value nan at 0"},
    {"linear", 4, INF_BITS, ALLOT_ERR_FORMAT, "entry 'w.in_sum' has the value inf at 0"},
    {"linear", 4, MINUS_ONE_BITS, ALLOT_OK, NULL},
};

static void test_gguf(void **state)
{
    (void)state;
    run_rows(gguf_rows, sizeof gguf_rows / sizeof *gguf_rows, make_gguf);
}

static void test_gguf_contents(void **state)
{
    struct imatrix im;
    struct allot_error err;
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    make_gguf();
    synth_fill(fd, synth.data, synth.n);
    assert_int_equal(imatrix_read(&im, path, &err), ALLOT_OK);
    assert_int_equal(im.n_entries, 1);
    assert_true(im.entries[0].n_per_mat == 4 && im.entries[0].n_mats == 2);
    assert_true(im.entries[0].counts[0] == 3 && im.entries[0].counts[1] == 0);
    assert_true(im.entries[0].sums[7] == 8);
    assert_int_equal(im.n_datasets, 2);
    assert_string_equal(im.datasets[0], "one");
    assert_string_equal(im.datasets[1], "");
    assert_true(im.chunk_count == 7 && im.chunk_size == 512);
    imatrix_release(&im);
    close(fd);
}

/* ---- Not an imatrix at all --------------------------------------------------------------------------------
 */

static void test_other_files(void **state)
{
    struct imatrix im;
    struct allot_error err;
    (void)state;
    synth_model(&synth, 3);
    expect("a model", ALLOT_ERR_FORMAT, "a GGUF file, but not an imatrix");
    synth.n = 0;
    expect("nothing", ALLOT_ERR_FORMAT, "not an imatrix");
    synth_bytes(&synth, NULL, "Once upon a time there was a text.\n", 35);
    expect("a text", ALLOT_ERR_FORMAT, "not an imatrix");
    assert_int_equal(imatrix_read(&im, "/nowhere/imatrix.dat", &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "/nowhere/imatrix.dat: no such file"));
    assert_int_equal(imatrix_read(&im, TEST_DATA_DIR, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "it is a folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legacy),      cmocka_unit_test(test_legacy_lengths),
        cmocka_unit_test(test_gguf),        cmocka_unit_test(test_gguf_contents),
        cmocka_unit_test(test_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
