/* layouts.c - types that take after a learned layout, a mix of llama-quantize or a hybrid.
 * SPDX-License-Identifier: MIT */
#include "layouts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "search/mix.h"
#include "speed_price.h"

static const struct option_row rows[] = {
    {"layout", 0, "NAME", OPTION_STRING, offsetof(struct sized_arguments, layout.name), NULL, 0,
     "no size: the types of a layout that 'allot learn' keeps (in the model's archive, or in " LAYOUTS_ARCHIVE
     " of the current folder), or of a mix of llama-quantize, such as Q4_K_M"},
    {"hybrid", 0, "LIST", OPTION_STRING, offsetof(struct sized_arguments, layout.hybrid), NULL, 0,
     "the same of several layouts, base=NAME,GROUP=NAME,...: the base's, but for groups of tensors (attn_kv, "
     "ffn_down, ...; 'allot learn --show' lists them) that take after others"},
    {"scale-depth", 0, NULL, OPTION_FLAG, offsetof(struct sized_arguments, layout.scale_depth), NULL, 0,
     "apply a layout to a model with another number of layers, by relative depth"},
};
const struct option_set layout_options = OPTION_SET(rows);

bool layout_given(const struct sized_arguments *args)
{
    return args->layout.name || args->layout.hybrid;
}

/* Some option that a layout does not heed, or NULL. */
static const char *unheeded_option(const struct sized_arguments *args, const char *const *others)
{
    const struct string_list *given = &args->common.given;
    const char *name = constraint_option_given(given);
    if (args->sizes || args->bpw != 0 || args->like)
        return args->sizes ? "size" : args->like ? "like" : "bpw";
    if (!name)
        name = speed_option_given(given);
    for (; !name && *others; others++)
        if (string_list_has(given, *others))
            name = *others;
    return name;
}

allot_status layout_check(const struct sized_arguments *args, const char *const *others,
                          struct allot_error *err)
{
    const char *option = args->layout.hybrid ? "hybrid" : "layout";
    struct hybrid hybrid = {0};
    if (!layout_given(args))
        return args->layout.scale_depth
                   ? allot_fail(err, ALLOT_ERR_ARGUMENT, "--scale-depth goes with --layout or --hybrid")
                   : ALLOT_OK;
    if (args->layout.name && args->layout.hybrid)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--layout and --hybrid exclude each other");
    const char *name = unheeded_option(args, others);
    if (name)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --%s exclude each other", option, name);
    allot_status status = args->layout.hybrid ? hybrid_parse(&hybrid, args->layout.hybrid, err) : ALLOT_OK;
    hybrid_release(&hybrid);
    return status;
}

/* ---- Types ------------------------------------------------------------------------------------------ */

allot_status layout_lists_load(struct layout_use *use, const struct model_job *job, struct allot_error *err)
{
    struct archive *archive = NULL;
    allot_status status = layout_list_load(&use->lists[0], job->archive, err);
    if (status != ALLOT_OK || access(LAYOUTS_ARCHIVE, F_OK) != 0 ||
        (job->archive_path && file_same(job->archive_path, LAYOUTS_ARCHIVE)))
        return status;
    status = archive_open_to_read(&archive, LAYOUTS_ARCHIVE, err);
    if (status == ALLOT_OK)
        status = layout_list_load(&use->lists[1], archive, err);
    archive_close(archive);
    return status;
}

struct rebuild_source layout_source(const struct layout_use *use)
{
    return (struct rebuild_source){.lists = use->lists, .n_lists = sizeof use->lists / sizeof *use->lists};
}

allot_status layout_plan(struct type_plan *plan, struct layout_use *use, const struct model_job *job,
                         const struct sized_arguments *args, bool has_imatrix,
                         const struct allot_progress *progress, struct allot_error *err)
{
    memset(use, 0, sizeof *use);
    plan->types = calloc((size_t)job->model->n_tensors + 1, sizeof *plan->types);
    if (!plan->types)
        return allot_fail_memory(err, (size_t)job->model->n_tensors * sizeof *plan->types, "types");
    allot_status status = ALLOT_OK;
    if (args->layout.hybrid)
        status = hybrid_parse(&use->hybrid, args->layout.hybrid, err);
    else if (!(use->hybrid.base = strdup(args->layout.name)))
        status = allot_fail_memory(err, strlen(args->layout.name), "a name");
    if (status == ALLOT_OK)
        status = layout_lists_load(use, job, err);
    struct rebuild_source source = layout_source(use);
    source.has_imatrix = has_imatrix;
    source.scale_depth = args->layout.scale_depth;
    if (status == ALLOT_OK)
        status = hybrid_types(plan->types, use->fits, &source, &use->hybrid, job->model, progress, err);
    return status;
}

void layout_use_release(struct layout_use *use)
{
    for (size_t i = 0; i < sizeof use->lists / sizeof *use->lists; i++)
        layout_list_release(&use->lists[i]);
    hybrid_release(&use->hybrid);
}

allot_status layout_costs(struct cost_table *table, struct model_job *job, const char *imatrix_sha256,
                          struct allot_error *err)
{
    memset(table, 0, sizeof *table);
    if (!job->archive)
        return ALLOT_OK;
    allot_status status = cost_table_newest(table, job, imatrix_sha256, err);
    return status == ALLOT_ERR_ARGUMENT ? ALLOT_OK : status; /* there are none */
}

/* ---- Report ----------------------------------------------------------------------------------------- */

void layout_origin_text(struct strbuf *sb, const struct layout *layout)
{
    strbuf_addf(sb, "%s%s%s%s%s", layout->repository, layout->revision[0] ? "@" : "", layout->revision,
                layout->repository[0] ? ":" : "", layout->file);
}

static const struct layout *layout_of(const struct layout_use *use, const char *name)
{
    const struct rebuild_source source = layout_source(use);
    const struct layout *layout = NULL;
    struct allot_error err;
    rebuild_find(&layout, &source, name, &err);
    return layout;
}

/* As it is spelled where it comes from. */
static const char *own_name(const struct layout *layout, const char *name)
{
    return layout ? layout->name : mix_find(name) ? mix_find(name) : name;
}

static void print_part(const struct layout_use *use, const char *group, const char *name,
                       const struct layout_fit *fit)
{
    const struct layout *layout = layout_of(use, name);
    struct strbuf origin = {0};
    if (layout)
        layout_origin_text(&origin, layout);
    printf("%-14s %s, %s%s%s\n", group, own_name(layout, name),
           layout ? "learned from " : "a mix of llama-quantize", origin.data ? origin.data : "",
           fit->scaled ? ", by relative depth" : "");
    strbuf_release(&origin);
}

void layout_use_print(const struct layout_use *use)
{
    const struct hybrid *h = &use->hybrid;
    print_part(use, h->n_parts ? "base:" : "layout:", h->base, &use->fits[0]);
    for (size_t p = 0; p < h->n_parts; p++) {
        char group[32];
        snprintf(group, sizeof group, "%s:", role_name(h->parts[p].role));
        print_part(use, group, h->parts[p].name, &use->fits[p + 1]);
    }
}

static json_t *part_json(const struct layout_use *use, const char *group, const char *name,
                         const struct layout_fit *fit)
{
    const struct layout *layout = layout_of(use, name);
    json_t *entry = json_object();
    json_put(entry, "group", json_text(group));
    json_put(entry, "name", json_text(own_name(layout, name)));
    json_put(entry, "learned", json_boolean(layout != NULL));
    json_put(entry, "sha256", layout ? json_text(layout->sha256) : json_null());
    json_put(entry, "layout_sha256", layout ? json_text(layout->hash) : json_null());
    json_put(entry, "scaled", json_boolean(fit->scaled));
    json_put(entry, "missing", json_integer(fit->n_missing));
    json_put(entry, "fallbacks", json_integer(fit->n_fallbacks));
    json_put(entry, "unused", json_integer(fit->n_unused));
    return entry;
}

json_t *layout_use_json(const struct layout_use *use)
{
    const struct hybrid *h = &use->hybrid;
    json_t *list = json_array();
    json_array_append_new(list, part_json(use, "base", h->base, &use->fits[0]));
    for (size_t p = 0; p < h->n_parts; p++)
        json_array_append_new(
            list, part_json(use, role_name(h->parts[p].role), h->parts[p].name, &use->fits[p + 1]));
    return list;
}
