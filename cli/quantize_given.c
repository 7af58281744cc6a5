/* quantize_given.c - types that are given: by a recipe, or by another file of the model.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"
#include "quant/quant.h"
#include "quantize_job.h"
#include "recipe_types.h"

static allot_status finish(struct quantize_run *run, struct allot_error *err)
{
    return type_plan_measure(&run->outputs[0].plan, run->job.model, &run->outputs[0].keys, err);
}

static allot_status read_imatrix(struct quantize_run *run, struct allot_error *err)
{
    const struct calibrated_arguments *args = &run->args->calibrated;
    allot_status status = ALLOT_OK;
    if (args->imatrix)
        status = job_imatrix_read(&run->imatrix, args->imatrix, run->job.model, run->progress, err);
    return status == ALLOT_OK ? quantize_name_imatrix(run, err) : status;
}

static allot_status take_types(enum ggml_type **types, struct quantize_run *run, struct allot_error *err)
{
    const struct gguf_model *model = run->job.model;
    *types = run->outputs[0].plan.types = calloc((size_t)model->n_tensors + 1, sizeof **types);
    if (!*types)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof **types, "types");
    for (int64_t i = 0; i < model->n_tensors; i++)
        (*types)[i] = model->tensors[i].type;
    return ALLOT_OK;
}

/* ---- By a recipe ------------------------------------------------------------------------------------- */

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
    const char *rule;
    enum ggml_type *types;
    allot_status status = take_types(&types, run, err);
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            status = recipe_tensor_type(run, recipe, &model->tensors[i], &types[i], err);
    for (size_t i = 0; status == ALLOT_OK && (rule = recipe_unused_rule(recipe, i)) != NULL; i++)
        allot_note(run->progress, "%s: the rule '%s' matches no tensor", run->args->recipe, rule);
    return status;
}

allot_status quantize_run_recipe(struct quantize_run *run, struct allot_error *err)
{
    struct recipe *recipe = NULL;
    allot_status status = recipe_open(&recipe, run->args->recipe, err);
    if (status == ALLOT_OK)
        status = recipe_check(recipe, run->job.model, run->args->recipe, err);
    if (status == ALLOT_OK)
        status = read_imatrix(run, err);
    if (status == ALLOT_OK)
        status = recipe_types(run, recipe, err);
    recipe_free(recipe);
    return status == ALLOT_OK ? finish(run, err) : status;
}

/* ---- By another file ----------------------------------------------------------------------------------- */

static allot_status codes_types(struct quantize_run *run, const struct gguf_model *file,
                                struct allot_error *err)
{
    const struct gguf_model *model = run->job.model;
    enum ggml_type *types;
    allot_status status = take_types(&types, run, err);
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i], *other = gguf_model_tensor(file, t->name);
        if (!other)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s has no tensor %s: it is no quantization of %s",
                              file->path, t->name, model->path);
        if (memcmp(other->ne, t->ne, sizeof t->ne) != 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "%s: tensor %s has another shape: it is no quantization of %s", file->path,
                              t->name, model->path);
        if (gguf_tensor_quantizable(t))
            types[i] = other->type;
        if (types[i] != t->type && !quant_type_find(types[i]))
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s is %s, which cannot be written",
                              file->path, t->name, ggml_type_name(types[i]));
    }
    return status;
}

allot_status quantize_run_codes(struct quantize_run *run, struct allot_error *err)
{
    struct gguf_model *file = NULL;
    allot_status status = gguf_model_open(&file, run->args->codes, err);
    if (status == ALLOT_OK)
        status = read_imatrix(run, err);
    if (status == ALLOT_OK)
        status = codes_types(run, file, err);
    gguf_model_close(file);
    return status == ALLOT_OK ? finish(run, err) : status;
}
