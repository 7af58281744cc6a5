/* cmd_verify.c - allot verify: does a file hold the types that a recipe says?
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "command.h"
#include "describe.h"
#include "plan/recipe.h"
#include "recipe_types.h"

struct verify_arguments {
    struct common_arguments common;
};

struct verify_counts {
    int64_t checked, differing, fallbacks, unmentioned, unused_rules;
};

/* ---- Checks, each reported as a line or a JSON entry ----------------------------------------- */

static void check_tensor(const struct gguf_tensor *tensor, const struct recipe *recipe,
                         struct verify_counts *counts, json_t *differences)
{
    int wanted = recipe_type(recipe, tensor->name);
    if (wanted < 0) {
        counts->unmentioned++;
        return;
    }
    enum ggml_type expected = recipe_written_type((enum ggml_type)wanted, tensor);
    counts->checked++;
    counts->fallbacks += expected != (enum ggml_type)wanted;
    if (tensor->type == expected)
        return;
    counts->differing++;
    if (differences)
        json_array_append_new(differences,
                              json_pack("{s:o,s:s,s:s,s:s}", "tensor", json_text(tensor->name), "rule",
                                        type_label((enum ggml_type)wanted), "expected", type_label(expected),
                                        "found", type_label(tensor->type)));
    else if (expected != (enum ggml_type)wanted)
        printf("%s: %s, but the recipe says %s (%s for a row of %" PRId64 ")\n", tensor->name,
               type_label(tensor->type), type_label((enum ggml_type)wanted), type_label(expected),
               tensor->ne[0]);
    else
        printf("%s: %s, but the recipe says %s\n", tensor->name, type_label(tensor->type),
               type_label(expected));
}

static void report_unused(const struct recipe *recipe, struct verify_counts *counts, json_t *unused)
{
    const char *rule;
    for (size_t i = 0; (rule = recipe_unused_rule(recipe, i)) != NULL; i++) {
        counts->unused_rules++;
        if (unused)
            json_array_append_new(unused, json_text(rule));
        else
            printf("unused rule: %s\n", rule);
    }
}

static allot_status verdict(const struct verify_counts *counts, const char *recipe_path, const char *path,
                            struct allot_error *err)
{
    if (counts->differing)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %" PRId64 " of %" PRId64 " tensors differ from %s",
                          path, counts->differing, counts->checked, recipe_path);
    if (!counts->checked)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: no rule of %s matches any of its tensors", path,
                          recipe_path);
    return ALLOT_OK;
}

static void print_counts(const struct verify_counts *counts, json_t *document)
{
    if (document) {
        json_put(document, "checked", json_integer(counts->checked));
        json_put(document, "differing", json_integer(counts->differing));
        json_put(document, "fallbacks", json_integer(counts->fallbacks));
        json_put(document, "unmentioned", json_integer(counts->unmentioned));
        return;
    }
    printf("%" PRId64 " tensors as the recipe says", counts->checked - counts->differing);
    if (counts->fallbacks)
        printf(" (%" PRId64 " by fallback)", counts->fallbacks);
    printf(", %" PRId64 " differing, %" PRId64 " quantizable but not mentioned, %" PRId64 " unused rules\n",
           counts->differing, counts->unmentioned, counts->unused_rules);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct verify_arguments *args = arguments;
    const char *recipe_path = args->common.operands.items[0], *path = args->common.operands.items[1];
    struct recipe *recipe = NULL;
    struct gguf_model *model = NULL;
    struct verify_counts counts = {0};
    json_t *document = NULL, *differences = NULL, *unused = NULL;
    (void)progress;

    allot_status status = recipe_open(&recipe, recipe_path, err);
    if (status == ALLOT_OK)
        status = gguf_model_open(&model, path, err);
    if (status == ALLOT_OK)
        status = recipe_check(recipe, model, recipe_path, err);
    if (status != ALLOT_OK)
        goto cleanup;
    if (args->common.json) {
        document = json_object();
        differences = json_array();
        unused = json_array();
        json_put(document, "differences", differences);
        json_put(document, "unused_rules", unused);
    }
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            check_tensor(&model->tensors[i], recipe, &counts, differences);
    report_unused(recipe, &counts, unused);
    print_counts(&counts, document);
    if (document)
        status = json_print(document, err);
    if (status == ALLOT_OK)
        status = verdict(&counts, recipe_path, path, err);
cleanup:
    gguf_model_close(model);
    recipe_free(recipe);
    return status;
}

const struct command command_verify = {
    .name = "verify",
    .synopsis = "RECIPE FILE [options]",
    .summary = "does a file hold the types that a recipe says?",
    .description =
        "Reads RECIPE as llama-quantize reads a --tensor-type-file (the first rule that matches wins) and "
        "compares every quantizable tensor of FILE with it, allowing for the type that llama-quantize "
        "takes where the row is no multiple of the block. Rules that match nothing are listed. Exit 1 if "
        "a tensor differs or no rule matches.",
    .arguments_size = sizeof(struct verify_arguments),
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
