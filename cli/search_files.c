/* search_files.c - what a search leaves in its folder.  SPDX-License-Identifier: MIT */
#include "search_files.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* FOLDER/NAME.recipe; NULL without memory. */
static char *recipe_path(const char *folder, const char *name)
{
    char *path = text_printf("%s/%s.recipe", folder, name);
    for (char *c = path ? path + strlen(folder) + 1 : NULL; c && *c; c++)
        if (!search_name_byte(*c))
            *c = '_';
    return path;
}

bool search_name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

/* Takes the path. */
static allot_status check_path(const struct search *s, char *path, struct allot_error *err)
{
    const struct job_inputs inputs = {.files = {s->args->calibrated.imatrix, LAYOUTS_ARCHIVE},
                                      .texts = &s->args->calibrated.texts},
                            evals = {.texts = &s->args->evals};
    if (path == NULL)
        return allot_fail_memory(err, 256, "a path");
    allot_status status = job_check_output(&s->job, &inputs, path, err);
    if (status == ALLOT_OK)
        status = job_check_output(&s->job, &evals, path, err);
    free(path);
    return status;
}

allot_status search_files_check_recipe(const struct search *s, const char *name, struct allot_error *err)
{
    return s->args->output ? check_path(s, recipe_path(s->args->output, name), err) : ALLOT_OK;
}

static allot_status check_folder(const char *folder, struct allot_error *err)
{
    struct stat st;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return allot_fail(err, ALLOT_ERR_IO, "%s: the folder cannot be made: %s", folder, file_cause());
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return allot_fail(err, ALLOT_ERR_IO, "%s is no folder", folder);
    if (access(folder, W_OK | X_OK) != 0)
        return allot_fail(err, ALLOT_ERR_IO, "%s: nothing can be written there: %s", folder, file_cause());
    return ALLOT_OK;
}

allot_status search_files_check(const struct search *s, struct allot_error *err)
{
    const char *folder = s->args->output;
    allot_status status = check_folder(folder, err);
    if (status == ALLOT_OK)
        status = check_path(s, text_printf("%s/result.json", folder), err);
    if (status == ALLOT_OK && !s->args->calibrated.imatrix && !s->args->calibrated.no_imatrix)
        status = check_path(s, text_printf("%s/imatrix.gguf", folder), err);
    return status;
}

allot_status search_files_document(const char *folder, const json_t *document, struct allot_error *err)
{
    char *path = text_printf("%s/result.json", folder),
         *text = json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    allot_status status = path && text ? file_write_all(path, text, strlen(text), err)
                                       : allot_fail_memory(err, 4096, "the result");
    free(path);
    free(text);
    return status;
}

allot_status search_files_imatrix(const char *folder, struct search *s, struct allot_error *err)
{
    if (!s->imatrix.computed)
        return ALLOT_OK;
    char *path = text_printf("%s/imatrix.gguf", folder);
    allot_status status =
        path ? imatrix_write(&s->imatrix.data, path, err) : allot_fail_memory(err, strlen(folder), "a path");
    free(path);
    return status;
}

allot_status search_files_recipe(const char *folder, const struct build *b, const struct search *s,
                                 struct allot_error *err)
{
    const struct type_plan plan = {.types = b->types};
    char *path = recipe_path(folder, b->name);
    if (path == NULL)
        return allot_fail_memory(err, strlen(folder), "a path");
    if (search_files_check_recipe(s, b->name, err) != ALLOT_OK) {
        free(path);
        return err->status;
    }
    allot_status status = type_plan_write_recipe(&plan, s->job.model, path, err);
    free(path);
    return status;
}
