/* job.c - what commands share: a model with its archive and hash, its imatrix, lists of types.
 * SPDX-License-Identifier: MIT */
#include "job.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "quant/quant.h"

char *text_printf(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    return text;
}

/* ---- A model, its archive, its SHA-256 ------------------------------------------------------- */

const char *model_first_path(const struct gguf_model *model)
{
    return gguf_model_shard_path(model, 0);
}

allot_status model_job_open(struct model_job *job, const char *path, const struct common_arguments *common,
                            struct allot_error *err)
{
    memset(job, 0, sizeof *job);
    allot_status status = gguf_model_open(&job->model, path, err);
    if (status != ALLOT_OK)
        return status;
    job->archive_given = common->archive != NULL;
    job->archive_path =
        common->archive ? strdup(common->archive) : text_printf("%s.allot", model_first_path(job->model));
    if (!job->archive_path) {
        model_job_release(job);
        return allot_fail_memory(err, strlen(path), "a path");
    }
    return ALLOT_OK;
}

allot_status model_job_archive(struct model_job *job, enum archive_use use, struct allot_error *err)
{
    bool exists = access(job->archive_path, F_OK) == 0;
    if (use == ARCHIVE_OPPORTUNISTIC && !exists && !job->archive_given)
        return ALLOT_OK;
    if (use == ARCHIVE_EXISTING && !exists)
        return allot_fail(err, ALLOT_ERR_IO,
                          "%s: no such archive; 'allot cost %s -f TEXT' measures the costs",
                          job->archive_path, job->model->path);
    if (use == ARCHIVE_CREATE)
        return archive_open(&job->archive, job->archive_path, err);
    allot_status status = archive_open_to_read(&job->archive, job->archive_path, err);
    /* What nobody asked for does not stop a job that can do without. */
    return use == ARCHIVE_OPPORTUNISTIC && !job->archive_given ? ALLOT_OK : status;
}

/* One identity for all shards: in the place of the inode of a single file stands a digest of all identities.
 */
static allot_status identify_model(struct file_identity *id, const struct gguf_model *model,
                                   struct allot_error *err)
{
    struct strbuf all = {0};
    char hex[HASH_HEX];
    allot_status status = file_identify(id, model_first_path(model), err);
    for (int i = 0; status == ALLOT_OK && model->n_shards > 1 && i < model->n_shards; i++) {
        struct file_identity shard;
        status = file_identify(&shard, gguf_model_shard_path(model, i), err);
        if (status == ALLOT_OK)
            strbuf_addf(&all, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIu64 " %" PRIu64 "\n", shard.size,
                        shard.mtime_ns, shard.ctime_ns, shard.device, shard.inode);
    }
    if (status == ALLOT_OK)
        status = strbuf_check(&all, err);
    if (status == ALLOT_OK && all.len) {
        hash_bytes(hex, all.data, all.len);
        hex[16] = '\0';
        id->inode = strtoull(hex, NULL, 16);
    }
    strbuf_release(&all);
    return status;
}

allot_status cached_model_sha256(struct archive *archive, const struct gguf_model *model, char hex[static 65],
                                 const struct allot_progress *progress, struct allot_error *err)
{
    struct file_identity id;
    if (!archive)
        return gguf_model_sha256(model, hex, progress, err);
    char *path = realpath(model_first_path(model), NULL);
    if (!path)
        return allot_fail(err, ALLOT_ERR_IO, "%s: cannot resolve the path", model_first_path(model));
    allot_status status = identify_model(&id, model, err);
    if (status == ALLOT_OK && !archive_file_hash(archive, path, &id, hex)) {
        status = gguf_model_sha256(model, hex, progress, err);
        if (status == ALLOT_OK && !archive_is_read_only(archive))
            status = archive_file_hash_put(archive, path, &id, hex, err);
    }
    free(path);
    return status;
}

allot_status model_job_hash(struct model_job *job, const struct allot_progress *progress,
                            struct allot_error *err)
{
    return cached_model_sha256(job->archive, job->model, job->sha256, progress, err);
}

void model_job_release(struct model_job *job)
{
    archive_close(job->archive);
    gguf_model_close(job->model);
    free(job->archive_path);
    memset(job, 0, sizeof *job);
}

/* ---- Sets of types --------------------------------------------------------------------------- */

allot_status type_set_parse(struct type_set *set, const char *list, struct allot_error *err)
{
    memset(set, 0, sizeof *set);
    while (list && *list) {
        char name[32];
        size_t n = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)(n < 31 ? n : 31), list);
        const struct quant_type *type = quant_type_by_name(name);
        if (!type)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "unknown type '%s' (known: %s)", name,
                              quant_type_names());
        set->has[type->type] = true;
        set->given = true;
        list += n;
        list += *list == ',';
    }
    return ALLOT_OK;
}

/* ---- The imatrix of a job -------------------------------------------------------------------- */

allot_status job_imatrix_read(struct job_imatrix *im, const char *path, const struct gguf_model *model,
                              const struct allot_progress *progress, struct allot_error *err)
{
    char line[512] = "";
    memset(im, 0, sizeof *im);
    if (!path)
        return ALLOT_OK;
    allot_status status = imatrix_read(&im->data, path, err);
    if (status != ALLOT_OK)
        return status;
    im->present = true;
    im->path = strdup(path);
    if (!im->path) {
        job_imatrix_release(im);
        return allot_fail_memory(err, strlen(path), "a path");
    }
    imatrix_coverage(&im->data, model, line);
    if (line[0])
        allot_note(progress, "%s: %s", path, line);
    return ALLOT_OK;
}

void job_imatrix_release(struct job_imatrix *im)
{
    imatrix_release(&im->data);
    free(im->path);
    memset(im, 0, sizeof *im);
}

allot_status job_imatrix_weights(float ***weights, const struct job_imatrix *im,
                                 const struct gguf_model *model, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    float **list = calloc((size_t)model->n_tensors + 1, sizeof *list);
    if (!list)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *list, "importances");
    for (int64_t i = 0; status == ALLOT_OK && im->present && i < model->n_tensors; i++) {
        char reason[128];
        if (gguf_tensor_quantizable(&model->tensors[i]))
            status = imatrix_weights(&im->data, &model->tensors[i], &list[i], reason, err);
    }
    if (status == ALLOT_OK)
        *weights = list;
    else
        job_imatrix_weights_free(list, model);
    return status;
}

void job_imatrix_weights_free(float **weights, const struct gguf_model *model)
{
    for (int64_t i = 0; weights && i < model->n_tensors; i++)
        free(weights[i]);
    free(weights);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static allot_status refuse_same(const char *input, const char *path, struct allot_error *err)
{
    if (!input || !file_same(input, path))
        return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: is the same file as the input %s; nothing was written",
                      path, input);
}

static allot_status refuse_inputs(const struct model_job *job, const struct job_inputs *inputs,
                                  const char *path, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (int i = 0; status == ALLOT_OK && job->model && i < job->model->n_shards; i++)
        status = refuse_same(gguf_model_shard_path(job->model, i), path, err);
    for (size_t i = 0; status == ALLOT_OK && i < sizeof inputs->files / sizeof *inputs->files; i++)
        status = refuse_same(inputs->files[i], path, err);
    for (size_t i = 0; status == ALLOT_OK && inputs->texts && i < inputs->texts->n; i++)
        status = refuse_same(inputs->texts->items[i], path, err);
    if (status == ALLOT_OK && job->archive_path &&
        (file_same(job->archive_path, path) || file_same_place(job->archive_path, path)))
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: is the archive; nothing was written", path);
    return status;
}

allot_status job_check_output(const struct model_job *job, const struct job_inputs *inputs, const char *path,
                              struct allot_error *err)
{
    struct file_output probe = {0};
    if (!path)
        return ALLOT_OK;
    allot_status status = refuse_inputs(job, inputs, path, err);
    if (status == ALLOT_OK)
        status = file_output_open(&probe, path, err);
    file_output_abandon(&probe);
    return status;
}
