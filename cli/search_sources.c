/* search_sources.c - what a search starts from: sources whole, and their groups alone.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant/quant.h"
#include "search.h"
#include "search/mix.h"
#include "search_files.h"

/* Tried unless --sources names others: the plain mixes that people publish. */
static const char *const usual_mixes[] = {"Q2_K", "Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"};

/* ---- Sources ---------------------------------------------------------------------------------------- */

/* The first tensor that cannot have its type without importances; NULL: none. */
static const struct gguf_tensor *lacks_importances(const struct search *s, const char *mix,
                                                   const enum ggml_type *types)
{
    const struct gguf_model *model = s->job.model;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        const struct imatrix_entry *entry = NULL;
        if (types[i] == t->type)
            continue;
        if (s->imatrix.present)
            entry = imatrix_find(&s->imatrix.data, t->name);
        if (entry == NULL && (quant_type_needs_imatrix(types[i], t->name) ||
                              (mix != NULL && mix_needs_imatrix(mix, types[i], t->name))))
            return t;
    }
    return NULL;
}

/* What the graph does not use stays as it is: there is nothing to measure of it. */
void search_keep_unusable(const struct search *s, enum ggml_type *types)
{
    for (int64_t i = 0; i < s->job.model->n_tensors; i++)
        if (!trial_usable(s->trial, i))
            types[i] = s->job.model->tensors[i].type;
}

static bool all_exact(const struct search *s, const enum ggml_type *types)
{
    for (int64_t i = 0; i < s->job.model->n_tensors; i++)
        if (types[i] != s->job.model->tensors[i].type)
            return false;
    return true;
}

/* name: of a mix, of a layout, or a layout's SHA-256. asked: the user named it, so that what is wrong with it
 * is an error and no remark. */
static allot_status add_source(struct search *s, const char *name, bool asked, struct allot_error *err)
{
    const struct gguf_model *model = s->job.model;
    struct rebuild_source where = layout_source(&s->layouts);
    struct layout_fit fit;
    const struct layout *layout = NULL;
    struct allot_error why;
    where.has_imatrix = s->imatrix.present;
    where.scale_depth = s->args->scale_depth;
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    struct source *grown = realloc(s->sources, (s->n_sources + 1) * sizeof *grown);
    if (grown != NULL)
        s->sources = grown;
    if (types == NULL || grown == NULL) {
        free(types);
        return allot_fail_memory(err, (s->n_sources + 1) * sizeof *grown, "sources");
    }
    allot_status status = rebuild_find(&layout, &where, name, &why);
    if (status == ALLOT_OK)
        status = rebuild_types(types, &fit, &where, name, model, NULL, s->progress, &why);
    const struct gguf_tensor *bare = NULL;
    if (status == ALLOT_OK) {
        search_keep_unusable(s, types);
        bare = lacks_importances(s, layout ? NULL : mix_find(name), types);
        if (bare != NULL)
            status = allot_fail(&why, ALLOT_ERR_ARGUMENT, "%s has no importances for %s", name, bare->name);
    }
    for (size_t i = 0; i < s->n_sources && status == ALLOT_OK; i++)
        if (s->sources[i].layout == layout &&
            (layout || strcmp(s->sources[i].build.name, mix_find(name)) == 0))
            status = allot_fail(&why, ALLOT_ERR_ARGUMENT, "%s is a source already", name);
    if (status != ALLOT_OK && (asked || status == ALLOT_ERR_MEMORY)) {
        free(types);
        return allot_fail(err, status, "%s", why.message);
    }
    if (status != ALLOT_OK || all_exact(s, types)) {
        allot_note(s->progress, "search: without %s: %s", layout ? layout->name : name,
                   status != ALLOT_OK ? why.message : "nothing of this model changes with it");
        free(types);
        return ALLOT_OK;
    }
    struct source *source = &s->sources[s->n_sources++];
    *source = (struct source){.layout = layout,
                              .found_by = layout ? layout->sha256 : mix_find(name),
                              .learning_only = layout && layout->learning_only};
    status = build_init(&source->build, s, layout ? FAMILY_LEARNED : FAMILY_PLAIN, types, err, "%s",
                        layout ? layout->name : mix_find(name));
    free(types);
    if (status == ALLOT_OK)
        status = search_files_check_recipe(s, source->build.name, err);
    if (status == ALLOT_OK) {
        struct strbuf sb = {0};
        if (layout)
            layout_origin_text(&sb, layout);
        else
            strbuf_addf(&sb, "llama-quantize");
        status = strbuf_check(&sb, err);
        source->origin = sb.data;
    }
    return status;
}

static allot_status add_named(struct search *s, const char *list, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    while (*list && status == ALLOT_OK) {
        char name[256];
        const size_t n = strcspn(list, ",");
        if (n == 0 || n >= sizeof name)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--sources: '%s' is no comma-separated list of names",
                              list);
        memcpy(name, list, n);
        name[n] = '\0';
        list += n + (list[n] == ',');
        status = add_source(s, name, true, err);
    }
    return status;
}

static allot_status add_usual(struct search *s, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < sizeof usual_mixes / sizeof *usual_mixes && status == ALLOT_OK; i++)
        status = add_source(s, usual_mixes[i], false, err);
    for (size_t l = 0; l < sizeof s->layouts.lists / sizeof *s->layouts.lists; l++)
        for (size_t i = 0; i < s->layouts.lists[l].n && status == ALLOT_OK; i++) {
            const struct layout *layout = &s->layouts.lists[l].items[i];
            bool known = false;
            for (size_t k = 0; k < s->n_sources; k++)
                known |= s->sources[k].layout && strcmp(s->sources[k].layout->sha256, layout->sha256) == 0;
            if (!known)
                status = add_source(s, layout->sha256, false, err);
        }
    return status;
}

/* ---- Groups ----------------------------------------------------------------------------------------- */

static allot_status list_groups(struct search *s, struct allot_error *err)
{
    const struct gguf_model *model = s->job.model;
    const size_t n = (size_t)model->n_tensors + 1;
    enum role *roles = calloc(n, sizeof *roles);
    int n_layers;
    allot_status status = roles ? model_roles(roles, &n_layers, model, err)
                                : allot_fail_memory(err, n * sizeof *roles, "groups");
    for (int r = 0; r < N_ROLES && status == ALLOT_OK; r++) {
        struct group group = {.role = (enum role)r, .tensors = calloc(n, sizeof *group.tensors)};
        if (group.tensors == NULL)
            status = allot_fail_memory(err, n * sizeof *group.tensors, "groups");
        for (int64_t i = 0; i < model->n_tensors && status == ALLOT_OK; i++) {
            const struct gguf_tensor *t = &model->tensors[i];
            if (roles[i] != group.role || !gguf_tensor_quantizable(t) || !trial_usable(s->trial, i))
                continue;
            group.tensors[group.n_tensors++] = i;
            group.n_weights += t->n_elements;
        }
        if (group.n_tensors == 0)
            free(group.tensors);
        else
            s->groups[s->n_groups++] = group;
    }
    free(roles);
    return status;
}

static bool same_in_group(const struct group *group, const enum ggml_type *a, const enum ggml_type *b)
{
    for (size_t i = 0; i < group->n_tensors; i++)
        if (a[group->tensors[i]] != b[group->tensors[i]])
            return false;
    return true;
}

void search_own_types(const struct search *s, enum ggml_type *types)
{
    for (int64_t i = 0; i < s->job.model->n_tensors; i++)
        types[i] = s->job.model->tensors[i].type;
}

/* The option of the group that a source has; equal ones are one, called after the first source. */
static allot_status take_option(struct search *s, size_t g, struct source *source, struct allot_error *err)
{
    struct group *group = &s->groups[g];
    for (size_t k = 0; k < group->n_options; k++)
        if (same_in_group(group, group->options[k].alone.types, source->build.types)) {
            source->build.options[g] = k;
            return ALLOT_OK;
        }
    struct group_option *option = &group->options[group->n_options];
    enum ggml_type *types = calloc((size_t)s->job.model->n_tensors + 1, sizeof *types);
    if (types == NULL)
        return allot_fail_memory(err, (size_t)s->job.model->n_tensors * sizeof *types, "types");
    search_own_types(s, types);
    for (size_t i = 0; i < group->n_tensors; i++)
        types[group->tensors[i]] = source->build.types[group->tensors[i]];
    allot_status status = build_init(&option->alone, s, FAMILY_HYBRID, types, err, "%s of %s alone",
                                     role_name(group->role), source->build.name);
    option->of = &source->build;
    source->build.options[g] = group->n_options++;
    free(types);
    return status;
}

static allot_status list_options(struct search *s, struct allot_error *err)
{
    enum ggml_type *types = calloc((size_t)s->job.model->n_tensors + 1, sizeof *types);
    allot_status status =
        types ? ALLOT_OK : allot_fail_memory(err, (size_t)s->job.model->n_tensors * sizeof *types, "types");
    for (size_t g = 0; g < s->n_groups && status == ALLOT_OK; g++) {
        struct group *group = &s->groups[g];
        search_own_types(s, types);
        group->options = calloc(s->n_sources + 1, sizeof *group->options);
        if (group->options == NULL)
            status = allot_fail_memory(err, (s->n_sources + 1) * sizeof *group->options, "options");
        else
            status = build_init(&group->options[group->n_options++].alone, s, FAMILY_EXACT, types, err,
                                "%s as it is", role_name(group->role));
    }
    free(types);
    for (size_t i = 0; i < s->n_sources && status == ALLOT_OK; i++) {
        struct build *b = &s->sources[i].build;
        b->options = calloc(s->n_groups + 1, sizeof *b->options);
        if (b->options == NULL)
            return allot_fail_memory(err, s->n_groups * sizeof *b->options, "options");
        b->predicted = build_cost(b, s);
        for (size_t g = 0; g < s->n_groups && status == ALLOT_OK; g++)
            status = take_option(s, g, &s->sources[i], err);
    }
    return status;
}

allot_status search_list(struct search *s, struct allot_error *err)
{
    allot_status status = layout_lists_load(&s->layouts, &s->job, err);
    if (status == ALLOT_OK)
        status = s->args->sources ? add_named(s, s->args->sources, err) : add_usual(s, err);
    if (status == ALLOT_OK && s->n_sources == 0)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "search: there is no source that suits %s",
                            s->job.model->path);
    if (status == ALLOT_OK)
        status = list_groups(s, err);
    return status == ALLOT_OK ? list_options(s, err) : status;
}

/* ---- Whole and alone -------------------------------------------------------------------------------- */

static allot_status measure_sources(struct search *s, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < s->n_sources && status == ALLOT_OK; i++) {
        const struct trial_step step = {"sources", (int64_t)i, (int64_t)s->n_sources};
        if (!s->sources[i].learning_only)
            status = build_measure(&s->sources[i].build, s, &step, err);
    }
    return status;
}

static allot_status measure_alone(struct search *s, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    int64_t done = 0, total = 0;
    for (size_t g = 0; g < s->n_groups; g++)
        total += (int64_t)s->groups[g].n_options - 1;
    for (size_t g = 0; g < s->n_groups && status == ALLOT_OK; g++)
        for (size_t k = 1; k < s->groups[g].n_options && status == ALLOT_OK; k++) {
            const struct trial_step step = {"groups alone", done++, total};
            status = build_measure(&s->groups[g].options[k].alone, s, &step, err);
        }
    return status;
}

static size_t peer_of(const struct search *s, size_t g)
{
    const enum role role = s->groups[g].role, peer = role == ROLE_FFN_UP_GATE ? ROLE_FFN_DOWN
                                                     : role == ROLE_FFN_DOWN  ? ROLE_FFN_UP_GATE
                                                                              : N_ROLES;
    for (size_t k = 0; k < s->n_groups; k++)
        if (s->groups[k].role == peer)
            return k;
    return PRUNE_ALONE;
}

int64_t group_bytes(const struct search *s, const struct group *group, const enum ggml_type *types)
{
    int64_t sum = 0;
    for (size_t i = 0; i < group->n_tensors; i++) {
        const struct gguf_tensor *t = &s->job.model->tensors[group->tensors[i]];
        sum += gguf_padded((int64_t)ggml_row_size(types[group->tensors[i]], t->ne[0]) * t->n_rows);
    }
    return sum;
}

const char *group_option_name(const struct group_option *option)
{
    return option->of ? option->of->name : "as it is";
}

/* Options in use by a source that is a file stay whatever is said of them: it is a combination of them. */
static void keep_used(struct search *s)
{
    for (size_t i = 0; i < s->n_sources; i++)
        for (size_t g = 0; g < s->n_groups && s->sources[i].build.measured; g++) {
            struct group_option *option = &s->groups[g].options[s->sources[i].build.options[g]];
            option->stays |= option->alone.measured;
        }
}

static allot_status prune(struct search *s, struct allot_error *err)
{
    size_t n = 0, most = 1, peers[N_ROLES];
    struct prune_row *rows = NULL;
    struct pruned *pruned = NULL;
    struct group_option **options = NULL;
    for (size_t g = 0; g < s->n_groups; g++) {
        most += s->groups[g].n_options;
        peers[g] = peer_of(s, g);
    }
    rows = calloc(most, sizeof *rows);
    pruned = calloc(most, sizeof *pruned);
    options = calloc(most, sizeof *options);
    allot_status status =
        rows && pruned && options ? ALLOT_OK : allot_fail_memory(err, most * sizeof *rows, "options");
    for (size_t g = 0; g < s->n_groups && status == ALLOT_OK; g++)
        for (size_t k = 0; k < s->groups[g].n_options; k++) {
            struct group_option *option = &s->groups[g].options[k];
            if (!option->alone.measured)
                continue;
            const struct measure_mean ppl = build_ln_ppl(&option->alone, s, s->args->evals.n);
            struct measured file = build_measured(&option->alone, s);
            file.bytes = group_bytes(s, &s->groups[g], option->alone.types);
            file.family = option->of ? option->of->family : FAMILY_EXACT;
            rows[n] = (struct prune_row){g, group_option_name(option), file, ppl.mean, ppl.se};
            options[n++] = option;
        }
    const struct prune_groups groups = {s->n_groups, peers};
    if (status == ALLOT_OK)
        status = prune_rows(pruned, rows, n, &groups, &prune_defaults, err);
    for (size_t i = 0; i < n && status == ALLOT_OK; i++) {
        options[i]->pruned = pruned[i];
        options[i]->stays = prune_stays(&pruned[i]);
    }
    free(rows);
    free(pruned);
    free(options);
    if (status == ALLOT_OK)
        keep_used(s);
    return status;
}

allot_status search_isolate(struct search *s, struct allot_error *err)
{
    allot_status status = measure_sources(s, err);
    /* What is as it is differs from itself by nothing. */
    for (size_t g = 0; g < s->n_groups; g++)
        s->groups[g].options[0].alone.measured = true;
    if (status == ALLOT_OK)
        status = measure_alone(s, err);
    return status == ALLOT_OK ? prune(s, err) : status;
}
