/* gguf-facts.c - prints what a GGUF file holds, one fact a line, as ggml itself reads it, so that scripts can
 * compare files with diff.  SPDX-License-Identifier: MIT
 *
 * usage: gguf-facts FILE
 *     kv KEY TYPE VALUE          (the SHA-256 of arrays)
 *     tensor NAME TYPE NE0xNE1x... OFFSET SHA-256
 *     data OFFSET BYTES          (the data section: from there to the end of the file) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "ggml.h"
#include "gguf.h"

static size_t scalar_size(enum gguf_type type)
{
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return 4;
    default:
        return 8;
    }
}

static void print_value(const struct gguf_context *gguf, int64_t i)
{
    char hex[HASH_HEX];
    switch (gguf_get_kv_type(gguf, i)) {
    case GGUF_TYPE_STRING:
        printf(" %s\n", gguf_get_val_str(gguf, i));
        return;
    case GGUF_TYPE_BOOL:
        printf(" %d\n", gguf_get_val_bool(gguf, i));
        return;
    case GGUF_TYPE_UINT16:
        printf(" %u\n", gguf_get_val_u16(gguf, i));
        return;
    case GGUF_TYPE_UINT32:
        printf(" %u\n", gguf_get_val_u32(gguf, i));
        return;
    case GGUF_TYPE_INT32:
        printf(" %d\n", gguf_get_val_i32(gguf, i));
        return;
    case GGUF_TYPE_FLOAT32:
        printf(" %.9g\n", (double)gguf_get_val_f32(gguf, i));
        return;
    case GGUF_TYPE_ARRAY:
        break;
    default:
        printf(" (scalar)\n");
        return;
    }
    const size_t n = gguf_get_arr_n(gguf, i);
    const enum gguf_type type = gguf_get_arr_type(gguf, i);
    if (type != GGUF_TYPE_STRING) {
        hash_bytes(hex, gguf_get_arr_data(gguf, i), n * scalar_size(type));
        printf("[%s] %zu %s\n", gguf_type_name(type), n, hex);
        return;
    }
    struct hash *h;
    struct allot_error err;
    if (hash_new(&h, &err)) {
        printf(" %s\n", err.message);
        return;
    }
    for (size_t k = 0; k < n; k++)
        hash_update_str(h, gguf_get_arr_str(gguf, i, k));
    hash_final(h, hex);
    printf("[str] %zu %s\n", n, hex);
}

int main(int argc, char **argv)
{
    struct file_map map;
    struct allot_error err;
    if (argc != 2) {
        fprintf(stderr, "usage: gguf-facts FILE\n");
        return 2;
    }
    struct ggml_context *ctx = NULL;
    struct gguf_context *gguf =
        gguf_init_from_file(argv[1], (struct gguf_init_params){.no_alloc = true, .ctx = &ctx});
    if (!gguf || file_map_open(&map, argv[1], &err)) {
        fprintf(stderr, "gguf-facts: cannot read %s\n", argv[1]);
        return 1;
    }
    for (int64_t i = 0; i < gguf_get_n_kv(gguf); i++) {
        printf("kv %s %s", gguf_get_key(gguf, i), gguf_type_name(gguf_get_kv_type(gguf, i)));
        print_value(gguf, i);
    }
    const size_t data = gguf_get_data_offset(gguf);
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); i++) {
        const char *name = gguf_get_tensor_name(gguf, i);
        const struct ggml_tensor *t = ggml_get_tensor(ctx, name);
        const size_t offset = gguf_get_tensor_offset(gguf, i), n = gguf_get_tensor_size(gguf, i);
        char hex[HASH_HEX] = "beyond the end of the file";
        if (data + offset + n <= map.size)
            hash_bytes(hex, map.data + data + offset, n);
        printf("tensor %s %s %lldx%lldx%lldx%lld %zu %s\n", name, ggml_type_name(t->type),
               (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3], offset,
               hex);
    }
    printf("data %zu %zu\n", data, map.size - data);
    file_map_close(&map);
    gguf_free(gguf);
    ggml_free(ctx);
    return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
