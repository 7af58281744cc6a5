/* recipe_types.h - recipes as types of a model's tensors.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_RECIPE_TYPES_H
#define ALLOT_CLI_RECIPE_TYPES_H

#include "gguf/model.h"
#include "plan/recipe.h"

/* recipe_parse with the types of lib/quant. */
allot_status recipe_open(struct recipe **out, const char *path, struct allot_error *err);

/* Fails, naming the rule, if for one of the tensors a rule takes more steps than matching is allowed: whether
 * it matches is then unknown. */
allot_status recipe_check(const struct recipe *recipe, const struct gguf_model *model, const char *path,
                          struct allot_error *err);

/* What llama-quantize writes for a rule of this type: its fallback where the row has no whole blocks. */
enum ggml_type recipe_written_type(enum ggml_type wanted, const struct gguf_tensor *tensor);

#endif
