/* search_files.c - what a search leaves in its folder.  SPDX-License-Identifier: MIT */
#include "search_files.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

allot_status search_files_check(const char *folder, struct allot_error *err)
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
    char *path = text_printf("%s/%s.recipe", folder, b->name);
    if (path == NULL)
        return allot_fail_memory(err, strlen(folder), "a path");
    for (char *c = path + strlen(folder) + 1; *c; c++)
        if (!isalnum((unsigned char)*c) && strchr("._-", *c) == NULL)
            *c = '_';
    allot_status status = type_plan_write_recipe(&plan, s->job.model, path, err);
    free(path);
    return status;
}
