/* writer.c - headers put together key by key and encoded as ggml's gguf.cpp encodes them.
 * SPDX-License-Identifier: MIT */
#include "gguf/writer.h"

#include "base/error.h"
#include "gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct gguf_header_kv {
    char *key;
    struct strbuf value; /* type and encoded value, as they stand in the file */
};

struct gguf_header_tensor {
    char *name;
    int64_t ne[4];
    enum ggml_type type;
};

/* ---- Metadata --------------------------------------------------------------------------------- */

static void add_u32(struct strbuf *sb, uint32_t value)
{
    strbuf_add(sb, &value, sizeof value);
}

static void add_u64(struct strbuf *sb, uint64_t value)
{
    strbuf_add(sb, &value, sizeof value);
}

static void add_str(struct strbuf *sb, const char *text)
{
    add_u64(sb, strlen(text));
    strbuf_add(sb, text, strlen(text));
}

static void release_kv(struct gguf_header_kv *kv)
{
    free(kv->key);
    strbuf_release(&kv->value);
}

void gguf_header_release(struct gguf_header *h)
{
    for (size_t i = 0; i < h->n_kv; i++)
        release_kv(&h->kv[i]);
    for (size_t i = 0; i < h->n_tensors; i++)
        free(h->tensors[i].name);
    free(h->kv);
    free(h->tensors);
    memset(h, 0, sizeof *h);
}

void gguf_header_remove(struct gguf_header *h, const char *key)
{
    for (size_t i = 0; i < h->n_kv; i++)
        if (strcmp(h->kv[i].key, key) == 0) {
            release_kv(&h->kv[i]);
            memmove(&h->kv[i], &h->kv[i + 1], (h->n_kv - i - 1) * sizeof *h->kv);
            h->n_kv--;
            return;
        }
}

/* Makes room for one more element of an array of the given element size; false: no memory. */
static bool grow(void **array, size_t n, size_t *cap, size_t element)
{
    if (n < *cap)
        return true;
    size_t wanted = *cap ? 2 * *cap : 64;
    void *larger = realloc(*array, wanted * element);
    if (!larger)
        return false;
    *array = larger;
    *cap = wanted;
    return true;
}

/* The value of a new last entry, to be filled by the caller; NULL after a failure. */
static struct strbuf *append_key(struct gguf_header *h, const char *key, uint32_t type)
{
    void *array = h->kv;
    gguf_header_remove(h, key);
    if (h->failed || !grow(&array, h->n_kv, &h->cap_kv, sizeof *h->kv)) {
        h->failed = true;
        return NULL;
    }
    h->kv = array;
    struct gguf_header_kv *kv = &h->kv[h->n_kv];
    memset(kv, 0, sizeof *kv);
    if (!(kv->key = strdup(key))) {
        h->failed = true;
        return NULL;
    }
    h->n_kv++;
    add_u32(&kv->value, type);
    return &kv->value;
}

/* ggml writes any true value as 1. */
static void add_bools(struct strbuf *sb, const uint8_t *raw, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t value = raw[i] != 0;
        strbuf_add(sb, &value, 1);
    }
}

void gguf_header_copy_kv(struct gguf_header *h, const struct gguf_kv *kv)
{
    const size_t array_prefix = sizeof(uint32_t) + sizeof(uint64_t);
    uint32_t element = 0;

    if (strcmp(kv->key, GGUF_KEY_GENERAL_ALIGNMENT) == 0) {
        /* The layout will have this alignment, whatever the source's was. */
        gguf_header_set_u32(h, kv->key, GGUF_WRITER_ALIGNMENT);
        return;
    }
    struct strbuf *value = append_key(h, kv->key, kv->type);
    if (!value)
        return;
    if (kv->type == GGUF_TYPE_ARRAY)
        memcpy(&element, kv->raw, sizeof element);
    if (kv->type == GGUF_TYPE_BOOL) {
        add_bools(value, kv->raw, kv->raw_size);
    } else if (kv->type == GGUF_TYPE_ARRAY && element == GGUF_TYPE_BOOL) {
        strbuf_add(value, kv->raw, array_prefix);
        add_bools(value, kv->raw + array_prefix, kv->raw_size - array_prefix);
    } else {
        strbuf_add(value, kv->raw, kv->raw_size);
    }
}

void gguf_header_set_u32(struct gguf_header *h, const char *key, uint32_t number)
{
    struct strbuf *value = append_key(h, key, GGUF_TYPE_UINT32);
    if (value)
        add_u32(value, number);
}

void gguf_header_set_str(struct gguf_header *h, const char *key, const char *text)
{
    struct strbuf *value = append_key(h, key, GGUF_TYPE_STRING);
    if (value)
        add_str(value, text);
}

void gguf_header_set_strs(struct gguf_header *h, const char *key, const char *const *values, size_t n)
{
    struct strbuf *value = append_key(h, key, GGUF_TYPE_ARRAY);
    if (!value)
        return;
    add_u32(value, GGUF_TYPE_STRING);
    add_u64(value, n);
    for (size_t i = 0; i < n; i++)
        add_str(value, values[i]);
}

/* ---- Tensors ---------------------------------------------------------------------------------- */

void gguf_header_add_tensor(struct gguf_header *h, const char *name, const int64_t ne[static 4],
                            enum ggml_type type)
{
    void *array = h->tensors;
    if (h->failed || !grow(&array, h->n_tensors, &h->cap_tensors, sizeof *h->tensors)) {
        h->failed = true;
        return;
    }
    h->tensors = array;
    struct gguf_header_tensor *t = &h->tensors[h->n_tensors];
    if (!(t->name = strdup(name))) {
        h->failed = true;
        return;
    }
    memcpy(t->ne, ne, sizeof t->ne);
    t->type = type;
    h->n_tensors++;
}

int64_t gguf_padded(int64_t n_bytes)
{
    return (n_bytes + GGUF_WRITER_ALIGNMENT - 1) / GGUF_WRITER_ALIGNMENT * GGUF_WRITER_ALIGNMENT;
}

static allot_status tensor_bytes(const struct gguf_header_tensor *t, int64_t *n_bytes,
                                 struct allot_error *err)
{
    int64_t n = 1;

    if (t->name[0] == '\0' || strlen(t->name) >= GGML_MAX_NAME)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "tensor name '%s' cannot be written: llama.cpp takes 1 to %d bytes", t->name,
                          GGML_MAX_NAME - 1);
    for (int i = 0; i < 4; i++)
        if (t->ne[i] < 1 || __builtin_mul_overflow(n, t->ne[i], &n))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor '%s' has an impossible shape", t->name);
    int64_t block = (unsigned)t->type < GGML_TYPE_COUNT ? ggml_blck_size(t->type) : 0;
    if (block < 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor '%s' has unknown ggml type %d", t->name,
                          (int)t->type);
    if (t->ne[0] % block != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "tensor '%s' has rows of %" PRId64
                          " elements, not a multiple of %s's block of %" PRId64,
                          t->name, t->ne[0], ggml_type_name(t->type), block);
    if (__builtin_mul_overflow(n / block, (int64_t)ggml_type_size(t->type), n_bytes) ||
        *n_bytes > INT64_MAX / 2)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor '%s' is too large", t->name);
    return ALLOT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static allot_status check_unique_names(const struct gguf_header *h, struct allot_error *err)
{
    if (h->n_tensors < 2)
        return ALLOT_OK;
    char **names = malloc(h->n_tensors * sizeof *names);
    if (!names)
        return allot_fail_memory(err, h->n_tensors * sizeof *names, "a GGUF header");
    for (size_t i = 0; i < h->n_tensors; i++)
        names[i] = h->tensors[i].name;
    qsort(names, h->n_tensors, sizeof *names, compare_names);

    allot_status status = ALLOT_OK;
    for (size_t i = 1; i < h->n_tensors && status == ALLOT_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor '%s' would be written twice", names[i]);
    free(names);
    return status;
}

static void encode_tensor(const struct gguf_header_tensor *t, int64_t offset, struct strbuf *sb)
{
    uint32_t n_dims = 4;
    while (n_dims > 1 && t->ne[n_dims - 1] == 1)
        n_dims--;
    add_str(sb, t->name);
    add_u32(sb, n_dims);
    strbuf_add(sb, t->ne, n_dims * sizeof t->ne[0]);
    add_u32(sb, (uint32_t)t->type);
    add_u64(sb, (uint64_t)offset);
}

/* ---- Encoding --------------------------------------------------------------------------------- */

allot_status gguf_header_encode(const struct gguf_header *h, struct strbuf *sb, int64_t *offsets,
                                int64_t *file_size, struct allot_error *err)
{
    static const char zeros[GGUF_WRITER_ALIGNMENT];
    const size_t start = sb->len;
    int64_t at = 0; /* in the data section */
    allot_status status;

    if (h->failed)
        return allot_fail(err, ALLOT_ERR_MEMORY, "out of memory for a GGUF header");
    if ((status = check_unique_names(h, err)) != ALLOT_OK)
        return status;
    strbuf_add(sb, GGUF_MAGIC, 4);
    add_u32(sb, GGUF_VERSION);
    add_u64(sb, h->n_tensors);
    add_u64(sb, h->n_kv);
    for (size_t i = 0; i < h->n_kv; i++) {
        if ((status = strbuf_check(&h->kv[i].value, err)) != ALLOT_OK)
            return status;
        add_str(sb, h->kv[i].key);
        strbuf_add(sb, h->kv[i].value.data, h->kv[i].value.len);
    }
    for (size_t i = 0; i < h->n_tensors; i++) {
        int64_t n_bytes = 0;
        if ((status = tensor_bytes(&h->tensors[i], &n_bytes, err)) != ALLOT_OK)
            return status;
        encode_tensor(&h->tensors[i], at, sb);
        if (offsets)
            offsets[i] = at;
        if (__builtin_add_overflow(at, gguf_padded(n_bytes), &at))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "the tensors up to '%s' are too large for a file",
                              h->tensors[i].name);
    }
    strbuf_add(sb, zeros, (size_t)(gguf_padded((int64_t)(sb->len - start)) - (int64_t)(sb->len - start)));
    if ((status = strbuf_check(sb, err)) != ALLOT_OK)
        return status;
    int64_t header = (int64_t)(sb->len - start);
    if (__builtin_add_overflow(at, header, file_size))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "the tensors are too large for a file");
    for (size_t i = 0; offsets && i < h->n_tensors; i++)
        offsets[i] += header;
    return ALLOT_OK;
}
