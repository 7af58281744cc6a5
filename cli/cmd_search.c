/* cmd_search.c - allot search: the files that nothing of their size beats.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "search.h"
#include "search_files.h"
#include "seen_text.h"

#define ROW(name_, arg_, kind_, member_, fallback_, min_, help_)                                  \
    {                                                                                             \
        name_, 0, arg_, kind_, offsetof(struct search_arguments, member_), fallback_, min_, help_ \
    }

static const struct option_row rows[] = {
    ROW("eval", "TEXT", OPTION_STRINGS, evals, NULL, 0, "evaluation text, disjoint from calibration"),
    ROW("sources", "LIST", OPTION_STRING, sources, NULL, 0,
        "start from these mixes of llama-quantize and learned layouts; without it from the usual mixes, Q2_K "
        "to "
        "Q8_0, and from every learned layout that suits the model"),
    ROW("scale-depth", NULL, OPTION_FLAG, scale_depth, NULL, 0,
        "layouts of models with another number of layers too, by relative depth"),
    ROW("windows", "N", OPTION_INT, windows, "16", 2,
        "evaluation windows of each text, spread evenly over it"),
    ROW("ctx", "N", OPTION_INT, ctx, "256", 8, "tokens of each, all scored"),
    ROW("builds", "N", OPTION_INT, builds, "0", 0,
        "measure so many builds at most, those on record too; 0: any"),
    ROW("hours", "H", OPTION_DOUBLE, hours, NULL, 0,
        "begin no build after this time; the same command goes on from there"),
    {"output", 'o', "FOLDER", OPTION_STRING, offsetof(struct search_arguments, output), NULL, 0,
     "write recipes of the survivors there, and result.json, which 'allot report' reads"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct search_arguments *args = arguments;
    const struct string_list *given = &args->calibrated.sized.common.given;
    const char *name;
    if (!args->evals.n)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "search: no evaluation text (--eval TEXT)");
    for (size_t i = 0; (name = calibration_run_option(i)) != NULL && !args->calibrated.texts.n; i++)
        if (string_list_has(given, name))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s wants a calibration text (-f TEXT)", name);
    if (!args->calibrated.texts.n && (args->calibrated.imatrix || args->calibrated.no_imatrix))
        return allot_fail(
            err, ALLOT_ERR_ARGUMENT,
            "--%s wants a calibration text (-f TEXT); without one the costs on record are used, with "
            "their imatrix",
            args->calibrated.imatrix ? "imatrix" : "no-imatrix");
    return calibration_check(&args->calibrated, err);
}

/* Text t's windows behind the *n of the texts before it. The same windows twice would make errors look small.
 */
static allot_status add_windows(struct search *s, size_t t, int32_t **ids, int64_t *n,
                                const struct text_windows *windows, struct allot_error *err)
{
    const size_t n_ctx = (size_t)windows->n_ctx;
    for (size_t k = 0; k < t; k++)
        if (strcmp(s->text_sha256[k], windows->sha256) == 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s and %s have the same windows; give each text once",
                              s->args->evals.items[k], s->args->evals.items[t]);
    int32_t *grown = realloc(*ids, (size_t)(*n + windows->n) * n_ctx * sizeof *grown);
    if (grown == NULL)
        return allot_fail_memory(err, (size_t)(*n + windows->n) * n_ctx * sizeof *grown, "windows");
    *ids = grown;
    memcpy(grown + (size_t)*n * n_ctx, windows->ids, (size_t)windows->n * n_ctx * sizeof *grown);
    memcpy(s->text_sha256[t], windows->sha256, sizeof windows->sha256);
    *n += windows->n;
    s->first_window[t + 1] = (size_t)*n;
    return ALLOT_OK;
}

/* The windows of all texts, one text after the other. */
static allot_status read_evals(struct search *s, struct allot_error *err)
{
    const struct search_arguments *args = s->args;
    struct text_vocab *vocab = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    s->first_window = calloc(args->evals.n + 1, sizeof *s->first_window);
    s->text_sha256 = calloc(args->evals.n, sizeof *s->text_sha256);
    allot_status status = s->first_window && s->text_sha256
                              ? text_vocab_open(&vocab, model_first_path(s->job.model), err)
                              : allot_fail_memory(err, args->evals.n * sizeof *s->text_sha256, "texts");
    for (size_t t = 0; t < args->evals.n && status == ALLOT_OK; t++) {
        struct text_windows windows = {0};
        const char *path = args->evals.items[t];
        status = text_windows_from_files(&windows, vocab, &path, 1, (int32_t)args->ctx, args->windows, err);
        if (status == ALLOT_OK)
            status = add_windows(s, t, &ids, &n, &windows, err);
        text_windows_release(&windows);
    }
    text_vocab_close(vocab);
    if (status == ALLOT_OK)
        return text_windows_from_ids(&s->windows, ids, n, (int32_t)args->ctx, err);
    free(ids);
    return status;
}

static allot_status open_run(struct search *s, struct allot_error *err)
{
    const struct calibrated_arguments *args = &s->args->calibrated;
    const struct common_arguments *common = &args->sized.common;
    allot_status status = model_job_open(&s->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = pool_new(&s->pool, (int)common->threads, err);
    if (status == ALLOT_OK)
        status = read_evals(s, err);
    if (status == ALLOT_OK && s->args->output)
        status = search_files_check(s, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&s->job, args->texts.n ? ARCHIVE_CREATE : ARCHIVE_EXISTING, err);
    if (status == ALLOT_OK && archive_is_read_only(s->job.archive))
        allot_note(s->progress, "%s cannot be written: nothing that is measured is kept",
                   s->job.archive_path);
    if (status == ALLOT_OK)
        status = model_job_hash(&s->job, s->progress, err);
    if (status != ALLOT_OK)
        return status;
    s->folder = file_folder(s->job.archive_path);
    s->memory = (struct memory_budget){args->memory ? args->memory : memory_default_limit(), s->folder};
    return s->folder ? ALLOT_OK : allot_fail_memory(err, strlen(s->job.archive_path), "a path");
}

/* From the texts where there are some, which takes no time where it is on record; else the newest. */
static allot_status find_costs(struct search *s, struct allot_error *err)
{
    const struct calibrated_arguments *args = &s->args->calibrated;
    struct calibration c = {0};
    struct calibration_result result;
    allot_status status;
    if (!args->texts.n) {
        status = cost_table_newest(&s->costs, &s->job, NULL, err);
        return status == ALLOT_OK
                   ? calibration_imatrix_of_set(&s->imatrix, &s->job, &s->costs.set, s->progress, err)
                   : status;
    }
    status = calibration_open(&c, &s->job, s->pool, args->memory, calibration_method(args), err);
    if (status == ALLOT_OK)
        status = calibration_read(&c, args, s->progress, err);
    if (status == ALLOT_OK)
        status = calibration_chosen_imatrix(&s->imatrix, &c, args, s->progress, err);
    if (status == ALLOT_OK)
        status = calibration_costs(&result, &c, args, &s->imatrix, s->progress, err);
    calibration_close(&c);
    return status == ALLOT_OK ? cost_table_load(&s->costs, &s->job, &result.set, err) : status;
}

static allot_status check_overlap(const struct search *s, struct allot_error *err)
{
    struct seen_overlap overlap;
    allot_status status = seen_text_overlap(&overlap, s->job.archive, s->job.sha256, &s->windows, err);
    if (status == ALLOT_OK && overlap.known && overlap.share > SEEN_THRESHOLD)
        allot_note(s->progress,
                   "%.0f %% of the evaluation's tokens occur in what calibration saw (%s); judge "
                   "by other text",
                   100 * overlap.share, overlap.what);
    return status;
}

static allot_status run_steps(struct search *s, json_t **document, struct allot_error *err)
{
    allot_status status = open_run(s, err);
    if (status == ALLOT_OK)
        status = find_costs(s, err);
    if (status == ALLOT_OK)
        status = check_overlap(s, err);
    provenance_fill(&s->keys, &s->imatrix, s->imatrix.path ? s->imatrix.path : "imatrix.gguf", s->job.sha256);
    if (status == ALLOT_OK)
        status = search_check_plans(s, err);
    if (status == ALLOT_OK)
        status = trial_open(&s->trial, s->job.model, s->pool, &s->windows,
                            s->imatrix.present ? &s->imatrix.data : NULL, &s->memory, err);
    if (status == ALLOT_OK)
        status = search_list(s, err);
    if (status == ALLOT_OK)
        status = search_isolate(s, err);
    if (status == ALLOT_OK)
        status = search_candidates(s, err);
    command_end_progress(s->progress);
    return status == ALLOT_OK ? search_report(s, document, err) : status;
}

static void release_run(struct search *s)
{
    trial_close(s->trial);
    for (size_t i = 0; i < s->n_attempts; i++)
        build_release(&s->attempts[i]);
    for (size_t i = 0; i < s->n_probes; i++)
        build_release(&s->probes[i]);
    for (size_t g = 0; g < s->n_groups; g++) {
        for (size_t k = 0; k < s->groups[g].n_options; k++)
            build_release(&s->groups[g].options[k].alone);
        free(s->groups[g].options);
        free(s->groups[g].tensors);
    }
    for (size_t i = 0; i < s->n_sources; i++) {
        build_release(&s->sources[i].build);
        free(s->sources[i].origin);
    }
    free(s->attempts);
    free(s->records);
    free(s->probes);
    free(s->anomalies);
    free(s->sources);
    layout_use_release(&s->layouts);
    cost_table_release(&s->costs);
    job_imatrix_release(&s->imatrix);
    text_windows_release(&s->windows);
    free(s->first_window);
    free(s->text_sha256);
    pool_free(s->pool);
    free(s->folder);
    model_job_release(&s->job);
}

allot_status search_run(const struct search_arguments *args, const struct allot_progress *progress,
                        json_t **document, struct allot_error *err)
{
    struct search s = {.args = args, .progress = progress, .started = seconds_now()};
    allot_status status = run_steps(&s, document, err);
    release_run(&s);
    return status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    return search_run(arguments, progress, NULL, err);
}

const struct option_set *const *search_option_sets(size_t *n)
{
    *n = 0;
    while (command_search.options[*n])
        ++*n;
    return command_search.options;
}

const struct command command_search = {
    .name = "search",
    .synopsis = "MODEL [-f CALIB...] --eval TEXT... [options]",
    .summary = "try mixes, learned layouts, hybrids and plans; keep what nothing beats",
    .description = "Rebuilds plain mixes of llama-quantize and layouts that 'allot learn' keeps from this "
                   "model and this "
                   "imatrix, measures them whole and each of their groups of tensors alone, prunes what is "
                   "not worth its "
                   "bytes, and tries combinations where a prediction says that they beat what was measured, "
                   "and allot's own "
                   "plan at the size of each. Every build is measured with libllama's own kernels in the "
                   "place of the loaded "
                   "model's tensors: the numbers are those of the file, which need not be written. At the "
                   "end only files "
                   "stay that no other dominates beyond the error; each of the others has its reason. Every "
                   "measurement is "
                   "kept as it is made, and the same command goes on after an interruption. Costs and "
                   "imatrix are of the "
                   "calibration texts, or without -f those on record.",
    .options = {&calibration_options, &options},
    .arguments_size = sizeof(struct search_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
