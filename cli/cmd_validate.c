/* cmd_validate.c - allot validate: whether the costs of a model, and plans from them, can be trusted.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "validation.h"
#include "validation_report.h"

#define ROW(name_, arg_, kind_, member_, fallback_, min_, help_)                                    \
    {                                                                                               \
        name_, 0, arg_, kind_, offsetof(struct validate_arguments, member_), fallback_, min_, help_ \
    }

static const struct option_row rows[] = {
    ROW("eval", "TEXT", OPTION_STRINGS, evals, NULL, 0, "evaluation text, disjoint from calibration"),
    ROW("methods", "LIST", OPTION_STRING, methods, NULL, 0,
        "methods to judge, such as fisher,probe; without it those that are cheap, and those on record"),
    ROW("windows", "N", OPTION_INT, windows, "8", 1,
        "evaluation windows, spread evenly over the texts: the work grows with them, standard errors shrink"),
    ROW("ctx", "N", OPTION_INT, ctx, "128", 8,
        "tokens of each, all scored; as long as the sequences of the costs, so that both see as much "
        "context"),
    ROW("bpw", "LIST", OPTION_STRING, bpw, "2.6,3.4,4.5,5.5", 0,
        "plan for these bits per weight; without a list the smallest plan stands in for what is below it"),
    ROW("size", "LIST", OPTION_STRING, sizes, NULL, 0, "plan for these sizes of the file instead"),
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check_method(void *user, const char *name, struct allot_error *err)
{
    struct calibrated_arguments args = *(const struct calibrated_arguments *)user;
    args.method = name;
    return calibration_check(&args, err);
}

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct validate_arguments *args = arguments;
    struct calibrated_arguments calibrated = args->calibrated;
    const struct string_list *given = &calibrated.sized.common.given;
    struct validation_size *sizes = NULL;
    size_t n = 0;
    const char *name;
    if (!args->evals.n)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "validate: no evaluation text (--eval TEXT)");
    if (args->sizes && string_list_has(given, "bpw"))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--size and --bpw exclude each other");
    for (size_t i = 0; (name = calibration_run_option(i)) != NULL && !calibrated.texts.n; i++)
        if (string_list_has(given, name))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s wants a calibration text (-f TEXT)", name);
    allot_status status = validation_sizes(&sizes, &n, args, err);
    free(sizes);
    if (status == ALLOT_OK)
        status =
            validation_each_item(args->methods ? args->methods : "fisher", check_method, &calibrated, err);
    return status;
}

static allot_status read_eval(struct validation *v, struct allot_error *err)
{
    const struct string_list *texts = &v->args->evals;
    struct text_vocab *vocab = NULL;
    allot_status status = text_vocab_open(&vocab, model_first_path(v->job.model), err);
    if (status == ALLOT_OK)
        status = text_windows_from_files(&v->windows[EVAL_TEXT], vocab, texts->items, texts->n,
                                         (int32_t)v->args->ctx, v->args->windows, err);
    text_vocab_close(vocab);
    v->n_texts = EVAL_TEXT + 1;
    return status;
}

static allot_status open_run(struct validation *v, const struct allot_progress *progress,
                             struct allot_error *err)
{
    const struct calibrated_arguments *args = &v->args->calibrated;
    const struct common_arguments *common = &args->sized.common;
    allot_status status = model_job_open(&v->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = pool_new(&v->pool, (int)common->threads, err);
    if (status == ALLOT_OK)
        status = read_eval(v, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&v->job, args->texts.n ? ARCHIVE_CREATE : ARCHIVE_EXISTING, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&v->job, progress, err);
    if (status != ALLOT_OK)
        return status;
    v->folder = file_folder(v->job.archive_path);
    v->memory = (struct memory_budget){args->memory ? args->memory : memory_default_limit(), v->folder};
    return v->folder ? ALLOT_OK : allot_fail_memory(err, strlen(v->job.archive_path), "a path");
}

/* Once costs, and so what they saw, are on record. */
static allot_status check_overlap(struct validation *v, const struct allot_progress *progress,
                                  struct allot_error *err)
{
    allot_status status =
        seen_text_overlap(&v->overlap, v->job.archive, v->job.sha256, &v->windows[EVAL_TEXT], err);
    if (status == ALLOT_OK && v->overlap.known && v->overlap.share > SEEN_THRESHOLD)
        allot_note(progress, "%.0f %% of the evaluation's tokens occur in what %s%s saw; judge by other text",
                   100 * v->overlap.share, strncmp(v->overlap.what, "the ", 4) == 0 ? "" : "the ",
                   v->overlap.what);
    return status;
}

static void release_run(struct validation *v)
{
    for (size_t i = 0; i < v->n_assignments; i++) {
        free(v->assignments[i].types);
        for (size_t t = 0; t < MAX_TEXTS; t++)
            free(v->assignments[i].on[t].kl);
    }
    for (size_t s = 0; s < v->n_sets; s++)
        cost_table_release(&v->sets[s].costs);
    free(v->assignments);
    free(v->sets);
    free(v->degraded);
    free(v->planned);
    job_imatrix_release(&v->imatrix);
    for (size_t t = 0; t < v->n_texts; t++)
        text_windows_release(&v->windows[t]);
    pool_free(v->pool);
    free(v->folder);
    model_job_release(&v->job);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    struct validation v = {.args = arguments};
    allot_status status = open_run(&v, progress, err);
    if (status == ALLOT_OK)
        status = validation_costs(&v, progress, err);
    if (status == ALLOT_OK)
        status = check_overlap(&v, progress, err);
    if (status == ALLOT_OK)
        status = validation_measure(&v, progress, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = validation_print(&v, err);
    release_run(&v);
    return status;
}

const struct command command_validate = {
    .name = "validate",
    .synopsis = "MODEL [-f CALIB...] --eval TEXT... [options]",
    .summary = "judge the costs by measuring: can the plan be trusted?",
    .description =
        "Measures, with libllama's own kernels and without writing files, what the costs claim, and says "
        "whether plans can be trusted. One tensor at a time gets a low type (Q2_K where it fits) while the "
        "others have Q8_0, and the measured changes of KL are ranked beside the predicted ones; the costs of "
        "several methods are compared pair by pair; and plans of some sizes are measured beside what they "
        "predict, on the evaluation text and on the text that the costs are of. Costs are those on record "
        "with the imatrix of the calibration texts, or are computed from "
        "the texts, with the options of 'allot cost'; without -f all is taken from the archive. A forward "
        "pass per tensor and plan: how long that takes is said at first. Every measurement is kept as it is "
        "made, and the same command goes on after an interruption.",
    .options = {&calibration_methodless_options, &options},
    .arguments_size = sizeof(struct validate_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
