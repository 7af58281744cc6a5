/* test_resume.c - quantizing that is interrupted or killed, and goes on.  SPDX-License-Identifier: MIT */
#include "quant/plain_job.h"

#include <math.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "quant/partial.h"

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

/* Interrupts a job at the k-th report of the stage: the partial file stays, the target is not touched. */
static void interrupt_job(const struct quantize_job *job, const char *stage, int k)
{
    struct stop stop = {.stage = stage, .at = k};
    const struct allot_progress progress = {.report = stop_at, .user = &stop};
    struct quantize_result result = {.file_bytes = -1};
    struct allot_error err;
    assert_int_equal(run_job(job, &result, &progress, &err), ALLOT_ERR_INTERRUPTED);
    assert_int_equal(result.file_bytes, -1);
    assert_true(exists(PARTIAL) && !exists(OUT));
}

static void interrupt_at(const char *stage, int k)
{
    const struct quantize_job job = plain_job();
    interrupt_job(&job, stage, k);
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

/* The last of them come when the output is complete: before its checksum, and when it has been verified. */
static const struct {
    const char *stage;
    int at;
} final_reports[] = {{"checksum", 0}, {"checksum", 1}};
enum { N_FINAL_REPORTS = sizeof final_reports / sizeof final_reports[0] };

static void interrupted_runs_resume(void **state)
{
    (void)state;
    for (int k = 0; k <= model->n_tensors; k++) {
        interrupt_at("quantize", k);
        finish_and_compare(k, k); /* the first report comes before any work */
    }
}

/* One tensor a run, with reports of the checksum interrupted too. */
static void runs_interrupted_again_and_again_resume(void **state)
{
    (void)state;
    for (int k = 0; k < model->n_tensors; k++)
        interrupt_at("quantize", 1);
    for (int i = 0; i < N_FINAL_REPORTS; i++)
        interrupt_at(final_reports[i].stage, final_reports[i].at);
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

static void kill_at(const char *stage, int k)
{
    struct stop stop = {.stage = stage, .at = k, .kill = true};
    const struct allot_progress progress = {.report = stop_at, .user = &stop};
    assert_true(run_in_child(&progress, 0));
    assert_false(exists(OUT));
}

static void killed_runs_resume(void **state)
{
    (void)state;
    for (int k = 0; k <= model->n_tensors; k++) {
        kill_at("quantize", k);
        finish_and_compare(k, k);
    }
    for (int i = 0; i < N_FINAL_REPORTS; i++) {
        kill_at(final_reports[i].stage, final_reports[i].at);
        finish_and_compare(model->n_tensors, model->n_tensors);
    }
}

/* At any moment, not only between tensors. */
static void runs_killed_at_random_times_resume(void **state)
{
    (void)state;
    enum { TRIALS = 40 };
    int n_killed = 0;
    const double start_time = seconds_now();
    assert_false(run_in_child(NULL, 0));
    const uint64_t whole = 1 + (uint64_t)(1e6 * (seconds_now() - start_time));
    unlink(OUT);
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        const bool killed = run_in_child(NULL, 1 + (useconds_t)(rng_u64(seed, trial) % whole));
        n_killed += killed;
        if (!exists(OUT)) {
            assert_true(killed);
            finish_and_compare(0, model->n_tensors);
            continue;
        }
        assert_output_is_complete(); /* killed after its last step, if at all */
        unlink(OUT);
    }
    print_message("killed %d of %d within %llu us\n", n_killed, TRIALS, (unsigned long long)whole);
    assert_true(n_killed > TRIALS / 4);
}

/* What was left behind by another job is not continued. */
static void other_jobs_are_not_continued(void **state)
{
    (void)state;
    for (int difference = 0; difference < 4; difference++) {
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
        interrupt_job(&other, "quantize", 5);
        finish_and_compare(0, 0);
        free(other_types);
    }
}

static void damaged_partial_files_are_started_over(void **state)
{
    (void)state;
    static const uint8_t ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    static const uint8_t many[8] = {200};
    static const uint8_t zeros[16];
    for (int damage = 0; damage < 6; damage++) {
        interrupt_at("quantize", 5);
        if (damage == 0)
            overwrite(PARTIAL, 0, zeros, sizeof zeros); /* magic */
        else if (damage == 1)
            overwrite(PARTIAL, 20, "??", 2); /* key */
        else if (damage == 2)
            overwrite(PARTIAL, 168, ones, 8); /* finished */
        else if (damage == 3)
            overwrite(PARTIAL, 168, many, 8);
        else if (damage == 4)
            assert_int_equal(truncate(PARTIAL, 50000), 0);
        else
            assert_int_equal(truncate(PARTIAL, 10), 0);
        finish_and_compare(0, 0);
    }
}

/* Killed after the journal behind the end was cut off, before the renaming. */
static void a_whole_file_under_the_partial_name_is_replaced(void **state)
{
    (void)state;
    struct stat st;
    interrupt_at("checksum", 0);
    assert_int_equal(stat(PARTIAL, &st), 0);
    assert_int_equal(truncate(PARTIAL, st.st_size - PARTIAL_JOURNAL_BYTES), 0);
    finish_and_compare(0, 0);
}

/* A sealed file of another job still has its journal, behind the end. */
static void a_sealed_file_of_another_job_is_replaced(void **state)
{
    (void)state;
    struct quantize_job other = plain_job();
    other.file_type = 14;
    interrupt_job(&other, "checksum", 0);
    finish_and_compare(0, 0);
}

/* Tensors that are synced when so many are finished and a sync is due after every `interval` bytes. */
static int64_t count_durable(int64_t interval, int64_t finished)
{
    int64_t durable = 0, unsynced = 0;
    for (int64_t i = 0; i < finished; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        unsynced += (int64_t)ggml_row_size(types[i], t->ne[0]) * t->n_rows;
        if (unsynced < interval)
            continue;
        durable = i + 1;
        unsynced = 0;
    }
    return durable;
}

/* After a reboot only what was synced counts. */
static void another_boot_distrusts_what_was_not_synced(void **state)
{
    (void)state;
    static const int64_t intervals[] = {0, 1, 3000, 10000, 1 << 30};
    int n_between = 0;
    for (size_t i = 0; i < sizeof intervals / sizeof intervals[0]; i++) {
        for (int k = 0; k <= model->n_tensors; k++) {
            struct quantize_job job = plain_job();
            job.sync_interval = intervals[i];
            interrupt_job(&job, "quantize", k);
            overwrite(PARTIAL, 152, "another boot id.", 16);
            const int64_t durable = intervals[i] ? count_durable(intervals[i], k) : 0;
            n_between += durable > 0 && durable < k;
            finish_and_compare(durable, durable);
        }
    }
    assert_true(n_between > 5);
}

/* The complete file was synced, whatever the interval. */
static void another_boot_trusts_the_complete_file(void **state)
{
    (void)state;
    struct stat st;
    interrupt_at("checksum", 0);
    assert_int_equal(stat(PARTIAL, &st), 0);
    overwrite(PARTIAL, st.st_size - 40, "another boot id.", 16); /* the journal is behind the end */
    finish_and_compare(model->n_tensors, model->n_tensors);
}

/* Every tensor's data but the last's are checked before they count. */
static void damaged_data_are_written_anew(void **state)
{
    (void)state;
    struct gguf_model *whole;
    struct allot_error err;
    const struct quantize_job job = plain_job();
    struct quantize_result result;
    assert_int_equal(run_job(&job, &result, NULL, &err), ALLOT_OK);
    assert_int_equal(gguf_model_open(&whole, OUT, &err), ALLOT_OK);
    unlink(OUT);
    for (int64_t k = 0; k + 1 < model->n_tensors; k++) {
        interrupt_at("quantize", (int)model->n_tensors);
        overwrite(PARTIAL, (int64_t)whole->tensors[k].file_offset, "damage", 6);
        finish_and_compare(0, 0);
    }
    gguf_model_close(whole);
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
        cmocka_unit_test(a_whole_file_under_the_partial_name_is_replaced),
        cmocka_unit_test(a_sealed_file_of_another_job_is_replaced),
        cmocka_unit_test(another_boot_distrusts_what_was_not_synced),
        cmocka_unit_test(another_boot_trusts_the_complete_file),
        cmocka_unit_test(damaged_data_are_written_anew),
        cmocka_unit_test(floored_tensors_are_counted),
        cmocka_unit_test(a_second_run_is_refused),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
