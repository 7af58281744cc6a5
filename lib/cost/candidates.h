/* candidates.h - the types whose costs a set still lacks, tensor by tensor.  SPDX-License-Identifier: MIT
 *
 * What all methods ask of the imatrix and of the archive. */
#ifndef ALLOT_COST_CANDIDATES_H
#define ALLOT_COST_CANDIDATES_H

#include "archive/archive.h"
#include "cost/imatrix.h"

/* What the costs are for. */
struct cost_wish {
    const struct imatrix *imatrix; /* or NULL */
    const enum ggml_type *types;   /* candidates */
    size_t n_types;
    struct archive *archive;
    int64_t set_id;
};

struct candidates {
    enum ggml_type *types; /* legal for the tensor and not in the set */
    size_t n_types;
    size_t n_legal; /* those in the set included */
};

/* Types a tensor can take: its row consists of whole blocks, and ggml does not need an importance
 * matrix that is missing (have_weights says if there is one). Writes at most n_types to legal and
 * returns how many. The source type itself is left out: it costs nothing. */
size_t candidates_legal(const struct gguf_tensor *tensor, bool have_weights, const enum ggml_type *types,
                        size_t n_types, enum ggml_type *legal);

/* Of a quantizable tensor. Free types with free. */
allot_status candidates_find(struct candidates *out, const struct cost_wish *wish,
                             const struct gguf_tensor *tensor, struct allot_error *err);

/* Importances (ne[2], ne[0]) of the tensor, caller frees; NULL if there are none. */
allot_status candidates_weights(float **weights, const struct cost_wish *wish,
                                const struct gguf_tensor *tensor, struct allot_error *err);

/* Remarks for people, of a type that the tensor cannot take, or only with floored importances. */
void candidates_note(const struct allot_progress *progress, const struct gguf_tensor *tensor,
                     enum ggml_type type, bool infeasible, bool floored);

/* How many of the tensor's ne[2] matrices tokens passed through, and a remark for people that names the
 * others: experts that no token took, which count as the mean of the others. False if there are none. */
int64_t candidates_seen(const struct gguf_tensor *tensor, const bool *seen);
bool candidates_note_unseen(const struct allot_progress *progress, const struct gguf_tensor *tensor,
                            const bool *seen);

/* Every tensor has what it can have: notes the types as finished and the set as used now. */
allot_status candidates_finish(const struct cost_wish *wish, int64_t n_tokens, struct allot_error *err);

#endif
