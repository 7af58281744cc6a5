/* split-gguf.c - cuts a GGUF into shards as llama.cpp names and marks them.
 * SPDX-License-Identifier: MIT
 *
 * usage: split-gguf IN.gguf OUT-PREFIX N_SHARDS
 *
 * Writes OUT-PREFIX-00001-of-0000N.gguf and so on with ggml's own writer: all metadata in the first shard,
 * split.no, split.count and split.tensors.count in each, tensors in file order in equal numbers. */
#include <stdio.h>
#include <stdlib.h>

#include "ggml.h"
#include "gguf.h"

static bool write_shard(struct gguf_context *in, struct ggml_context *data, const char *prefix, int number,
                        int count)
{
    struct gguf_context *out = gguf_init_empty();
    char path[4096];
    int64_t n = gguf_get_n_tensors(in), first = n * number / count, end = n * (number + 1) / count;
    if (number == 0)
        gguf_set_kv(out, in);
    gguf_set_val_u16(out, "split.no", (uint16_t)number);
    gguf_set_val_u16(out, "split.count", (uint16_t)count);
    gguf_set_val_i32(out, "split.tensors.count", (int32_t)n);
    for (int64_t i = first; i < end; i++)
        gguf_add_tensor(out, ggml_get_tensor(data, gguf_get_tensor_name(in, i)));
    snprintf(path, sizeof path, "%s-%05d-of-%05d.gguf", prefix, number + 1, count);
    bool ok = gguf_write_to_file(out, path, false);
    if (!ok)
        fprintf(stderr, "split-gguf: cannot write %s\n", path);
    gguf_free(out);
    return ok;
}

int main(int argc, char **argv)
{
    int count = argc == 4 ? atoi(argv[3]) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: split-gguf IN.gguf OUT-PREFIX N_SHARDS\n");
        return 2;
    }
    struct ggml_context *data = NULL;
    struct gguf_context *in =
        gguf_init_from_file(argv[1], (struct gguf_init_params){.no_alloc = false, .ctx = &data});
    if (!in) {
        fprintf(stderr, "split-gguf: cannot read %s\n", argv[1]);
        return 1;
    }
    bool ok = true;
    for (int number = 0; ok && number < count; number++)
        ok = write_shard(in, data, argv[2], number, count);
    gguf_free(in);
    ggml_free(data);
    return ok ? 0 : 1;
}
