/* fuzz_gguf.c - any bytes as a GGUF file: opened or refused with one line, and what is opened can be used.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gguf/model.h"
#include "gguf/writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Keeps the compiler from leaving the reads out. */
static volatile uint64_t checksum;

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_gguf: %s\n", what);
    abort();
}

static void use_tensors(const struct gguf_model *model)
{
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        require(t->n_bytes > 0 && t->n_bytes == t->n_rows * t->row_bytes, "sizes disagree");
        require(t->file_offset + t->n_bytes <= model->total_bytes, "data outside the file");
        for (int64_t b = 0; b < t->n_bytes; b += 64)
            checksum += t->data[b];
        checksum += t->data[t->n_bytes - 1];
        checksum += gguf_tensor_quantizable(t);
        require(gguf_model_tensor(model, t->name) == t, "a tensor is not found by its name");
        gguf_tensor_forget(t);
    }
}

static void use_metadata(const struct gguf_model *model)
{
    for (int64_t i = 0; i < model->n_kv; i++) {
        const char *key = model->kv[i].key;
        int64_t integer = 0;
        double real = 0;
        bool truth = false;
        require(gguf_model_kv(model, key) == &model->kv[i], "a key is not found");
        checksum += gguf_model_i64(model, key, &integer) + gguf_model_f64(model, key, &real);
        checksum += gguf_model_bool(model, key, &truth) + (uint64_t)gguf_model_array_len(model, key);
        char *text = gguf_model_str(model, key);
        checksum += text ? strlen(text) : 0;
        free(text);
    }
}

/* What was read can be written, and reads back as the same tensors. */
static void rewrite(const struct gguf_model *model, int fd, const char *path)
{
    struct gguf_header h = {0};
    struct strbuf sb = {0};
    struct allot_error err;
    struct gguf_model *again;
    int64_t file_size;
    for (int64_t i = 0; i < model->n_kv; i++)
        gguf_header_copy_kv(&h, &model->kv[i]);
    for (int64_t i = 0; i < model->n_tensors; i++)
        gguf_header_add_tensor(&h, model->tensors[i].name, model->tensors[i].ne, model->tensors[i].type);
    require(gguf_header_encode(&h, &sb, NULL, &file_size, &err) == ALLOT_OK, "the header cannot be written");
    require(ftruncate(fd, 0) == 0 && pwrite(fd, sb.data, sb.len, 0) == (ssize_t)sb.len &&
                ftruncate(fd, file_size) == 0,
            "no scratch space");
    require(gguf_model_open(&again, path, &err) == ALLOT_OK, "what was written cannot be read");
    require(again->n_kv == model->n_kv && again->n_tensors == model->n_tensors,
            "what was written has changed");
    for (int64_t i = 0; i < model->n_tensors; i++)
        require(strcmp(again->tensors[i].name, model->tensors[i].name) == 0 &&
                    again->tensors[i].n_bytes == model->tensors[i].n_bytes,
                "a tensor that was written has changed");
    gguf_model_close(again);
    gguf_header_release(&h);
    strbuf_release(&sb);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1, scratch = -1;
    char path[64], scratch_path[64];
    struct gguf_model *model;
    struct allot_error err = {0};

    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        scratch = memfd_create("fuzz", 0);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(scratch_path, sizeof scratch_path, "/proc/self/fd/%d", scratch);
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "no scratch space");
    if (gguf_model_open(&model, path, &err) != ALLOT_OK) {
        require(strstr(err.message, path) && !strchr(err.message, '\n'),
                "the error is not one line naming the file");
        return 0;
    }
    use_tensors(model);
    use_metadata(model);
    rewrite(model, scratch, scratch_path);
    gguf_model_close(model);
    return 0;
}
