/* cmd_speed.c - allot speed: decode time per byte of each type on this machine.  SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "job.h"
#include "quant/quant.h"
#include "speed_price.h"

struct speed_command_arguments {
    struct common_arguments common;
    const char *output;
    int64_t matrix_bytes;
};

static const struct option_row rows[] = {
    {"output", 'o', "FILE", OPTION_STRING, offsetof(struct speed_command_arguments, output), NULL, 0,
     "keep the table there, for --speed-table: JSON, {\"ns_per_byte\": {\"Q4_K\": 0.21, ...}}"},
    {"matrix-size", 0, "SIZE", OPTION_SIZE, offsetof(struct speed_command_arguments, matrix_bytes), NULL, 0,
     "bytes of the matrix of each type, instead of twice the last cache but 512MiB at most; what fits into "
     "caches looks faster than decoding is"},
};
static const struct option_set options = OPTION_SET(rows);

/* A token of the model with every tensor that can be quantized in this type, or in its fallback. */
static double model_ms(const struct speed_table *table, const struct gguf_model *model, enum ggml_type type)
{
    double ms = 0;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        ms += speed_tensor_ms(table, model, tensor,
                              gguf_tensor_quantizable(tensor) ? quant_type_fallback(type, tensor->ne[0])
                                                              : tensor->type);
    }
    return ms;
}

static allot_status print_table(const struct speed_table *table, const struct gguf_model *model,
                                struct allot_error *err)
{
    static const char *const headings[] = {"<type", ">GB/s", ">ns per MB", ">ns per weight", ">ms per token"};
    size_t n;
    const struct quant_type *types = quant_types(&n);
    struct table t;
    char size[32];
    printf("One token, %d threads, matrices of %s\n\n", table->n_threads,
           str_size(size, table->matrix_bytes));
    table_init(&t, headings, model ? 5 : 4);
    for (size_t i = 0; i < n; i++) {
        const double ns = table->ns_per_byte[types[i].type];
        table_cell(&t, "%s", types[i].name);
        table_cell(&t, "%.2f", 1 / ns);
        table_cell(&t, "%.0f", 1e6 * ns);
        table_cell(&t, "%.4f", ns * types[i].block_bytes / types[i].block);
        if (model)
            table_cell(&t, "%.3f", model_ms(table, model, types[i].type));
    }
    return table_print(&t, err);
}

static json_t *result_json(const struct speed_table *table, const struct gguf_model *model)
{
    size_t n;
    const struct quant_type *types = quant_types(&n);
    json_t *document = speed_table_json(table), *times = json_object();
    for (size_t i = 0; model && i < n; i++)
        json_put(times, types[i].name, json_number(model_ms(table, model, types[i].type)));
    json_put(document, "ms_per_token", model ? json_incref(times) : json_null());
    json_decref(times);
    return document;
}

/* The table and, with a model, its times. */
static allot_status measure(const struct speed_command_arguments *args, const struct gguf_model *model,
                            const struct allot_progress *progress, struct allot_error *err)
{
    struct speed_table table;
    bool types[GGML_TYPE_COUNT] = {false};
    size_t n;
    const struct quant_type *all = quant_types(&n);
    for (size_t i = 0; i < n; i++)
        types[all[i].type] = true;
    allot_status status =
        speed_table_measure(&table, types, args->matrix_bytes, (int)args->common.threads, progress, err);
    if (status == ALLOT_OK && args->output)
        status = speed_table_write(&table, args->output, err);
    command_end_progress(progress);
    if (status != ALLOT_OK)
        return status;
    return args->common.json ? json_print(result_json(&table, model), err) : print_table(&table, model, err);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct speed_command_arguments *args = arguments;
    struct model_job job = {0};
    const struct job_inputs inputs = {{NULL}, NULL};
    allot_status status = ALLOT_OK;
    if (args->common.operands.n)
        status = model_job_open(&job, args->common.operands.items[0], &args->common, err);
    if (status == ALLOT_OK)
        status = job_check_output(&job, &inputs, args->output, err);
    if (status == ALLOT_OK)
        status = measure(args, job.model, progress, err);
    model_job_release(&job);
    return status;
}

const struct command command_speed = {
    .name = "speed",
    .synopsis = "[MODEL] [-o FILE] [options]",
    .summary = "how fast this machine decodes with each type",
    .description =
        "Multiplies one matrix of each type by one vector, as decoding a token does, with ggml's CPU "
        "kernels and the buffers that libllama would choose, and prints the speed at which weights are "
        "read. With a model it also prints what a token takes with all tensors in one type: of "
        "experts those that a token takes, weights only. 'plan' and 'quantize' read the file with "
        "--speed-table. Unlike other results these depend on the threads, the machine and what else is "
        "running.",
    .options = {&options},
    .arguments_size = sizeof(struct speed_command_arguments),
    .max_operands = 1,
    .run = run,
};
