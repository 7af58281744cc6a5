/* layout_apply.c - a learned layout as the types of a model's tensors.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "quant/quant.h"
#include "search/rebuild.h"

static const char embeddings_name[] = "token_embd.weight", output_name[] = "output.weight";

/* The layout's tensors by (name within the layer, layer). */
struct apply {
    enum ggml_type *types;
    struct layout_fit *fit;
    const struct layout *layout;
    const struct gguf_model *model;
    const bool *groups; /* NULL: all */
    enum role *roles;   /* of the model's tensors */
    int depth;          /* of the model */
    const struct layout_tensor **index;
    bool *used; /* of the layout's tensors */
    struct strbuf missing, fallbacks;
};

static bool wanted(const struct apply *a, enum role role)
{
    return !a->groups || a->groups[role];
}

/* ---- Finding a counterpart -------------------------------------------------------------------------- */

static int compare_places(const char *a, int layer_a, const char *b, int layer_b)
{
    const int order = strcmp(role_stem(a), role_stem(b));
    return order ? order : (layer_a > layer_b) - (layer_a < layer_b);
}

static int compare_tensors(const void *a, const void *b)
{
    const struct layout_tensor *x = *(const struct layout_tensor *const *)a,
                               *y = *(const struct layout_tensor *const *)b;
    return compare_places(x->name, x->layer, y->name, y->layer);
}

/* The first of the index that does not come before (name, layer). */
static size_t lower_bound(const struct apply *a, const char *name, int layer)
{
    size_t low = 0, high = a->layout->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct layout_tensor *t = a->index[middle];
        if (compare_places(t->name, t->layer, name, layer) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The layout's tensor of this name but for the layer, which may be `within` layers away; NULL: none. Of
 * layers that predict further tokens only if mtp, and then only of these. */
static const struct layout_tensor *find_near(const struct apply *a, const char *name, int layer, int within,
                                             bool mtp)
{
    const struct layout_tensor *best = NULL;
    const size_t at = lower_bound(a, name, layer);
    /* Of the two sides the one below comes first and wins a tie. */
    for (size_t i = at ? at - 1 : 0; i <= at && i < a->layout->n_tensors; i++) {
        const struct layout_tensor *t = a->index[i];
        const bool same = strcmp(role_stem(t->name), role_stem(name)) == 0 && (t->layer < 0) == (layer < 0) &&
                          (t->role == ROLE_MTP) == mtp;
        const int distance = abs(t->layer - layer);
        if (same && distance <= within && (!best || distance < abs(best->layer - layer)))
            best = t;
    }
    return best;
}

/* The layer of the layout that stands where this one does. */
static int counterpart_layer(const struct apply *a, int layer, bool mtp)
{
    const int64_t i = layer, n = a->depth, m = a->layout->n_layers;
    if (layer < 0)
        return layer;
    if (mtp || n == m)
        return (int)(i + m - n);
    return n < 2 ? 0 : (int)((2 * i * (m - 1) + n - 1) / (2 * (n - 1)));
}

static const struct layout_tensor *counterpart(const struct apply *a, int64_t index)
{
    const struct gguf_tensor *t = &a->model->tensors[index];
    const int layer = role_layer(t->name);
    const bool mtp = a->roles[index] == ROLE_MTP, near = a->fit->scaled && !mtp && layer >= 0;
    return find_near(a, t->name, counterpart_layer(a, layer, mtp), near ? a->layout->n_layers : 0, mtp);
}

static const struct layout_tensor *find_outside(const struct apply *a, const char *name)
{
    return find_near(a, name, -1, 0, false);
}

/* ---- Types ------------------------------------------------------------------------------------------ */

static double bits(enum ggml_type type)
{
    return 8.0 * (double)ggml_type_size(type) / (double)ggml_blck_size(type);
}

/* The tensor whose type counts for the index-th of the model, where only one of the two is tied. */
static const struct layout_tensor *tied_counterpart(const struct apply *a, const struct gguf_tensor *t,
                                                    const struct layout_tensor *found)
{
    const struct layout_tensor *output = find_outside(a, output_name);
    if (!a->fit->tied_differs)
        return found;
    if (!output && strcmp(t->name, output_name) == 0)
        return find_outside(a, embeddings_name);
    if (output && found && strcmp(t->name, embeddings_name) == 0 && bits(output->type) > bits(found->type))
        return output;
    return found;
}

/* Up to three names, and a mark where there are more. */
static void list_name(struct strbuf *sb, int64_t n, const char *name)
{
    if (n <= 3)
        strbuf_addf(sb, "%s%s", n > 1 ? ", " : "", name);
    else if (n == 4)
        strbuf_addf(sb, ", ...");
}

static void set_type(struct apply *a, int64_t index)
{
    const struct gguf_tensor *t = &a->model->tensors[index];
    const struct layout_tensor *own = counterpart(a, index), *from = tied_counterpart(a, t, own);
    if (own)
        a->used[own - a->layout->tensors] = true;
    a->types[index] = t->type;
    if (!gguf_tensor_quantizable(t))
        return;
    if (!from || (!layout_exact_type(from->type) && !quant_type_find(from->type))) {
        list_name(&a->missing, ++a->fit->n_missing, t->name);
        return;
    }
    if (layout_exact_type(from->type))
        return;
    a->types[index] = quant_type_fallback(from->type, t->ne[0]);
    if (a->types[index] == from->type)
        return;
    struct strbuf line = {0};
    strbuf_addf(&line, "%s (%s instead of %s)", t->name, quant_type_find(a->types[index])->name,
                quant_type_find(from->type)->name);
    list_name(&a->fallbacks, ++a->fit->n_fallbacks, line.data ? line.data : t->name);
    strbuf_release(&line);
}

/* ---- Before and after ------------------------------------------------------------------------------- */

static allot_status check_depth(struct apply *a, bool scale_depth, struct allot_error *err)
{
    const struct layout *l = a->layout;
    a->fit->scaled = a->depth != l->n_layers;
    if (!a->fit->scaled || scale_depth)
        return ALLOT_OK;
    return allot_fail(
        err, ALLOT_ERR_ARGUMENT,
        "layout '%s' is of %d layers, and %s has %d; --scale-depth applies it by relative depth", l->name,
        l->n_layers, a->model->path, a->depth);
}

static allot_status check_architecture(const struct apply *a, struct allot_error *err)
{
    char *architecture = gguf_model_str(a->model, "general.architecture");
    allot_status status = ALLOT_OK;
    if (!architecture || strcmp(architecture, a->layout->architecture) != 0)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "layout '%s' is of the architecture %s, and %s is of %s",
                            a->layout->name, a->layout->architecture, a->model->path,
                            architecture ? architecture : "none");
    free(architecture);
    return status;
}

static allot_status reserve(struct apply *a, struct allot_error *err)
{
    const size_t n = a->layout->n_tensors;
    a->index = calloc(n + 1, sizeof *a->index);
    a->used = calloc(n + 1, sizeof *a->used);
    a->roles = calloc((size_t)a->model->n_tensors + 1, sizeof *a->roles);
    if (!a->index || !a->used || !a->roles)
        return allot_fail_memory(err, n * sizeof *a->index, "a layout");
    for (size_t i = 0; i < n; i++)
        a->index[i] = &a->layout->tensors[i];
    qsort(a->index, n, sizeof *a->index, compare_tensors);
    return ALLOT_OK;
}

static void tell(const struct apply *a, const struct allot_progress *progress)
{
    const char *name = a->layout->name;
    const struct layout_fit *fit = a->fit;
    if (fit->scaled)
        allot_note(progress, "layout '%s': of %d layers, applied by relative depth to %d", name,
                   a->layout->n_layers, a->depth);
    if (fit->tied_differs && find_outside(a, output_name))
        allot_note(progress,
                   "layout '%s' has an output of its own, the model has not: its token embeddings get the "
                   "larger of the layout's two types",
                   name);
    else if (fit->tied_differs)
        allot_note(progress,
                   "layout '%s' has no output of its own, the model has: it gets the type of the layout's "
                   "token embeddings",
                   name);
    if (fit->n_missing)
        allot_note(progress, "layout '%s' says nothing of %" PRId64 " tensors, which keep their type: %s",
                   name, fit->n_missing, a->missing.data ? a->missing.data : "");
    if (fit->n_fallbacks)
        allot_note(progress, "layout '%s': %" PRId64 " tensors have rows that do not fit its type: %s", name,
                   fit->n_fallbacks, a->fallbacks.data ? a->fallbacks.data : "");
    if (fit->n_unused)
        allot_note(progress, "layout '%s' has %" PRId64 " tensors that the model has not", name,
                   fit->n_unused);
}

allot_status layout_apply(enum ggml_type *types, struct layout_fit *fit, const struct layout *layout,
                          const struct gguf_model *model, const bool *groups, bool scale_depth,
                          const struct allot_progress *progress, struct allot_error *err)
{
    struct apply a = {.types = types, .fit = fit, .layout = layout, .model = model, .groups = groups};
    memset(fit, 0, sizeof *fit);
    allot_status status = check_architecture(&a, err);
    if (status == ALLOT_OK)
        status = reserve(&a, err);
    if (status == ALLOT_OK)
        status = model_roles(a.roles, &a.depth, model, err);
    if (status == ALLOT_OK)
        status = check_depth(&a, scale_depth, err);
    if (status != ALLOT_OK)
        goto cleanup;
    const bool has_output = find_outside(&a, output_name) != NULL;
    fit->tied_differs = has_output != (gguf_model_tensor(model, output_name) != NULL) &&
                        wanted(&a, has_output ? ROLE_EMBEDDINGS : ROLE_LM_HEAD);
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (wanted(&a, a.roles[i]))
            set_type(&a, i);
    for (size_t i = 0; !fit->scaled && i < layout->n_tensors; i++)
        fit->n_unused += wanted(&a, layout->tensors[i].role) && !a.used[i];
    tell(&a, progress);
cleanup:
    strbuf_release(&a.missing);
    strbuf_release(&a.fallbacks);
    free(a.index);
    free(a.used);
    free(a.roles);
    return status;
}
