/* seen_text.c - which tokens a calibration saw.  SPDX-License-Identifier: MIT */
#include "seen_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/overlap.h"

/* Blobs: windows by their hash; the hash of the windows behind an imatrix, by that of the imatrix. */
static const char *const WINDOWS_KIND = "windows", *const IMATRIX_KIND = "windows-of-imatrix";

/* What stands before the ids. */
struct head {
    int32_t format, own, n_ctx, n;
};

allot_status seen_text_put(struct archive *archive, const struct text_windows *windows, bool own,
                           struct allot_error *err)
{
    void *present = NULL;
    size_t size = 0;
    allot_status status = archive_blob(archive, WINDOWS_KIND, windows->sha256, &present, &size, err);
    const bool have = present != NULL;
    free(present);
    if (status != ALLOT_OK || have)
        return status;
    const size_t n_bytes = (size_t)(windows->n * windows->n_ctx) * sizeof *windows->ids;
    const struct head head = {1, own, windows->n_ctx, (int32_t)windows->n};
    uint8_t *data = malloc(sizeof head + n_bytes);
    if (!data)
        return allot_fail_memory(err, sizeof head + n_bytes, "windows");
    memcpy(data, &head, sizeof head);
    memcpy(data + sizeof head, windows->ids, n_bytes);
    status = archive_blob_put(archive, WINDOWS_KIND, windows->sha256, data, sizeof head + n_bytes, err);
    free(data);
    return status;
}

allot_status seen_text_link(struct archive *archive, const char *imatrix_sha256, const char *windows_sha256,
                            struct allot_error *err)
{
    return archive_blob_put(archive, IMATRIX_KIND, imatrix_sha256, windows_sha256, 64, err);
}

/* Reads a blob; false if it is not one of windows with this hash. */
static bool take_windows(struct text_windows *windows, bool *own, const uint8_t *data, size_t size,
                         const char *sha256)
{
    struct head head;
    struct allot_error ignored;
    if (size < sizeof head)
        return false;
    memcpy(&head, data, sizeof head);
    const size_t n_bytes = size - sizeof head;
    if (head.format != 1 || head.n_ctx < 1 || head.n < 1 ||
        n_bytes / sizeof(int32_t) / (size_t)head.n_ctx != (size_t)head.n)
        return false;
    int32_t *ids = malloc(n_bytes);
    if (!ids)
        return false;
    memcpy(ids, data + sizeof head, n_bytes);
    if (text_windows_from_ids(windows, ids, head.n, head.n_ctx, &ignored) != ALLOT_OK)
        return false;
    *own = head.own != 0;
    return strcmp(windows->sha256, sha256) == 0;
}

allot_status seen_text_get(struct text_windows *windows, bool *own, struct archive *archive,
                           const char *windows_sha256, struct allot_error *err)
{
    void *data = NULL;
    size_t size = 0;
    *windows = (struct text_windows){0};
    *own = false;
    allot_status status = archive_blob(archive, WINDOWS_KIND, windows_sha256, &data, &size, err);
    if (status == ALLOT_OK && data && !take_windows(windows, own, data, size, windows_sha256))
        text_windows_release(windows);
    free(data);
    return status;
}

allot_status seen_text_of_imatrix(char windows_sha256[static 65], struct archive *archive,
                                  const char *imatrix_sha256, struct allot_error *err)
{
    void *data = NULL;
    size_t size = 0;
    windows_sha256[0] = '\0';
    allot_status status = archive_blob(archive, IMATRIX_KIND, imatrix_sha256, &data, &size, err);
    if (status == ALLOT_OK && data && size == 64) {
        memcpy(windows_sha256, data, 64);
        windows_sha256[64] = '\0';
    }
    free(data);
    return status;
}

allot_status seen_text_is_own(bool *own, struct archive *archive, const struct archive_cost_set_info *set,
                              struct allot_error *err)
{
    struct text_windows windows;
    char sha256[65];
    allot_status status = ALLOT_OK;
    memcpy(sha256, set->text_sha256, sizeof sha256);
    *own = false;
    if (!sha256[0] && set->imatrix_sha256[0])
        status = seen_text_of_imatrix(sha256, archive, set->imatrix_sha256, err);
    if (status == ALLOT_OK && sha256[0])
        status = seen_text_get(&windows, own, archive, sha256, err);
    if (status == ALLOT_OK && sha256[0])
        text_windows_release(&windows);
    return status;
}

/* Takes a calibration's share if it is the largest so far. */
static allot_status compare(struct seen_overlap *out, struct archive *archive, const char *windows_sha256,
                            const char *prefix, const struct archive_cost_set_info *set,
                            const struct text_windows *windows, struct allot_error *err)
{
    struct text_windows seen;
    struct overlap overlap;
    bool own;
    allot_status status = seen_text_get(&seen, &own, archive, windows_sha256, err);
    if (status != ALLOT_OK || seen.n == 0)
        return status;
    status = overlap_measure(&overlap, windows, &seen, err);
    text_windows_release(&seen);
    if (status == ALLOT_OK && (!out->known || overlap_share(&overlap) > out->share)) {
        out->share = overlap_share(&overlap);
        snprintf(out->what, sizeof out->what, "%s%s costs of %s", prefix, set->method, set->updated);
    }
    out->known |= status == ALLOT_OK;
    return status;
}

static bool is_new(const char (*list)[65], size_t n, const char *sha256)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], sha256) == 0)
            return false;
    return sha256[0] != '\0';
}

allot_status seen_text_overlap(struct seen_overlap *out, struct archive *archive, const char *model_sha256,
                               const struct text_windows *windows, struct allot_error *err)
{
    struct archive_cost_set_info *sets = NULL;
    size_t n = 0, n_seen = 0;
    *out = (struct seen_overlap){0};
    allot_status status = archive_cost_sets(archive, model_sha256, &sets, &n, err);
    char(*seen)[65] = calloc(2 * n + 1, sizeof *seen); /* windows that were compared */
    if (status == ALLOT_OK && !seen)
        status = allot_fail_memory(err, (2 * n + 1) * sizeof *seen, "sets of costs");
    for (size_t i = 0; status == ALLOT_OK && i < 2 * n; i++) {
        const struct archive_cost_set_info *set = &sets[i / 2];
        char sha256[65] = "";
        if (i % 2 == 0)
            memcpy(sha256, set->text_sha256, sizeof sha256);
        else if (set->imatrix_sha256[0])
            status = seen_text_of_imatrix(sha256, archive, set->imatrix_sha256, err);
        if (status != ALLOT_OK || !is_new(seen, n_seen, sha256))
            continue;
        memcpy(seen[n_seen++], sha256, sizeof sha256);
        status = compare(out, archive, sha256, i % 2 ? "the imatrix of " : "", set, windows, err);
    }
    free(seen);
    free(sets);
    return status;
}
