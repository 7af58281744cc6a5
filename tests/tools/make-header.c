/* make-header.c - writes a GGUF file of given metadata and tensors, without weights: all are zero, and the
 * file is sparse, so that models of any size cost nothing.  SPDX-License-Identifier: MIT
 *
 * usage: make-header OUT.gguf <LINES
 *     KEY=VALUE               true or false: a bool; whole number: u32; other number: f32; else a string
 *     KEY=[N,N,...]           an array of i32
 *     NAME NE0xNE1x... TYPE   a tensor; norms are best f32
 * The file is written with ggml's own writer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "ggml.h"
#include "gguf.h"

enum { MAX_TENSORS = 8192, MAX_LIST = 512 };

static void set_list(struct gguf_context *file, const char *key, const char *text)
{
    int32_t values[MAX_LIST];
    size_t n = 0;
    for (char *end; n < MAX_LIST && *text == (n ? ',' : '['); text = end)
        values[n++] = (int32_t)strtol(text + 1, &end, 10);
    gguf_set_arr_data(file, key, GGUF_TYPE_INT32, values, n);
}

static void set_value(struct gguf_context *file, const char *key, const char *value)
{
    char *end;
    const float number = strtof(value, &end);
    const bool truth = strcmp(value, "true") == 0;
    if (*value == '[')
        set_list(file, key, value);
    else if (truth || strcmp(value, "false") == 0)
        gguf_set_val_bool(file, key, truth);
    else if (*value && strspn(value, "0123456789") == strlen(value))
        gguf_set_val_u32(file, key, (uint32_t)strtoul(value, NULL, 10));
    else if (*value && *end == '\0')
        gguf_set_val_f32(file, key, number);
    else
        gguf_set_val_str(file, key, value);
}

static bool add_tensor(struct gguf_context *file, struct ggml_context *ctx, char *line)
{
    char name[GGML_MAX_NAME], type_name[32];
    long long ne[4] = {1, 1, 1, 1};
    char shape[96];
    if (sscanf(line, "%63s %95s %31s", name, shape, type_name) != 3 ||
        sscanf(shape, "%lldx%lldx%lldx%lld", &ne[0], &ne[1], &ne[2], &ne[3]) < 1)
        return false;
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *known = ggml_type_name((enum ggml_type)i);
        if (!known || strcasecmp(known, type_name) != 0)
            continue;
        struct ggml_tensor *t = ggml_new_tensor(ctx, (enum ggml_type)i, 4, (const int64_t *)ne);
        ggml_set_name(t, name);
        gguf_add_tensor(file, t);
        return true;
    }
    return false;
}

/* Appends the room of the data to the header. */
static bool write_sparse(const struct gguf_context *file, const char *path)
{
    if (!gguf_write_to_file(file, path, true))
        return false;
    const int64_t last = gguf_get_n_tensors(file) - 1;
    size_t size = gguf_get_meta_size(file);
    if (last >= 0)
        size += gguf_get_tensor_offset(file, last) +
                GGML_PAD(gguf_get_tensor_size(file, last), GGUF_DEFAULT_ALIGNMENT);
    return truncate(path, (off_t)size) == 0;
}

int main(int argc, char **argv)
{
    char line[4096];
    if (argc != 2) {
        fprintf(stderr, "usage: make-header OUT.gguf <LINES\n");
        return 2;
    }
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){
        .mem_size = MAX_TENSORS * ggml_tensor_overhead(), .mem_buffer = NULL, .no_alloc = true});
    struct gguf_context *file = gguf_init_empty();
    bool ok = true;
    while (ok && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        char *equals = strchr(line, '=');
        if (equals) {
            *equals = '\0';
            set_value(file, line, equals + 1);
        } else {
            ok = gguf_get_n_tensors(file) < MAX_TENSORS && add_tensor(file, ctx, line);
            if (!ok)
                fprintf(stderr, "make-header: cannot read: %s\n", line);
        }
    }
    if (ok && !write_sparse(file, argv[1])) {
        fprintf(stderr, "make-header: cannot write %s\n", argv[1]);
        ok = false;
    }
    gguf_free(file);
    ggml_free(ctx);
    return ok ? 0 : 1;
}
