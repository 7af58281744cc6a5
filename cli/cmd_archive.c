/* cmd_archive.c - allot archive merge: what others measured.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "archive/archive.h"
#include "base/error.h"
#include "base/file.h"
#include "command.h"
#include "output.h"

struct archive_arguments {
    struct common_arguments common;
};

static const char *operand(const struct archive_arguments *args, size_t i)
{
    return args->common.operands.items[i];
}

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct archive_arguments *args = arguments;
    if (strcmp(operand(args, 0), "merge") != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "archive: '%s' is not known; 'merge' is",
                          operand(args, 0));
    if (args->common.archive)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "archive merge: the archives are named without --archive");
    for (size_t i = 2; i < args->common.operands.n; i++)
        if (file_same_place(operand(args, i), operand(args, 1)))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "archive merge: %s into itself", operand(args, i));
    return ALLOT_OK;
}

static json_t *merged_json(const struct archive_merged *m, const char *from)
{
    return json_pack("{s:o,s:I,s:I,s:I,s:I}", "from", json_text(from), "cost_sets", (json_int_t)m->cost_sets,
                     "costs", (json_int_t)m->costs, "measurements", (json_int_t)m->measurements, "blobs",
                     (json_int_t)m->blobs);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct archive_arguments *args = arguments;
    const bool json = args->common.json;
    struct archive *archive = NULL;
    json_t *list = json_array();
    allot_status status = ALLOT_OK;
    for (size_t i = 2; i < args->common.operands.n && status == ALLOT_OK; i++)
        status = archive_merge_check(operand(args, i), err);
    if (status == ALLOT_OK)
        status = archive_open(&archive, operand(args, 1), err);
    for (size_t i = 2; i < args->common.operands.n && status == ALLOT_OK; i++) {
        struct archive_merged merged;
        status = archive_merge(archive, operand(args, i), &merged, progress, err);
        command_end_progress(progress);
        if (status == ALLOT_OK && json)
            json_array_append_new(list, merged_json(&merged, operand(args, i)));
        else if (status == ALLOT_OK)
            printf("%s: %" PRId64 " sets of costs (%" PRId64 " costs), %" PRId64 " measurements, %" PRId64
                   " other things were new\n",
                   operand(args, i), merged.cost_sets, merged.costs, merged.measurements, merged.blobs);
    }
    archive_close(archive);
    if (status == ALLOT_OK && json)
        return json_print(list, err);
    json_decref(list);
    return status;
}

const struct command command_archive = {
    .name = "archive",
    .synopsis = "merge INTO FROM...",
    .summary = "take over what other archives hold: costs, measurements, layouts",
    .description = "merge: puts into the first archive, which is made if there is none, what the others hold "
                   "and it does "
                   "not: costs, measurements, computed importance matrices, texts that calibration saw, "
                   "learned layouts. "
                   "All is known by hashes of its content, so what two archives say of the same model, text "
                   "and importance "
                   "matrix is the same, and stays as it is. What the others hold is not changed.",
    .arguments_size = sizeof(struct archive_arguments),
    .min_operands = 3,
    .max_operands = SIZE_MAX,
    .check = check,
    .run = run,
};
