/* recipe_types.c - recipes as types of a model's tensors.  SPDX-License-Identifier: MIT */
#include "recipe_types.h"

#include "base/error.h"
#include "quant/quant.h"

static int type_by_name(const char *name)
{
    const struct quant_type *type = quant_type_by_name(name);
    return type ? (int)type->type : -1;
}

allot_status recipe_open(struct recipe **out, const char *path, struct allot_error *err)
{
    return recipe_parse(out, path, type_by_name, quant_type_names(), err);
}

allot_status recipe_check(const struct recipe *recipe, const struct gguf_model *model, const char *path,
                          struct allot_error *err)
{
    for (int64_t i = 0; i < model->n_tensors; i++) {
        if (gguf_tensor_quantizable(&model->tensors[i]))
            recipe_type(recipe, model->tensors[i].name);
        const char *rule = recipe_hard_rule(recipe);
        if (rule)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                              "recipe %s: the rule '%s' takes too many steps to match with tensor %s", path,
                              rule, model->tensors[i].name);
    }
    return ALLOT_OK;
}

enum ggml_type recipe_written_type(enum ggml_type wanted, const struct gguf_tensor *tensor)
{
    return quant_type_fallback(wanted, tensor->ne[0]);
}
