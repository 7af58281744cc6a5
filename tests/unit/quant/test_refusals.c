/* test_refusals.c - outputs, jobs and weights that quantizing refuses, and full disks.
 * SPDX-License-Identifier: MIT */
#include "quant/plain_job.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "quant/partial.h"

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void expect_refusal(const char *out_path, allot_status expected, const char *part_of_message)
{
    struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    job.out_path = out_path;
    assert_int_equal(run_job(&job, &result, NULL, &err), expected);
    if (!strstr(err.message, part_of_message))
        fail_msg("'%s' does not mention '%s'", err.message, part_of_message);
}

static void bad_outputs_are_refused(void **state)
{
    (void)state;
    size_t n_before, n_after;
    uint8_t *before = read_file(model->path, &n_before);
    expect_refusal(model->path, ALLOT_ERR_ARGUMENT, "input");
    assert_int_equal(symlink(model->path, in_folder("soft.gguf")), 0);
    expect_refusal(in_folder("soft.gguf"), ALLOT_ERR_ARGUMENT, "soft.gguf");
    assert_int_equal(link(model->path, in_folder("hard.gguf")), 0);
    expect_refusal(in_folder("hard.gguf"), ALLOT_ERR_ARGUMENT, "hard.gguf");
    unlink(in_folder("hard.gguf"));

    expect_refusal(in_folder("absent/out.gguf"), ALLOT_ERR_IO, "absent: no such folder");
    expect_refusal(test_folder, ALLOT_ERR_IO, "folder");
    expect_refusal("", ALLOT_ERR_ARGUMENT, "empty");
    expect_refusal(in_folder("soft.gguf/out.gguf"), ALLOT_ERR_IO, "soft.gguf");

    /* The name of the partial file leads to the input. */
    assert_int_equal(symlink(model->path, PARTIAL), 0);
    expect_refusal(OUT, ALLOT_ERR_IO, "symbolic link");
    unlink(PARTIAL);
    assert_int_equal(link(model->path, PARTIAL), 0);
    expect_refusal(OUT, ALLOT_ERR_IO, "link to another file");
    unlink(PARTIAL);
    assert_int_equal(mkdir(PARTIAL, 0755), 0);
    expect_refusal(OUT, ALLOT_ERR_IO, PARTIAL);
    rmdir(PARTIAL);

    uint8_t *after = read_file(model->path, &n_after);
    assert_int_equal(n_after, n_before);
    assert_memory_equal(after, before, n_before);
    free(before);
    free(after);
}

/* What lies under the partial file's name and is no partial file stays as it is, the input above all: even
 * one that ends as a sealed partial file does. */
static void files_in_the_way_are_kept(void **state)
{
    (void)state;
    static const struct {
        bool is_input;
        const char *tail, *message;
        allot_status status;
    } rows[] = {
        {true, "", "is the input", ALLOT_ERR_ARGUMENT},
        {true, "allot-partial-1\n", "is the input", ALLOT_ERR_ARGUMENT},
        {false, "", "in the way", ALLOT_ERR_IO},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        char tail[PARTIAL_JOURNAL_BYTES] = "";
        size_t n, n_kept;
        memcpy(tail, rows[k].tail, strlen(rows[k].tail));
        write_fixture_model(PARTIAL, GGML_TYPE_F32, seed);
        struct stat st;
        assert_int_equal(stat(PARTIAL, &st), 0);
        if (*rows[k].tail)
            overwrite(PARTIAL, st.st_size, tail, sizeof tail);
        uint8_t *before = read_file(PARTIAL, &n);
        struct gguf_model *input = rows[k].is_input ? open_model(PARTIAL) : NULL;
        struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        if (input)
            job.model = input;
        assert_int_equal(run_job(&job, &result, NULL, &err), rows[k].status);
        if (!strstr(err.message, rows[k].message) || !strstr(err.message, PARTIAL))
            fail_msg("'%s' does not mention '%s'", err.message, rows[k].message);
        uint8_t *kept = read_file(PARTIAL, &n_kept);
        assert_int_equal(n_kept, n);
        assert_memory_equal(kept, before, n);
        assert_false(exists(OUT));
        gguf_model_close(input);
        unlink(PARTIAL);
        free(before);
        free(kept);
    }
}

static void bad_jobs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        enum ggml_type type;
        const char *message;
    } rows[] = {
        {"blk.0.attn_k.weight", GGML_TYPE_Q4_K, "rows of 160 are no multiple of the 256"},
        {"blk.0.attn_q.weight", GGML_TYPE_Q8_1, "cannot be written"},
        {"blk.0.attn_q.weight", GGML_TYPE_I32, "cannot be written"},
        {"blk.0.attn_q.weight", GGML_TYPE_IQ2_S, "needs an importance matrix"},
        {"token_embd.weight", GGML_TYPE_IQ2_XS, "needs an importance matrix"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int64_t i = 0; i < model->n_tensors; i++) {
            if (strcmp(model->tensors[i].name, rows[k].tensor) != 0)
                continue;
            const enum ggml_type old = types[i];
            types[i] = rows[k].type;
            expect_refusal(OUT, ALLOT_ERR_ARGUMENT, rows[k].message);
            expect_refusal(OUT, ALLOT_ERR_ARGUMENT, rows[k].tensor);
            types[i] = old;
        }
    }
    assert_false(exists(OUT) || exists(PARTIAL));
}

/* Values that no quantizer can hold: named, and neither the target nor a partial file is touched. */
static void bad_weights_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        float value;
        enum ggml_type to; /* COUNT: as in the plain job */
        const char *message;
    } rows[] = {
        {"blk.0.ffn_down_exps.weight", NAN, GGML_TYPE_COUNT, "row 17: weight 5 is"},
        {"blk.0.attn_q.weight", INFINITY, GGML_TYPE_COUNT, "row 17: weight 5 is inf"},
        {"blk.0.attn_q.weight", -INFINITY, GGML_TYPE_F32, "row 17: NaN or Inf"}, /* copied */
        {"blk.0.attn_q.weight", 1e30f, GGML_TYPE_Q8_0, "Q8_0 cannot hold the weights of rows"},
        {"blk.0.attn_q.weight", 1e30f, GGML_TYPE_F16, "F16 cannot hold the weights of rows"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        size_t n;
        write_fixture_model(in_folder("bad.gguf"), GGML_TYPE_F32, seed);
        struct gguf_model *bad = open_model(in_folder("bad.gguf"));
        const struct gguf_tensor *t = gguf_model_tensor(bad, rows[k].tensor);
        enum ggml_type *bad_types = malloc((size_t)bad->n_tensors * sizeof *bad_types);
        memcpy(bad_types, types, (size_t)bad->n_tensors * sizeof *bad_types);
        if (rows[k].to != GGML_TYPE_COUNT)
            bad_types[t - bad->tensors] = rows[k].to;
        const int64_t at = t->file_offset + 17 * t->row_bytes + 5 * 4;
        gguf_model_close(bad);
        overwrite(in_folder("bad.gguf"), at, &rows[k].value, 4);
        bad = open_model(in_folder("bad.gguf"));
        job.model = bad;
        job.types = bad_types;
        write_text(OUT, "precious");
        assert_int_equal(run_job(&job, &result, NULL, &err), ALLOT_ERR_NUMERIC);
        /* ggml's name of the type is in lower case in places. */
        if (!strcasestr(err.message, rows[k].message) || !strstr(err.message, rows[k].tensor))
            fail_msg("'%s' does not mention '%s'", err.message, rows[k].message);
        assert_false(exists(PARTIAL));
        char *kept = (char *)read_file(OUT, &n);
        assert_string_equal(kept, "precious");
        unlink(OUT);
        free(kept);
        free(bad_types);
        gguf_model_close(bad);
    }
}

/* ---- Space ----------------------------------------------------------------------------------------------
 */

/* A file size limit stands in for a full disk: the error names the path and nothing is left. */
static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit limit = {.rlim_cur = 60000, .rlim_max = 60000};
        const struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        const bool good = run_job(&job, &result, NULL, &err) == ALLOT_ERR_IO &&
                          strstr(err.message, PARTIAL) && !exists(PARTIAL) && !exists(OUT);
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A real small file system, where the user may mount one. */
static void free_space_is_checked_first(void **state)
{
    (void)state;
    const char *folder = in_folder("small");
    assert_int_equal(mkdir(folder, 0755), 0);
    if (mount("tmpfs", folder, "tmpfs", 0, "size=64k") != 0) {
        print_message("no mount here (%s): skipped\n", strerror(errno));
        skip();
    }
    struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    job.out_path = in_folder("small/out.gguf");
    const allot_status status = run_job(&job, &result, NULL, &err);
    const bool left = exists(in_folder("small/out.gguf.allot-partial"));
    umount(folder);
    assert_int_equal(status, ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "small"));
    assert_non_null(strstr(err.message, "free"));
    assert_false(left);
}

static void paths_with_any_characters_work(void **state)
{
    (void)state;
    struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    assert_int_equal(mkdir(in_folder("\xc5\xbd\x65lj ko"), 0755), 0);
    job.out_path = in_folder("\xc5\xbd\x65lj ko/o u%s't.gguf");
    if (run_job(&job, &result, NULL, &err))
        fail_msg("%s", err.message);
    assert_string_equal(result.sha256, reference);
    assert_true(exists(job.out_path));
}

/* A link as output goes on pointing where it points; the replaced file keeps its mode. */
static void links_and_modes_are_kept(void **state)
{
    (void)state;
    struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    struct stat st;
    write_text(in_folder("old.gguf"), "old");
    assert_int_equal(chmod(in_folder("old.gguf"), 0640), 0);
    assert_int_equal(symlink("old.gguf", in_folder("pointer.gguf")), 0);
    job.out_path = in_folder("pointer.gguf");
    if (run_job(&job, &result, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(lstat(in_folder("pointer.gguf"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(in_folder("old.gguf"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_size, result.file_bytes);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_outputs_are_refused),        cmocka_unit_test(files_in_the_way_are_kept),
        cmocka_unit_test(bad_jobs_are_refused),           cmocka_unit_test(bad_weights_are_named),
        cmocka_unit_test(a_full_disk_leaves_nothing),     cmocka_unit_test(free_space_is_checked_first),
        cmocka_unit_test(paths_with_any_characters_work), cmocka_unit_test(links_and_modes_are_kept),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
