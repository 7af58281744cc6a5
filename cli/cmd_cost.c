/* cmd_cost.c - allot cost: what each type of each tensor costs at the model's output.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "calibration.h"
#include "describe.h"
#include "quant/quant.h"
#include "type_plan.h"

static allot_status check(const void *arguments, struct allot_error *err)
{
    return calibration_check(arguments, err);
}

/* ---- Summary: the whole model in one type, as far as its tensors can take it ----------------- */

struct type_sum {
    int64_t n_tensors, bytes;
    double cost;
};

static void sum_types(struct type_sum sums[static GGML_TYPE_COUNT], const struct gguf_model *model,
                      const struct cost_table *table)
{
    memset(sums, 0, GGML_TYPE_COUNT * sizeof *sums);
    for (int64_t i = 0; i < model->n_tensors; i++)
        for (size_t c = 0; c < table->tensors[i].n; c++) {
            const struct plan_choice *choice = &table->tensors[i].choices[c];
            sums[choice->type].n_tensors++;
            sums[choice->type].bytes += choice->bytes;
            sums[choice->type].cost += choice->cost;
        }
}

static int64_t count_infeasible(const struct gguf_model *model, const struct cost_table *table)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        n += (int64_t)table->tensors[i].n_infeasible;
    return n;
}

static bool is(const struct calibration_result *result, const char *method)
{
    return strcmp(result->method, method) == 0;
}

static void print_work(const struct calibration_result *result)
{
    if (is(result, "weight"))
        printf("\nquantizing %.1f s; relative errors of the tensors' outputs, summed: not nats\n",
               result->weight.seconds);
    else if (is(result, "exact"))
        printf("\nforward %.1f s, with one tensor changed %.1f s, quantizing %.1f s\n",
               result->exactly.seconds_forward, result->exactly.seconds_variants,
               result->exactly.seconds_quantize);
    else if (is(result, "probe"))
        printf("\nforward %.1f s, probes %.1f s, quantizing %.1f s\n", result->probe.seconds_forward,
               result->probe.seconds_probe, result->probe.seconds_quantize);
    else
        printf("\nforward %.1f s, backward and costs %.1f s\n", result->fisher.seconds_forward,
               result->fisher.seconds_backward);
}

static allot_status print_text(const struct model_job *job, const struct cost_table *table,
                               const struct calibrated_arguments *args,
                               const struct calibration_result *result, struct allot_error *err)
{
    const char *const headings[] = {"<type", ">tensors", ">bytes",
                                    cost_set_in_nats(&table->set) ? ">total KL (nats/token)"
                                                                  : ">total relative error"};
    struct type_sum sums[GGML_TYPE_COUNT];
    struct table t;
    size_t n_types;
    const struct quant_type *types = quant_types(&n_types);
    int64_t infeasible = count_infeasible(job->model, table);
    sum_types(sums, job->model, table);

    printf("%s: costs of %" PRId64 " tensors from %" PRId64 " tokens", job->archive_path, table->n_measured,
           table->set.n_tokens);
    if (!args->texts.n && calibration_needs_text(args))
        printf(" of the model's own text (seed %" PRId64 ")", args->text_seed);
    if (result->n_resumed)
        printf(", %" PRId64 " of them from earlier runs", result->n_resumed);
    print_work(result);
    if (result->n_unsuited)
        printf("%" PRId64 " tensors cannot take any of the types and keep theirs\n", result->n_unsuited);
    if (infeasible)
        printf("%" PRId64 " times a type could not hold a tensor (NaN or Inf scales)\n", infeasible);
    printf("\nIf every tensor had the type:\n");
    table_init(&t, headings, 4);
    for (size_t i = 0; i < n_types; i++) {
        const struct type_sum *sum = &sums[types[i].type];
        if (!sum->n_tensors)
            continue;
        table_cell(&t, "%s", types[i].name);
        table_cell(&t, "%" PRId64, sum->n_tensors);
        table_cell(&t, "%" PRId64, sum->bytes);
        table_cell(&t, "%.4g", sum->cost);
    }
    return table_print(&t, err);
}

static void put_work(json_t *document, const struct calibration_result *result)
{
    const struct fisher_result *fisher = &result->fisher;
    const struct probe_result *probe = &result->probe;
    const struct exact_result *exact = &result->exactly;
    if (is(result, "exact")) {
        json_put(document, "seconds_forward", json_number(exact->seconds_forward));
        json_put(document, "seconds_quantize", json_number(exact->seconds_quantize));
        json_put(document, "seconds_variants", json_number(exact->seconds_variants));
        json_put(document, "memory_bytes", json_integer(exact->place.own));
        json_put(document, "temporary_file_bytes", json_integer(exact->place.file));
    } else if (is(result, "weight")) {
        json_put(document, "seconds_quantize", json_number(result->weight.seconds));
    } else if (is(result, "probe")) {
        json_put(document, "seconds_forward", json_number(probe->seconds_forward));
        json_put(document, "seconds_quantize", json_number(probe->seconds_quantize));
        json_put(document, "seconds_probe", json_number(probe->seconds_probe));
    } else {
        json_put(document, "seconds_forward", json_number(fisher->seconds_forward));
        json_put(document, "seconds_quantize", json_number(fisher->seconds_quantize));
        json_put(document, "seconds_backward", json_number(fisher->seconds_backward));
        json_put(document, "seconds_product", json_number(fisher->seconds_product));
        json_put(document, "memory_bytes", json_integer(fisher->place.own));
        json_put(document, "temporary_file_bytes", json_integer(fisher->place.file));
    }
}

static allot_status print_json(const struct model_job *job, const struct cost_table *table,
                               const struct calibrated_arguments *args,
                               const struct calibration_result *result, struct allot_error *err)
{
    json_t *document = json_object(), *tensors = json_object();
    for (int64_t i = 0; i < job->model->n_tensors; i++) {
        const struct tensor_costs *costs = &table->tensors[i];
        json_t *types = json_object();
        for (size_t c = 0; c < costs->n; c++)
            json_put(types, type_label((enum ggml_type)costs->choices[c].type),
                     json_pack("{s:I,s:o,s:o}", "bytes", (json_int_t)costs->choices[c].bytes, "cost",
                               json_number(costs->choices[c].cost), "std_err",
                               json_number(costs->std_err[c])));
        if (costs->n)
            json_put(tensors, job->model->tensors[i].name, types);
        else
            json_decref(types);
    }
    json_put(document, "archive", json_text(job->archive_path));
    json_put(document, "model_sha256", json_text(table->set.model_sha256));
    json_put(document, "text_sha256", json_text(table->set.text_sha256));
    json_put(document, "text_seed", calibration_text_seed(args));
    json_put(document, "imatrix_sha256", json_text(table->set.imatrix_sha256));
    json_put(document, "method", json_text(table->set.method));
    json_put(document, "params", json_text(table->set.params));
    json_put(document, "unit", json_text(cost_set_unit(&table->set)));
    json_put(document, "version", json_text(table->set.version));
    json_put(document, "tokens", json_integer(table->set.n_tokens));
    json_put(document, "measured", json_integer(table->n_measured));
    json_put(document, "unsuited", json_integer(result->n_unsuited));
    json_put(document, "infeasible", json_integer(count_infeasible(job->model, table)));
    json_put(document, "resumed", json_integer(result->n_resumed));
    put_work(document, result);
    json_put(document, "tensors", tensors);
    return json_print(document, err);
}

static allot_status measure_costs(struct model_job *job, struct calibration *calibration,
                                  const struct calibrated_arguments *args,
                                  const struct allot_progress *progress, struct allot_error *err)
{
    struct job_imatrix im = {0};
    struct calibration_result result;
    struct cost_table table = {0};
    allot_status status = calibration_chosen_imatrix(&im, calibration, args, progress, err);
    if (status == ALLOT_OK)
        status = calibration_costs(&result, calibration, args, &im, progress, err);
    if (status == ALLOT_OK)
        status = cost_table_load(&table, job, &result.set, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = args->sized.common.json ? print_json(job, &table, args, &result, err)
                                         : print_text(job, &table, args, &result, err);
    cost_table_release(&table);
    job_imatrix_release(&im);
    return status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct calibrated_arguments *args = arguments;
    const struct common_arguments *common = &args->sized.common;
    struct model_job job = {0};
    struct calibration calibration = {0};
    struct rounding_job rounding = {0};
    struct pool *pool = NULL;

    allot_status status = model_job_open(&job, common->operands.items[0], common, err);
    if (status == ALLOT_OK)
        status = pool_new(&pool, (int)common->threads, err);
    if (status == ALLOT_OK)
        status = calibration_open(&calibration, &job, pool, args->memory, calibration_method(args), err);
    if (status == ALLOT_OK)
        status = calibration_read(&calibration, args, progress, err);
    if (status == ALLOT_OK)
        status = calibration_rounding(&rounding, &job, args, err);
    calibration.rounding = &rounding;
    if (status == ALLOT_OK)
        status = model_job_archive(&job, ARCHIVE_CREATE, err);
    if (status == ALLOT_OK)
        status = model_job_hash(&job, progress, err);
    if (status == ALLOT_OK)
        status = measure_costs(&job, &calibration, args, progress, err);
    calibration_close(&calibration);
    rounding_job_release(&rounding);
    pool_free(pool);
    model_job_release(&job);
    return status;
}

const struct command command_cost = {
    .name = "cost",
    .synopsis = "MODEL [-f TEXT...] [options]",
    .summary = "measure what each type of each tensor costs at the output; resumable",
    .description =
        "Measures, for every tensor that llama-quantize would change and every candidate type, "
        "the KL divergence that "
        "quantizing it adds at the model's output, in nats per token, and keeps the results in "
        "the archive, tensor by "
        "tensor: an interrupted run goes on where it stopped. 'allot plan' and 'allot quantize' "
        "use them for any size. Without -f the calibration text is sampled from the "
        "model itself, by libllama. --method weight estimates in seconds, in units of its own, and "
        "needs no text with --imatrix or --no-imatrix.",
    .options = {&calibration_options, &rounding_options},
    .arguments_size = sizeof(struct calibrated_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
