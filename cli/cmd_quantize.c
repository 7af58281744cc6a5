/* cmd_quantize.c - allot quantize: from a model and a size (or a recipe) to the finished file.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "calibration.h"
#include "interactions.h"
#include "quantize_job.h"
#include "speed_price.h"

static const struct option_row rows[] = {
    {"recipe", 0, "FILE", OPTION_STRING, offsetof(struct quantize_arguments, recipe), NULL, 0,
     "take the types from a recipe (llama-quantize's --tensor-type-file) instead of a size"},
    {"base", 0, "TYPE", OPTION_STRING, offsetof(struct quantize_arguments, base), NULL, 0,
     "type of the tensors that the recipe does not mention"},
    {"strict", 0, NULL, OPTION_FLAG, offsetof(struct quantize_arguments, strict), NULL, 0,
     "refuse a recipe whose type does not fit a tensor's rows, instead of falling back as llama-quantize "
     "does"},
    {"requantize-codes", 0, "FILE", OPTION_STRING, offsetof(struct quantize_arguments, codes), NULL, 0,
     "take the types from a quantized FILE of the same model, and round compensated: the same file with "
     "better "
     "codes"},
    {"refine", 0, "N", OPTION_INT, offsetof(struct quantize_arguments, refine), "0", 0,
     "improve the plan in N rounds: costs of changing it from where it stands, on other sequences of the "
     "texts; the "
     "plan that measures best on sequences held out is taken"},
};
static const struct option_set options = OPTION_SET(rows);

/* Options that the chosen way would not heed are mistakes. */
static allot_status check_unheeded(const struct quantize_arguments *args, struct allot_error *err)
{
    static const char *const not_with_types[] = {"file", "types"};
    const struct string_list *given = &args->calibrated.sized.common.given;
    const char *constraint = constraint_option_given(given),
               *name = constraint ? constraint : speed_option_given(given);
    const char *way = args->recipe                         ? "recipe"
                      : args->codes                        ? "requantize-codes"
                      : args->calibrated.sized.layout.name ? "layout"
                                                           : "hybrid";
    if (!quantize_types_given(args))
        return ALLOT_OK;
    if (name)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --%s exclude each other", way, name);
    const bool rounds = rounding_compensates(args->calibrated.rounding); /* which wants text, all the same */
    for (size_t i = rounds ? 1 : 0; i < sizeof not_with_types / sizeof *not_with_types; i++)
        if (string_list_has(given, not_with_types[i]))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --%s exclude each other", way,
                              not_with_types[i]);
    for (size_t i = 0; (name = calibration_run_option(i)) != NULL; i++)
        if (string_list_has(given, name) && !(rounds && strcmp(name, "imatrix-chunks") == 0))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --%s exclude each other", way, name);
    return ALLOT_OK;
}

/* Given types, or one of the ways to say a size, beside or in place of which there may be budgets. */
static allot_status check_sizes(const struct quantize_arguments *args, struct allot_error *err)
{
    const struct sized_arguments *sized = &args->calibrated.sized;
    const int given =
        budget_options_given(sized) + (args->recipe != NULL) + (args->codes != NULL) + layout_given(sized);
    struct ladder ladder;
    if (given > 1 || (given == 0 && !sized->constraints.budgets.n))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "quantize: give one of --size, --bpw, --like, --recipe, --requantize-codes, "
                          "--layout and --hybrid, "
                          "or --budget");
    const char *const none[] = {NULL};
    allot_status status = layout_check(sized, none, err);
    if (status == ALLOT_OK)
        status = ladder_parse(&ladder, sized, err);
    return status == ALLOT_OK ? ladder_check_path(&ladder, sized->common.operands.items[1], err) : status;
}

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct quantize_arguments *args = arguments;
    struct constraints constraints = {0};
    struct type_set base;
    allot_status status = check_sizes(args, err);
    if (status != ALLOT_OK)
        return status;
    if (!args->recipe && (args->base || args->strict))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "quantize: --base and --strict go with --recipe");
    if (args->codes && !rounding_compensates(args->calibrated.rounding))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "quantize: --requantize-codes wants --rounding compensated and -f TEXT");
    if (args->refine > MAX_ROUNDS)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--refine: %d rounds at most", MAX_ROUNDS);
    if (args->refine && (!args->calibrated.texts.n || calibration_method(&args->calibrated) != BY_NET))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--refine needs --file (-f TEXT) and --method fisher or exact");
    if (args->refine && rounding_compensates(args->calibrated.rounding))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--refine and --rounding compensated exclude each other");
    if (args->refine && args->calibrated.sequence_length % args->calibrated.chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--refine: chunks of %" PRId64 " tokens do not divide --seq-len %" PRId64,
                          args->calibrated.chunk, args->calibrated.sequence_length);
    if (args->base && strchr(args->base, ','))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "quantize: --base takes one type");
    if (type_set_parse(&base, args->base, err) != ALLOT_OK)
        return err->status;
    if (rounding_check(args->calibrated.rounding, &args->calibrated.texts, err) != ALLOT_OK ||
        check_unheeded(args, err) != ALLOT_OK || interactions_check(&args->calibrated.sized, err) != ALLOT_OK)
        return err->status;
    status =
        constraints_parse(&constraints, args->calibrated.types, &args->calibrated.sized.constraints, err);
    constraints_release(&constraints);
    return status == ALLOT_OK ? calibration_check(&args->calibrated, err) : status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct quantize_arguments *args = arguments;
    struct quantize_run *run = calloc(1, sizeof *run);
    if (!run)
        return allot_fail_memory(err, sizeof *run, "a run");
    run->args = args;
    run->progress = progress;
    allot_status status = quantize_run_open(run, err);
    if (status == ALLOT_OK)
        status = args->recipe                            ? quantize_run_recipe(run, err)
                 : args->codes                           ? quantize_run_codes(run, err)
                 : layout_given(&args->calibrated.sized) ? quantize_run_layout(run, err)
                                                         : quantize_run_plan(run, err);
    if (status == ALLOT_OK)
        status = quantize_run_write(run, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = quantize_run_report(run, err);
    quantize_run_release(run);
    free(run);
    return status;
}

const struct command command_quantize = {
    .name = "quantize",
    .synopsis =
        "MODEL OUT (--size N | --bpw X | --like FILE | --budget RE=SIZE | --recipe FILE | --layout NAME | "
        "--hybrid LIST | --requantize-codes FILE) [-f TEXT...] [options]",
    .summary = "the whole way from a model and a size to a quantized file",
    .description =
        "Measures the costs that the archive lacks (with -f; the importance matrix first, from the same "
        "texts), plans "
        "for the size, writes OUT, checks it and prints what was done. Beside OUT go OUT.recipe and, if "
        "allot computed "
        "it, OUT.imatrix.gguf; with them the printed llama-quantize command writes the same tensors.\n\n"
        "Without -f the newest complete costs of the archive are used; where it has none, or an option asks "
        "for "
        "a run of its own, the calibration text is sampled from the model itself. With --recipe, --layout, "
        "--hybrid or --requantize-codes only their types count and nothing is measured; without --imatrix a "
        "layout is rebuilt "
        "with "
        "the importance matrix of the newest costs of the archive, if there are any. An interrupted run goes "
        "on from OUT.allot-partial.",
    .options = {&budget_options, &layout_options, &constraint_options, &speed_options, &options,
                &calibration_options, &rounding_options},
    .arguments_size = sizeof(struct quantize_arguments),
    .min_operands = 2,
    .max_operands = 2,
    .check = check,
    .run = run,
};
