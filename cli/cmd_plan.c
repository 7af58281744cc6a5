/* cmd_plan.c - allot plan: one type per tensor for a size, from costs on record.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calibration.h"
#include "type_plan.h"

struct plan_arguments {
    struct sized_arguments sized;
    const char *types, *output;
};

static const struct option_row rows[] = {
    {"types", 0, "LIST", OPTION_STRING, offsetof(struct plan_arguments, types), NULL, 0,
     "use only these types, such as Q4_K,Q6_K,Q8_0; a tensor's own type only if the list names it or nothing "
     "on it fits"},
    {"output", 'o', "RECIPE", OPTION_STRING, offsetof(struct plan_arguments, output), NULL, 0,
     "write the recipe there, and beside it the importance matrix if allot computed it"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct plan_arguments *args = arguments;
    struct type_set set;
    if (budget_options_given(&args->sized) != 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "plan: give one of --size, --bpw and --like");
    return type_set_parse(&set, args->types, err);
}

/* One run of the command. */
struct plan_run {
    const struct plan_arguments *args;
    struct model_job job;
    struct cost_table costs;
    struct job_imatrix imatrix;
    char *imatrix_path; /* that the stock command names; NULL: none */
    struct provenance keys;
    struct type_plan plan;
};

/* RECIPE.imatrix.gguf; a name to read where no recipe is written. */
static allot_status name_export(struct plan_run *run, struct allot_error *err)
{
    run->imatrix_path = text_printf("%s.imatrix.gguf", run->args->output ? run->args->output : "RECIPE");
    return run->imatrix_path ? ALLOT_OK : allot_fail_memory(err, 64, "a path");
}

static allot_status check_outputs(const struct plan_run *run, const char *user_imatrix,
                                  struct allot_error *err)
{
    const struct job_inputs inputs = {.files = {run->args->sized.like, user_imatrix}};
    if (!run->args->output)
        return ALLOT_OK;
    allot_status status = job_check_output(&run->job, &inputs, run->args->output, err);
    if (status == ALLOT_OK && !user_imatrix)
        status = job_check_output(&run->job, &inputs, run->imatrix_path, err);
    return status;
}

static allot_status open_run(struct plan_run *run, const struct allot_progress *progress,
                             struct allot_error *err)
{
    const struct common_arguments *common = &run->args->sized.common;
    allot_status status = model_job_open(&run->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = name_export(run, err);
    if (status == ALLOT_OK)
        status = check_outputs(run, NULL, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&run->job, ARCHIVE_EXISTING, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&run->job, progress, err);
    return status;
}

static allot_status load_costs(struct plan_run *run, const struct allot_progress *progress,
                               struct allot_error *err)
{
    allot_status status = cost_table_newest(&run->costs, &run->job, NULL, err);
    if (status == ALLOT_OK)
        status = calibration_imatrix_of_set(&run->imatrix, &run->job, &run->costs.set, progress, err);
    if (status != ALLOT_OK || run->imatrix.computed)
        return status;
    free(run->imatrix_path);
    run->imatrix_path = NULL;
    if (!run->imatrix.present)
        return ALLOT_OK;
    run->imatrix_path = strdup(run->imatrix.path);
    return run->imatrix_path ? check_outputs(run, run->imatrix_path, err)
                             : allot_fail_memory(err, strlen(run->imatrix.path), "a path");
}

static allot_status write_files(struct plan_run *run, struct allot_error *err)
{
    if (!run->args->output)
        return ALLOT_OK;
    /* The larger first: where it does not fit, no recipe is left that speaks of it. */
    allot_status status = ALLOT_OK;
    if (run->imatrix.computed)
        status = imatrix_write(&run->imatrix.data, run->imatrix_path, err);
    if (status == ALLOT_OK)
        status = type_plan_write_recipe(&run->plan, run->job.model, run->args->output, err);
    return status;
}

static allot_status print_json(const struct plan_run *run, const char *command, struct allot_error *err)
{
    const char *output = run->args->output;
    json_t *document = json_object();
    type_plan_json(document, &run->plan, run->job.model);
    json_put(document, "cost_set", json_text(run->costs.set.updated));
    json_put(document, "recipe", output ? json_text(output) : json_null());
    json_put(document, "stock_command", json_text(command));
    return json_print(document, err);
}

static allot_status print_text(const struct plan_run *run, const char *command, struct allot_error *err)
{
    const char *output = run->args->output;
    printf("costs:         %s, %s, %" PRId64 " tokens, of %s\n", run->job.archive_path, run->costs.set.method,
           run->costs.set.n_tokens, run->costs.set.updated);
    allot_status status = type_plan_print(&run->plan, run->job.model, err);
    if (output)
        printf("\nwritten: %s%s%s\n", output, run->imatrix.computed ? ", " : "",
               run->imatrix.computed ? run->imatrix_path : "");
    printf("\nWith llama.cpp%s:\n  %s\n", output ? "" : ", once -o RECIPE has written the recipe", command);
    return status;
}

static allot_status print_plan(const struct plan_run *run, struct allot_error *err)
{
    struct strbuf command = {0};
    const char *recipe = run->args->output ? run->args->output : "RECIPE";
    allot_status status = type_plan_stock_command(&command, &run->plan, run->job.model, run->imatrix_path,
                                                  recipe, "OUT.gguf", err);
    if (status == ALLOT_OK)
        status = run->args->sized.common.json ? print_json(run, command.data, err)
                                              : print_text(run, command.data, err);
    strbuf_release(&command);
    return status;
}

static void release_run(struct plan_run *run)
{
    type_plan_release(&run->plan);
    free(run->imatrix_path);
    job_imatrix_release(&run->imatrix);
    cost_table_release(&run->costs);
    model_job_release(&run->job);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct plan_arguments *args = arguments;
    struct plan_run run = {.args = args};
    struct type_set types;

    allot_status status = type_set_parse(&types, args->types, err);
    if (status == ALLOT_OK)
        status = open_run(&run, progress, err);
    if (status == ALLOT_OK)
        status = load_costs(&run, progress, err);
    if (status == ALLOT_OK) {
        provenance_fill(&run.keys, &run.imatrix, run.imatrix_path, run.job.sha256);
        status = type_plan_solve(&run.plan, run.job.model, &run.costs, &types, &args->sized, &run.keys, err);
    }
    if (status == ALLOT_OK)
        status = write_files(&run, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = print_plan(&run, err);
    release_run(&run);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .synopsis = "MODEL (--size N | --bpw X | --like FILE) [-o RECIPE] [options]",
    .summary = "choose a type for every tensor within a size; write a recipe",
    .description = "Chooses one type per tensor so that the file is no larger than asked and the predicted "
                   "KL divergence is least, "
                   "from the newest complete costs that 'allot cost' left in the archive. The recipe is a "
                   "--tensor-type-file for "
                   "llama-quantize with one rule per tensor; the command line that uses it is printed. No "
                   "weights are read.",
    .options = {&budget_options, &options},
    .arguments_size = sizeof(struct plan_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
