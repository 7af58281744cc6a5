/* cmd_learn.c - allot learn: layouts of published GGUF files, kept, shown and compared.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "command.h"
#include "job.h"
#include "layout_report.h"
#include "layouts.h"

struct learn_arguments {
    struct common_arguments common;
    struct string_list sources;
    const char *name;
    bool learning_only, list, show, diff;
};

static const struct option_row rows[] = {
    {"source", 0, "REPO@REVISION:FILE", OPTION_STRINGS, offsetof(struct learn_arguments, sources), NULL, 0,
     "where the file was published; of several files the first option is the first one's, and so on"},
    {"name", 0, "NAME", OPTION_STRING, offsetof(struct learn_arguments, name), NULL, 0,
     "what to call the layout, instead of the name of the one FILE without .gguf"},
    {"learning-only", 0, NULL, OPTION_FLAG, offsetof(struct learn_arguments, learning_only), NULL, 0,
     "its groups may be used, the whole layout is no candidate of a search"},
    {"list", 0, NULL, OPTION_FLAG, offsetof(struct learn_arguments, list), NULL, 0,
     "list the layouts that are kept"},
    {"show", 0, NULL, OPTION_FLAG, offsetof(struct learn_arguments, show), NULL, 0,
     "show the layout NAME: where it is from, and the types of its groups"},
    {"diff", 0, NULL, OPTION_FLAG, offsetof(struct learn_arguments, diff), NULL, 0,
     "show what differs between the layouts A and B, by group and layers"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct learn_arguments *args = arguments;
    const size_t n = args->common.operands.n, n_sources = args->sources.n;
    const int looks = args->list + args->show + args->diff;
    if (looks > 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--list, --show and --diff exclude each other");
    if (looks && (n_sources || args->name || args->learning_only))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --%s exclude each other",
                          args->list   ? "list"
                          : args->show ? "show"
                                       : "diff",
                          n_sources    ? "source"
                          : args->name ? "name"
                                       : "learning-only");
    if ((args->list && n != 0) || (args->show && n != 1) || (args->diff && n != 2))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "learn: %s",
                          args->list   ? "--list takes no names"
                          : args->show ? "--show takes one name"
                                       : "--diff takes two names");
    if (!looks && n == 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "learn: a FILE is missing, or --list, --show or --diff");
    if (args->name && n != 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "learn: --name is for a single FILE");
    if (n_sources && n_sources != n)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "learn: %zu files, but --source %zu times", n, n_sources);
    for (size_t i = 0; i < n_sources; i++) {
        struct layout_origin origin;
        char *copy = NULL;
        allot_status status = layout_origin_parse(&origin, &copy, args->sources.items[i], err);
        free(copy);
        if (status != ALLOT_OK)
            return status;
    }
    return ALLOT_OK;
}

/* ---- Learning --------------------------------------------------------------------------------------- */

static void today(char date[static 16])
{
    const time_t now = time(NULL);
    struct tm tm;
    strftime(date, 16, "%Y-%m-%d", gmtime_r(&now, &tm));
}

/* The layout already kept of a file with this hash, or NULL. */
static const struct layout *kept_of(const struct layout_list *list, const char *sha256)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->items[i].sha256, sha256) == 0)
            return &list->items[i];
    return NULL;
}

/* What the call says of the index-th file, completed by what is kept of it. */
static allot_status origin_of(struct layout_origin *origin, char **copy, const struct learn_arguments *args,
                              size_t index, const struct layout *kept, struct allot_error *err)
{
    *origin = (struct layout_origin){.name = args->name, .learning_only = args->learning_only};
    if (kept) {
        origin->name = args->name ? args->name : kept->name;
        origin->repository = kept->repository;
        origin->revision = kept->revision;
        origin->file = kept->file;
    }
    return args->sources.n ? layout_origin_parse(origin, copy, args->sources.items[index], err) : ALLOT_OK;
}

static void remark(const struct layout *layout, const struct layout_list *list,
                   const struct allot_progress *progress)
{
    struct strbuf unclaimed = {0};
    size_t n = 0;
    for (size_t i = 0; i < layout->n_tensors; i++)
        if (layout->tensors[i].role == ROLE_UNCLAIMED && ++n <= 3)
            strbuf_addf(&unclaimed, "%s%s", n > 1 ? ", " : "", layout->tensors[i].name);
    if (n)
        allot_note(progress, "%s: %zu tensors of no known group: %s%s", layout->name, n,
                   unclaimed.data ? unclaimed.data : "", n > 3 ? ", ..." : "");
    strbuf_release(&unclaimed);
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->items[i].hash, layout->hash) == 0 &&
            strcmp(list->items[i].sha256, layout->sha256) != 0)
            allot_note(progress, "%s: the same layout as %s", layout->name, list->items[i].name);
}

static allot_status learn_file(const struct learn_arguments *args, size_t index, struct archive *archive,
                               json_t *document, const struct allot_progress *progress,
                               struct allot_error *err)
{
    struct gguf_model *model = NULL;
    struct layout_list list = {0};
    struct layout layout = {0};
    struct layout_origin origin;
    char sha256[HASH_HEX], date[16], *copy = NULL;
    allot_status status = gguf_model_open(&model, args->common.operands.items[index], err);
    if (status == ALLOT_OK)
        status = cached_model_sha256(archive, model, sha256, progress, err);
    if (status == ALLOT_OK)
        status = layout_list_load(&list, archive, err);
    if (status == ALLOT_OK)
        status = origin_of(&origin, &copy, args, index, kept_of(&list, sha256), err);
    today(date);
    origin.date = date;
    if (status == ALLOT_OK)
        status = layout_learn(&layout, model, sha256, &origin, err);
    if (status == ALLOT_OK)
        status = layout_put(archive, &layout, err);
    if (status == ALLOT_OK) {
        command_end_progress(progress);
        remark(&layout, &list, progress);
        if (document)
            json_array_append_new(document, layout_json(&layout));
        else
            layout_print_line(&layout);
    }
    layout_release(&layout);
    layout_list_release(&list);
    gguf_model_close(model);
    free(copy);
    return status;
}

/* Before an archive is made and files are hashed: are all of them what they should be? */
static allot_status check_files(const struct string_list *paths, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t i = 0; status == ALLOT_OK && i < paths->n; i++) {
        struct gguf_model *model = NULL;
        status = gguf_model_open(&model, paths->items[i], err);
        gguf_model_close(model);
    }
    return status;
}

static allot_status learn(const struct learn_arguments *args, const char *path,
                          const struct allot_progress *progress, struct allot_error *err)
{
    struct archive *archive = NULL;
    json_t *document = args->common.json ? json_array() : NULL;
    allot_status status = check_files(&args->common.operands, err);
    if (status == ALLOT_OK)
        status = archive_open(&archive, path, err);
    for (size_t i = 0; status == ALLOT_OK && i < args->common.operands.n; i++)
        status = learn_file(args, i, archive, document, progress, err);
    archive_close(archive);
    if (status == ALLOT_OK && document)
        return json_print(document, err);
    json_decref(document);
    return status;
}

/* ---- Looking ---------------------------------------------------------------------------------------- */

static allot_status find(const struct layout **layout, const struct layout_list *list, const char *path,
                         const char *name, struct allot_error *err)
{
    const struct rebuild_source source = {.lists = list, .n_lists = 1};
    allot_status status = rebuild_find(layout, &source, name, err);
    if (status == ALLOT_OK && !*layout)
        status =
            allot_fail(err, ALLOT_ERR_ARGUMENT, "%s keeps no layout '%s'; --list lists them", path, name);
    return status;
}

static allot_status look(const struct learn_arguments *args, const char *path, struct allot_error *err)
{
    const char *const *names = args->common.operands.items;
    struct archive *archive = NULL;
    struct layout_list list = {0};
    const struct layout *a = NULL, *b = NULL;
    if (access(path, F_OK) != 0)
        return allot_fail(err, ALLOT_ERR_IO, "%s: no such archive; 'allot learn FILE' makes it", path);
    allot_status status = archive_open_to_read(&archive, path, err);
    if (status == ALLOT_OK)
        status = layout_list_load(&list, archive, err);
    if (status == ALLOT_OK && !args->list)
        status = find(&a, &list, path, names[0], err);
    if (status == ALLOT_OK && args->diff)
        status = find(&b, &list, path, names[1], err);
    if (status == ALLOT_OK)
        status = args->list   ? layouts_report(&list, args->common.json, err)
                 : args->diff ? layout_diff_report(a, b, args->common.json, err)
                              : layout_report(a, args->common.json, err);
    layout_list_release(&list);
    archive_close(archive);
    return status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct learn_arguments *args = arguments;
    const char *path = args->common.archive ? args->common.archive : LAYOUTS_ARCHIVE;
    return args->list || args->show || args->diff ? look(args, path, err) : learn(args, path, progress, err);
}

const struct command command_learn = {
    .name = "learn",
    .synopsis = "(FILE... [--source REPO@REVISION:FILE] | --list | --show NAME | --diff A B) [options]",
    .summary = "keep which types the tensors of published files have, to rebuild them",
    .description =
        "Reads which type every tensor of FILE has, a GGUF that someone published, and keeps this layout "
        "with "
        "where "
        "the file came from, in " LAYOUTS_ARCHIVE
        " of the current folder or where --archive says. 'allot plan "
        "MODEL --layout NAME' and 'allot quantize' rebuild it from a model of the same architecture, or "
        "groups "
        "of it "
        "in a hybrid.\n\n"
        "A layout is kept by the file's SHA-256: learned again, a file has what the new call says, and its "
        "old "
        "name "
        "and source where the call does not say any. A source without a repository and a revision of 40 or "
        "64 "
        "hexadecimal digits is accepted, but called not reproducible. F32, F16 and BF16 are one class: they "
        "are "
        "rebuilt as the type that the model itself has. Instead of a name the first 8 or more digits of the "
        "SHA-256 will do.",
    .options = {&options},
    .arguments_size = sizeof(struct learn_arguments),
    .min_operands = 0,
    .max_operands = SIZE_MAX,
    .check = check,
    .run = run,
};
