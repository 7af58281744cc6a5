/* test_resume.c - quantizing that is interrupted or killed, and goes on.  SPDX-License-Identifier: MIT */
#include "quant/plain_job.h"

#include <math.h>
#include <signal.h>
#include <sys/socket.h>

/* Asks to stop, or kills the process, at the stop-th report of the stage. */
struct stop {
    const char *stage;
    int at, seen;
    bool kill;
};

static bool stop_at(void *user, const char *stage, int64_t done, int64_t total)
{
    struct stop *stop = user;
    (void)done;
    (void)total;
    if (strcmp(stage, stop->stage) != 0 || stop->seen++ != stop->at)
        return false;
    if (stop->kill)
        kill(getpid(), SIGKILL);
    return true;
}

static void assert_output_is_complete(void)
{
    struct allot_error err;
    char sha256[65];
    assert_false(exists(PARTIAL));
    struct gguf_model *written = open_model(OUT);
    assert_int_equal(gguf_model_sha256(written, sha256, NULL, &err), ALLOT_OK);
    assert_string_equal(sha256, reference);
    gguf_model_close(written);
}

/* Finishes what was begun and checks the result against the uninterrupted run. */
static void finish_and_compare(int64_t least_resumed, int64_t most_resumed)
{
    const struct quantize_job job = plain_job();
    struct quantize_result result = {0};
    struct allot_error err;
    if (run_job(&job, &result, NULL, &err))
        fail_msg("%s", err.message);
    assert_in_range(result.resumed_tensors, least_resumed, most_resumed);
    assert_string_equal(result.sha256, reference);
    assert_output_is_complete();
    unlink(OUT);
}

static void interrupted_runs_resume(void **state)
{
    (void)state;
    for (int k = 0; k <= model->n_tensors; k++) {
        struct stop stop = {.stage = "quantize", .at = k};
        const struct allot_progress progress = {.report = stop_at, .user = &stop};
        const struct quantize_job job = plain_job();
        struct quantize_result result = {.file_bytes = -1};
        struct allot_error err;
        assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
        assert_int_equal(result.file_bytes, -1);
        assert_false(exists(OUT));
        assert_true(exists(PARTIAL));
        finish_and_compare(k, k); /* the first report comes before any work */
    }
}

/* One tensor a run, with reports of the checksum interrupted too. */
static void runs_interrupted_again_and_again_resume(void **state)
{
    (void)state;
    for (int k = 0; k < model->n_tensors; k++) {
        struct stop stop = {.stage = "quantize", .at = 1};
        const struct allot_progress progress = {.report = stop_at, .user = &stop};
        const struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
    }
    struct stop stop = {.stage = "checksum", .at = 0};
    const struct allot_progress progress = {.report = stop_at, .user = &stop};
    const struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
    assert_true(exists(PARTIAL) && !exists(OUT));
    finish_and_compare(model->n_tensors, model->n_tensors);
}

/* Runs the job in a child; true if it was killed. */
static bool run_in_child(const struct allot_progress *progress, useconds_t kill_after)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        _exit(run_job(&job, &result, progress, &err) ? 1 : 0);
    }
    if (kill_after) {
        usleep(kill_after);
        kill(pid, SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void killed_runs_resume(void **state)
{
    (void)state;
    for (int k = 0; k <= model->n_tensors; k++) {
        struct stop stop = {.stage = "quantize", .at = k, .kill = true};
        const struct allot_progress progress = {.report = stop_at, .user = &stop};
        assert_true(run_in_child(&progress, 0));
        assert_false(exists(OUT));
        finish_and_compare(k, k);
    }
    struct stop stop = {.stage = "checksum", .at = 0, .kill = true};
    const struct allot_progress progress = {.report = stop_at, .user = &stop};
    assert_true(run_in_child(&progress, 0));
    finish_and_compare(model->n_tensors, model->n_tensors);
}

/* At any moment, not only between tensors. */
static void runs_killed_at_random_times_resume(void **state)
{
    (void)state;
    int n_killed = 0;
    for (uint64_t trial = 0; trial < 40; trial++) {
        const bool killed = run_in_child(NULL, 200 + (useconds_t)(rng_u64(seed, trial) % 30000));
        n_killed += killed;
        if (!exists(OUT)) {
            assert_true(killed);
            finish_and_compare(0, model->n_tensors);
            continue;
        }
        assert_output_is_complete(); /* killed after its last step, if at all */
        unlink(OUT);
    }
    print_message("killed %d of 40\n", n_killed);
}

/* What was left behind by another job is not continued. */
static void other_jobs_are_not_continued(void **state)
{
    (void)state;
    for (int difference = 0; difference < 4; difference++) {
        struct stop stop = {.stage = "quantize", .at = 5};
        const struct allot_progress progress = {.report = stop_at, .user = &stop};
        const struct quantize_key key = {.key = "allot.test", .str = "x"};
        struct quantize_job other = plain_job();
        enum ggml_type *other_types = malloc((size_t)model->n_tensors * sizeof *types);
        memcpy(other_types, types, (size_t)model->n_tensors * sizeof *types);
        for (int64_t i = 0; i < model->n_tensors; i++)
            other_types[i] = difference == 1 && types[i] == GGML_TYPE_Q4_0 ? GGML_TYPE_IQ4_NL : types[i];
        other.types = other_types;
        other.identity = difference == 0 ? "two" : "one";
        other.file_type = difference == 2 ? 14 : 15;
        other.keys = &key;
        other.n_keys = difference == 3;
        struct quantize_result result;
        struct allot_error err;
        assert_int_equal(run_job(&other, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
        finish_and_compare(0, 0);
        free(other_types);
    }
}

static void damaged_partial_files_are_started_over(void **state)
{
    (void)state;
    static const uint8_t ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    static const uint8_t many[8] = {200};
    for (int damage = 0; damage < 6; damage++) {
        struct stop stop = {.stage = "quantize", .at = 5};
        const struct allot_progress progress = {.report = stop_at, .user = &stop};
        const struct quantize_job job = plain_job();
        struct quantize_result result;
        struct allot_error err;
        assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
        if (damage == 0)
            overwrite(PARTIAL, 3, "?", 1); /* magic */
        else if (damage == 1)
            overwrite(PARTIAL, 20, "??", 2); /* key */
        else if (damage == 2)
            overwrite(PARTIAL, 96, ones, 8); /* finished */
        else if (damage == 3)
            overwrite(PARTIAL, 96, many, 8);
        else if (damage == 4)
            assert_int_equal(truncate(PARTIAL, 50000), 0);
        else
            assert_int_equal(truncate(PARTIAL, 10), 0);
        finish_and_compare(0, 0);
    }
    write_text(PARTIAL, "something else");
    finish_and_compare(0, 0);
}

/* After a reboot only what was synced counts; these small files never were. */
static void another_boot_distrusts_what_was_not_synced(void **state)
{
    (void)state;
    struct stop stop = {.stage = "quantize", .at = 5};
    const struct allot_progress progress = {.report = stop_at, .user = &stop};
    const struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
    overwrite(PARTIAL, 80, "another boot id.", 16);
    finish_and_compare(0, 0);
}

/* ---- Two runs ----------------------------------------------------------------------------------------- */

static int meeting[2]; /* a socket between the two processes */

static bool wait_for_the_other(void *user, const char *stage, int64_t done, int64_t total)
{
    bool *met = user;
    char c = 'x';
    (void)stage;
    (void)total;
    if (done > 0 && !*met) {
        *met = true;
        if (write(meeting[1], &c, 1) != 1 || read(meeting[1], &c, 1) != 1)
            return true;
    }
    return false;
}

static void a_second_run_is_refused(void **state)
{
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, meeting), 0);
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    const struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    char c;
    if (pid == 0) {
        bool met = false;
        const struct allot_progress progress = {.report = wait_for_the_other, .user = &met};
        close(meeting[0]);
        _exit(run_job(&job, &result, &progress, &err) ? 1 : 0);
    }
    close(meeting[1]);
    assert_int_equal(read(meeting[0], &c, 1), 1);
    assert_int_equal(run_job(&job, &result, NULL, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "another run"));
    assert_non_null(strstr(err.message, PARTIAL));
    assert_true(exists(PARTIAL));
    assert_int_equal(write(meeting[0], "x", 1), 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(meeting[0]);
    assert_true(exists(OUT));
    finish_and_compare(0, 0);
}

/* Floored importances are counted, said, and remembered across an interruption. */
static void note_line(void *user, const char *line)
{
    strncat(user, line, 500);
}

static bool interrupt_late(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)user;
    (void)stage;
    return done == total;
}

static void floored_tensors_are_counted(void **state)
{
    (void)state;
    const float **importances = calloc((size_t)model->n_tensors, sizeof *importances);
    float bad[256];
    for (int i = 0; i < 256; i++)
        bad[i] = i % 2 ? 1 : NAN;
    const struct gguf_tensor *t = gguf_model_tensor(model, "blk.0.attn_q.weight");
    importances[t - model->tensors] = bad;
    struct quantize_job job = plain_job();
    job.imatrix = importances;
    char notes[1024] = "";
    const struct allot_progress progress = {.report = interrupt_late, .note = note_line, .user = notes};
    struct quantize_result result;
    struct allot_error err;
    assert_int_equal(run_job(&job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
    assert_non_null(strstr(notes, "blk.0.attn_q.weight"));
    if (run_job(&job, &result, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(result.resumed_tensors, model->n_tensors);
    assert_int_equal(result.floored_tensors, 1);
    unlink(OUT);
    free(importances);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupted_runs_resume),
        cmocka_unit_test(runs_interrupted_again_and_again_resume),
        cmocka_unit_test(killed_runs_resume),
        cmocka_unit_test(runs_killed_at_random_times_resume),
        cmocka_unit_test(other_jobs_are_not_continued),
        cmocka_unit_test(damaged_partial_files_are_started_over),
        cmocka_unit_test(another_boot_distrusts_what_was_not_synced),
        cmocka_unit_test(floored_tensors_are_counted),
        cmocka_unit_test(a_second_run_is_refused),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
