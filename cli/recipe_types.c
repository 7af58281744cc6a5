/* recipe_types.c - recipes as types of a model's tensors.  SPDX-License-Identifier: MIT */
#include "recipe_types.h"

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

enum ggml_type recipe_written_type(enum ggml_type wanted, const struct gguf_tensor *tensor)
{
    return quant_type_fallback(wanted, tensor->ne[0]);
}
