/* imatrix.c - importance matrices: both of llama.cpp's formats in, its GGUF format out.
 * SPDX-License-Identifier: MIT */
#include "cost/imatrix.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUMS_SUFFIX ".in_sum2"
#define LINEAR_SUFFIX ".in_sum"
#define COUNTS_SUFFIX ".counts"
#define MAX_COUNT 9007199254740992.0 /* 2^53: whole numbers beyond are not exact */

/* ---- Entries ---------------------------------------------------------------------------------- */

static void release_entry(struct imatrix_entry *e)
{
    free(e->name);
    free(e->sums);
    free(e->counts);
    free(e->linear);
}

void imatrix_release(struct imatrix *im)
{
    for (size_t i = 0; i < im->n_entries; i++)
        release_entry(&im->entries[i]);
    for (size_t i = 0; i < im->n_datasets; i++)
        free(im->datasets[i]);
    free(im->entries);
    free(im->datasets);
    memset(im, 0, sizeof *im);
}

/* Where the name is, or where it belongs. */
static size_t entry_position(const struct imatrix *im, const char *name)
{
    size_t low = 0, high = im->n_entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(im->entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct imatrix_entry *imatrix_find(const struct imatrix *im, const char *name)
{
    size_t at = entry_position(im, name);
    return at < im->n_entries && strcmp(im->entries[at].name, name) == 0 ? &im->entries[at] : NULL;
}

allot_status imatrix_add(struct imatrix *im, const char *name, int64_t n_per_mat, int64_t n_mats, float *sums,
                         int64_t *counts, struct allot_error *err)
{
    struct imatrix_entry entry = {
        .name = strdup(name), .n_per_mat = n_per_mat, .n_mats = n_mats, .sums = sums, .counts = counts};
    struct imatrix_entry *larger;
    allot_status status;

    if (!entry.name) {
        status = allot_fail_memory(err, strlen(name) + 1, "an imatrix entry");
        goto fail;
    }
    if (n_per_mat < 1 || n_mats < 1) {
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "imatrix entry '%s' is empty", name);
        goto fail;
    }
    if (imatrix_find(im, name)) {
        status = allot_fail(err, ALLOT_ERR_FORMAT, "imatrix entry '%s' appears twice", name);
        goto fail;
    }
    larger = realloc(im->entries, (im->n_entries + 1) * sizeof *larger);
    if (!larger) {
        status = allot_fail_memory(err, (im->n_entries + 1) * sizeof *larger, "imatrix entries");
        goto fail;
    }
    im->entries = larger;
    size_t at = entry_position(im, name);
    memmove(&larger[at + 1], &larger[at], (im->n_entries - at) * sizeof *larger);
    larger[at] = entry;
    im->n_entries++;
    return ALLOT_OK;
fail:
    release_entry(&entry);
    return status;
}

static allot_status add_dataset(struct imatrix *im, const void *text, size_t length, struct allot_error *err)
{
    char **larger = realloc(im->datasets, (im->n_datasets + 1) * sizeof *larger);
    if (!larger)
        return allot_fail_memory(err, (im->n_datasets + 1) * sizeof *larger, "imatrix datasets");
    im->datasets = larger;
    char *copy = malloc(length + 1);
    if (!copy)
        return allot_fail_memory(err, length + 1, "an imatrix dataset name");
    memcpy(copy, text, length);
    copy[length] = '\0';
    im->datasets[im->n_datasets++] = copy;
    return ALLOT_OK;
}

static allot_status check_sums(const float *sums, int64_t n, const char *path, const char *name,
                               struct allot_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(sums[i]) || sums[i] < 0)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' has the value %g at %" PRId64, path,
                              name, (double)sums[i], i);
    return ALLOT_OK;
}

/* ---- Legacy .dat ------------------------------------------------------------------------------ */

struct legacy_cursor {
    const uint8_t *data;
    size_t left;
    const char *path;
    char name[1024]; /* of the entry read last */
};

static bool take_i32(struct legacy_cursor *c, int32_t *value)
{
    if (c->left < sizeof *value)
        return false;
    memcpy(value, c->data, sizeof *value);
    c->data += sizeof *value;
    c->left -= sizeof *value;
    return true;
}

/* A name: 1 to 1023 bytes, no control characters; anything else means that we read out of step. */
static bool take_name(struct legacy_cursor *c)
{
    int32_t length;
    if (!take_i32(c, &length) || length < 1 || length > 1023 || (size_t)length > c->left)
        return false;
    for (int32_t i = 0; i < length; i++)
        if (c->data[i] < ' ' || c->data[i] == 0x7f)
            return false;
    memcpy(c->name, c->data, (size_t)length);
    c->name[length] = '\0';
    c->data += length;
    c->left -= (size_t)length;
    return true;
}

static allot_status read_legacy_entry(struct imatrix *im, struct legacy_cursor *c, int32_t number,
                                      int32_t n_entries, struct allot_error *err)
{
    const char *name = c->name;
    int32_t n_calls, n_values;

    if (!take_name(c)) {
        if (number == 0)
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: not an imatrix (neither GGUF nor the older .dat form)", c->path);
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: entry %" PRId32 " of %" PRId32 " (after '%s') has no readable name", c->path,
                          number + 1, n_entries, name);
    }
    if (!take_i32(c, &n_calls) || !take_i32(c, &n_values))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: the file ends inside entry '%s' (%" PRId32 " of %" PRId32 ")", c->path, name,
                          number + 1, n_entries);
    if (n_calls < 0 || n_values < 1)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: entry '%s' has count %" PRId32 " and %" PRId32 " values", c->path, name,
                          n_calls, n_values);
    size_t n_bytes = (size_t)n_values * sizeof(float);
    if (n_bytes > c->left)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: entry '%s' claims %" PRId32 " values, %zu bytes more than there are", c->path,
                          name, n_values, n_bytes - c->left);
    if (imatrix_find(im, name))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' appears twice", c->path, name);
    float *sums = malloc(n_bytes);
    int64_t *counts = malloc(sizeof *counts);
    if (!sums || !counts) {
        free(sums);
        free(counts);
        return allot_fail_memory(err, n_bytes, name);
    }
    memcpy(sums, c->data, n_bytes);
    c->data += n_bytes;
    c->left -= n_bytes;
    *counts = n_calls;
    allot_status status = check_sums(sums, n_values, c->path, name, err);
    if (status != ALLOT_OK) {
        free(sums);
        free(counts);
        return status;
    }
    return imatrix_add(im, name, n_values, 1, sums, counts, err);
}

/* Chunk count and dataset name, each of which older files lack; nothing may follow. */
static allot_status read_legacy_trailer(struct imatrix *im, struct legacy_cursor *c, struct allot_error *err)
{
    int32_t length;

    if (c->left == 0)
        return ALLOT_OK;
    if (!take_i32(c, &im->chunk_count) || im->chunk_count < 0)
        goto malformed;
    if (c->left == 0)
        return ALLOT_OK;
    if (!take_i32(c, &length) || length < 0 || (size_t)length != c->left)
        goto malformed;
    return length > 0 ? add_dataset(im, c->data, (size_t)length, err) : ALLOT_OK;
malformed:
    return allot_fail(
        err, ALLOT_ERR_FORMAT,
        "%s: what follows the last entry, '%s', is not a chunk count and a dataset name; a count is wrong",
        c->path, c->name);
}

static allot_status read_legacy(struct imatrix *im, const struct file_map *map, struct allot_error *err)
{
    struct legacy_cursor c = {.data = map->data, .left = map->size, .path = map->path};
    int32_t n_entries;
    allot_status status = ALLOT_OK;

    if (!take_i32(&c, &n_entries) || n_entries < 1)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: not an imatrix (neither GGUF nor the older .dat form)",
                          c.path);
    for (int32_t i = 0; i < n_entries && status == ALLOT_OK; i++)
        status = read_legacy_entry(im, &c, i, n_entries, err);
    im->legacy = true;
    return status == ALLOT_OK ? read_legacy_trailer(im, &c, err) : status;
}

/* ---- GGUF ------------------------------------------------------------------------------------- */

static allot_status read_chunk_key(const struct gguf_model *model, const char *key, int32_t *out,
                                   struct allot_error *err)
{
    int64_t value;
    if (!gguf_model_kv(model, key))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is missing", model->path, key);
    if (!gguf_model_i64(model, key, &value) || value < 0 || value > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is not a count", model->path, key);
    *out = (int32_t)value;
    return ALLOT_OK;
}

static allot_status read_datasets(struct imatrix *im, const struct gguf_model *model, struct allot_error *err)
{
    const char *key = "imatrix.datasets";
    struct gguf_array list;
    size_t len;

    if (!gguf_model_kv(model, key))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is missing", model->path, key);
    if (!gguf_model_array(model, key, &list) || list.type != GGUF_TYPE_STRING)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is not an array of strings", model->path, key);
    const uint8_t *at = list.data;
    for (int64_t i = 0; i < list.n; i++) {
        const char *text = gguf_array_next_string(&at, &len);
        allot_status status = add_dataset(im, text, len, err);
        if (status != ALLOT_OK)
            return status;
    }
    return ALLOT_OK;
}

static allot_status copy_counts(int64_t *counts, const struct gguf_tensor *t, const char *path,
                                const char *name, struct allot_error *err)
{
    const float *values = (const float *)(const void *)t->data;
    for (int64_t i = 0; i < t->n_elements; i++) {
        if (!(values[i] >= 0 && values[i] <= MAX_COUNT)) /* false for NaN too */
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' has the count %g at %" PRId64, path,
                              name, (double)values[i], i);
        counts[i] = lroundf(values[i]);
    }
    return ALLOT_OK;
}

static allot_status read_gguf_entry(struct imatrix *im, const struct gguf_model *model, const char *name,
                                    const struct gguf_tensor *in_sum2, const struct gguf_tensor *in_counts,
                                    struct allot_error *err)
{
    const char *path = model->path;
    allot_status status;

    if (in_sum2->type != GGML_TYPE_F32 || in_counts->type != GGML_TYPE_F32)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' is not F32", path, name);
    if (in_sum2->n_elements % in_counts->n_elements != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' has %" PRId64 " sums for %" PRId64 " counts",
                          path, name, in_sum2->n_elements, in_counts->n_elements);
    float *sums = malloc((size_t)in_sum2->n_bytes);
    int64_t *counts = malloc((size_t)in_counts->n_elements * sizeof *counts);
    if (!sums || !counts) {
        status = allot_fail_memory(err, (size_t)in_sum2->n_bytes, name);
        goto fail;
    }
    memcpy(sums, in_sum2->data, (size_t)in_sum2->n_bytes);
    if ((status = check_sums(sums, in_sum2->n_elements, path, name, err)) != ALLOT_OK ||
        (status = copy_counts(counts, in_counts, path, name, err)) != ALLOT_OK)
        goto fail;
    return imatrix_add(im, name, in_sum2->n_elements / in_counts->n_elements, in_counts->n_elements, sums,
                       counts, err);
fail:
    free(sums);
    free(counts);
    return status;
}

/* Adds the sums of the inputs themselves to the entry just read. */
static allot_status read_linear(struct imatrix *im, const struct gguf_model *model, const char *name,
                                const struct gguf_tensor *in_sum, struct allot_error *err)
{
    struct imatrix_entry *entry = &im->entries[entry_position(im, name)];
    const float *values = (const float *)(const void *)in_sum->data;
    if (in_sum->type != GGML_TYPE_F32)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' is not F32", model->path, in_sum->name);
    if (in_sum->n_elements != entry->n_per_mat * entry->n_mats)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: entry '%s' has %" PRId64 " sums of inputs and %" PRId64 " of their squares",
                          model->path, name, in_sum->n_elements, entry->n_per_mat * entry->n_mats);
    for (int64_t i = 0; i < in_sum->n_elements; i++)
        if (!isfinite(values[i]))
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: entry '%s' has the value %g at %" PRId64,
                              model->path, in_sum->name, (double)values[i], i);
    entry->linear = malloc((size_t)in_sum->n_bytes);
    if (!entry->linear)
        return allot_fail_memory(err, (size_t)in_sum->n_bytes, name);
    memcpy(entry->linear, values, (size_t)in_sum->n_bytes);
    return ALLOT_OK;
}

/* Sets base to the name without the suffix, if it has it; names are shorter than GGML_MAX_NAME. */
static bool without_suffix(char base[static GGML_MAX_NAME], const char *name, const char *suffix)
{
    if (!str_ends_with(name, suffix))
        return false;
    snprintf(base, GGML_MAX_NAME, "%.*s", (int)(strlen(name) - strlen(suffix)), name);
    return true;
}

static allot_status read_gguf_entries(struct imatrix *im, const struct gguf_model *model,
                                      struct allot_error *err)
{
    char base[GGML_MAX_NAME], other[GGML_MAX_NAME + sizeof SUMS_SUFFIX];

    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i], *counts, *linear;
        bool is_sums = without_suffix(base, t->name, SUMS_SUFFIX);
        if (!is_sums && !without_suffix(base, t->name, COUNTS_SUFFIX))
            continue; /* llama-quantize ignores other tensors too */
        snprintf(other, sizeof other, "%s%s", base, is_sums ? COUNTS_SUFFIX : SUMS_SUFFIX);
        if (!(counts = gguf_model_tensor(model, other)))
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: '%s' is there, but not '%s'", model->path, t->name,
                              other);
        if (!is_sums)
            continue;
        allot_status status = read_gguf_entry(im, model, base, t, counts, err);
        snprintf(other, sizeof other, "%s" LINEAR_SUFFIX, base);
        if (status == ALLOT_OK && (linear = gguf_model_tensor(model, other)) != NULL)
            status = read_linear(im, model, base, linear, err);
        if (status != ALLOT_OK)
            return status;
    }
    if (im->n_entries == 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: a GGUF file, but not an imatrix: none of its %" PRId64
                          " tensors is named *" SUMS_SUFFIX,
                          model->path, model->n_tensors);
    return ALLOT_OK;
}

static allot_status read_gguf(struct imatrix *im, const char *path, struct allot_error *err)
{
    struct gguf_model *model;
    allot_status status = gguf_model_open(&model, path, err);
    if (status != ALLOT_OK)
        return status;
    if ((status = read_gguf_entries(im, model, err)) == ALLOT_OK &&
        (status = read_datasets(im, model, err)) == ALLOT_OK &&
        (status = read_chunk_key(model, "imatrix.chunk_count", &im->chunk_count, err)) == ALLOT_OK)
        status = read_chunk_key(model, "imatrix.chunk_size", &im->chunk_size, err);
    gguf_model_close(model);
    return status;
}

allot_status imatrix_read(struct imatrix *out, const char *path, struct allot_error *err)
{
    struct imatrix im = {0};
    struct file_map map = {0};
    allot_status status = file_map_open(&map, path, err);
    if (status != ALLOT_OK)
        return status;
    if (map.size >= 4 && memcmp(map.data, GGUF_MAGIC, 4) == 0)
        status = read_gguf(&im, path, err);
    else
        status = read_legacy(&im, &map, err);
    if (status == ALLOT_OK) {
        hash_bytes(im.sha256, map.data, map.size);
        *out = im;
    } else {
        imatrix_release(&im);
    }
    file_map_close(&map);
    return status;
}
