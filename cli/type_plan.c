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

/* Says what the archive has instead of a finished set; `unfinished` is the newest that matches, or NULL. */
static allot_status no_costs(const struct model_job *job, const struct archive_cost_set_info *unfinished,
                             const char *imatrix_sha256, struct allot_error *err)
{
    if (unfinished)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s holds only unfinished costs of %s (set of %s, tensors done: %" PRId64
                          "); the same 'allot cost' command finishes them",
                          job->archive_path, job->model->path, unfinished->updated, unfinished->n_tensors);
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s holds no costs of %s%s; 'allot cost' measures them",
                      job->archive_path, job->model->path,
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
    allot_status status = archive_cost_sets(job->archive, job->sha256, &sets, &n, err);
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

/* Items of the knapsack: the costs on record, and the source type at no cost. */
struct knapsack {
    struct plan_item *items;
    struct plan_choice (*choices)[GGML_TYPE_COUNT + 1];
    int64_t *tensors; /* item -> tensor */
    size_t *chosen;
    size_t n;
    int64_t source_bytes; /* of all items as they are, padded */
};

static void knapsack_release(struct knapsack *k)
{
    free(k->items);
    free(k->choices);
    free(k->tensors);
    free(k->chosen);
}

static void add_item(struct knapsack *k, const struct gguf_model *model, int64_t index,
                     const struct tensor_costs *costs, const struct type_set *allowed)
{
    const struct gguf_tensor *tensor = &model->tensors[index];
    struct plan_choice *choices = k->choices[k->n];
    size_t n = 0;
    for (size_t c = 0; c < costs->n; c++)
        if (!allowed->given || allowed->has[costs->choices[c].type])
            choices[n++] = costs->choices[c];
    if (n == 0 || !allowed->given || allowed->has[tensor->type])
        choices[n++] =
            (struct plan_choice){.type = (int)tensor->type, .bytes = gguf_padded(tensor->n_bytes), .cost = 0};
    k->items[k->n] = (struct plan_item){.name = tensor->name, .choices = choices, .n_choices = n};
    k->tensors[k->n++] = index;
    k->source_bytes += gguf_padded(tensor->n_bytes);
}

static allot_status knapsack_init(struct knapsack *k, const struct gguf_model *model,
                                  const struct cost_table *costs, const struct type_set *allowed,
                                  struct allot_error *err)
{
    size_t n = (size_t)model->n_tensors + 1;
    memset(k, 0, sizeof *k);
    k->items = calloc(n, sizeof *k->items);
    k->choices = calloc(n, sizeof *k->choices);
    k->tensors = calloc(n, sizeof *k->tensors);
    k->chosen = calloc(n, sizeof *k->chosen);
    if (!k->items || !k->choices || !k->tensors || !k->chosen) {
        knapsack_release(k);
        return allot_fail_memory(err, n * sizeof *k->choices, "the plan");
    }
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            add_item(k, model, i, &costs->tensors[i], allowed);
    return ALLOT_OK;
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

/* Types that the caller wants but the costs do not tell of; a source's own type costs nothing. */
static allot_status check_measured(const struct gguf_model *model, const struct cost_table *costs,
                                   const struct type_set *allowed, struct allot_error *err)
{
    bool known[GGML_TYPE_COUNT];
    struct strbuf missing = {0};
    size_t n;
    const struct quant_type *types = quant_types(&n);
    memcpy(known, costs->types, sizeof known);
    for (int64_t i = 0; i < model->n_tensors; i++)
        known[model->tensors[i].type] = true;
    for (size_t i = 0; i < n; i++)
        if (allowed->has[types[i].type] && !known[types[i].type])
            strbuf_addf(&missing, "%s%s", missing.len ? "," : "", types[i].name);
    allot_status status = strbuf_check(&missing, err);
    if (status == ALLOT_OK && missing.len)
        status =
            allot_fail(err, ALLOT_ERR_ARGUMENT,
                       "the costs of %s do not tell of %s; the same 'allot cost' command with --types %s "
                       "measures what is missing",
                       costs->set.updated, missing.data, missing.data);
    strbuf_release(&missing);
    return status;
}

allot_status type_plan_solve(struct type_plan *plan, const struct gguf_model *model,
                             const struct cost_table *costs, const struct type_set *allowed,
                             const struct sized_arguments *args, const struct provenance *keys,
                             struct allot_error *err)
{
    struct knapsack k = {0};
    int64_t as_is = 0, padded = 0;
    memset(plan, 0, sizeof *plan);
    if (check_measured(model, costs, allowed, err) != ALLOT_OK)
        return err->status;
    plan->types = source_types(model, err);
    if (!plan->types)
        return err->status;
    allot_status status = knapsack_init(&k, model, costs, allowed, err);
    if (status == ALLOT_OK)
        status = file_size(&as_is, model, plan->types, 0, keys->keys, keys->n_keys, err);
    if (status != ALLOT_OK)
        goto cleanup;
    for (int64_t i = 0; i < model->n_tensors; i++)
        padded += gguf_padded(model->tensors[i].n_bytes);
    status = budget_resolve(&plan->budget, args, model, as_is - padded, err);
    if (status == ALLOT_OK)
        status = plan_solve(k.items, k.n, as_is - k.source_bytes, plan->budget, k.chosen, &plan->result, err);
    if (status != ALLOT_OK)
        goto cleanup;
    for (size_t i = 0; i < k.n; i++)
        plan->types[k.tensors[i]] = (enum ggml_type)k.items[i].choices[k.chosen[i]].type;
    plan->predicted = true;
    plan->in_nats = cost_set_in_nats(&costs->set);
    status = type_plan_measure(plan, model, keys, err);
    if (status == ALLOT_OK && plan->file_bytes != plan->result.bytes)
        status = allot_fail(err, ALLOT_ERR_INTERNAL,
                            "%s: the plan counts %" PRId64 " bytes, the file would have %" PRId64,
                            model->path, plan->result.bytes, plan->file_bytes);
cleanup:
    knapsack_release(&k);
    if (status != ALLOT_OK)
        type_plan_release(plan);
    return status;
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

void type_plan_release(struct type_plan *plan)
{
    free(plan->types);
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

/* ---- Reports --------------------------------------------------------------------------------- */

/* How far below the plan's cost an optimum might lie, as a fraction of the cost. */
static double gap_fraction(const struct plan_result *result)
{
    return result->exact || result->cost <= 0 ? 0 : (result->cost - result->lower_bound) / result->cost;
}

allot_status type_plan_print(const struct type_plan *plan, const struct gguf_model *model,
                             struct allot_error *err)
{
    struct type_use uses[GGML_TYPE_COUNT];
    char size[32];
    if (plan->predicted) {
        if (plan->in_nats)
            printf("predicted KL:  %.6g nats per token\n", plan->result.cost);
        else
            printf("estimate:      %.6g, the sum of the tensors' relative errors (no KL: --method weight)\n",
                   plan->result.cost);
        if (plan->result.exact)
            printf("optimality:    exact; no plan within the size costs less\n");
        else
            printf("optimality:    within %.3g%% of the least cost\n", 100 * gap_fraction(&plan->result));
    }
    if (plan->budget)
        printf("size asked:    %" PRId64 " bytes (%s)\n", plan->budget, str_size(size, plan->budget));
    printf("size planned:  %" PRId64 " bytes (%s)", plan->file_bytes, str_size(size, plan->file_bytes));
    if (plan->budget)
        printf(", %" PRId64 " below", plan->budget - plan->file_bytes);
    printf("; %.4f bits per weight\n", bits_per_weight(plan->data_bytes, model_parameters(model)));
    if (plan->predicted && plan->result.cost == 0)
        printf("remark:        the size has room for every tensor as it is; nothing is quantized\n");
    printf("by llama.cpp:  %" PRId64 " bytes (allot's own keys are not in it)\n\n", plan->stock_bytes);
    allot_status status = types_print(uses, count_types(uses, model, plan->types, false), err);
    putchar('\n');
    if (status == ALLOT_OK)
        status = layers_print(model, plan->types, err);
    return status;
}

void type_plan_json(json_t *object, const struct type_plan *plan, const struct gguf_model *model)
{
    struct type_use uses[GGML_TYPE_COUNT];
    json_t *tensors = json_object();
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            json_put(tensors, model->tensors[i].name, json_text(type_label(plan->types[i])));
    const bool kl = plan->predicted && plan->in_nats, other = plan->predicted && !plan->in_nats;
    json_put(object, "predicted_kl", kl ? json_number(plan->result.cost) : json_null());
    json_put(object, "predicted_relative_error", other ? json_number(plan->result.cost) : json_null());
    json_put(object, "exact", plan->predicted ? json_boolean(plan->result.exact) : json_null());
    json_put(object, "lower_bound", plan->predicted ? json_number(plan->result.lower_bound) : json_null());
    json_put(object, "budget_bytes", plan->budget ? json_integer(plan->budget) : json_null());
    json_put(object, "file_bytes", json_integer(plan->file_bytes));
    json_put(object, "stock_file_bytes", json_integer(plan->stock_bytes));
    json_put(object, "bits_per_weight",
             json_number(bits_per_weight(plan->data_bytes, model_parameters(model))));
    json_put(object, "base_ftype", json_text(plan->base->ftype));
    json_put(object, "types", types_json(uses, count_types(uses, model, plan->types, false)));
    json_put(object, "tensors", tensors);
}
