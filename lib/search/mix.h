/* mix.h - the mixes of llama-quantize: which type each gives to every tensor.  SPDX-License-Identifier: MIT
 *
 * llama-quantize's third argument (Q4_K_M, IQ2_XS, ...) names a mix: a type for most tensors, and exceptions
 * by role, layer, architecture and shape. These are the choices of the linked release with no other options
 * than
 * --imatrix, told without running it. */
#ifndef ALLOT_SEARCH_MIX_H
#define ALLOT_SEARCH_MIX_H

#include "gguf/model.h"

/* All that llama-quantize offers, in its own spelling, aliases (Q3_K, Q4_K, Q5_K) not counted. */
size_t mix_count(void);
const char *mix_name(size_t index); /* index < mix_count() */

/* The mix that llama-quantize takes this name for, in any case of letters, aliases resolved; NULL if none. */
const char *mix_find(const char *name);

/* The types that llama-quantize gives to the model's tensors: types (model->n_tensors), in the model's order.
 * Tensors that it does not quantize keep theirs, with COPY all; rows without whole blocks have its fallback.
 * has_imatrix: it is given an importance matrix with one entry at least; which entries there are makes no
 * difference to types. Whether it then writes the file is another matter: mix_needs_imatrix says where it
 * wants an entry, and it takes no tensor that is quantized already (without --allow-requantize).
 *
 * Fails where no such mix exists (the message lists them), where the model lacks the numbers that decide
 * (layers), and where llama-quantize stops: experts' tensors outside the model's layers, rows that have
 * neither whole blocks nor a fallback. types is unspecified then. */
allot_status mix_types(enum ggml_type *types, const struct gguf_model *model, const char *mix,
                       bool has_imatrix, struct allot_error *err);

/* Does llama-quantize refuse this mix if the tensor, which is to have this type, has no importances? */
bool mix_needs_imatrix(const char *mix, enum ggml_type type, const char *tensor_name);

#endif
