/* check.h - what libllama aborts on, found before it sees the file.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_CHECK_H
#define ALLOT_TEXT_CHECK_H

#include "gguf/model.h"

/* The token list: no token twice, as libllama will name them. What else can be wrong with the tokenizer's
 * lists libllama reports itself. */
allot_status check_token_list(const struct gguf_model *model, struct allot_error *err);

/* The hyperparameters that every architecture has and that libllama asserts on or divides by: number of
 * layers, heads, experts, epsilons. Absent ones and those of a wrong type are left to libllama. */
allot_status check_hyperparameters(const struct gguf_model *model, struct allot_error *err);

/* Every tensor's type is one that libllama's CPU kernels can use in its place. */
allot_status check_tensor_types(const struct gguf_model *model, struct allot_error *err);

#endif
