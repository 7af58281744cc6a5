/* cmd_plan.c - allot plan: one type per tensor for a size, from costs on record.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calibration.h"
#include "explain.h"
#include "interactions.h"
#include "layouts.h"
#include "quant/quant.h"
#include "seen_text.h"
#include "speed_price.h"
#include "type_plan.h"

struct plan_arguments {
    struct sized_arguments sized;
    const char *types, *output;
    struct string_list explained;
};

static const struct option_row rows[] = {
    {"types", 0, "LIST", OPTION_STRING, offsetof(struct plan_arguments, types), NULL, 0,
     "use only these types, such as Q4_K,Q6_K,Q8_0; a tensor's own type only if the list names it or nothing "
     "on it fits"},
    {"explain", 0, "TENSOR", OPTION_STRINGS, offsetof(struct plan_arguments, explained), NULL, 0,
     "list what else the tensor could be, with bytes and costs, and why it is not"},
    {"output", 'o', "RECIPE", OPTION_STRING, offsetof(struct plan_arguments, output), NULL, 0,
     "write the recipe there, and beside it the importance matrix if allot computed it"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    static const char *const not_with_layout[] = {"types", "explain", NULL};
    const struct plan_arguments *args = arguments;
    const int given = budget_options_given(&args->sized);
    struct constraints constraints = {0};
    struct ladder ladder;
    allot_status status = layout_check(&args->sized, not_with_layout, err);
    if (status != ALLOT_OK || layout_given(&args->sized))
        return status;
    if (given > 1 || (given == 0 && !args->sized.constraints.budgets.n))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "plan: give one of --size, --bpw, --like, --layout and --hybrid, or --budget");
    status = ladder_parse(&ladder, &args->sized, err);
    if (status == ALLOT_OK)
        status = ladder_check_path(&ladder, args->output, err);
    if (status == ALLOT_OK)
        status = interactions_check(&args->sized, err);
    if (status == ALLOT_OK)
        status = constraints_parse(&constraints, args->types, &args->sized.constraints, err);
    constraints_release(&constraints);
    return status;
}

/* What is made for one size. */
struct plan_output {
    char *recipe;       /* RECIPE where none is written */
    char *imatrix_path; /* that the stock command names; NULL: none */
    struct provenance keys;
    struct type_plan plan;
    struct plan_interaction interaction; /* if asked for */
};

/* One run of the command. */
struct plan_run {
    const struct plan_arguments *args;
    struct ladder ladder;
    struct constraints constraints;
    struct model_job job;
    struct cost_table costs;
    bool own_text; /* that the costs come from is the model's own */
    struct knapsack knapsack;
    struct speed_table speeds;
    struct job_imatrix imatrix;
    struct layout_use layout; /* with --layout or --hybrid; costs are then there or not */
    struct plan_output outputs[MAX_RUNGS];
};

/* The recipe, and RECIPE.imatrix.gguf. */
static allot_status name_outputs(struct plan_run *run, struct allot_error *err)
{
    for (size_t r = 0; r < run->ladder.n; r++) {
        struct plan_output *out = &run->outputs[r];
        out->recipe =
            run->args->output ? ladder_path(run->args->output, &run->ladder.rungs[r]) : strdup("RECIPE");
        out->imatrix_path = out->recipe ? text_printf("%s.imatrix.gguf", out->recipe) : NULL;
        if (!out->imatrix_path)
            return allot_fail_memory(err, 64, "a path");
    }
    return ALLOT_OK;
}

static allot_status check_outputs(const struct plan_run *run, const char *user_imatrix,
                                  struct allot_error *err)
{
    const struct job_inputs inputs = {.files = {run->args->sized.like, user_imatrix,
                                                run->args->sized.speed.table,
                                                layout_given(&run->args->sized) ? LAYOUTS_ARCHIVE : NULL}};
    allot_status status = ALLOT_OK;
    for (size_t r = 0; run->args->output && status == ALLOT_OK && r < run->ladder.n; r++) {
        status = job_check_output(&run->job, &inputs, run->outputs[r].recipe, err);
        if (status == ALLOT_OK && !user_imatrix)
            status = job_check_output(&run->job, &inputs, run->outputs[r].imatrix_path, err);
    }
    return status;
}

static allot_status open_run(struct plan_run *run, const struct allot_progress *progress,
                             struct allot_error *err)
{
    const struct plan_arguments *args = run->args;
    const struct common_arguments *common = &args->sized.common;
    allot_status status = ladder_parse(&run->ladder, &args->sized, err);
    if (status == ALLOT_OK)
        status = constraints_parse(&run->constraints, args->types, &args->sized.constraints, err);
    if (status == ALLOT_OK)
        status = speed_open(&run->speeds, &args->sized, err);
    if (status == ALLOT_OK)
        status = model_job_open(&run->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = name_outputs(run, err);
    if (status == ALLOT_OK)
        status = check_outputs(run, NULL, err);
    if (status == ALLOT_OK)
        status = constraints_bind(&run->constraints, run->job.model, err);
    for (size_t i = 0; status == ALLOT_OK && i < args->explained.n; i++)
        status = explain_check(run->job.model, args->explained.items[i], err);
    const bool needs_archive = !layout_given(&args->sized) || common->archive;
    if (status == ALLOT_OK)
        status = model_job_archive(&run->job, needs_archive ? ARCHIVE_EXISTING : ARCHIVE_OPPORTUNISTIC, err);
    if (status == ALLOT_OK && run->job.archive)
        status = model_job_hash(&run->job, progress, err);
    else if (status == ALLOT_OK) /* any hash has the length that sizes depend on */
        memset(run->job.sha256, '0', sizeof run->job.sha256 - 1);
    return status;
}

static allot_status load_costs(struct plan_run *run, const struct allot_progress *progress,
                               struct allot_error *err)
{
    allot_status status = layout_given(&run->args->sized)
                              ? layout_costs(&run->costs, &run->job, NULL, err)
                              : cost_table_newest(&run->costs, &run->job, NULL, err);
    const bool known = status == ALLOT_OK && run->costs.tensors;
    if (known)
        status = seen_text_is_own(&run->own_text, run->job.archive, &run->costs.set, err);
    if (known && status == ALLOT_OK)
        status = calibration_imatrix_of_set(&run->imatrix, &run->job, &run->costs.set, progress, err);
    if (status != ALLOT_OK || run->imatrix.computed)
        return status;
    for (size_t r = 0; r < run->ladder.n; r++) {
        free(run->outputs[r].imatrix_path);
        run->outputs[r].imatrix_path = run->imatrix.present ? strdup(run->imatrix.path) : NULL;
        if (run->imatrix.present && !run->outputs[r].imatrix_path)
            return allot_fail_memory(err, strlen(run->imatrix.path), "a path");
    }
    return run->imatrix.present ? check_outputs(run, run->imatrix.path, err) : ALLOT_OK;
}

/* The printed command is without an importance matrix where none is on record. */
static void note_importances(const struct type_plan *plan, const struct gguf_model *model,
                             const struct allot_progress *progress)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        n += plan->types[i] != model->tensors[i].type &&
             quant_type_needs_imatrix(plan->types[i], model->tensors[i].name);
    if (n)
        allot_note(progress,
                   "%" PRId64 " tensors can have their types only with an importance matrix, and none is on "
                   "record: give yours with --imatrix",
                   n);
}

/* The types of a layout, and what their costs on record add up to. */
static allot_status take_layout(struct plan_run *run, const struct allot_progress *progress,
                                struct allot_error *err)
{
    struct plan_output *out = &run->outputs[0];
    provenance_fill(&out->keys, &run->imatrix, out->imatrix_path, run->job.sha256);
    allot_status status = layout_plan(&out->plan, &run->layout, &run->job, &run->args->sized,
                                      run->imatrix.present, progress, err);
    if (status == ALLOT_OK)
        status = type_plan_measure(&out->plan, run->job.model, &out->keys, err);
    if (status == ALLOT_OK && !run->imatrix.present)
        note_importances(&out->plan, run->job.model, progress);
    if (status == ALLOT_OK && run->costs.tensors)
        type_plan_predict(&out->plan, run->job.model, &run->costs);
    return status;
}

/* All sizes, before anything is written for one. */
static allot_status solve(struct plan_run *run, const struct allot_progress *progress,
                          struct allot_error *err)
{
    allot_status status = knapsack_init(&run->knapsack, run->job.model, &run->costs, &run->constraints, err);
    if (status == ALLOT_OK)
        status = speed_set_times(&run->knapsack, &run->speeds, &run->args->sized, progress, err);
    for (size_t r = 0; status == ALLOT_OK && r < run->ladder.n; r++) {
        struct plan_output *out = &run->outputs[r];
        provenance_fill(&out->keys, &run->imatrix, out->imatrix_path, run->job.sha256);
        status = type_plan_solve_priced(&out->plan, &run->knapsack, &run->args->sized, &run->ladder.rungs[r],
                                        &out->keys, err);
        if (status == ALLOT_OK && run->args->sized.constraints.interactions)
            status = interactions_improve(&out->interaction, &out->plan, &run->job, &run->costs.set,
                                          &out->keys, err);
    }
    return status;
}

static allot_status write_files(struct plan_run *run, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t r = 0; run->args->output && status == ALLOT_OK && r < run->ladder.n; r++) {
        /* The larger first: where it does not fit, no recipe is left that speaks of it. */
        if (run->imatrix.computed)
            status = imatrix_write(&run->imatrix.data, run->outputs[r].imatrix_path, err);
        if (status == ALLOT_OK)
            status =
                type_plan_write_recipe(&run->outputs[r].plan, run->job.model, run->outputs[r].recipe, err);
    }
    return status;
}

static json_t *output_json(const struct plan_run *run, const struct plan_output *out, const char *command)
{
    const struct string_list *explained = &run->args->explained;
    json_t *document = json_object(), *list = json_array();
    type_plan_json(document, &out->plan, run->job.model);
    if (run->args->sized.constraints.interactions)
        json_put(document, "interactions", interactions_json(&out->interaction));
    for (size_t i = 0; i < explained->n; i++)
        json_array_append_new(list, explain_json(&out->plan, explained->items[i]));
    json_put(document, "explained", list);
    if (layout_given(&run->args->sized))
        json_put(document, "layouts", layout_use_json(&run->layout));
    json_put(document, "cost_set", run->costs.tensors ? json_text(run->costs.set.updated) : json_null());
    json_put(document, "own_text", run->costs.tensors ? json_boolean(run->own_text) : json_null());
    json_put(document, "recipe", run->args->output ? json_text(out->recipe) : json_null());
    json_put(document, "stock_command", json_text(command));
    return document;
}

static allot_status print_text(const struct plan_run *run, const struct plan_output *out, const char *command,
                               struct allot_error *err)
{
    const struct string_list *explained = &run->args->explained;
    const bool writes = run->args->output != NULL;
    if (run->args->sized.constraints.interactions)
        interactions_print(&out->interaction);
    if (layout_given(&run->args->sized))
        layout_use_print(&run->layout);
    allot_status status = type_plan_print(&out->plan, run->job.model, err);
    for (size_t i = 0; status == ALLOT_OK && i < explained->n; i++)
        status = explain_print(&out->plan, explained->items[i], err);
    if (writes)
        printf("\nwritten: %s%s%s\n", out->recipe, run->imatrix.computed ? ", " : "",
               run->imatrix.computed ? out->imatrix_path : "");
    printf("\nWith llama.cpp%s:\n  %s\n", writes ? "" : ", once -o RECIPE has written the recipe", command);
    return status;
}

static allot_status report_output(const void *user, size_t r, json_t **document, struct allot_error *err)
{
    const struct plan_run *run = user;
    const struct plan_output *out = &run->outputs[r];
    struct strbuf command = {0};
    allot_status status = type_plan_stock_command(&command, &out->plan, run->job.model, out->imatrix_path,
                                                  out->recipe, "OUT.gguf", err);
    if (status == ALLOT_OK && run->args->sized.common.json) {
        *document = output_json(run, out, command.data);
    } else if (status == ALLOT_OK) {
        if (run->ladder.n > 1)
            printf("%s== %s ==\n", r ? "\n" : "", run->ladder.rungs[r].text);
        status = print_text(run, out, command.data, err);
    }
    strbuf_release(&command);
    return status;
}

static allot_status print_all(const struct plan_run *run, struct allot_error *err)
{
    const bool json = run->args->sized.common.json;
    const struct type_plan *plans[MAX_RUNGS];
    for (size_t r = 0; r < run->ladder.n; r++)
        plans[r] = &run->outputs[r].plan;
    if (!json && run->costs.tensors)
        printf("costs:         %s, %s, %" PRId64 " tokens%s, of %s\n", run->job.archive_path,
               run->costs.set.method, run->costs.set.n_tokens,
               run->own_text ? " of the model's own text" : "", run->costs.set.updated);
    return type_plan_report(&run->ladder, plans, run->job.model, json, report_output, run, err);
}

static void release_run(struct plan_run *run)
{
    for (size_t r = 0; r < run->ladder.n; r++) {
        type_plan_release(&run->outputs[r].plan);
        free(run->outputs[r].recipe);
        free(run->outputs[r].imatrix_path);
    }
    knapsack_release(&run->knapsack);
    constraints_release(&run->constraints);
    layout_use_release(&run->layout);
    job_imatrix_release(&run->imatrix);
    cost_table_release(&run->costs);
    model_job_release(&run->job);
    free(run);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    struct plan_run *run = calloc(1, sizeof *run);
    if (!run)
        return allot_fail_memory(err, sizeof *run, "a run");
    run->args = arguments;
    allot_status status = open_run(run, progress, err);
    if (status == ALLOT_OK)
        status = load_costs(run, progress, err);
    if (status == ALLOT_OK)
        status =
            layout_given(&run->args->sized) ? take_layout(run, progress, err) : solve(run, progress, err);
    if (status == ALLOT_OK)
        status = write_files(run, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = print_all(run, err);
    release_run(run);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .synopsis = "MODEL (--size N | --bpw X | --like FILE | --budget RE=SIZE | --layout NAME | --hybrid "
                "base=NAME,GROUP=NAME,...) "
                "[-o RECIPE] [options]",
    .summary = "choose a type for every tensor within a size; write a recipe",
    .description =
        "Chooses one type per tensor so that the file is no larger than asked and the predicted "
        "KL divergence is least, "
        "from the newest complete costs that 'allot cost' left in the archive. The recipe is a "
        "--tensor-type-file for "
        "llama-quantize with one rule per tensor; the command line that uses it is printed. No "
        "weights are read.\n\n"
        "With --layout or --hybrid the types take after layouts instead, as they would be rebuilt from "
        "MODEL; costs are not needed, but where they are on record the predicted KL divergence is "
        "printed. What a layout keeps in F32, F16 or BF16 keeps the type that it has in MODEL.",
    .options = {&budget_options, &layout_options, &constraint_options, &speed_options, &options},
    .arguments_size = sizeof(struct plan_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
