/* rebuild.h - a layout as the types of another model's tensors.  SPDX-License-Identifier: MIT
 *
 * On equal footing: whatever a published file was made from, its layout is rebuilt from the user's own model
 * with the user's own importances. So what is then compared are layouts, not the files they were learned of.
 */
#ifndef ALLOT_SEARCH_REBUILD_H
#define ALLOT_SEARCH_REBUILD_H

#include "search/layout.h"

/* How well a layout suits a model. */
struct layout_fit {
    int64_t n_missing; /* quantizable tensors that the layout lacks, or has in a type of no recipe; they keep
                          theirs */
    int64_t n_fallbacks; /* rows that do not fit the layout's type; llama-quantize's fallback stands in */
    int64_t n_unused;    /* tensors of the layout that the model has not; not counted if scaled */
    bool scaled;         /* by relative depth: the model has another number of layers */
    bool tied_differs;   /* only one of the two has an output of its own beside the token embeddings */
};

/* Fills types[model->n_tensors], but for tensors whose group is not one of `groups` [N_ROLES] (NULL: all),
 * which are left alone. A tensor gets the type that the layout has under its name; what the layout keeps
 * exact, what it says nothing of and what llama-quantize never changes keep the model's own. What does not go
 * smoothly is told through progress->note, and counted.
 *
 * With another number of layers, only if scale_depth: layer i of n takes after layer round(i (m-1) / (n-1))
 * of the layout's m, or after the nearest to it that has such a tensor. Where one of the two has no
 * output.weight: the model's takes after the layout's token embeddings, which stood for both; and the model's
 * token embeddings, which stand for both, take the larger of the layout's two types.
 *
 * ALLOT_ERR_ARGUMENT: another architecture, or another depth without scale_depth. */
allot_status layout_apply(enum ggml_type *types, struct layout_fit *fit, const struct layout *layout,
                          const struct gguf_model *model, const bool *groups, bool scale_depth,
                          const struct allot_progress *progress, struct allot_error *err);

/* ---- By name ---------------------------------------------------------------------------------------- */

/* What names may mean. */
struct rebuild_source {
    const struct layout_list *lists; /* looked through in this order, before the mixes of llama-quantize */
    size_t n_lists;
    bool has_imatrix; /* some mixes depend on it */
    bool scale_depth;
};

/* The learned layout of the name, or NULL. ALLOT_ERR_ARGUMENT: the name is ambiguous. */
allot_status rebuild_find(const struct layout **layout, const struct rebuild_source *source, const char *name,
                          struct allot_error *err);

/* layout_apply of a learned layout, or the types of a mix such as Q4_K_M (fit is all zeros then). The error
 * about an unknown name lists what there is. */
allot_status rebuild_types(enum ggml_type *types, struct layout_fit *fit, const struct rebuild_source *source,
                           const char *name, const struct gguf_model *model, const bool *groups,
                           const struct allot_progress *progress, struct allot_error *err);

/* ---- Hybrids ---------------------------------------------------------------------------------------- */

/* A base, and groups of it that take after another layout. */
struct hybrid {
    char *base;
    struct {
        enum role role;
        char *name;
    } parts[N_ROLES];
    size_t n_parts;
};

/* "base=Q4_K_M,attn_kv=NAME,...", in any order. */
allot_status hybrid_parse(struct hybrid *hybrid, const char *text, struct allot_error *err);
void hybrid_release(struct hybrid *hybrid);

/* fits: of the base, then of the parts in their order; N_ROLES + 1 of them suffice. A group of which the
 * model has no tensor is ALLOT_ERR_ARGUMENT. */
allot_status hybrid_types(enum ggml_type *types, struct layout_fit *fits, const struct rebuild_source *source,
                          const struct hybrid *hybrid, const struct gguf_model *model,
                          const struct allot_progress *progress, struct allot_error *err);

/* roles[model->n_tensors], and how many layers the model has without those of ROLE_MTP. */
allot_status model_roles(enum role *roles, int *n_layers, const struct gguf_model *model,
                         struct allot_error *err);

#endif
