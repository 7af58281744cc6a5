/* calibration_imatrix.c - the imatrix of a model from calibration texts, kept in its archive.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "calibration.h"
#include "cost/collect.h"
#include "cost/version.h"
#include "own_text.h"
#include "seen_text.h"

/* Kinds of blobs: an imatrix by its hash; the hash of the imatrix of given windows; the path of a user's
 * imatrix by its hash, in the bytes that the system has for it. */
static const char *const IMATRIX_KIND = "imatrix", *const IMATRIX_OF_KIND = "imatrix-of-windows",
                         *const IMATRIX_PATH_KIND = "imatrix-path";

/* Reads the imatrix with this hash out of the archive, by way of a file in memory; im->present tells if it
 * was there. */
static allot_status load_imatrix(struct job_imatrix *im, struct model_job *job, const char *sha256,
                                 struct allot_error *err)
{
    void *data = NULL;
    size_t size = 0;
    int fd = -1;
    char path[32];
    allot_status status = archive_blob(job->archive, IMATRIX_KIND, sha256, &data, &size, err);
    if (status != ALLOT_OK || !data)
        return status;
    fd = memfd_create("imatrix", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0)
        status = allot_fail_memory(err, size, "an imatrix");
    else
        status = file_pwrite_all(fd, data, size, 0, path, err);
    if (status == ALLOT_OK)
        status = imatrix_read(&im->data, path, err);
    if (status == ALLOT_ERR_FORMAT)
        status = allot_fail(
            err, status,
            "%s: the importance matrix that it keeps is damaged; move the archive away, and measure "
            "anew",
            job->archive_path);
    im->present = im->computed = status == ALLOT_OK;
    if (fd >= 0)
        close(fd);
    free(data);
    return status;
}

/* A name beside the archive for the moment in which an imatrix is a file. */
static char *scratch_path(const struct model_job *job)
{
    return text_printf("%s.%ld.imatrix", job->archive_path, (long)getpid());
}

/* Gives a computed imatrix its hash and keeps it under that and under the windows it came from, and these. */
static allot_status store_imatrix(struct job_imatrix *im, struct model_job *job, const char *key,
                                  const struct text_windows *windows, bool own, struct allot_error *err)
{
    struct file_map map = {0};
    char *path = scratch_path(job);
    if (!path)
        return allot_fail_memory(err, 64, "a path");
    allot_status status = imatrix_write(&im->data, path, err);
    if (status == ALLOT_OK)
        status = file_map_open(&map, path, err);
    if (status == ALLOT_OK)
        status = archive_blob_put(job->archive, IMATRIX_KIND, im->data.sha256, map.data, map.size, err);
    file_map_close(&map);
    unlink(path);
    free(path);
    if (status == ALLOT_OK)
        status = archive_blob_put(job->archive, IMATRIX_OF_KIND, key, im->data.sha256, 64, err);
    if (status == ALLOT_OK)
        status = seen_text_put(job->archive, windows, own, err);
    if (status == ALLOT_OK)
        status = seen_text_link(job->archive, im->data.sha256, windows->sha256, err);
    return status;
}

static allot_status find_imatrix(struct job_imatrix *im, struct model_job *job, const char *key,
                                 struct allot_error *err)
{
    char sha256[65] = "";
    void *data = NULL;
    size_t size = 0;
    allot_status status = archive_blob(job->archive, IMATRIX_OF_KIND, key, &data, &size, err);
    if (status == ALLOT_OK && data && size == 64) {
        memcpy(sha256, data, 64);
        status = load_imatrix(im, job, sha256, err);
    }
    free(data);
    return status;
}

allot_status calibration_imatrix(struct job_imatrix *im, struct calibration *c,
                                 const struct text_windows *windows, const struct string_list *texts,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    static const char *const own[] = {"text of the model's own"};
    const char *const *const names = texts ? texts->items : own;
    const size_t n_names = texts ? texts->n : 1;
    char *key = NULL;
    allot_status status = ALLOT_OK;
    memset(im, 0, sizeof *im);
    if (c->job->archive) {
        key = text_printf("%s %s %s%s", c->job->sha256, windows->sha256, cost_version(),
                          c->has_net ? "" : " libllama");
        status = key ? find_imatrix(im, c->job, key, err) : allot_fail_memory(err, 256, "a key");
    }
    if (status == ALLOT_OK && !im->present) {
        status = c->has_net ? imatrix_collect(&im->data, &c->net, c->pool, windows, names, n_names,
                                              &c->memory, progress, err)
                            : imatrix_collect_decoded(&im->data, c->job->model, c->pool, windows, names,
                                                      n_names, progress, err);
        im->present = im->computed = status == ALLOT_OK;
        if (status == ALLOT_OK && c->job->archive && !archive_is_read_only(c->job->archive))
            status = store_imatrix(im, c->job, key, windows, texts == NULL, err);
    }
    if (status != ALLOT_OK)
        job_imatrix_release(im);
    free(key);
    return status;
}

/* The costs will outlive this run, and be of use only with their imatrix. */
static allot_status remember_path(struct archive *archive, const struct job_imatrix *im,
                                  struct allot_error *err)
{
    char *path = realpath(im->path, NULL);
    if (!path)
        return allot_fail(err, ALLOT_ERR_IO, "%s: cannot resolve the path", im->path);
    allot_status status =
        archive_blob_put(archive, IMATRIX_PATH_KIND, im->data.sha256, path, strlen(path), err);
    free(path);
    return status;
}

allot_status calibration_chosen_imatrix(struct job_imatrix *im, struct calibration *c,
                                        const struct calibrated_arguments *args,
                                        const struct allot_progress *progress, struct allot_error *err)
{
    memset(im, 0, sizeof *im);
    if (args->no_imatrix)
        return ALLOT_OK;
    if (!args->imatrix) {
        const bool own = args->texts.n == 0;
        allot_status status = own ? calibration_own_windows(c, IMATRIX_CONTEXT, args->imatrix_chunks,
                                                            args->text_seed, progress, err)
                                  : ALLOT_OK;
        return status == ALLOT_OK
                   ? calibration_imatrix(im, c, &c->imatrix_windows, own ? NULL : &args->texts, progress, err)
                   : status;
    }
    *im = c->imatrix;
    memset(&c->imatrix, 0, sizeof c->imatrix);
    return c->job->archive ? remember_path(c->job->archive, im, err) : ALLOT_OK;
}

/* Reads a user's imatrix from where it was; what is there now may be something else, or nothing. */
static allot_status load_remembered(struct job_imatrix *im, struct model_job *job, const char *sha256,
                                    const struct allot_progress *progress, struct allot_error *err)
{
    void *path = NULL;
    size_t size = 0;
    allot_status status = archive_blob(job->archive, IMATRIX_PATH_KIND, sha256, &path, &size, err);
    if (status == ALLOT_OK && path) {
        char *text = strndup(path, size);
        status = text ? job_imatrix_read(im, text, job->model, progress, err)
                      : allot_fail_memory(err, size, "a path");
        free(text);
        if (status == ALLOT_ERR_IO || status == ALLOT_ERR_FORMAT)
            status = ALLOT_OK;
    }
    free(path);
    return status;
}

allot_status calibration_imatrix_of_set(struct job_imatrix *im, struct model_job *job,
                                        const struct archive_cost_set_info *set,
                                        const struct allot_progress *progress, struct allot_error *err)
{
    memset(im, 0, sizeof *im);
    if (!set->imatrix_sha256[0])
        return ALLOT_OK;
    allot_status status = load_imatrix(im, job, set->imatrix_sha256, err);
    if (status == ALLOT_OK && !im->present)
        status = load_remembered(im, job, set->imatrix_sha256, progress, err);
    if (status == ALLOT_OK && im->present && strcmp(im->data.sha256, set->imatrix_sha256) == 0)
        return ALLOT_OK;
    job_imatrix_release(im);
    if (status != ALLOT_OK)
        return status;
    return allot_fail(
        err, ALLOT_ERR_ARGUMENT,
        "the imatrix of the costs in %s (SHA-256 %.16s...) is no longer where it was; quantize "
        "takes it with --imatrix, and the same 'allot cost' command with its new path makes it known",
        job->archive_path, set->imatrix_sha256);
}
