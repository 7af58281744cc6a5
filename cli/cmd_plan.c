/* cmd_plan.c - allot plan: one type per tensor for a size, from costs on record.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "calibration.h"
#include "type_plan.h"

struct plan_arguments {
    struct sized_arguments sized;
    const char *types, *output;
};

static const struct option_row rows[] = {
    {"types", 0, "LIST", OPTION_STRING, offsetof(struct plan_arguments, types), NULL, 0,
     "use only these types, such as Q4_K,Q6_K,Q8_0"},
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

/* The imatrix that the stock command must name. */
struct plan_imatrix {
    struct imatrix_facts facts;
    char *path;    /* NULL: none */
    bool exported; /* written beside the recipe */
};

static allot_status find_imatrix(struct plan_imatrix *im, struct model_job *job, const char *sha256,
                                 const char *recipe, struct allot_error *err)
{
    allot_status status = imatrix_facts_load(&im->facts, job->archive, sha256, err);
    if (status != ALLOT_OK || !sha256[0])
        return status;
    if (im->facts.path[0])
        im->path = strdup(im->facts.path);
    else if (recipe)
        im->path = text_printf("%s.imatrix.gguf", recipe);
    else
        im->path = strdup("RECIPE.imatrix.gguf");
    return im->path ? ALLOT_OK : allot_fail_memory(err, 64, "a path");
}

static allot_status write_files(const struct plan_arguments *args, struct model_job *job,
                                struct plan_imatrix *im, const struct type_plan *plan,
                                struct allot_error *err)
{
    if (!args->output)
        return ALLOT_OK;
    allot_status status = job_refuse_input_as_output(job, args->output, err);
    if (status == ALLOT_OK)
        status = job_refuse_inputs_as_output(&args->sized.like, 1, args->output, err);
    if (status == ALLOT_OK)
        status = type_plan_write_recipe(plan, job->model, args->output, err);
    if (status == ALLOT_OK && im->path && !im->facts.path[0])
        status = calibration_export_imatrix(job, im->facts.sha256, im->path, &im->exported, err);
    return status;
}

static allot_status print_plan(const struct plan_arguments *args, const struct model_job *job,
                               const struct cost_table *costs, const struct plan_imatrix *im,
                               const struct type_plan *plan, struct allot_error *err)
{
    struct strbuf command = {0};
    allot_status status = type_plan_stock_command(&command, plan, job->model, im->path,
                                                  args->output ? args->output : "RECIPE", "OUT.gguf", err);
    if (status == ALLOT_OK && args->sized.common.json) {
        json_t *document = json_object();
        type_plan_json(document, plan, job->model);
        json_put(document, "cost_set", json_text(costs->set.updated));
        json_put(document, "recipe", args->output ? json_text(args->output) : json_null());
        json_put(document, "stock_command", json_text(command.data));
        status = json_print(document, err);
    } else if (status == ALLOT_OK) {
        printf("costs:         %s, %s, %" PRId64 " tokens, of %s\n", job->archive_path, costs->set.method,
               costs->set.n_tokens, costs->set.updated);
        status = type_plan_print(plan, job->model, err);
        if (args->output)
            printf("\nwritten: %s%s%s\n", args->output, im->exported ? ", " : "",
                   im->exported ? im->path : "");
        printf("\nWith llama.cpp%s:\n  %s\n", args->output ? "" : ", once -o RECIPE has written the recipe",
               command.data);
    }
    strbuf_release(&command);
    return status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct plan_arguments *args = arguments;
    const struct common_arguments *common = &args->sized.common;
    struct model_job job = {0};
    struct cost_table costs = {0};
    struct plan_imatrix im = {0};
    struct provenance keys;
    struct type_plan plan = {0};
    struct type_set types;

    allot_status status = type_set_parse(&types, args->types, err);
    if (status == ALLOT_OK)
        status = model_job_open(&job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&job, ARCHIVE_EXISTING, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&job, progress, err);
    if (status == ALLOT_OK)
        status = cost_table_newest(&costs, &job, NULL, err);
    if (status == ALLOT_OK)
        status = find_imatrix(&im, &job, costs.set.imatrix_sha256, args->output, err);
    if (status != ALLOT_OK)
        goto cleanup;
    provenance_fill(&keys, &im.facts, im.path ? im.path : "", job.sha256);
    status = type_plan_solve(&plan, job.model, &costs, &types, &args->sized, &keys, err);
    if (status == ALLOT_OK)
        status = write_files(args, &job, &im, &plan, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = print_plan(args, &job, &costs, &im, &plan, err);
cleanup:
    type_plan_release(&plan);
    free(im.path);
    cost_table_release(&costs);
    model_job_release(&job);
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
