/* own_text.c - calibration windows that the model writes itself, kept in its archive.
 * SPDX-License-Identifier: MIT */
#include "own_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "cost/version.h"
#include "measure/sample.h"

static const char *const GROUP_KIND = "own-text"; /* ids of a group of sequences */

struct own_text {
    struct model_job *job;
    struct sample_options options;
    int64_t n_groups;
    int32_t *ids; /* (n_groups, SAMPLE_GROUP, n_ctx) */
    bool *have;   /* [n_groups] */
};

static int64_t group_ids(const struct own_text *t)
{
    return (int64_t)SAMPLE_GROUP * t->options.n_ctx;
}

static char *group_key(const struct own_text *t, int64_t group)
{
    return text_printf("%s %s seed=%" PRIu64 " use=%" PRIu64 " ctx=%d group=%" PRId64, t->job->sha256,
                       cost_version(), t->options.seed, t->options.stream, t->options.n_ctx, group);
}

static allot_status load_group(struct own_text *t, int64_t group, struct allot_error *err)
{
    void *data = NULL;
    size_t size = 0;
    const size_t wanted = (size_t)group_ids(t) * sizeof *t->ids;
    char *key = group_key(t, group);
    allot_status status = key ? archive_blob(t->job->archive, GROUP_KIND, key, &data, &size, err)
                              : allot_fail_memory(err, 256, "a key");
    t->have[group] = status == ALLOT_OK && data && size == wanted;
    if (t->have[group])
        memcpy(t->ids + group * group_ids(t), data, wanted);
    free(data);
    free(key);
    return status;
}

static allot_status store_group(struct own_text *t, int64_t group, struct allot_error *err)
{
    char *key = group_key(t, group);
    if (!key)
        return allot_fail_memory(err, 256, "a key");
    allot_status status = archive_blob_put(t->job->archive, GROUP_KIND, key, t->ids + group * group_ids(t),
                                           (size_t)group_ids(t) * sizeof *t->ids, err);
    free(key);
    return status;
}

/* Samples the run of groups that starts at `first` and is not there yet, as many as go at a time. */
static allot_status sample_some(struct own_text *t, struct sampler *sampler, int64_t first, int64_t *n_done,
                                int64_t n_lacking, const struct allot_progress *progress,
                                struct allot_error *err)
{
    int64_t n = 1;
    while (n < sampler_groups(sampler) && first + n < t->n_groups && !t->have[first + n])
        n++;
    allot_status status = sampler_run(sampler, t->ids + first * group_ids(t), first, n,
                                      *n_done * group_ids(t), n_lacking * group_ids(t), progress, err);
    for (int64_t group = first; status == ALLOT_OK && group < first + n; group++) {
        t->have[group] = true;
        if (t->job->archive && !archive_is_read_only(t->job->archive))
            status = store_group(t, group, err);
    }
    *n_done += n;
    return status;
}

static allot_status complete(struct own_text *t, struct pool *pool, const struct allot_progress *progress,
                             struct allot_error *err)
{
    struct sampler *sampler = NULL;
    int64_t n_lacking = 0, n_done = 0;
    allot_status status = ALLOT_OK;
    for (int64_t group = 0; group < t->n_groups && status == ALLOT_OK; group++) {
        if (t->job->archive)
            status = load_group(t, group, err);
        n_lacking += !t->have[group];
    }
    if (status != ALLOT_OK || n_lacking == 0)
        return status;
    status = sampler_open(&sampler, model_first_path(t->job->model), &t->options, n_lacking, pool, err);
    for (int64_t group = 0; group < t->n_groups && status == ALLOT_OK; group++)
        if (!t->have[group])
            status = sample_some(t, sampler, group, &n_done, n_lacking, progress, err);
    sampler_close(sampler);
    return status;
}

allot_status own_text_windows(struct text_windows *out, struct model_job *job, struct pool *pool,
                              enum own_text_use use, int64_t n, int32_t n_ctx, int64_t seed,
                              const struct allot_progress *progress, struct allot_error *err)
{
    struct own_text t = {
        .job = job, .options = {(uint64_t)seed, (uint64_t)use, n_ctx}, .n_groups = parts_of(n, SAMPLE_GROUP)};
    const size_t bytes = (size_t)(t.n_groups * group_ids(&t)) * sizeof *t.ids;
    allot_status status = ALLOT_OK;
    t.ids = malloc(bytes);
    t.have = calloc((size_t)t.n_groups + 1, sizeof *t.have);
    if (!t.ids || !t.have)
        status = allot_fail_memory(err, bytes, "texts");
    if (status == ALLOT_OK)
        status = complete(&t, pool, progress, err);
    free(t.have);
    if (status == ALLOT_OK)
        return text_windows_from_ids(out, t.ids, n, n_ctx, err);
    free(t.ids);
    return status;
}
