/* speed_price.c - decode time of the choices of a plan, and a price on it.  SPDX-License-Identifier: MIT */
#include "speed_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"
#include "quant/quant.h"

static const struct option_row rows[] = {
    {"speed", 0, "W", OPTION_NUMBER, offsetof(struct sized_arguments, speed.weight), NULL, 0,
     "let decoding 1 % faster be worth W % of perplexity (W/100 nats per token of KL): 0 gives the smallest "
     "KL, a large W the fastest plan within the size"},
    {"speed-table", 0, "FILE", OPTION_STRING, offsetof(struct sized_arguments, speed.table), NULL, 0,
     "predict decode times with what 'allot speed -o FILE' measured; --speed without it measures here, in "
     "seconds"},
};
const struct option_set speed_options = OPTION_SET(rows);

const char *speed_option_given(const struct string_list *given)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (string_list_has(given, rows[i].name))
            return rows[i].name;
    return NULL;
}

/* ---- Times -------------------------------------------------------------------------------------- */

/* Looked up by row; token embeddings unless they are the output too. */
static bool is_lookup(const struct gguf_model *model, const char *name)
{
    static const char *const always[] = {"position_embd.weight", "token_types.weight",
                                         "per_layer_token_embd.weight"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(name, always[i]) == 0)
            return true;
    return strcmp(name, "token_embd.weight") == 0 && gguf_model_tensor(model, "output.weight");
}

/* A number of the architecture's own, or 0. */
static int64_t setting(const struct gguf_model *model, const char *name)
{
    char key[256];
    char *arch = gguf_model_str(model, "general.architecture");
    int64_t value = 0;
    snprintf(key, sizeof key, "%.100s.%s", arch ? arch : "", name);
    free(arch);
    return gguf_model_i64(model, key, &value) ? value : 0;
}

double speed_active_share(const struct gguf_model *model, const struct gguf_tensor *tensor)
{
    if (is_lookup(model, tensor->name))
        return tensor->n_rows > 0 ? 1 / (double)tensor->n_rows : 0;
    if (tensor->ne[2] > 1 && strstr(tensor->name, "exps.")) {
        const int64_t used = setting(model, "expert_used_count");
        return used > 0 ? fmin(1, (double)used / (double)tensor->ne[2]) : 1;
    }
    return 1;
}

double speed_tensor_ms(const struct speed_table *table, const struct gguf_model *model,
                       const struct gguf_tensor *tensor, enum ggml_type type)
{
    const double bytes = (double)ggml_row_size(type, tensor->ne[0]) * (double)tensor->n_rows;
    if (tensor->n_rows <= 1 || !quant_type_find(type))
        return 0;
    if (!(table->ns_per_byte[type] > 0))
        return NAN;
    return 1e-6 * table->ns_per_byte[type] * bytes * speed_active_share(model, tensor);
}

static allot_status no_time(const struct speed_table *table, const char *name, enum ggml_type type,
                            struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_ARGUMENT,
                      "%s does not tell of %s, a type of %s; 'allot speed -o FILE' measures all types",
                      table->path ? table->path : "the speed table", type_label(type), name);
}

allot_status speed_fill_times(struct knapsack *k, const struct speed_table *table, struct allot_error *err)
{
    k->fixed_ms = 0;
    k->speed_source = table->path ? table->path : "measured here";
    for (int64_t i = 0; i < k->model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &k->model->tensors[i];
        if (k->item_of[i] == SIZE_MAX)
            k->fixed_ms += speed_tensor_ms(table, k->model, tensor, tensor->type);
        if (isnan(k->fixed_ms))
            return no_time(table, tensor->name, tensor->type, err);
    }
    for (size_t i = 0; i < k->n; i++) {
        const struct knapsack_item *item = &k->items[i];
        for (size_t c = 0; c < item->n_choices; c++) {
            struct knapsack_choice *choice = &item->choices[c];
            choice->ms = 0;
            for (size_t t = 0; t < item->n_tensors; t++)
                choice->ms +=
                    speed_tensor_ms(table, k->model, &k->model->tensors[item->tensors[t]], choice->type);
            if (isnan(choice->ms) && choice->bar == CHOICE_OPEN)
                return no_time(table, item->name, choice->type, err);
        }
    }
    return ALLOT_OK;
}

/* ---- Arguments ---------------------------------------------------------------------------------- */

allot_status speed_open(struct speed_table *table, const struct sized_arguments *args,
                        struct allot_error *err)
{
    *table = (struct speed_table){0};
    return args->speed.table ? speed_table_read(table, args->speed.table, err) : ALLOT_OK;
}

static allot_status measure(struct speed_table *table, const struct knapsack *k, int n_threads,
                            const struct allot_progress *progress, struct allot_error *err)
{
    bool types[GGML_TYPE_COUNT] = {false};
    size_t n = 0;
    for (int64_t i = 0; i < k->model->n_tensors; i++)
        if (k->item_of[i] == SIZE_MAX)
            types[k->model->tensors[i].type] = true;
    for (size_t i = 0; i < k->n; i++)
        for (size_t c = 0; c < k->items[i].n_choices; c++)
            types[k->items[i].choices[c].type] = true;
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        n += types[type] && quant_type_find((enum ggml_type)type);
    allot_note(progress,
               "no --speed-table: measuring the decode speed of %zu types here ('allot speed -o FILE' keeps "
               "what it measures)",
               n);
    return speed_table_measure(table, types, 0, n_threads, progress, err);
}

allot_status speed_set_times(struct knapsack *k, struct speed_table *table,
                             const struct sized_arguments *args, const struct allot_progress *progress,
                             struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    if (!speed_option_given(&args->common.given))
        return ALLOT_OK;
    if (args->speed.weight > 0 && !k->in_nats)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--speed weighs time against KL, and costs of --method weight are none");
    if (!table->path)
        status = measure(table, k, (int)args->common.threads, progress, err);
    return status == ALLOT_OK ? speed_fill_times(k, table, err) : status;
}
