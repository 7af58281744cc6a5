/* type_plan.c - from measured costs and a budget to one type per tensor.  SPDX-License-Identifier: MIT */
#include "type_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "describe.h"
#include "plan/recipe.h"
#include "quant/quant.h"
#include "rounding.h"

/* ---- Costs ----------------------------------------------------------------------------------- */

struct load_state {
    const struct gguf_model *model;
    struct cost_table *table;
};

static bool load_row(void *user, const char *tensor_name, const struct archive_cost *row)
{
    struct load_state *state = user;
    const struct gguf_tensor *tensor = gguf_model_tensor(state->model, tensor_name);
    const struct quant_type *type = quant_type_by_name(row->type);
    if (!tensor || !type || !state->table->types[type->type] || !gguf_tensor_quantizable(tensor) ||
        !quant_type_fits(type->type, tensor->ne[0]))
        return false;
    struct tensor_costs *costs = &state->table->tensors[tensor - state->model->tensors];
    bool usable = row->feasible && isfinite(row->cost) && row->cost >= 0;
    state->table->n_measured += costs->n == 0 && costs->n_infeasible == 0;
    if (!usable) {
        costs->infeasible[type->type] = true;
        costs->n_infeasible++;
    } else if (type->type != tensor->type && costs->n < GGML_TYPE_COUNT) {
        int64_t bytes = (int64_t)ggml_row_size(type->type, tensor->ne[0]) * tensor->n_rows;
        costs->std_err[costs->n] = row->std_err;
        costs->choices[costs->n++] =
            (struct plan_choice){.type = (int)type->type, .bytes = gguf_padded(bytes), .cost = row->cost};
    }
    return false;
}

/* The types of the program's table that the set has finished. */
static allot_status finished_types(bool *finished, struct archive *archive, int64_t set_id,
                                   struct allot_error *err)
{
    const char *names[GGML_TYPE_COUNT];
    bool marks[GGML_TYPE_COUNT];
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t i = 0; i < n; i++)
        names[i] = types[i].name;
    allot_status status = archive_cost_finished(archive, set_id, names, n, marks, err);
    for (size_t i = 0; status == ALLOT_OK && i < n; i++)
        finished[types[i].type] = marks[i];
    return status;
}

bool cost_set_in_nats(const struct archive_cost_set_info *set)
{
    return strcmp(set->method, "weight") != 0;
}

const char *cost_set_unit(const struct archive_cost_set_info *set)
{
    return cost_set_in_nats(set) ? "nats per token" : "relative error";
}

allot_status cost_table_load(struct cost_table *table, struct model_job *job,
                             const struct archive_cost_set_info *set, struct allot_error *err)
{
    const struct gguf_model *model = job->model;
    struct load_state state = {model, table};
    memset(table, 0, sizeof *table);
    table->set = *set;
    table->tensors = calloc((size_t)model->n_tensors + 1, sizeof *table->tensors);
    if (!table->tensors)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *table->tensors, "costs");
    allot_status status = finished_types(table->types, job->archive, set->id, err);
    if (status == ALLOT_OK)
        status = archive_cost_each(job->archive, set->id, false, load_row, &state, err);
    if (status != ALLOT_OK)
        cost_table_release(table);
    return status;
}

void cost_table_release(struct cost_table *table)
{
    free(table->tensors);
    memset(table, 0, sizeof *table);
}

allot_status cost_sets(struct archive_cost_set_info **sets, size_t *n, const struct model_job *job,
                       struct allot_error *err)
{
    size_t kept = 0;
    allot_status status = archive_cost_sets(job->archive, job->sha256, sets, n, err);
    for (size_t i = 0; status == ALLOT_OK && i < *n; i++)
        if (!rounding_of_params((*sets)[i].params))
            (*sets)[kept++] = (*sets)[i];
    if (status == ALLOT_OK)
        *n = kept;
    return status;
}

static bool has_compensated(const struct model_job *job)
{
    struct archive_cost_set_info *sets = NULL;
    struct allot_error unused;
    size_t n = 0;
    bool found = false;
    if (archive_cost_sets(job->archive, job->sha256, &sets, &n, &unused) == ALLOT_OK)
        for (size_t i = 0; i < n; i++)
            found |= rounding_of_params(sets[i].params);
    free(sets);
    return found;
}

/* Says what the archive has instead of a finished set; `unfinished` is the newest that matches, or NULL. */
static allot_status no_costs(const struct model_job *job, const struct archive_cost_set_info *unfinished,
                             const char *imatrix_sha256, struct allot_error *err)
{
    if (unfinished)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s holds only unfinished costs of %s (set of %s, tensors done: %" PRId64
                          "); the same 'allot cost' command finishes them",
                          job->archive_path, job->model->path, unfinished->updated, unfinished->n_tensors);
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s holds no costs of %s%s%s; 'allot cost' measures them",
                      job->archive_path, job->model->path, has_compensated(job) ? " as ggml rounds" : "",
                      !imatrix_sha256     ? ""
                      : imatrix_sha256[0] ? " with this imatrix"
                                          : " without an imatrix");
}

allot_status cost_table_newest(struct cost_table *table, struct model_job *job, const char *imatrix_sha256,
                               struct allot_error *err)
{
    struct archive_cost_set_info *sets = NULL;
    const struct archive_cost_set_info *unfinished = NULL;
    size_t n = 0;
    bool found = false;
    allot_status status = cost_sets(&sets, &n, job, err);
    memset(table, 0, sizeof *table);
    for (size_t i = 0; status == ALLOT_OK && !found && i < n; i++) {
        if (imatrix_sha256 && strcmp(imatrix_sha256, sets[i].imatrix_sha256) != 0)
            continue;
        status = cost_table_load(table, job, &sets[i], err);
        found = status == ALLOT_OK && table->n_measured > 0;
        if (status == ALLOT_OK && !found)
            cost_table_release(table);
        if (!unfinished && sets[i].n_tensors > 0)
            unfinished = &sets[i];
    }
    if (status == ALLOT_OK && !found)
        status = no_costs(job, unfinished, imatrix_sha256, err);
    free(sets);
    return status;
}

/* ---- Solving --------------------------------------------------------------------------------- */

static allot_status file_size(int64_t *bytes, const struct gguf_model *model, const enum ggml_type *types,
                              uint32_t file_type, const struct quantize_key *keys, size_t n_keys,
                              struct allot_error *err)
{
    const struct quantize_job job = {
        .model = model, .types = types, .file_type = file_type, .keys = keys, .n_keys = n_keys};
    return quantize_file_size(&job, bytes, err);
}

static enum ggml_type *source_types(const struct gguf_model *model, struct allot_error *err)
{
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    if (!types)
        allot_fail_memory(err, (size_t)model->n_tensors * sizeof *types, "types");
    for (int64_t i = 0; types && i < model->n_tensors; i++)
        types[i] = model->tensors[i].type;
    return types;
}

/* Types and sizes from answer.chosen. */
static allot_status take_choices(struct type_plan *plan, const struct provenance *keys,
                                 struct allot_error *err)
{
    const struct knapsack *knapsack = plan->knapsack;
    const struct gguf_model *model = knapsack->model;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const size_t item = knapsack->item_of[i];
        if (item != SIZE_MAX)
            plan->types[i] = knapsack->items[item].choices[plan->answer.chosen[item]].type;
    }
    allot_status status = type_plan_measure(plan, model, keys, err);
    if (status == ALLOT_OK && plan->file_bytes != plan->answer.result.bytes)
        status = allot_fail(err, ALLOT_ERR_INTERNAL,
                            "%s: the plan counts %" PRId64 " bytes, the file would have %" PRId64,
                            model->path, plan->answer.result.bytes, plan->file_bytes);
    return status;
}

allot_status type_plan_choose(struct type_plan *plan, const struct provenance *keys, struct allot_error *err)
{
    const struct knapsack *knapsack = plan->knapsack;
    struct plan_result *result = &plan->answer.result;
    const int64_t budget = plan->budget ? plan->budget : INT64_MAX;
    int64_t old_bytes = 0, bytes = 0;
    for (int64_t i = 0; i < knapsack->model->n_tensors; i++) {
        const struct gguf_tensor *t = &knapsack->model->tensors[i];
        if (knapsack->item_of[i] != SIZE_MAX)
            old_bytes += gguf_padded((int64_t)ggml_row_size(plan->types[i], t->ne[0]) * t->n_rows);
    }
    for (size_t i = 0; i < knapsack->n; i++)
        bytes += knapsack->items[i].choices[plan->answer.chosen[i]].bytes;
    knapsack_add_up(&plan->answer, knapsack);
    result->bytes += bytes - old_bytes;
    result->exact = false;
    result->lower_bound = fmin(result->lower_bound, plan->answer.objective);
    if (result->bytes > budget)
        return allot_fail(err, ALLOT_ERR_INTERNAL, "a plan of %" PRId64 " bytes for %" PRId64, result->bytes,
                          budget);
    return take_choices(plan, keys, err);
}

allot_status type_plan_solve(struct type_plan *plan, const struct knapsack *knapsack,
                             const struct sized_arguments *args, const struct rung *rung,
                             const struct provenance *keys, struct allot_error *err)
{
    const struct gguf_model *model = knapsack->model;
    int64_t as_is = 0, padded = 0, budget = 0;
    memset(plan, 0, sizeof *plan);
    plan->knapsack = knapsack;
    plan->types = source_types(model, err);
    if (!plan->types)
        return err->status;
    allot_status status = file_size(&as_is, model, plan->types, 0, keys->keys, keys->n_keys, err);
    if (status != ALLOT_OK)
        goto cleanup;
    for (int64_t i = 0; i < model->n_tensors; i++)
        padded += gguf_padded(model->tensors[i].n_bytes);
    status = budget_resolve(&budget, args, rung, model, as_is - padded, err);
    if (status == ALLOT_OK)
        status = knapsack_solve(&plan->answer, knapsack, as_is - knapsack->source_bytes, budget, err);
    if (status != ALLOT_OK)
        goto cleanup;
    plan->budget = budget == INT64_MAX ? 0 : budget;
    status = take_choices(plan, keys, err);
cleanup:
    if (status != ALLOT_OK)
        type_plan_release(plan);
    return status;
}

allot_status type_plan_solve_priced(struct type_plan *plan, struct knapsack *knapsack,
                                    const struct sized_arguments *args, const struct rung *rung,
                                    const struct provenance *keys, struct allot_error *err)
{
    knapsack->ms_price = 0;
    allot_status status = type_plan_solve(plan, knapsack, args, rung, keys, err);
    const double cost = plan->answer.result.cost, ms = plan->answer.ms;
    if (status != ALLOT_OK || !knapsack->speed_source || !(args->speed.weight > 0) || !(ms > 0))
        return status;
    type_plan_release(plan);
    knapsack->ms_price = args->speed.weight / ms;
    status = type_plan_solve(plan, knapsack, args, rung, keys, err);
    if (status != ALLOT_OK)
        return status;
    plan->speed = args->speed.weight;
    plan->unpriced.cost = cost;
    plan->unpriced.ms = ms;
    return ALLOT_OK;
}

/* The type with most bytes among those an ftype starts from. llama-quantize minds rules only over a
 * quantized base type, so one is named even where nothing is quantized. */
static const struct quant_type *base_type(const struct type_plan *plan, const struct gguf_model *model)
{
    struct type_use uses[GGML_TYPE_COUNT];
    size_t n = count_types(uses, model, plan->types, true);
    for (size_t i = 0; i < n; i++) {
        const struct quant_type *type = quant_type_find(uses[i].type);
        if (type && type->ftype)
            return type;
    }
    return quant_type_find(GGML_TYPE_Q8_0);
}

allot_status type_plan_measure(struct type_plan *plan, const struct gguf_model *model,
                               const struct provenance *keys, struct allot_error *err)
{
    plan->base = base_type(plan, model);
    plan->data_bytes = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        plan->data_bytes +=
            (int64_t)ggml_row_size(plan->types[i], model->tensors[i].ne[0]) * model->tensors[i].n_rows;
    uint32_t file_type = (uint32_t)plan->base->file_type;
    allot_status status =
        file_size(&plan->file_bytes, model, plan->types, file_type, keys->keys, keys->n_keys, err);
    if (status == ALLOT_OK)
        status =
            file_size(&plan->stock_bytes, model, plan->types, file_type, keys->keys, keys->n_stock_keys, err);
    return status;
}

void type_plan_predict(struct type_plan *plan, const struct gguf_model *model, const struct cost_table *costs)
{
    plan->predicted.given = true;
    plan->predicted.in_nats = cost_set_in_nats(&costs->set);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct tensor_costs *of = &costs->tensors[i];
        size_t c = 0;
        if (plan->types[i] == model->tensors[i].type)
            continue;
        while (c < of->n && of->choices[c].type != (int)plan->types[i])
            c++;
        if (c < of->n)
            plan->predicted.cost += of->choices[c].cost;
        else
            plan->predicted.n_unknown++;
    }
}

void type_plan_release(struct type_plan *plan)
{
    free(plan->types);
    knapsack_answer_release(&plan->answer);
    memset(plan, 0, sizeof *plan);
}

/* ---- Recipes and the stock command ----------------------------------------------------------- */

allot_status type_plan_write_recipe(const struct type_plan *plan, const struct gguf_model *model,
                                    const char *path, struct allot_error *err)
{
    struct strbuf sb = {0};
    size_t n = 0, cap = (size_t)model->n_tensors + 1;
    const char **names = calloc(cap, sizeof *names), **types = calloc(cap, sizeof *types);
    allot_status status =
        names && types ? ALLOT_OK : allot_fail_memory(err, cap * sizeof *names, "the recipe");
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i])) {
            names[n] = model->tensors[i].name;
            types[n++] = type_label(plan->types[i]);
        }
    if (status == ALLOT_OK)
        status = recipe_format(&sb, names, types, n, err);
    if (status == ALLOT_OK)
        status = strbuf_check(&sb, err);
    if (status == ALLOT_OK)
        status = file_write_all(path, sb.data, sb.len, err);
    free(names);
    free(types);
    strbuf_release(&sb);
    return status;
}

allot_status type_plan_stock_command(struct strbuf *sb, const struct type_plan *plan,
                                     const struct gguf_model *model, const char *imatrix_path,
                                     const char *recipe_path, const char *out_path, struct allot_error *err)
{
    bool requantizes = false;
    for (int64_t i = 0; i < model->n_tensors; i++)
        requantizes |= ggml_is_quantized(model->tensors[i].type) && plan->types[i] != model->tensors[i].type;
    strbuf_addf(sb, "llama-quantize%s", requantizes ? " --allow-requantize" : "");
    if (imatrix_path) {
        strbuf_addf(sb, " --imatrix ");
        shell_quote(sb, imatrix_path);
    }
    strbuf_addf(sb, " --tensor-type-file ");
    shell_quote(sb, recipe_path);
    strbuf_addf(sb, " ");
    shell_quote(sb, model_first_path(model));
    strbuf_addf(sb, " ");
    shell_quote(sb, out_path);
    strbuf_addf(sb, " %s", plan->base->ftype);
    return strbuf_check(sb, err);
}
