/* quantize_job.c - the steps of allot quantize.  SPDX-License-Identifier: MIT */
#include "quantize_job.h"
#include "cost/candidates.h"
#include "cost/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "describe.h"
#include "quant/partial.h"
#include "quant/quant.h"
#include "seen_text.h"
#include "speed_price.h"

bool quantize_types_given(const struct quantize_arguments *args)
{
    return args->recipe || args->codes || layout_given(&args->calibrated.sized);
}

/* A user's recipe serves llama-quantize too unless --base had to complete it. */
static allot_status name_outputs(struct quantize_run *run, struct allot_error *err)
{
    const struct quantize_arguments *args = run->args;
    const char *path = args->calibrated.sized.common.operands.items[1];
    run->writes_recipe = !args->recipe || args->base;
    for (size_t r = 0; r < run->ladder.n; r++) {
        struct quantize_output *out = &run->outputs[r];
        out->path = ladder_path(path, &run->ladder.rungs[r]);
        if (out->path) {
            out->recipe_path =
                run->writes_recipe ? text_printf("%s.recipe", out->path) : strdup(args->recipe);
            out->export_path = text_printf("%s.imatrix.gguf", out->path);
        }
        if (!out->recipe_path || !out->export_path)
            return allot_fail_memory(err, strlen(path), "a path");
    }
    return ALLOT_OK;
}

static allot_status check_outputs(const struct quantize_run *run, const struct job_inputs *inputs,
                                  bool exports_imatrix, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t r = 0; status == ALLOT_OK && r < run->ladder.n; r++) {
        const struct quantize_output *out = &run->outputs[r];
        status = job_check_output(&run->job, inputs, out->path, err);
        if (status == ALLOT_OK && run->writes_recipe)
            status = job_check_output(&run->job, inputs, out->recipe_path, err);
        if (status == ALLOT_OK && exports_imatrix)
            status = job_check_output(&run->job, inputs, out->export_path, err);
    }
    return status;
}

static int64_t write_memory(const struct quantize_run *run)
{
    const int64_t memory = run->args->calibrated.memory;
    return memory ? memory : memory_default_limit();
}

/* The largest type that a plan can give the tensor. */
static enum ggml_type largest_type(const struct quantize_run *run, int64_t index,
                                   const enum ggml_type *candidates, size_t n)
{
    const struct gguf_tensor *t = &run->job.model->tensors[index];
    enum ggml_type legal[GGML_TYPE_COUNT], pinned;
    bool fallback;
    if (!gguf_tensor_quantizable(t))
        return t->type;
    if (!run->args->recipe && constraint_pinned(&run->constraints, run->job.model, index, &pinned, &fallback))
        return pinned;
    const size_t n_legal = candidates_legal(t, !run->args->calibrated.no_imatrix, candidates, n, legal);
    return n_legal ? legal[n_legal - 1] : t->type;
}

/* Before hours of measuring: is there room for files of the sizes asked, or the largest if that is less, and
 * memory to write any plan? The largest types that one can have need most. */
static allot_status check_room(const struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    const struct gguf_model *model = run->job.model;
    enum ggml_type candidates[GGML_TYPE_COUNT];
    size_t n;
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    int64_t most = 0, total = 0;
    allot_status status = calibration_types(candidates, &n, args, err);
    if (status == ALLOT_OK && !types)
        status = allot_fail_memory(err, (size_t)model->n_tensors * sizeof *types, "types");
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        types[i] = largest_type(run, i, candidates, n);
        const int64_t bytes = (int64_t)ggml_row_size(types[i], t->ne[0]) * t->n_rows;
        most += !run->constraints.allowed.given && t->n_bytes > bytes ? t->n_bytes : bytes;
    }
    for (size_t r = 0; status == ALLOT_OK && r < run->ladder.n; r++) {
        int64_t wanted = 0;
        status = budget_resolve(&wanted, &args->sized, &run->ladder.rungs[r], model, 0, err);
        if (__builtin_add_overflow(total, most < wanted ? most : wanted, &total))
            total = INT64_MAX;
    }
    if (status == ALLOT_OK)
        status = partial_require_space(run->outputs[0].path, total, err);
    const struct quantize_job job = {
        .model = model, .types = types, .out_path = run->outputs[0].path, .memory = write_memory(run)};
    if (status == ALLOT_OK)
        status = quantize_check_memory(&job, pool_threads(run->pool), err);
    free(types);
    return status;
}

static allot_status check_before_work(const struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    const struct job_inputs inputs = {.files = {args->imatrix, args->sized.like,
                                                run->args->recipe  ? run->args->recipe
                                                : run->args->codes ? run->args->codes
                                                                   : args->sized.speed.table,
                                                layout_given(&args->sized) ? LAYOUTS_ARCHIVE : NULL},
                                      .texts = &args->texts};
    const bool exports_imatrix =
        !run->args->recipe && !run->args->codes && !args->imatrix && !args->no_imatrix;
    return check_outputs(run, &inputs, exports_imatrix, err);
}

static allot_status open_calibration(struct quantize_run *run, struct allot_error *err)
{
    allot_status status =
        calibration_open(&run->calibration, &run->job, run->pool, run->args->calibrated.memory,
                         calibration_method(&run->args->calibrated), err);
    run->calibration.rounding = &run->rounding;
    if (status == ALLOT_OK)
        status = calibration_read(&run->calibration, &run->args->calibrated, run->progress, err);
    return status;
}

/* Has the archive costs of the model to plan from, or of texts that only the user can give again? Costs of
 * the model's own text that were interrupted are gone on with. */
static allot_status find_recorded(bool *recorded, struct quantize_run *run, struct allot_error *err)
{
    struct archive_cost_set_info *sets = NULL;
    size_t n = 0;
    allot_status status = cost_sets(&sets, &n, &run->job, err);
    *recorded = false;
    for (size_t i = 0; i < n && status == ALLOT_OK && !*recorded; i++) {
        struct cost_table table;
        bool own = false;
        if (sets[i].n_rows == 0)
            continue;
        status = cost_table_load(&table, &run->job, &sets[i], err);
        if (status != ALLOT_OK)
            break;
        *recorded = table.n_measured > 0;
        cost_table_release(&table);
        if (!*recorded)
            status = seen_text_is_own(&own, run->job.archive, &sets[i], err);
        *recorded |= status == ALLOT_OK && !own;
    }
    free(sets);
    return status;
}

/* Are costs to be measured? They are if the arguments ask for it, and where none are on record. */
static allot_status decide_to_measure(struct quantize_run *run, struct allot_error *err)
{
    bool recorded = false;
    run->measures = !quantize_types_given(run->args);
    if (!run->measures || calibration_wanted(&run->args->calibrated) ||
        access(run->job.archive_path, F_OK) != 0)
        return ALLOT_OK;
    allot_status status = model_job_archive(&run->job, ARCHIVE_EXISTING, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&run->job, run->progress, err);
    if (status == ALLOT_OK)
        status = find_recorded(&recorded, run, err);
    run->measures = !recorded;
    return status;
}

static allot_status open_archive(struct quantize_run *run, struct allot_error *err)
{
    const enum archive_use use = quantize_types_given(run->args) ? ARCHIVE_OPPORTUNISTIC : ARCHIVE_CREATE;
    allot_status status = run->job.archive ? ALLOT_OK : model_job_archive(&run->job, use, err);
    return status == ALLOT_OK ? model_job_hash(&run->job, run->progress, err) : status;
}

allot_status quantize_run_open(struct quantize_run *run, struct allot_error *err)
{
    const struct common_arguments *common = &run->args->calibrated.sized.common;
    allot_status status = ladder_parse(&run->ladder, &run->args->calibrated.sized, err);
    if (status == ALLOT_OK)
        status = name_outputs(run, err);
    if (status == ALLOT_OK)
        status = constraints_parse(&run->constraints, run->args->calibrated.types,
                                   &run->args->calibrated.sized.constraints, err);
    if (status == ALLOT_OK)
        status = speed_open(&run->speeds, &run->args->calibrated.sized, err);
    if (status == ALLOT_OK)
        status = model_job_open(&run->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = check_before_work(run, err);
    if (status == ALLOT_OK)
        status = constraints_bind(&run->constraints, run->job.model, err);
    if (status == ALLOT_OK)
        status = pool_new(&run->pool, (int)common->threads, err);
    if (status == ALLOT_OK)
        status = calibration_rounding(&run->rounding, &run->job, &run->args->calibrated, err);
    if (status == ALLOT_OK)
        status = decide_to_measure(run, err);
    if (status == ALLOT_OK && run->measures)
        status = check_room(run, err);
    if (status == ALLOT_OK && run->measures)
        status = open_calibration(run, err);
    return status == ALLOT_OK ? open_archive(run, err) : status;
}

/* ---- Types by costs -------------------------------------------------------------------------- */

static allot_status measured_costs(struct quantize_run *run, struct cost_table *costs,
                                   struct allot_error *err)
{
    struct calibration_result result;
    allot_status status = calibration_chosen_imatrix(&run->imatrix, &run->calibration, &run->args->calibrated,
                                                     run->progress, err);
    if (status == ALLOT_OK)
        status = calibration_costs(&result, &run->calibration, &run->args->calibrated, &run->imatrix,
                                   run->progress, err);
    if (status == ALLOT_OK)
        status = cost_table_load(costs, &run->job, &result.set, err);
    return status;
}

/* Of layouts the costs are not needed: without any on record costs->tensors is NULL. */
static allot_status recorded_costs(struct quantize_run *run, struct cost_table *costs,
                                   struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    allot_status status = ALLOT_OK;
    if (args->imatrix)
        status = job_imatrix_read(&run->imatrix, args->imatrix, run->job.model, run->progress, err);
    if (status != ALLOT_OK)
        return status;
    const char *wanted = args->no_imatrix ? "" : args->imatrix ? run->imatrix.data.sha256 : NULL;
    status = layout_given(&args->sized) ? layout_costs(costs, &run->job, wanted, err)
                                        : cost_table_newest(costs, &run->job, wanted, err);
    if (status == ALLOT_OK && costs->tensors && !args->imatrix)
        status = calibration_imatrix_of_set(&run->imatrix, &run->job, &costs->set, run->progress, err);
    const struct job_inputs inputs = {.files = {run->imatrix.path}};
    return status == ALLOT_OK ? check_outputs(run, &inputs, false, err) : status;
}

allot_status quantize_name_imatrix(struct quantize_run *run, struct allot_error *err)
{
    for (size_t r = 0; r < run->ladder.n; r++) {
        struct quantize_output *out = &run->outputs[r];
        if (run->imatrix.present) {
            out->imatrix_path = strdup(run->imatrix.computed ? out->export_path : run->imatrix.path);
            if (!out->imatrix_path)
                return allot_fail_memory(err, strlen(out->path), "a path");
        }
        provenance_fill(&out->keys, &run->imatrix, out->imatrix_path, run->job.sha256);
        rounding_job_provenance(&run->rounding, &out->keys);
    }
    return ALLOT_OK;
}

static allot_status plan_output(struct quantize_run *run, size_t index,
                                const struct archive_cost_set_info *set, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    struct quantize_output *out = &run->outputs[index];
    const struct rung *rung = &run->ladder.rungs[index];
    allot_status status =
        type_plan_solve_priced(&out->plan, &run->knapsack, &args->sized, rung, &out->keys, err);
    if (status == ALLOT_OK && args->sized.constraints.interactions)
        status = interactions_improve(&out->interaction, &out->plan, &run->job, set, &out->keys, err);
    if (status == ALLOT_OK && run->args->refine > 0)
        status = refine_plan(&out->refinement, &out->plan, &run->knapsack, &run->calibration, args, rung,
                             &out->keys, run->imatrix.present ? &run->imatrix.data : NULL, run->args->refine,
                             run->progress, err);
    return status;
}

allot_status quantize_run_plan(struct quantize_run *run, struct allot_error *err)
{
    struct cost_table costs = {0};
    allot_status status = run->measures ? measured_costs(run, &costs, err) : recorded_costs(run, &costs, err);
    if (status == ALLOT_OK)
        status = seen_text_is_own(&run->own_text, run->job.archive, &costs.set, err);
    if (status == ALLOT_OK)
        status = quantize_name_imatrix(run, err);
    if (status == ALLOT_OK)
        status = knapsack_init(&run->knapsack, run->job.model, &costs, &run->constraints, err);
    if (status == ALLOT_OK)
        status =
            speed_set_times(&run->knapsack, &run->speeds, &run->args->calibrated.sized, run->progress, err);
    for (size_t r = 0; status == ALLOT_OK && r < run->ladder.n; r++)
        status = plan_output(run, r, &costs.set, err);
    cost_table_release(&costs);
    calibration_close(&run->calibration); /* writing wants its memory */
    return status;
}

/* ---- Types by layouts ------------------------------------------------------------------------ */

allot_status quantize_run_layout(struct quantize_run *run, struct allot_error *err)
{
    struct cost_table costs = {0};
    struct quantize_output *out = &run->outputs[0];
    allot_status status = recorded_costs(run, &costs, err);
    if (status == ALLOT_OK)
        status = quantize_name_imatrix(run, err);
    if (status == ALLOT_OK)
        status = layout_plan(&out->plan, &run->layout, &run->job, &run->args->calibrated.sized,
                             run->imatrix.present, run->progress, err);
    if (status == ALLOT_OK)
        status = type_plan_measure(&out->plan, run->job.model, &out->keys, err);
    if (status == ALLOT_OK && costs.tensors && !run->rounding.compensated)
        type_plan_predict(&out->plan, run->job.model, &costs);
    cost_table_release(&costs);
    return status;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static void job_identity(char hex[static HASH_HEX], const struct quantize_run *run)
{
    struct strbuf sb = {0};
    strbuf_addf(&sb, "model %s imatrix %s %s%s%s", run->job.sha256,
                run->imatrix.present ? run->imatrix.data.sha256 : "none", cost_version(),
                run->rounding.compensated ? " compensated " : "", run->rounding.windows.sha256);
    hash_bytes(hex, sb.data ? sb.data : "", sb.len);
    strbuf_release(&sb);
}

/* The recipe of a plan and the imatrix that was computed here. */
static allot_status write_companions(const struct quantize_run *run, const struct quantize_output *out,
                                     struct imatrix *imatrix, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    if (run->imatrix.present && run->imatrix.computed)
        status = imatrix_write(imatrix, out->imatrix_path, err);
    if (status == ALLOT_OK && run->writes_recipe)
        status = type_plan_write_recipe(&out->plan, run->job.model, out->recipe_path, err);
    return status;
}

static struct quantize_job job_of(const struct quantize_run *run, const struct quantize_output *out,
                                  float **weights, const char *identity)
{
    return (struct quantize_job){
        .model = run->job.model,
        .types = out->plan.types,
        .imatrix = (const float *const *)weights,
        .file_type = (uint32_t)out->plan.base->file_type,
        .keys = out->keys.keys,
        .n_keys = out->keys.n_keys,
        .rounding = rounding_job_hooks(&run->rounding),
        .out_path = out->path,
        .identity = identity,
        .memory = write_memory(run),
    };
}

static allot_status write_output(struct quantize_run *run, struct quantize_output *out, float **weights,
                                 struct allot_error *err)
{
    char identity[HASH_HEX];
    job_identity(identity, run);
    const struct quantize_job job = job_of(run, out, weights, identity);
    allot_status status = quantize_write(&job, run->pool, &out->result, run->progress, err);
    if (status == ALLOT_OK && out->result.file_bytes != out->plan.file_bytes)
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "%s: has %" PRId64 " bytes, planned were %" PRId64,
                            out->path, out->result.file_bytes, out->plan.file_bytes);
    if (status == ALLOT_ERR_INTERRUPTED)
        allot_fail(err, status,
                   "interrupted; %s.allot-partial keeps the finished tensors, and the same command goes "
                   "on from there",
                   out->path);
    return status == ALLOT_OK ? write_companions(run, out, &run->imatrix.data, err) : status;
}

allot_status quantize_run_write(struct quantize_run *run, struct allot_error *err)
{
    float **weights = NULL;
    allot_status status = job_imatrix_weights(&weights, &run->imatrix, run->job.model, err);
    /* Before a pass through the model. */
    for (size_t r = 0; status == ALLOT_OK && run->rounding.compensated && r < run->ladder.n; r++) {
        const struct quantize_job job = job_of(run, &run->outputs[r], weights, "");
        status = quantize_check(&job, err);
    }
    if (status == ALLOT_OK)
        status =
            rounding_job_collect(&run->rounding, &run->job, run->pool, write_memory(run), run->progress, err);
    if (run->rounding.rounding)
        rounding_take_result(run->rounding.rounding); /* that of the costs */
    for (size_t r = 0; status == ALLOT_OK && r < run->ladder.n; r++) {
        status = write_output(run, &run->outputs[r], weights, err);
        if (run->rounding.rounding)
            run->outputs[r].rounding = rounding_take_result(run->rounding.rounding);
    }
    job_imatrix_weights_free(weights, run->job.model);
    return status;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

static json_t *output_json(const struct quantize_run *run, const struct quantize_output *out,
                           const char *command)
{
    json_t *document = json_object();
    json_put(document, "file", json_text(out->path));
    json_put(document, "sha256", json_text(out->result.sha256));
    json_put(document, "recipe", json_text(out->recipe_path));
    json_put(document, "imatrix", out->imatrix_path ? json_text(out->imatrix_path) : json_null());
    json_put(document, "own_text",
             quantize_types_given(run->args) ? json_null() : json_boolean(run->own_text));
    if (layout_given(&run->args->calibrated.sized))
        json_put(document, "layouts", layout_use_json(&run->layout));
    json_put(document, "fallbacks", json_integer(run->n_fallbacks));
    json_put(document, "floored_tensors", json_integer(out->result.floored_tensors));
    json_put(document, "resumed_tensors", json_integer(out->result.resumed_tensors));
    json_put(document, "stock_command", json_text(command));
    if (run->rounding.compensated)
        json_put(document, "rounding", rounding_json(&out->rounding));
    type_plan_json(document, &out->plan, run->job.model);
    if (run->args->calibrated.sized.constraints.interactions)
        json_put(document, "interactions", interactions_json(&out->interaction));
    if (out->refinement.n)
        json_put(document, "refinement", refinement_json(&out->refinement));
    return document;
}

static allot_status print_text(const struct quantize_run *run, const struct quantize_output *out,
                               const char *command, struct allot_error *err)
{
    printf("written:       %s", out->path);
    if (run->writes_recipe)
        printf(", %s", out->recipe_path);
    if (run->imatrix.computed)
        printf(", %s", out->imatrix_path);
    printf("\nSHA-256:       %s\n", out->result.sha256);
    if (run->own_text)
        printf("calibration:   text of the model's own\n");
    if (run->rounding.compensated)
        rounding_print(&out->rounding);
    if (run->args->calibrated.sized.constraints.interactions)
        interactions_print(&out->interaction);
    if (out->refinement.n)
        refinement_print(&out->refinement);
    if (layout_given(&run->args->calibrated.sized))
        layout_use_print(&run->layout);
    allot_status status = type_plan_print(&out->plan, run->job.model, err);
    if (run->n_fallbacks)
        printf("\n%" PRId64
               " tensors have another type than their rule says, because their rows do not fit it.\n",
               run->n_fallbacks);
    if (out->result.floored_tensors)
        printf("\n%" PRId64
               " tensors needed a floor under zero importances; llama-quantize would refuse them or lose "
               "weights.\n",
               out->result.floored_tensors);
    printf("\nThe same %s with llama.cpp, in place of this file:\n  %s\n",
           run->rounding.compensated ? "types, but rounded as ggml does," : "tensors", command);
    return status;
}

static allot_status report_output(const void *user, size_t r, json_t **document, struct allot_error *err)
{
    const struct quantize_run *run = user;
    const struct quantize_output *out = &run->outputs[r];
    struct strbuf command = {0};
    allot_status status = type_plan_stock_command(&command, &out->plan, run->job.model, out->imatrix_path,
                                                  out->recipe_path, out->path, err);
    if (status == ALLOT_OK && run->args->calibrated.sized.common.json) {
        *document = output_json(run, out, command.data);
    } else if (status == ALLOT_OK) {
        if (r > 0)
            putchar('\n');
        status = print_text(run, out, command.data, err);
    }
    strbuf_release(&command);
    return status;
}

allot_status quantize_run_report(const struct quantize_run *run, struct allot_error *err)
{
    const struct type_plan *plans[MAX_RUNGS];
    for (size_t r = 0; r < run->ladder.n; r++)
        plans[r] = &run->outputs[r].plan;
    return type_plan_report(&run->ladder, plans, run->job.model, run->args->calibrated.sized.common.json,
                            report_output, run, err);
}

void quantize_run_release(struct quantize_run *run)
{
    for (size_t r = 0; r < run->ladder.n; r++) {
        type_plan_release(&run->outputs[r].plan);
        free(run->outputs[r].path);
        free(run->outputs[r].recipe_path);
        free(run->outputs[r].imatrix_path);
        free(run->outputs[r].export_path);
    }
    knapsack_release(&run->knapsack);
    constraints_release(&run->constraints);
    layout_use_release(&run->layout);
    job_imatrix_release(&run->imatrix);
    calibration_close(&run->calibration);
    rounding_job_release(&run->rounding);
    model_job_release(&run->job);
    pool_free(run->pool);
}
