/* rebuild.c - layouts and mixes by name, and hybrids of them, as types of a model's tensors.
 * SPDX-License-Identifier: MIT */
#include "search/rebuild.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "search/mix.h"

allot_status model_roles(enum role *roles, int *n_layers, const struct gguf_model *model,
                         struct allot_error *err)
{
    const size_t n = (size_t)model->n_tensors;
    const char **names = calloc(n + 1, sizeof *names);
    char *architecture = gguf_model_str(model, "general.architecture");
    if (!names) {
        free(architecture);
        return allot_fail_memory(err, n * sizeof *names, "roles");
    }
    for (size_t i = 0; i < n; i++)
        names[i] = model->tensors[i].name;
    roles_of(roles, architecture, names, n);
    *n_layers = roles_depth(roles, names, n);
    free(architecture);
    free(names);
    return ALLOT_OK;
}

/* ---- By name ---------------------------------------------------------------------------------------- */

allot_status rebuild_find(const struct layout **layout, const struct rebuild_source *source, const char *name,
                          struct allot_error *err)
{
    *layout = NULL;
    for (size_t i = 0; i < source->n_lists && !*layout; i++) {
        bool ambiguous;
        *layout = layout_list_find(&source->lists[i], name, &ambiguous);
        if (ambiguous)
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "several layouts are called '%s'; the first digits of the SHA-256 of its file "
                              "name one of them",
                              name);
    }
    return ALLOT_OK;
}

static allot_status unknown_name(const struct rebuild_source *source, const char *name,
                                 struct allot_error *err)
{
    struct strbuf known = {0};
    for (size_t i = 0; i < source->n_lists; i++)
        for (size_t k = 0; k < source->lists[i].n; k++)
            strbuf_addf(&known, "%s%s", known.len ? ", " : "", source->lists[i].items[k].name);
    allot_fail(err, ALLOT_ERR_ARGUMENT,
               "'%s' is neither a layout that was learned (%s) nor a mix of llama-quantize", name,
               known.len ? known.data : "there are none");
    strbuf_release(&known);
    return err->status;
}

static allot_status apply_mix(enum ggml_type *types, const struct rebuild_source *source, const char *mix,
                              const struct gguf_model *model, const bool *groups, struct allot_error *err)
{
    const size_t n = (size_t)model->n_tensors;
    enum ggml_type *all = calloc(n + 1, sizeof *all);
    enum role *roles = calloc(n + 1, sizeof *roles);
    int n_layers;
    allot_status status = all && roles ? model_roles(roles, &n_layers, model, err)
                                       : allot_fail_memory(err, n * sizeof *all, "types");
    if (status == ALLOT_OK)
        status = mix_types(all, model, mix, source->has_imatrix, err);
    for (size_t i = 0; status == ALLOT_OK && i < n; i++)
        if (!groups || groups[roles[i]])
            types[i] = all[i];
    free(all);
    free(roles);
    return status;
}

allot_status rebuild_types(enum ggml_type *types, struct layout_fit *fit, const struct rebuild_source *source,
                           const char *name, const struct gguf_model *model, const bool *groups,
                           const struct allot_progress *progress, struct allot_error *err)
{
    const struct layout *layout;
    memset(fit, 0, sizeof *fit);
    if (rebuild_find(&layout, source, name, err) != ALLOT_OK)
        return err->status;
    if (layout)
        return layout_apply(types, fit, layout, model, groups, source->scale_depth, progress, err);
    return mix_find(name) ? apply_mix(types, source, name, model, groups, err)
                          : unknown_name(source, name, err);
}

/* ---- Hybrids ---------------------------------------------------------------------------------------- */

static allot_status add_part(struct hybrid *h, const char *group, const char *name, struct allot_error *err)
{
    const bool base = strcmp(group, "base") == 0;
    const enum role role = base ? N_ROLES : role_by_name(group);
    if (!base && role == N_ROLES) {
        struct strbuf known = {0};
        for (int i = 0; i < N_ROLES; i++)
            strbuf_addf(&known, ", %s", role_name((enum role)i));
        allot_fail(err, ALLOT_ERR_ARGUMENT, "unknown group '%s'; known are base%s", group,
                   known.data ? known.data : "");
        strbuf_release(&known);
        return err->status;
    }
    bool twice = base && h->base;
    for (size_t i = 0; i < h->n_parts; i++)
        twice |= !base && h->parts[i].role == role;
    if (twice)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s is given twice", group);
    char *copy = strdup(name);
    if (!copy)
        return allot_fail_memory(err, strlen(name), "a hybrid");
    if (base) {
        h->base = copy;
    } else {
        h->parts[h->n_parts].role = role;
        h->parts[h->n_parts++].name = copy;
    }
    return ALLOT_OK;
}

allot_status hybrid_parse(struct hybrid *hybrid, const char *text, struct allot_error *err)
{
    memset(hybrid, 0, sizeof *hybrid);
    char *copy = strdup(text), *rest = copy, *word;
    allot_status status = copy ? ALLOT_OK : allot_fail_memory(err, strlen(text), "a hybrid");
    while (status == ALLOT_OK && (word = strsep(&rest, ",")) != NULL) {
        char *equals = strchr(word, '=');
        if (!equals || equals == word || !equals[1]) {
            status = allot_fail(err, ALLOT_ERR_ARGUMENT, "'%s' is no GROUP=NAME", word);
            break;
        }
        *equals = '\0';
        status = add_part(hybrid, word, equals + 1, err);
    }
    if (status == ALLOT_OK && !hybrid->base)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "'%s' has no base=NAME", text);
    free(copy);
    if (status != ALLOT_OK)
        hybrid_release(hybrid);
    return status;
}

void hybrid_release(struct hybrid *hybrid)
{
    free(hybrid->base);
    for (size_t i = 0; i < hybrid->n_parts; i++)
        free(hybrid->parts[i].name);
    memset(hybrid, 0, sizeof *hybrid);
}

static allot_status check_group(enum role role, const enum role *roles, const struct gguf_model *model,
                                struct allot_error *err)
{
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (roles[i] == role)
            return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s has no tensors of the group %s", model->path,
                      role_name(role));
}

allot_status hybrid_types(enum ggml_type *types, struct layout_fit *fits, const struct rebuild_source *source,
                          const struct hybrid *hybrid, const struct gguf_model *model,
                          const struct allot_progress *progress, struct allot_error *err)
{
    enum role *roles = calloc((size_t)model->n_tensors + 1, sizeof *roles);
    bool rest[N_ROLES];
    int n_layers;
    memset(rest, true, sizeof rest);
    allot_status status = roles ? model_roles(roles, &n_layers, model, err)
                                : allot_fail_memory(err, (size_t)model->n_tensors * sizeof *roles, "roles");
    for (size_t p = 0; status == ALLOT_OK && p < hybrid->n_parts; p++) {
        const enum role role = hybrid->parts[p].role;
        bool one[N_ROLES] = {false};
        one[role] = true;
        rest[role] = false;
        status = check_group(role, roles, model, err);
        if (status == ALLOT_OK)
            status =
                rebuild_types(types, &fits[p + 1], source, hybrid->parts[p].name, model, one, progress, err);
    }
    if (status == ALLOT_OK)
        status = rebuild_types(types, &fits[0], source, hybrid->base, model, rest, progress, err);
    free(roles);
    return status;
}
