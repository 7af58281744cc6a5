/* candidates.c - the types whose costs a set still lacks.  SPDX-License-Identifier: MIT */
#include "cost/candidates.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant/quant.h"

enum { EXPERTS_NAMED = 8 };

size_t candidates_legal(const struct gguf_tensor *tensor, bool have_weights, const enum ggml_type *types,
                        size_t n_types, enum ggml_type *legal)
{
    size_t n = 0;
    for (size_t i = 0; i < n_types; i++) {
        if (types[i] == tensor->type || !quant_type_fits(types[i], tensor->ne[0]))
            continue;
        if (!have_weights && quant_type_needs_imatrix(types[i], tensor->name))
            continue;
        legal[n++] = types[i];
    }
    return n;
}

allot_status candidates_weights(float **weights, const struct cost_wish *wish,
                                const struct gguf_tensor *tensor, struct allot_error *err)
{
    char reason[128];
    *weights = NULL;
    if (wish->imatrix == NULL)
        return ALLOT_OK;
    return imatrix_weights(wish->imatrix, tensor, weights, reason, err);
}

allot_status candidates_find(struct candidates *out, const struct cost_wish *wish,
                             const struct gguf_tensor *tensor, struct allot_error *err)
{
    float *weights;
    size_t n = wish->n_types;
    *out = (struct candidates){0};
    allot_status status = candidates_weights(&weights, wish, tensor, err);
    if (status != ALLOT_OK)
        return status;
    out->types = malloc((n + 1) * sizeof *out->types);
    const char **names = malloc((n + 1) * sizeof *names);
    bool *have = calloc(n + 1, sizeof *have);
    if (out->types == NULL || names == NULL || have == NULL)
        status = allot_fail_memory(err, (n + 1) * sizeof *names, tensor->name);
    if (status == ALLOT_OK) {
        out->n_legal = candidates_legal(tensor, weights != NULL, wish->types, n, out->types);
        for (size_t i = 0; i < out->n_legal; i++)
            names[i] = quant_type_find(out->types[i])->name;
        status = archive_cost_have(wish->archive, wish->set_id, tensor->name, names, out->n_legal, have, err);
    }
    for (size_t i = 0; status == ALLOT_OK && i < out->n_legal; i++)
        if (!have[i])
            out->types[out->n_types++] = out->types[i];
    if (status != ALLOT_OK) {
        free(out->types);
        *out = (struct candidates){0};
    }
    free(weights);
    free(names);
    free(have);
    return status;
}

void candidates_note(const struct allot_progress *progress, const struct gguf_tensor *tensor,
                     enum ggml_type type, bool infeasible, bool floored)
{
    const char *name = quant_type_find(type)->name;
    if (infeasible)
        allot_note(progress, "%s: type %s is infeasible (its blocks would hold NaN or Inf)", tensor->name,
                   name);
    else if (floored)
        allot_note(progress,
                   "%s: type %s needs its zero importances floored; llama-quantize would refuse it or lose "
                   "weights",
                   tensor->name, name);
}

int64_t candidates_seen(const struct gguf_tensor *tensor, const bool *seen)
{
    int64_t n = 0;
    for (int64_t e = 0; e < tensor->ne[2]; e++)
        n += seen[e];
    return n;
}

bool candidates_note_unseen(const struct allot_progress *progress, const struct gguf_tensor *tensor,
                            const bool *seen)
{
    int64_t n_unseen = tensor->ne[2] - candidates_seen(tensor, seen), n_named = 0;
    char list[160] = "";
    for (int64_t e = 0; e < tensor->ne[2] && n_named < EXPERTS_NAMED; e++) {
        size_t used = strlen(list);
        if (!seen[e])
            snprintf(list + used, sizeof list - used, "%s%" PRId64, n_named++ > 0 ? ", " : "", e);
    }
    if (n_unseen == 0)
        return false;
    allot_note(progress,
               "%s: no token of the calibration took expert%s %s%s (%" PRId64 " of %" PRId64
               "); in all of the layer's experts tensors they count as the mean of the others",
               tensor->name, n_unseen > 1 ? "s" : "", list, n_unseen > n_named ? ", ..." : "", n_unseen,
               tensor->ne[2]);
    return true;
}

allot_status candidates_finish(const struct cost_wish *wish, int64_t n_tokens, struct allot_error *err)
{
    size_t n = wish->n_types;
    const char **names = malloc((n + 1) * sizeof *names);
    if (names == NULL)
        return allot_fail_memory(err, (n + 1) * sizeof *names, "names of types");
    for (size_t i = 0; i < n; i++)
        names[i] = quant_type_find(wish->types[i])->name;
    allot_status status = archive_cost_finish(wish->archive, wish->set_id, names, n, err);
    free(names);
    if (status == ALLOT_OK)
        status = archive_cost_set_touch(wish->archive, wish->set_id, n_tokens, err);
    return status;
}
