/* describe.h - facts about a GGUF model, in the words of the command line.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_DESCRIBE_H
#define ALLOT_CLI_DESCRIBE_H

#include "gguf/model.h"
#include "output.h"

/* "Q4_K", "BF16"; ggml's own name for types that no recipe can name. */
const char *type_label(enum ggml_type type);
/* Name of a general.file_type, or NULL. */
const char *file_type_label(int64_t file_type);

int64_t model_parameters(const struct gguf_model *model);
/* Bytes of all tensors, without padding. */
int64_t model_data_bytes(const struct gguf_model *model);
/* Bits per weight of the tensor data, as llama.cpp prints it; 0 without weights. */
double bits_per_weight(int64_t data_bytes, int64_t n_parameters);

/* What a type takes up in a model. */
struct type_use {
    enum ggml_type type;
    int64_t n_tensors, n_elements, bytes;
};
/* Fills uses (GGML_TYPE_COUNT of them suffice), most bytes first, for types[i] of tensor i (NULL: the
 * model's own); returns how many. quantizable_only leaves out what llama-quantize never changes. */
size_t count_types(struct type_use *uses, const struct gguf_model *model, const enum ggml_type *types,
                   bool quantizable_only);
json_t *types_json(const struct type_use *uses, size_t n);
allot_status types_print(const struct type_use *uses, size_t n, struct allot_error *err);

/* The layers x roles table of types: one row per run of equal layers, one column per role. */
allot_status layers_print(const struct gguf_model *model, const enum ggml_type *types,
                          struct allot_error *err);

/* The role in the name of a layer's tensor: "blk.3.ffn_down.weight" -> "ffn_down". False: it has none. */
bool layer_role(char role[static 64], const char *name);
/* Of two roles, as texts, which comes first as a layer computes; for qsort. */
int compare_roles(const void *a, const void *b);

#endif
