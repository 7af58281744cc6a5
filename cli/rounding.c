/* rounding.c - what `--rounding compensated` needs besides.  SPDX-License-Identifier: MIT */
#include "rounding.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* Of the rounding itself: costs of an earlier one are not those of this. */
#define COMPENSATED_NAME "compensated-2"

bool rounding_compensates(const char *rounding)
{
    return rounding != NULL && strcmp(rounding, "compensated") == 0;
}

allot_status rounding_check(const char *rounding, const struct string_list *texts, struct allot_error *err)
{
    if (rounding == NULL || strcmp(rounding, "ggml") == 0)
        return ALLOT_OK;
    if (!rounding_compensates(rounding))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--rounding: '%s' is neither ggml nor compensated",
                          rounding);
    if (!texts->n)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--rounding compensated wants a calibration text (-f TEXT)");
    return ALLOT_OK;
}

allot_status rounding_job_open(struct rounding_job *r, const char *rounding, const struct model_job *job,
                               const struct string_list *texts, int32_t n_ctx, int64_t n_windows,
                               struct allot_error *err)
{
    struct text_vocab *vocab = NULL;
    r->compensated = rounding_compensates(rounding);
    if (!r->compensated)
        return ALLOT_OK;
    allot_status status = net_open(&r->net, job->model, err);
    r->has_net = status == ALLOT_OK;
    r->folder = file_folder(job->archive_path);
    if (status == ALLOT_OK && r->folder == NULL)
        status = allot_fail_memory(err, strlen(job->archive_path), "a path");
    if (status == ALLOT_OK)
        status = text_vocab_open(&vocab, model_first_path(job->model), err);
    if (status == ALLOT_OK)
        status = text_windows_from_files(&r->windows, vocab, texts->items, texts->n, n_ctx, n_windows, err);
    text_vocab_close(vocab);
    if (status == ALLOT_OK && r->windows.n < 2)
        return allot_fail(
            err, ALLOT_ERR_ARGUMENT,
            "--rounding compensated needs two windows of %d tokens at least, one of them to judge by "
            "(-f TEXT, --imatrix-chunks)",
            n_ctx);
    snprintf(r->name, sizeof r->name, COMPENSATED_NAME ":%.16s", r->windows.sha256);
    return status;
}

allot_status rounding_job_collect(struct rounding_job *r, const struct model_job *job, struct pool *pool,
                                  int64_t memory, const struct allot_progress *progress,
                                  struct allot_error *err)
{
    const struct memory_budget budget = {memory, r->folder};
    if (!r->compensated || r->rounding != NULL)
        return ALLOT_OK;
    bool *wanted = calloc((size_t)job->model->n_tensors + 1, sizeof *wanted);
    if (wanted == NULL)
        return allot_fail_memory(err, (size_t)job->model->n_tensors, "tensors");
    for (int64_t i = 0; i < job->model->n_tensors; i++)
        wanted[i] = gguf_tensor_quantizable(&job->model->tensors[i]);
    allot_status status =
        second_moments_collect(&r->moments, &r->net, pool, &r->windows, wanted, &budget,
                               rounding_bytes(job->model, pool_threads(pool)), progress, err);
    free(wanted);
    if (status == ALLOT_OK)
        status = rounding_new(&r->rounding, &r->moments, pool_threads(pool), err);
    if (status == ALLOT_OK)
        r->hooks = rounding_hooks(r->rounding);
    return status;
}

const struct quantize_rounding *rounding_job_hooks(const struct rounding_job *r)
{
    return r->rounding != NULL ? &r->hooks : NULL;
}

void rounding_job_release(struct rounding_job *r)
{
    rounding_free(r->rounding);
    second_moments_release(&r->moments);
    text_windows_release(&r->windows);
    if (r->has_net)
        net_release(&r->net);
    free(r->folder);
    *r = (struct rounding_job){0};
}

void rounding_job_provenance(const struct rounding_job *r, struct provenance *p)
{
    if (r->compensated)
        provenance_add_rounding(p, COMPENSATED_NAME, r->windows.sha256);
}

bool rounding_of_params(const char *params)
{
    return strstr(params, " rounding=compensated") != NULL;
}

json_t *rounding_json(const struct rounding_result *result)
{
    json_t *object = json_object();
    json_put(object, "tensors", json_integer(result->n_tensors));
    json_put(object, "rows", json_integer(result->n_rows));
    json_put(object, "rows_kept", json_integer(result->n_kept));
    json_put(object, "error_ratio",
             result->before > 0 ? json_number(result->after / result->before) : json_null());
    return object;
}

void rounding_print(const struct rounding_result *result)
{
    printf("rounding:      compensated");
    if (result->n_rows > 0) /* of what this run has written */
        printf(" in %" PRId64 " tensors; %" PRId64 " of %" PRId64
               " rows are better with it on windows held out",
               result->n_tensors, result->n_kept, result->n_rows);
    putchar('\n');
}
