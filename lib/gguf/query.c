/* query.c - asking an open model: metadata values, what llama-quantize would quantize, checksum.
 * SPDX-License-Identifier: MIT */
#include "gguf/shard.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "gguf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Metadata --------------------------------------------------------------------------------- */

static const struct gguf_kv *find_kv(const struct gguf_kv *kv, int64_t n_kv, const char *key)
{
    for (int64_t i = 0; i < n_kv; i++)
        if (strcmp(kv[i].key, key) == 0)
            return &kv[i];
    return NULL;
}

const struct gguf_kv *gguf_shard_kv(const struct gguf_shard *shard, const char *key)
{
    return find_kv(shard->kv, shard->n_kv, key);
}

const char *gguf_model_shard_path(const struct gguf_model *model, int shard)
{
    return model->shards[shard].map.path;
}

const struct gguf_kv *gguf_model_kv(const struct gguf_model *model, const char *key)
{
    return find_kv(model->kv, model->n_kv, key);
}

bool gguf_kv_i64(const struct gguf_kv *kv, int64_t *value)
{
    uint64_t bits = 0; /* values in the file are not aligned: copied, then interpreted */
    size_t size = gguf_scalar_size(kv->type);
    memcpy(&bits, kv->raw, size);
    switch (kv->type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_UINT32:
        *value = (int64_t)bits;
        return true;
    case GGUF_TYPE_INT8:
        *value = (int8_t)bits;
        return true;
    case GGUF_TYPE_INT16:
        *value = (int16_t)bits;
        return true;
    case GGUF_TYPE_INT32:
        *value = (int32_t)bits;
        return true;
    case GGUF_TYPE_INT64:
        *value = (int64_t)bits;
        return true;
    case GGUF_TYPE_UINT64:
        if (bits > INT64_MAX)
            return false;
        *value = (int64_t)bits;
        return true;
    default:
        return false;
    }
}

bool gguf_model_i64(const struct gguf_model *model, const char *key, int64_t *value)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    return kv && gguf_kv_i64(kv, value);
}

bool gguf_model_f64(const struct gguf_model *model, const char *key, double *value)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    int64_t integer;
    float single;
    if (!kv)
        return false;
    if (kv->type == GGUF_TYPE_FLOAT64) {
        memcpy(value, kv->raw, sizeof *value);
        return true;
    }
    if (kv->type == GGUF_TYPE_FLOAT32) {
        memcpy(&single, kv->raw, sizeof single);
        *value = single;
        return true;
    }
    if (!gguf_kv_i64(kv, &integer))
        return false;
    *value = (double)integer;
    return true;
}

bool gguf_model_bool(const struct gguf_model *model, const char *key, bool *value)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    if (!kv || kv->type != GGUF_TYPE_BOOL)
        return false;
    *value = kv->raw[0] != 0;
    return true;
}

char *gguf_model_str(const struct gguf_model *model, const char *key)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    uint64_t length;
    if (!kv || kv->type != GGUF_TYPE_STRING)
        return NULL;
    memcpy(&length, kv->raw, sizeof length);
    char *copy = malloc(length + 1);
    if (!copy)
        return NULL;
    memcpy(copy, kv->raw + sizeof length, length);
    copy[length] = '\0';
    return copy;
}

bool gguf_model_array(const struct gguf_model *model, const char *key, struct gguf_array *array)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    if (!kv || kv->type != GGUF_TYPE_ARRAY)
        return false;
    memcpy(&array->type, kv->raw, sizeof array->type);
    memcpy(&array->n, kv->raw + sizeof array->type, sizeof array->n);
    array->data = kv->raw + sizeof array->type + sizeof array->n;
    return true;
}

const char *gguf_array_next_string(const uint8_t **at, size_t *len)
{
    uint64_t length;
    memcpy(&length, *at, sizeof length);
    const char *text = (const char *)*at + sizeof length;
    *at += sizeof length + length;
    *len = length;
    return text;
}

int64_t gguf_model_array_len(const struct gguf_model *model, const char *key)
{
    struct gguf_array array;
    return gguf_model_array(model, key, &array) ? array.n : -1;
}

/* ---- Which tensors llama-quantize would touch --------------------------------------------------- */

enum name_match { CONTAINS, EQUALS };

/* Names that llama.cpp v0.4.0 leaves alone (src/llama-quant.cpp, tensor_allows_quantization). */
static const struct {
    enum name_match match;
    const char *text;
} kept_names[] = {
    {CONTAINS, "_norm.weight"},
    {CONTAINS, "ffn_gate_inp.weight"}, /* routers of experts */
    {CONTAINS, "ffn_gate_tid2eid.weight"},
    {CONTAINS, "altup"},
    {CONTAINS, "laurel"},
    {CONTAINS, "per_layer_model_proj"},
    {EQUALS, "position_embd.weight"},
    {EQUALS, "token_types.weight"},
    {CONTAINS, "ssm_conv1d"},
    {CONTAINS, "shortconv.conv.weight"},
    {CONTAINS, "indexer.k_proj.weight"},
    {CONTAINS, "indexer.q_proj.weight"},
    {CONTAINS, "time_mix_first.weight"},
    {CONTAINS, "time_mix_w0.weight"},
    {CONTAINS, "time_mix_w1.weight"},
    {CONTAINS, "time_mix_w2.weight"},
    {CONTAINS, "time_mix_v0.weight"},
    {CONTAINS, "time_mix_v1.weight"},
    {CONTAINS, "time_mix_v2.weight"},
    {CONTAINS, "time_mix_a0.weight"},
    {CONTAINS, "time_mix_a1.weight"},
    {CONTAINS, "time_mix_a2.weight"},
    {CONTAINS, "time_mix_g1.weight"},
    {CONTAINS, "time_mix_g2.weight"},
    {CONTAINS, "time_mix_decay_w1.weight"},
    {CONTAINS, "time_mix_decay_w2.weight"},
    {CONTAINS, "time_mix_lerp_fused.weight"},
    {CONTAINS, "attn_rel_b.weight"},
    {CONTAINS, ".position_embd"},
    {CONTAINS, "sam.pos_embd"},
    {CONTAINS, "sam.neck."},
    {CONTAINS, "sam.net_"},
    {CONTAINS, ".rel_pos"},
    {CONTAINS, ".patch_embd"},
    {CONTAINS, ".patch_merger"},
    {CONTAINS, "a.rvq.codebook"},
    {CONTAINS, "mm.a.code_embd"},
};

bool gguf_tensor_quantizable(const struct gguf_tensor *tensor)
{
    const char *name = tensor->name;
    /* Trailing dimensions of 1 do not count. */
    if (tensor->ne[1] == 1 && tensor->ne[2] == 1 && tensor->ne[3] == 1)
        return false;
    /* llama.cpp compares rfind("weight") with size - 6; without a match both are SIZE_MAX when the
     * name has five bytes, so that any such name passes. */
    if (!str_ends_with(name, "weight") && strlen(name) != 5)
        return false;
    for (size_t i = 0; i < sizeof kept_names / sizeof *kept_names; i++) {
        const char *text = kept_names[i].text;
        if (kept_names[i].match == EQUALS ? strcmp(name, text) == 0 : strstr(name, text) != NULL)
            return false;
    }
    return true;
}

/* ---- Bytes ------------------------------------------------------------------------------------ */

static void forget(const uint8_t *start, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)start / page * page;
    /* Advice only: a failure costs memory, nothing else. */
    (void)madvise((void *)first, (uintptr_t)start + n - first, MADV_DONTNEED);
}

/* Takes the faults of a walk through the bytes at once, where the kernel can (5.14). */
static void fetch(const uint8_t *start, size_t n)
{
#ifdef MADV_POPULATE_READ
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)start / page * page;
    (void)madvise((void *)first, (uintptr_t)start + n - first, MADV_POPULATE_READ);
#else
    (void)start;
    (void)n;
#endif
}

void gguf_tensor_forget(const struct gguf_tensor *tensor)
{
    forget(tensor->data, (size_t)tensor->n_bytes);
}

void gguf_tensor_forget_rows(const struct gguf_tensor *tensor, int64_t first, int64_t n_rows)
{
    forget(tensor->data + first * tensor->row_bytes, (size_t)(n_rows * tensor->row_bytes));
}

allot_status gguf_model_sha256(const struct gguf_model *model, char hex[static 65],
                               const struct allot_progress *progress, struct allot_error *err)
{
    const size_t chunk = (size_t)16 << 20;
    int64_t done = 0;
    struct hash *hash;
    allot_status status = hash_new(&hash, err);
    if (status != ALLOT_OK)
        return status;
    for (int i = 0; i < model->n_shards && status == ALLOT_OK; i++) {
        const struct file_map *map = &model->shards[i].map;
        for (size_t at = 0; at < map->size && status == ALLOT_OK; at += chunk) {
            size_t n = map->size - at < chunk ? map->size - at : chunk;
            fetch(map->data + at, n);
            hash_update(hash, map->data + at, n);
            forget(map->data + at, n);
            done += (int64_t)n;
            status = allot_report(progress, err, "checksum", done, model->total_bytes);
        }
    }
    hash_final(hash, hex);
    return status;
}
