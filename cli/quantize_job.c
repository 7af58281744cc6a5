/* quantize_job.c - the steps of allot quantize.  SPDX-License-Identifier: MIT */
#include "quantize_job.h"
#include "cost/candidates.h"
#include "cost/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "describe.h"
#include "quant/partial.h"
#include "quant/quant.h"
#include "recipe_types.h"

/* A user's recipe serves llama-quantize too unless --base had to complete it. */
static allot_status name_outputs(struct quantize_run *run, struct allot_error *err)
{
    const struct quantize_arguments *args = run->args;
    run->out_path = args->calibrated.sized.common.operands.items[1];
    run->writes_recipe = !args->recipe || args->base;
    run->recipe_path = run->writes_recipe ? text_printf("%s.recipe", run->out_path) : strdup(args->recipe);
    run->export_path = text_printf("%s.imatrix.gguf", run->out_path);
    if (!run->recipe_path || !run->export_path)
        return allot_fail_memory(err, strlen(run->out_path), "a path");
    return ALLOT_OK;
}

static allot_status check_outputs(const struct quantize_run *run, const struct job_inputs *inputs,
                                  bool exports_imatrix, struct allot_error *err)
{
    allot_status status = job_check_output(&run->job, inputs, run->out_path, err);
    if (status == ALLOT_OK && run->writes_recipe)
        status = job_check_output(&run->job, inputs, run->recipe_path, err);
    if (status == ALLOT_OK && exports_imatrix)
        status = job_check_output(&run->job, inputs, run->export_path, err);
    return status;
}

static int64_t write_memory(const struct quantize_run *run)
{
    const int64_t memory = run->args->calibrated.memory;
    return memory ? memory : memory_default_limit();
}

/* The most that plans with these types can give the tensors. */
static int64_t most_data_bytes(const struct gguf_model *model, const struct type_set *types)
{
    int64_t sum = 0;
    size_t n_known;
    const struct quant_type *known = quant_types(&n_known);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        int64_t most = 0;
        for (size_t k = 0; types->given && gguf_tensor_quantizable(t) && k < n_known; k++) {
            if (!types->has[known[k].type] || !quant_type_fits(known[k].type, t->ne[0]))
                continue;
            const int64_t bytes = (int64_t)ggml_row_size(known[k].type, t->ne[0]) * t->n_rows;
            most = bytes > most ? bytes : most;
        }
        sum += most ? most : t->n_bytes;
    }
    return sum;
}

/* Before hours of measuring: is there room for a file of the size asked, or the largest if that is less? */
static allot_status check_space(const struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    struct type_set types;
    int64_t wanted = 0;
    allot_status status = type_set_parse(&types, args->types, err);
    if (status == ALLOT_OK)
        status = budget_resolve(&wanted, &args->sized, run->job.model, 0, err);
    if (status != ALLOT_OK)
        return status;
    const int64_t most = most_data_bytes(run->job.model, &types);
    return partial_require_space(run->out_path, most < wanted ? most : wanted, err);
}

/* Likewise: is there memory to write any plan? The largest types that one can have need most. */
static allot_status check_memory(const struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    const struct gguf_model *model = run->job.model;
    enum ggml_type candidates[GGML_TYPE_COUNT], legal[GGML_TYPE_COUNT];
    struct type_set set;
    allot_status status = type_set_parse(&set, args->types, err);
    if (status != ALLOT_OK)
        return status;
    const size_t n = calibration_candidates(candidates, &set);
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    if (!types)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *types, "types");
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        const size_t n_legal =
            gguf_tensor_quantizable(t) ? candidates_legal(t, !args->no_imatrix, candidates, n, legal) : 0;
        types[i] = n_legal ? legal[n_legal - 1] : t->type;
    }
    const struct quantize_job job = {
        .model = model, .types = types, .out_path = run->out_path, .memory = write_memory(run)};
    status = quantize_check_memory(&job, pool_threads(run->pool), err);
    free(types);
    return status;
}

static allot_status check_before_work(const struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    const struct job_inputs inputs = {.files = {args->imatrix, args->sized.like, run->args->recipe},
                                      .texts = &args->texts};
    const bool exports_imatrix = !run->args->recipe && !args->imatrix && !args->no_imatrix;
    allot_status status = check_outputs(run, &inputs, exports_imatrix, err);
    return status == ALLOT_OK && run->measures ? check_space(run, err) : status;
}

static allot_status open_calibration(struct quantize_run *run, struct allot_error *err)
{
    allot_status status =
        calibration_open(&run->calibration, &run->job, run->pool, run->args->calibrated.memory,
                         calibration_method(&run->args->calibrated), err);
    if (status == ALLOT_OK)
        status = calibration_read(&run->calibration, &run->args->calibrated, run->progress, err);
    return status;
}

allot_status quantize_run_open(struct quantize_run *run, struct allot_error *err)
{
    const struct common_arguments *common = &run->args->calibrated.sized.common;
    enum archive_use use = ARCHIVE_EXISTING;
    run->measures = !run->args->recipe && calibration_wanted(&run->args->calibrated);
    if (run->args->recipe)
        use = ARCHIVE_OPPORTUNISTIC;
    else if (run->measures)
        use = ARCHIVE_CREATE;
    allot_status status = name_outputs(run, err);
    if (status == ALLOT_OK)
        status = model_job_open(&run->job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = check_before_work(run, err);
    if (status == ALLOT_OK)
        status = pool_new(&run->pool, (int)common->threads, err);
    if (status == ALLOT_OK && run->measures)
        status = check_memory(run, err);
    if (status == ALLOT_OK && run->measures)
        status = open_calibration(run, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&run->job, use, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&run->job, run->progress, err);
    return status;
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
    calibration_close(&run->calibration);
    return status;
}

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
    status = cost_table_newest(costs, &run->job, wanted, err);
    if (status == ALLOT_OK && !args->imatrix)
        status = calibration_imatrix_of_set(&run->imatrix, &run->job, &costs->set, run->progress, err);
    const struct job_inputs inputs = {.files = {run->imatrix.path}};
    return status == ALLOT_OK ? check_outputs(run, &inputs, false, err) : status;
}

/* Where llama-quantize finds the imatrix, and the keys that tell of it. */
static allot_status name_imatrix(struct quantize_run *run, struct allot_error *err)
{
    if (run->imatrix.present) {
        run->imatrix_path = strdup(run->imatrix.computed ? run->export_path : run->imatrix.path);
        if (!run->imatrix_path)
            return allot_fail_memory(err, strlen(run->out_path), "a path");
    }
    provenance_fill(&run->keys, &run->imatrix, run->imatrix_path, run->job.sha256);
    return ALLOT_OK;
}

allot_status quantize_run_plan(struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    struct cost_table costs = {0};
    struct type_set types;
    allot_status status = type_set_parse(&types, args->types, err);
    if (status == ALLOT_OK)
        status = run->measures ? measured_costs(run, &costs, err) : recorded_costs(run, &costs, err);
    if (status == ALLOT_OK)
        status = name_imatrix(run, err);
    if (status == ALLOT_OK)
        status = type_plan_solve(&run->plan, run->job.model, &costs, &types, &args->sized, &run->keys, err);
    cost_table_release(&costs);
    return status;
}

/* ---- Types by a recipe ----------------------------------------------------------------------- */

static allot_status recipe_tensor_type(struct quantize_run *run, const struct recipe *recipe,
                                       const struct gguf_tensor *tensor, enum ggml_type *out,
                                       struct allot_error *err)
{
    int wanted = recipe_type(recipe, tensor->name);
    if (wanted < 0 && run->args->base)
        wanted = (int)quant_type_by_name(run->args->base)->type;
    if (wanted < 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: no rule for tensor %s; --base gives a type to those not mentioned",
                          run->args->recipe, tensor->name);
    *out = recipe_written_type((enum ggml_type)wanted, tensor);
    if (*out == (enum ggml_type)wanted)
        return ALLOT_OK;
    if (run->args->strict)
        return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                          "%s: tensor %s has rows of %" PRId64
                          ", no multiple of %s's block; llama-quantize would "
                          "write %s, and --strict refuses that",
                          run->args->recipe, tensor->name, tensor->ne[0], type_label((enum ggml_type)wanted),
                          type_label(*out));
    run->n_fallbacks++;
    allot_note(run->progress, "%s: rows of %" PRId64 " do not fit %s; %s instead", tensor->name,
               tensor->ne[0], type_label((enum ggml_type)wanted), type_label(*out));
    return ALLOT_OK;
}

static allot_status recipe_types(struct quantize_run *run, const struct recipe *recipe,
                                 struct allot_error *err)
{
    const struct gguf_model *model = run->job.model;
    allot_status status = ALLOT_OK;
    const char *rule;
    run->plan.types = calloc((size_t)model->n_tensors + 1, sizeof *run->plan.types);
    if (!run->plan.types)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *run->plan.types, "types");
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++) {
        run->plan.types[i] = model->tensors[i].type;
        if (gguf_tensor_quantizable(&model->tensors[i]))
            status = recipe_tensor_type(run, recipe, &model->tensors[i], &run->plan.types[i], err);
    }
    for (size_t i = 0; status == ALLOT_OK && (rule = recipe_unused_rule(recipe, i)) != NULL; i++)
        allot_note(run->progress, "%s: the rule '%s' matches no tensor", run->args->recipe, rule);
    return status;
}

allot_status quantize_run_recipe(struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    struct recipe *recipe = NULL;
    allot_status status = recipe_open(&recipe, run->args->recipe, err);
    if (status == ALLOT_OK)
        status = recipe_check(recipe, run->job.model, run->args->recipe, err);
    if (status == ALLOT_OK && args->imatrix)
        status = job_imatrix_read(&run->imatrix, args->imatrix, run->job.model, run->progress, err);
    if (status == ALLOT_OK)
        status = name_imatrix(run, err);
    if (status == ALLOT_OK)
        status = recipe_types(run, recipe, err);
    if (status == ALLOT_OK)
        status = type_plan_measure(&run->plan, run->job.model, &run->keys, err);
    recipe_free(recipe);
    return status;
}

/* ---- Writing
 * ------------------------------------------------------------------------------------------------ */

static void job_identity(char hex[static HASH_HEX], const struct quantize_run *run)
{
    struct strbuf sb = {0};
    strbuf_addf(&sb, "model %s imatrix %s %s", run->job.sha256,
                run->imatrix.present ? run->imatrix.data.sha256 : "none", cost_version());
    hash_bytes(hex, sb.data ? sb.data : "", sb.len);
    strbuf_release(&sb);
}

/* The recipe of a plan and the imatrix that was computed here. */
static allot_status write_companions(struct quantize_run *run, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    if (run->imatrix.present && run->imatrix.computed)
        status = imatrix_write(&run->imatrix.data, run->imatrix_path, err);
    if (status == ALLOT_OK && run->writes_recipe)
        status = type_plan_write_recipe(&run->plan, run->job.model, run->recipe_path, err);
    return status;
}

allot_status quantize_run_write(struct quantize_run *run, struct allot_error *err)
{
    char identity[HASH_HEX];
    float **weights = NULL;
    allot_status status = job_imatrix_weights(&weights, &run->imatrix, run->job.model, err);
    job_identity(identity, run);
    const struct quantize_job job = {
        .model = run->job.model,
        .types = run->plan.types,
        .imatrix = (const float *const *)weights,
        .file_type = (uint32_t)run->plan.base->file_type,
        .keys = run->keys.keys,
        .n_keys = run->keys.n_keys,
        .out_path = run->out_path,
        .identity = identity,
        .memory = write_memory(run),
    };
    if (status == ALLOT_OK)
        status = quantize_write(&job, run->pool, &run->result, run->progress, err);
    if (status == ALLOT_OK && run->result.file_bytes != run->plan.file_bytes)
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "%s: has %" PRId64 " bytes, planned were %" PRId64,
                            run->out_path, run->result.file_bytes, run->plan.file_bytes);
    if (status == ALLOT_ERR_INTERRUPTED)
        allot_fail(err, status,
                   "interrupted; %s.allot-partial keeps the finished tensors, and the same command goes "
                   "on from there",
                   run->out_path);
    if (status == ALLOT_OK)
        status = write_companions(run, err);
    job_imatrix_weights_free(weights, run->job.model);
    return status;
}

/* ---- Report
 * --------------------------------------------------------------------------------------------------- */

static allot_status report_json(const struct quantize_run *run, const char *command, struct allot_error *err)
{
    json_t *document = json_object();
    json_put(document, "file", json_text(run->out_path));
    json_put(document, "sha256", json_text(run->result.sha256));
    json_put(document, "recipe", json_text(run->recipe_path));
    json_put(document, "imatrix", run->imatrix_path ? json_text(run->imatrix_path) : json_null());
    json_put(document, "fallbacks", json_integer(run->n_fallbacks));
    json_put(document, "floored_tensors", json_integer(run->result.floored_tensors));
    json_put(document, "resumed_tensors", json_integer(run->result.resumed_tensors));
    json_put(document, "stock_command", json_text(command));
    type_plan_json(document, &run->plan, run->job.model);
    return json_print(document, err);
}

static allot_status report_text(const struct quantize_run *run, const char *command, struct allot_error *err)
{
    printf("written:       %s", run->out_path);
    if (run->writes_recipe)
        printf(", %s", run->recipe_path);
    if (run->imatrix.computed)
        printf(", %s", run->imatrix_path);
    printf("\nSHA-256:       %s\n", run->result.sha256);
    allot_status status = type_plan_print(&run->plan, run->job.model, err);
    if (run->n_fallbacks)
        printf("\n%" PRId64
               " tensors have another type than their rule says, because their rows do not fit it.\n",
               run->n_fallbacks);
    if (run->result.floored_tensors)
        printf("\n%" PRId64
               " tensors needed a floor under zero importances; llama-quantize would refuse them or lose "
               "weights.\n",
               run->result.floored_tensors);
    printf("\nThe same tensors with llama.cpp, in place of this file:\n  %s\n", command);
    return status;
}

allot_status quantize_run_report(const struct quantize_run *run, struct allot_error *err)
{
    struct strbuf command = {0};
    allot_status status = type_plan_stock_command(&command, &run->plan, run->job.model, run->imatrix_path,
                                                  run->recipe_path, run->out_path, err);
    if (status == ALLOT_OK)
        status = run->args->calibrated.sized.common.json ? report_json(run, command.data, err)
                                                         : report_text(run, command.data, err);
    strbuf_release(&command);
    return status;
}

void quantize_run_release(struct quantize_run *run)
{
    type_plan_release(&run->plan);
    job_imatrix_release(&run->imatrix);
    calibration_close(&run->calibration);
    model_job_release(&run->job);
    pool_free(run->pool);
    free(run->recipe_path);
    free(run->imatrix_path);
    free(run->export_path);
}
