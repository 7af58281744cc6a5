/* refine_record.c - what the passes of a refinement found, kept in the archive.  SPDX-License-Identifier: MIT
 */
#include "refine_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/version.h"

static const char kl_kind[] = "plan-kl", changes_kind[] = "plan-changes";

/* One change as it is stored. */
struct stored_change {
    int32_t tensor, type;
    double slope, curve, std_err;
};

static void update_number(struct hash *hash, int64_t number)
{
    hash_update(hash, &number, sizeof number);
}

allot_status record_key(struct record_key *key, const struct model_job *job, const struct imatrix *imatrix,
                        const struct text_windows *windows, const enum ggml_type *types,
                        const struct relinearize_options *options, struct allot_error *err)
{
    struct hash *hash;
    allot_status status = hash_new(&hash, err);
    if (status != ALLOT_OK)
        return status;
    hash_update_str(hash, cost_version());
    hash_update_str(hash, job->sha256);
    hash_update_str(hash, imatrix ? imatrix->sha256 : "");
    update_number(hash, windows->n_ctx);
    update_number(hash, windows->n);
    hash_update(hash, windows->ids, sizeof *windows->ids * (size_t)(windows->n * windows->n_ctx));
    for (int64_t i = 0; i < job->model->n_tensors; i++)
        update_number(hash, types[i]);
    if (options) {
        update_number(hash, options->chunk);
        update_number(hash, (int64_t)options->seed);
        update_number(hash, options->n_taught);
        for (size_t i = 0; i < options->n_types; i++)
            update_number(hash, options->types[i]);
    }
    hash_final(hash, key->hex);
    return ALLOT_OK;
}

/* *data: NULL if nothing is kept. */
static allot_status get(void **data, size_t *size, const char *kind, const struct model_job *job,
                        const struct record_key *key, struct allot_error *err)
{
    *data = NULL;
    *size = 0;
    return job->archive ? archive_blob(job->archive, kind, key->hex, data, size, err) : ALLOT_OK;
}

static allot_status put(const void *data, size_t size, const char *kind, const struct model_job *job,
                        const struct record_key *key, struct allot_error *err)
{
    if (!job->archive || archive_is_read_only(job->archive))
        return ALLOT_OK;
    return archive_blob_put(job->archive, kind, key->hex, data, size, err);
}

allot_status record_kl_get(bool *found, double *kl, int64_t n, const struct model_job *job,
                           const struct record_key *key, struct allot_error *err)
{
    void *data;
    size_t size;
    allot_status status = get(&data, &size, kl_kind, job, key, err);
    *found = status == ALLOT_OK && data && size == sizeof *kl * (size_t)n;
    if (*found)
        memcpy(kl, data, size);
    for (int64_t i = 0; *found && i < n; i++)
        *found = isfinite(kl[i]);
    free(data);
    return status;
}

allot_status record_kl_put(const double *kl, int64_t n, const struct model_job *job,
                           const struct record_key *key, struct allot_error *err)
{
    return put(kl, sizeof *kl * (size_t)n, kl_kind, job, key, err);
}

/* Changes of one tensor follow one another. False: not what was stored. */
static bool read_change(struct tensor_changes *changes, const struct stored_change *stored, size_t n,
                        size_t at, const struct gguf_model *model)
{
    const struct stored_change *s = &stored[at];
    if (s->tensor < 0 || s->tensor >= model->n_tensors || s->type < 0 || s->type >= GGML_TYPE_COUNT ||
        !isfinite(s->slope + s->curve + s->std_err))
        return false;
    struct tensor_changes *to = &changes[s->tensor];
    if (!to->list) {
        to->list = calloc(n - at, sizeof *to->list);
        if (!to->list)
            return false;
    } else if (at == 0 || stored[at - 1].tensor != s->tensor) {
        return false;
    }
    to->list[to->n++] = (struct type_change){(enum ggml_type)s->type, s->slope, s->curve, s->std_err};
    return true;
}

allot_status record_changes_get(bool *found, struct tensor_changes *changes, const struct model_job *job,
                                const struct record_key *key, struct allot_error *err)
{
    void *data;
    size_t size;
    allot_status status = get(&data, &size, changes_kind, job, key, err);
    const size_t n = size / sizeof(struct stored_change);
    *found = status == ALLOT_OK && n > 0 && size == n * sizeof(struct stored_change);
    for (size_t i = 0; *found && i < n; i++)
        *found = read_change(changes, data, n, i, job->model);
    for (int64_t i = 0; status == ALLOT_OK && !*found && i < job->model->n_tensors; i++) {
        free(changes[i].list);
        changes[i] = (struct tensor_changes){0};
    }
    free(data);
    return status;
}

allot_status record_changes_put(const struct tensor_changes *changes, const struct model_job *job,
                                const struct record_key *key, struct allot_error *err)
{
    const int64_t n_tensors = job->model->n_tensors;
    size_t n = 0, at = 0;
    for (int64_t i = 0; i < n_tensors; i++)
        n += changes[i].n;
    struct stored_change *stored = calloc(n + 1, sizeof *stored);
    if (!stored)
        return allot_fail_memory(err, n * sizeof *stored, "changes");
    for (int64_t i = 0; i < n_tensors; i++)
        for (size_t j = 0; j < changes[i].n; j++) {
            const struct type_change *c = &changes[i].list[j];
            stored[at++] =
                (struct stored_change){(int32_t)i, (int32_t)c->type, c->slope, c->curve, c->std_err};
        }
    allot_status status = put(stored, n * sizeof *stored, changes_kind, job, key, err);
    free(stored);
    return status;
}
