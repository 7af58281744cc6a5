/* parse.c - the GGUF header of one file: read through a bounds-checked cursor, trusting nothing.
 * SPDX-License-Identifier: MIT */
#include "gguf/shard.h"

#include "base/error.h"
#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF data is used in place, little endian");

#define MAX_KEY_LENGTH 65535           /* the format's own limit */
#define MAX_LENGTH ((uint64_t)1 << 30) /* ggml's, of strings and of arrays */
#define MIN_KV_BYTES 14                /* key of one byte, u32 type, value of one byte */
#define MIN_TENSOR_BYTES 25            /* name of one byte, no dimensions, type, offset */

struct cursor {
    const uint8_t *data;
    uint64_t size, pos;
    const char *path;
    char where[192]; /* what is being read, for messages */
};

static uint64_t cursor_left(const struct cursor *c)
{
    return c->size - c->pos;
}

static allot_status cursor_need(const struct cursor *c, uint64_t n, struct allot_error *err)
{
    if (n <= cursor_left(c))
        return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_FORMAT,
                      "%s: the file (%" PRIu64 " bytes) ends inside %s: at least %" PRIu64
                      " bytes are missing",
                      c->path, c->size, c->where, n - cursor_left(c));
}

static allot_status cursor_read(struct cursor *c, void *out, size_t n, struct allot_error *err)
{
    allot_status status = cursor_need(c, n, err);
    if (status != ALLOT_OK)
        return status;
    memcpy(out, c->data + c->pos, n);
    c->pos += n;
    return ALLOT_OK;
}

static allot_status cursor_read_u32(struct cursor *c, uint32_t *out, struct allot_error *err)
{
    return cursor_read(c, out, sizeof *out, err);
}

static allot_status cursor_read_u64(struct cursor *c, uint64_t *out, struct allot_error *err)
{
    return cursor_read(c, out, sizeof *out, err);
}

/* Steps over a length-prefixed string; *text points into the file, without a NUL. */
static allot_status cursor_skip_string(struct cursor *c, const uint8_t **text, uint64_t *length,
                                       struct allot_error *err)
{
    uint64_t n;
    allot_status status = cursor_read_u64(c, &n, err);
    if (status != ALLOT_OK)
        return status;
    if (n > MAX_LENGTH)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has a string of %" PRIu64 " bytes", c->path,
                          c->where, n);
    status = cursor_need(c, n, err);
    if (status != ALLOT_OK)
        return status;
    *text = c->data + c->pos;
    *length = n;
    c->pos += n;
    return ALLOT_OK;
}

/* Copies a key or name: not empty, at most max bytes, no NUL inside. */
static allot_status cursor_read_name(struct cursor *c, uint64_t max, char **out, struct allot_error *err)
{
    const uint8_t *text = NULL;
    uint64_t length = 0;
    allot_status status = cursor_skip_string(c, &text, &length, err);
    if (status != ALLOT_OK)
        return status;
    if (length == 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s is empty", c->path, c->where);
    if (length > max)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s is %" PRIu64 " bytes long, the limit is %" PRIu64,
                          c->path, c->where, length, max);
    if (memchr(text, 0, length))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s contains a NUL byte", c->path, c->where);
    char *copy = malloc(length + 1);
    if (!copy)
        return allot_fail_memory(err, length + 1, c->where);
    memcpy(copy, text, length);
    copy[length] = '\0';
    *out = copy;
    return ALLOT_OK;
}

size_t gguf_scalar_size(uint32_t type)
{
    static const uint8_t sizes[GGUF_TYPE_COUNT] = {
        [GGUF_TYPE_UINT8] = 1,  [GGUF_TYPE_INT8] = 1,  [GGUF_TYPE_UINT16] = 2,  [GGUF_TYPE_INT16] = 2,
        [GGUF_TYPE_UINT32] = 4, [GGUF_TYPE_INT32] = 4, [GGUF_TYPE_FLOAT32] = 4, [GGUF_TYPE_BOOL] = 1,
        [GGUF_TYPE_UINT64] = 8, [GGUF_TYPE_INT64] = 8, [GGUF_TYPE_FLOAT64] = 8,
    };
    return type < GGUF_TYPE_COUNT ? sizes[type] : 0;
}

/* ---- Magic, version, counts ------------------------------------------------------------------- */

static allot_status check_version(const struct cursor *c, uint32_t version, struct allot_error *err)
{
    if (version == 2 || version == 3)
        return ALLOT_OK;
    if (version == 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: GGUF version 0 does not exist", c->path);
    if ((version & 0xffff) == 0)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: a big-endian GGUF file; only little-endian ones are read", c->path);
    return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                      "%s: GGUF version %" PRIu32 "; only versions 2 and 3 are read", c->path, version);
}

static allot_status parse_start(struct cursor *c, uint64_t *n_tensors, uint64_t *n_kv,
                                struct allot_error *err)
{
    uint8_t magic[4];
    uint32_t version;
    allot_status status;

    snprintf(c->where, sizeof c->where, "the file's first 24 bytes");
    if (c->size >= 4 && memcmp(c->data, GGUF_MAGIC, 4) != 0) {
        memcpy(magic, c->data, 4);
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: not a GGUF file (it starts with %02x %02x %02x %02x, not \"GGUF\")", c->path,
                          magic[0], magic[1], magic[2], magic[3]);
    }
    if ((status = cursor_read(c, magic, 4, err)) != ALLOT_OK ||
        (status = cursor_read_u32(c, &version, err)) != ALLOT_OK)
        return status;
    if ((status = check_version(c, version, err)) != ALLOT_OK)
        return status;
    if ((status = cursor_read_u64(c, n_tensors, err)) != ALLOT_OK ||
        (status = cursor_read_u64(c, n_kv, err)) != ALLOT_OK)
        return status;

    /* Counts that the rest of the file cannot hold must not be allocated for. */
    uint64_t left = cursor_left(c);
    if (*n_kv > left / MIN_KV_BYTES)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: claims %" PRIu64 " metadata entries, more than its remaining %" PRIu64
                          " bytes can hold",
                          c->path, *n_kv, left);
    if (*n_tensors > left / MIN_TENSOR_BYTES)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: claims %" PRIu64 " tensors, more than its remaining %" PRIu64
                          " bytes can hold",
                          c->path, *n_tensors, left);
    return ALLOT_OK;
}

/* ---- Metadata --------------------------------------------------------------------------------- */

static allot_status skip_array(struct cursor *c, struct allot_error *err)
{
    uint32_t type;
    uint64_t n;
    allot_status status;

    if ((status = cursor_read_u32(c, &type, err)) != ALLOT_OK ||
        (status = cursor_read_u64(c, &n, err)) != ALLOT_OK)
        return status;
    if (type == GGUF_TYPE_ARRAY)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: %s is an array of arrays", c->path, c->where);
    size_t size = type == GGUF_TYPE_STRING ? sizeof(uint64_t) : gguf_scalar_size(type);
    if (size == 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s is an array of unknown type %" PRIu32, c->path,
                          c->where, type);
    if (n > MAX_LENGTH)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s is an array of %" PRIu64 " elements", c->path,
                          c->where, n);
    if ((status = cursor_need(c, n * size, err)) != ALLOT_OK)
        return status;
    if (type != GGUF_TYPE_STRING) {
        c->pos += n * size;
        return ALLOT_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *text;
        uint64_t length;
        if ((status = cursor_skip_string(c, &text, &length, err)) != ALLOT_OK)
            return status;
    }
    return ALLOT_OK;
}

static allot_status skip_value(struct cursor *c, uint32_t type, struct allot_error *err)
{
    if (type == GGUF_TYPE_ARRAY)
        return skip_array(c, err);
    if (type == GGUF_TYPE_STRING) {
        const uint8_t *text;
        uint64_t length;
        return cursor_skip_string(c, &text, &length, err);
    }
    size_t size = gguf_scalar_size(type);
    if (size == 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has unknown type %" PRIu32, c->path, c->where, type);
    allot_status status = cursor_need(c, size, err);
    if (status == ALLOT_OK)
        c->pos += size;
    return status;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static allot_status check_duplicate_keys(const struct gguf_shard *shard, struct allot_error *err)
{
    size_t n = (size_t)shard->n_kv;
    if (n < 2)
        return ALLOT_OK;
    char **keys = malloc(n * sizeof *keys);
    if (!keys)
        return allot_fail_memory(err, n * sizeof *keys, shard->map.path);
    for (size_t i = 0; i < n; i++)
        keys[i] = shard->kv[i].key;
    qsort(keys, n, sizeof *keys, compare_strings);

    allot_status status = ALLOT_OK;
    for (size_t i = 1; i < n && status == ALLOT_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status =
                allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%.100s' appears twice", shard->map.path, keys[i]);
    free(keys);
    return status;
}

static allot_status parse_alignment(struct gguf_shard *shard, struct allot_error *err)
{
    const struct gguf_kv *kv = gguf_shard_kv(shard, GGUF_KEY_GENERAL_ALIGNMENT);
    shard->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (!kv)
        return ALLOT_OK;
    if (kv->type != GGUF_TYPE_UINT32)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: key '%s' is not a u32", shard->map.path, kv->key);
    memcpy(&shard->alignment, kv->raw, sizeof shard->alignment);
    /* The format asks for multiples of 8; less would also misalign every float in the mapping. */
    if (shard->alignment < 8 || (shard->alignment & (shard->alignment - 1)) != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: key '%s' is %" PRIu32 ", not a power of two of at least 8", shard->map.path,
                          kv->key, shard->alignment);
    return ALLOT_OK;
}

static allot_status parse_kv(struct gguf_shard *shard, struct cursor *c, uint64_t n_kv,
                             struct allot_error *err)
{
    allot_status status;

    if (n_kv > 0 && !(shard->kv = calloc(n_kv, sizeof *shard->kv)))
        return allot_fail_memory(err, n_kv * sizeof *shard->kv, c->path);
    for (uint64_t i = 0; i < n_kv; i++) {
        struct gguf_kv *kv = &shard->kv[i];
        snprintf(c->where, sizeof c->where, "the name of key %" PRIu64 " of %" PRIu64, i + 1, n_kv);
        if ((status = cursor_read_name(c, MAX_KEY_LENGTH, &kv->key, err)) != ALLOT_OK)
            return status;
        shard->n_kv = (int64_t)i + 1;
        snprintf(c->where, sizeof c->where, "key '%.100s'", kv->key);
        if ((status = cursor_read_u32(c, &kv->type, err)) != ALLOT_OK)
            return status;
        uint64_t start = c->pos;
        kv->raw = c->data + start;
        if ((status = skip_value(c, kv->type, err)) != ALLOT_OK)
            return status;
        kv->raw_size = (size_t)(c->pos - start);
    }
    if ((status = check_duplicate_keys(shard, err)) != ALLOT_OK)
        return status;
    return parse_alignment(shard, err);
}

/* ---- Tensors ---------------------------------------------------------------------------------- */

static allot_status parse_shape(struct gguf_tensor *t, struct cursor *c, struct allot_error *err)
{
    uint32_t n_dims;
    allot_status status = cursor_read_u32(c, &n_dims, err);
    if (status != ALLOT_OK)
        return status;
    if (n_dims > GGML_MAX_DIMS)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has %" PRIu32 " dimensions, the limit is %d",
                          c->path, c->where, n_dims, GGML_MAX_DIMS);
    t->n_dims = n_dims > 0 ? (int)n_dims : 1; /* ggml reads no dimensions as a scalar */
    t->n_elements = 1;
    for (uint32_t i = 0; i < GGML_MAX_DIMS; i++) {
        uint64_t ne = 1;
        if (i < n_dims && (status = cursor_read_u64(c, &ne, err)) != ALLOT_OK)
            return status;
        if (ne < 1 || ne > INT64_MAX)
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: %s has dimension %" PRIu32 " of %" PRId64 " elements", c->path, c->where,
                              i, (int64_t)ne);
        t->ne[i] = (int64_t)ne;
        if (__builtin_mul_overflow(t->n_elements, t->ne[i], &t->n_elements) || t->n_elements == INT64_MAX)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has too many elements to count", c->path,
                              c->where);
    }
    t->n_rows = t->n_elements / t->ne[0];
    return ALLOT_OK;
}

static allot_status parse_type(struct gguf_tensor *t, struct cursor *c, struct allot_error *err)
{
    uint32_t type;
    allot_status status = cursor_read_u32(c, &type, err);
    if (status != ALLOT_OK)
        return status;
    if (type >= GGML_TYPE_COUNT)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has unknown ggml type %" PRIu32, c->path, c->where,
                          type);
    t->type = (enum ggml_type)type;
    int64_t block = ggml_blck_size(t->type), block_bytes = (int64_t)ggml_type_size(t->type);
    if (block < 1 || block_bytes < 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: %s has ggml type %" PRIu32 ", which ggml has removed", c->path, c->where,
                          type);
    if (t->ne[0] % block != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: %s has rows of %" PRId64 " elements, not a multiple of %s's block of %" PRId64,
                          c->path, c->where, t->ne[0], ggml_type_name(t->type), block);
    if (__builtin_mul_overflow(t->n_elements / block, block_bytes, &t->n_bytes))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has too many bytes to count", c->path, c->where);
    t->row_bytes = t->ne[0] / block * block_bytes;
    return ALLOT_OK;
}

static allot_status parse_tensors(struct gguf_shard *shard, struct cursor *c, uint64_t n_tensors, int number,
                                  struct allot_error *err)
{
    allot_status status;

    if (n_tensors > 0 && !(shard->tensors = calloc(n_tensors, sizeof *shard->tensors)))
        return allot_fail_memory(err, n_tensors * sizeof *shard->tensors, c->path);
    for (uint64_t i = 0; i < n_tensors; i++) {
        struct gguf_tensor *t = &shard->tensors[i];
        uint64_t offset;
        snprintf(c->where, sizeof c->where, "the name of tensor %" PRIu64 " of %" PRIu64, i + 1, n_tensors);
        if ((status = cursor_read_name(c, GGML_MAX_NAME - 1, &t->name, err)) != ALLOT_OK)
            return status;
        shard->n_tensors = (int64_t)i + 1;
        snprintf(c->where, sizeof c->where, "tensor '%s'", t->name);
        if ((status = parse_shape(t, c, err)) != ALLOT_OK || (status = parse_type(t, c, err)) != ALLOT_OK ||
            (status = cursor_read_u64(c, &offset, err)) != ALLOT_OK)
            return status;
        if (offset > INT64_MAX)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has offset %" PRIu64, c->path, c->where, offset);
        if (offset % shard->alignment != 0)
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: %s has offset %" PRIu64 ", not a multiple of the alignment %" PRIu32,
                              c->path, c->where, offset, shard->alignment);
        t->file_offset = (int64_t)offset; /* of the data section, until place_tensors */
        t->shard = number;
        int layer = gguf_order_layer(t->name);
        t->layer = layer < 0 ? -1 : layer;
    }
    return ALLOT_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;
    return (x->file_offset > y->file_offset) - (x->file_offset < y->file_offset);
}

static allot_status check_overlaps(const struct gguf_shard *shard, struct allot_error *err)
{
    size_t n = (size_t)shard->n_tensors;
    if (n < 2)
        return ALLOT_OK;
    struct gguf_tensor **order = malloc(n * sizeof *order);
    if (!order)
        return allot_fail_memory(err, n * sizeof *order, shard->map.path);
    for (size_t i = 0; i < n; i++)
        order[i] = &shard->tensors[i];
    qsort(order, n, sizeof *order, compare_offsets);

    allot_status status = ALLOT_OK;
    for (size_t i = 1; i < n && status == ALLOT_OK; i++)
        if (order[i]->file_offset - order[i - 1]->file_offset < order[i - 1]->n_bytes)
            status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: the data of tensors '%s' and '%s' overlap",
                                shard->map.path, order[i - 1]->name, order[i]->name);
    free(order);
    return status;
}

/* Turns offsets in the data section into offsets in the file and pointers into the mapping. */
static allot_status place_tensors(struct gguf_shard *shard, const struct cursor *c, struct allot_error *err)
{
    int64_t data_start = (int64_t)((c->pos + shard->alignment - 1) / shard->alignment * shard->alignment);
    int64_t size = (int64_t)c->size, needed = 0;
    const struct gguf_tensor *first_cut = NULL;

    for (int64_t i = 0; i < shard->n_tensors; i++) {
        struct gguf_tensor *t = &shard->tensors[i];
        int64_t end;
        if (__builtin_add_overflow(data_start, t->file_offset, &t->file_offset) ||
            __builtin_add_overflow(t->file_offset, t->n_bytes, &end))
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: tensor '%s' lies beyond any possible end of the file", c->path, t->name);
        if (end > size && !first_cut)
            first_cut = t;
        if (end > needed)
            needed = end;
    }
    if (first_cut)
        return allot_fail(
            err, ALLOT_ERR_FORMAT,
            "%s: the file has %" PRId64 " bytes, %" PRId64
            " fewer than its tensors need; tensor '%s' at %" PRId64 " with %" PRId64 " bytes does not fit",
            c->path, size, needed - size, first_cut->name, first_cut->file_offset, first_cut->n_bytes);
    for (int64_t i = 0; i < shard->n_tensors; i++)
        shard->tensors[i].data = c->data + shard->tensors[i].file_offset;
    return check_overlaps(shard, err);
}

/* ---- One file --------------------------------------------------------------------------------- */

allot_status gguf_shard_open(struct gguf_shard *shard, const char *path, int number, struct allot_error *err)
{
    struct cursor c = {.path = path};
    uint64_t n_tensors = 0, n_kv = 0;
    allot_status status = file_map_open(&shard->map, path, err);
    if (status != ALLOT_OK)
        return status;
    c.data = shard->map.data;
    c.size = shard->map.size;
    if ((status = parse_start(&c, &n_tensors, &n_kv, err)) == ALLOT_OK &&
        (status = parse_kv(shard, &c, n_kv, err)) == ALLOT_OK &&
        (status = parse_tensors(shard, &c, n_tensors, number, err)) == ALLOT_OK)
        status = place_tensors(shard, &c, err);
    if (status != ALLOT_OK)
        gguf_shard_release(shard);
    return status;
}

void gguf_shard_release(struct gguf_shard *shard)
{
    for (int64_t i = 0; shard->kv && i < shard->n_kv; i++)
        free(shard->kv[i].key);
    for (int64_t i = 0; shard->tensors && i < shard->n_tensors; i++)
        free(shard->tensors[i].name);
    free(shard->kv);
    free(shard->tensors);
    file_map_close(&shard->map);
    memset(shard, 0, sizeof *shard);
}
