/* model.c - a model from one GGUF file or from all shards of a split.
 * SPDX-License-Identifier: MIT */
#include "gguf/shard.h"

#include "base/error.h"
#include "base/strbuf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SHARDS 65535 /* split.count is a u16 in llama.cpp */

int gguf_order_layer(const char *name)
{
    int layer = -1;
    if (sscanf(name, "blk.%d.", &layer) != 1)
        return -1;
    return layer;
}

/* std::map with llama.cpp's weight_name_comparer: layer first, then name. */
static int compare_names(const char *a, const char *b)
{
    int layer_a = gguf_order_layer(a), layer_b = gguf_order_layer(b);
    if (layer_a != layer_b)
        return layer_a < layer_b ? -1 : 1;
    return strcmp(a, b);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_names(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int compare_name_with_tensor(const void *name, const void *tensor)
{
    return compare_names(name, ((const struct gguf_tensor *)tensor)->name);
}

const struct gguf_tensor *gguf_model_tensor(const struct gguf_model *model, const char *name)
{
    if (model->n_tensors == 0)
        return NULL;
    return bsearch(name, model->tensors, (size_t)model->n_tensors, sizeof *model->tensors,
                   compare_name_with_tensor);
}

/* ---- Splits ----------------------------------------------------------------------------------- */

/* 1 if the key is there and an integer in [0, max], 0 if absent, -1 (err filled) otherwise. */
static int read_split_key(const struct gguf_shard *shard, const char *key, int64_t max, int64_t *value,
                          struct allot_error *err)
{
    const struct gguf_kv *kv = gguf_shard_kv(shard, key);
    if (!kv)
        return 0;
    if (gguf_kv_i64(kv, value) && *value >= 0 && *value <= max)
        return 1;
    allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is not an integer from 0 to %" PRId64, shard->map.path,
               key, max);
    return -1;
}

/* llama.cpp's naming rule (llama_split_path); number counts from 0. Caller frees; NULL: no memory. */
static char *split_path(const char *prefix, size_t prefix_len, int number, int count)
{
    struct strbuf sb = {0};
    strbuf_add(&sb, prefix, prefix_len);
    strbuf_addf(&sb, "-%05d-of-%05d.gguf", number + 1, count);
    if (sb.failed) {
        strbuf_release(&sb);
        return NULL;
    }
    return sb.data;
}

static void release_paths(char **paths, int n)
{
    for (int i = 0; paths && i < n; i++)
        free(paths[i]);
    free(paths);
}

/* The paths of all shards, given one of them; every missing one is counted, the first named. */
static allot_status list_shards(char ***out, const struct gguf_shard *given, int number, int count,
                                struct allot_error *err)
{
    const char *path = given->map.path;
    char suffix[48];
    int n_missing = 0, first_missing = 0;
    allot_status status = ALLOT_OK;

    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", number + 1, count);
    if (strlen(path) <= strlen(suffix) || !str_ends_with(path, suffix))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: this is shard %d of %d, but its name does not end in '%s', so the other "
                          "shards cannot be found",
                          path, number + 1, count, suffix);
    char **paths = calloc((size_t)count, sizeof *paths);
    if (!paths)
        return allot_fail_memory(err, (size_t)count * sizeof *paths, path);
    for (int i = 0; i < count; i++) {
        paths[i] = split_path(path, strlen(path) - strlen(suffix), i, count);
        if (!paths[i]) {
            status = allot_fail_memory(err, strlen(path) + 1, path);
            goto cleanup;
        }
        if (access(paths[i], F_OK) != 0) {
            if (n_missing++ == 0)
                first_missing = i;
        }
    }
    if (n_missing == 1)
        status = allot_fail(err, ALLOT_ERR_IO, "%s: shard %d of %d is missing", paths[first_missing],
                            first_missing + 1, count);
    else if (n_missing > 1)
        status = allot_fail(err, ALLOT_ERR_IO, "%s: shard %d of %d is missing, and %d more",
                            paths[first_missing], first_missing + 1, count, n_missing - 1);
cleanup:
    if (status == ALLOT_OK)
        *out = paths;
    else
        release_paths(paths, count);
    return status;
}

static allot_status check_shard_numbers(const struct gguf_shard *shard, int number, int count,
                                        struct allot_error *err)
{
    int64_t value;
    int found = read_split_key(shard, "split.no", MAX_SHARDS, &value, err);
    if (found < 0)
        return err->status;
    if (!found)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key 'split.no' is missing from shard %d of %d",
                          shard->map.path, number + 1, count);
    if (value != number)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: split.no is %" PRId64 ", but the name says shard %d of %d (split.no %d)",
                          shard->map.path, value, number + 1, count, number);
    found = read_split_key(shard, "split.count", MAX_SHARDS, &value, err);
    if (found < 0)
        return err->status;
    if (found && value != count)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: split.count is %" PRId64 ", but other shards say %d",
                          shard->map.path, value, count);
    return ALLOT_OK;
}

static allot_status check_tensor_count(const struct gguf_model *model, struct allot_error *err)
{
    for (int i = 0; i < model->n_shards; i++) {
        const struct gguf_shard *shard = &model->shards[i];
        int64_t value;
        int found = read_split_key(shard, "split.tensors.count", INT32_MAX, &value, err);
        if (found < 0)
            return err->status;
        if (!found && i == 0)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key 'split.tensors.count' is missing",
                              shard->map.path);
        if (found && value != model->n_tensors)
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: split.tensors.count is %" PRId64 ", but the %d shards hold %" PRId64
                              " tensors",
                              shard->map.path, value, model->n_shards, model->n_tensors);
    }
    return ALLOT_OK;
}

/* Opens the given file, learns from it how many shards there are, and opens the others. */
static allot_status open_shards(struct gguf_model *model, struct allot_error *err)
{
    struct gguf_shard given = {0};
    char **paths = NULL;
    int64_t count = 1, number = 0;
    int found;
    allot_status status = gguf_shard_open(&given, model->path, 0, err);
    if (status != ALLOT_OK)
        return status;
    if ((found = read_split_key(&given, "split.count", MAX_SHARDS, &count, err)) < 0) {
        status = err->status;
        goto cleanup;
    }
    if (!found || count <= 1) {
        count = 1;
    } else {
        if ((found = read_split_key(&given, "split.no", count - 1, &number, err)) < 0) {
            status = err->status;
            goto cleanup;
        }
        if (!found) {
            status =
                allot_fail(err, ALLOT_ERR_FORMAT,
                           "%s: key 'split.no' is missing, but split.count is %" PRId64, model->path, count);
            goto cleanup;
        }
        if ((status = list_shards(&paths, &given, (int)number, (int)count, err)) != ALLOT_OK)
            goto cleanup;
    }
    model->shards = calloc((size_t)count, sizeof *model->shards);
    if (!model->shards) {
        status = allot_fail_memory(err, (size_t)count * sizeof *model->shards, model->path);
        goto cleanup;
    }
    model->n_shards = (int)count;
    for (int64_t i = 0; i < given.n_tensors; i++)
        given.tensors[i].shard = (int)number;
    model->shards[number] = given;
    memset(&given, 0, sizeof given);
    for (int i = 0; i < (int)count && status == ALLOT_OK; i++) {
        if (i != (int)number)
            status = gguf_shard_open(&model->shards[i], paths[i], i, err);
        if (status == ALLOT_OK && count > 1)
            status = check_shard_numbers(&model->shards[i], i, (int)count, err);
    }
cleanup:
    release_paths(paths, paths ? (int)count : 0);
    gguf_shard_release(&given);
    return status;
}

/* ---- The model -------------------------------------------------------------------------------- */

/* Moves the tensors of all shards into one array in llama.cpp's order; names must be unique. */
static allot_status join_tensors(struct gguf_model *model, struct allot_error *err)
{
    size_t total = 0, n = 0;
    for (int i = 0; i < model->n_shards; i++)
        total += (size_t)model->shards[i].n_tensors;
    if (total == 0)
        return ALLOT_OK;
    model->tensors = malloc(total * sizeof *model->tensors);
    if (!model->tensors)
        return allot_fail_memory(err, total * sizeof *model->tensors, model->path);
    for (int i = 0; i < model->n_shards; i++) {
        struct gguf_shard *shard = &model->shards[i];
        if (shard->n_tensors > 0)
            memcpy(&model->tensors[n], shard->tensors, (size_t)shard->n_tensors * sizeof *shard->tensors);
        n += (size_t)shard->n_tensors;
        free(shard->tensors);
        shard->tensors = NULL;
    }
    model->n_tensors = (int64_t)total;
    qsort(model->tensors, total, sizeof *model->tensors, compare_tensors);
    for (size_t i = 1; i < total; i++) {
        const struct gguf_tensor *a = &model->tensors[i - 1], *b = &model->tensors[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        if (a->shard == b->shard)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor '%s' appears twice",
                              model->shards[a->shard].map.path, a->name);
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor '%s' is also in %s",
                          model->shards[b->shard].map.path, a->name, model->shards[a->shard].map.path);
    }
    return ALLOT_OK;
}

allot_status gguf_model_open(struct gguf_model **out, const char *path, struct allot_error *err)
{
    struct gguf_model *model = calloc(1, sizeof *model);
    if (!model)
        return allot_fail_memory(err, sizeof *model, path);
    allot_status status;
    if (!(model->path = strdup(path)))
        status = allot_fail_memory(err, strlen(path) + 1, path);
    else
        status = open_shards(model, err);
    if (status == ALLOT_OK)
        status = join_tensors(model, err);
    if (status == ALLOT_OK && model->n_shards > 1)
        status = check_tensor_count(model, err);
    if (status != ALLOT_OK) {
        gguf_model_close(model);
        return status;
    }
    model->n_kv = model->shards[0].n_kv;
    model->kv = model->shards[0].kv;
    model->alignment = model->shards[0].alignment;
    for (int i = 0; i < model->n_shards; i++)
        model->total_bytes += (int64_t)model->shards[i].map.size;
    *out = model;
    return ALLOT_OK;
}

void gguf_model_close(struct gguf_model *model)
{
    if (!model)
        return;
    for (int64_t i = 0; model->tensors && i < model->n_tensors; i++)
        free(model->tensors[i].name);
    free(model->tensors);
    for (int i = 0; model->shards && i < model->n_shards; i++)
        gguf_shard_release(&model->shards[i]);
    free(model->shards);
    free(model->path);
    free(model);
}
