/* load.c - a GGUF model opened by libllama, after allot's own checks.  SPDX-License-Identifier: MIT */
#include "text/load.h"

#include "base/error.h"
#include "gguf.h"
#include "gguf/model.h"
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct token_text {
    const uint8_t *bytes;
    uint64_t len;
};

static int compare_token_texts(const void *a, const void *b)
{
    const struct token_text *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order != 0)
        return order;
    return x->len < y->len ? -1 : x->len > y->len;
}

static uint64_t read_u64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* A token that is listed twice makes libllama abort the process, so it is found here. Everything
 * else that can be wrong with the lists libllama reports itself. */
static allot_status check_token_list(const struct gguf_model *model, struct allot_error *err)
{
    const struct gguf_kv *kv = gguf_model_kv(model, "tokenizer.ggml.tokens");
    if (kv == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: has no tokenizer (no tokenizer.ggml.tokens)",
                          model->path);
    uint32_t element_type = GGUF_TYPE_COUNT;
    if (kv->type == GGUF_TYPE_ARRAY)
        memcpy(&element_type, kv->raw, sizeof element_type);
    if (element_type != GGUF_TYPE_STRING)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tokenizer.ggml.tokens is not a list of strings",
                          model->path);
    uint64_t n = read_u64(kv->raw + sizeof element_type);
    if (n == 0 || n > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tokenizer.ggml.tokens has %llu tokens", model->path,
                          (unsigned long long)n);
    struct token_text *texts = malloc(n * sizeof *texts);
    if (texts == NULL)
        return allot_fail_memory(err, n * sizeof *texts, "the list of tokens");
    const uint8_t *at = kv->raw + sizeof element_type + sizeof n;
    size_t used = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = read_u64(at);
        if (len > 0) /* libllama gives empty ones names of their own */
            texts[used++] = (struct token_text){at + sizeof len, len};
        at += sizeof len + len;
    }
    qsort(texts, used, sizeof *texts, compare_token_texts);
    allot_status status = ALLOT_OK;
    for (size_t i = 1; i < used && status == ALLOT_OK; i++)
        if (compare_token_texts(&texts[i - 1], &texts[i]) == 0)
            status = allot_fail(err, ALLOT_ERR_FORMAT,
                                "%s: tokenizer.ggml.tokens lists the token \"%.*s\" twice", model->path,
                                (int)(texts[i].len < 64 ? texts[i].len : 64), (const char *)texts[i].bytes);
    free(texts);
    return status;
}

/* libllama wants the first shard; gguf_model_open has already checked that the name ends in
 * -NNNNN-of-NNNNN.gguf. */
static char *first_shard_path(const struct gguf_model *model)
{
    static const char pattern[] = "-00001-of-00001.gguf";
    char *path = strdup(model->path);
    size_t len = path == NULL ? 0 : strlen(path);
    if (model->n_shards > 1 && len >= sizeof pattern - 1)
        memcpy(path + len - (sizeof pattern - 1), pattern, 6);
    return path;
}

allot_status text_llama_load(struct llama_model **out, const char *path, bool vocab_only,
                             struct allot_error *err)
{
    struct gguf_model *checked = NULL;
    char *first_path = NULL;
    *out = NULL;
    allot_status status = gguf_model_open(&checked, path, err);
    if (status == ALLOT_OK)
        status = check_token_list(checked, err);
    if (status != ALLOT_OK)
        goto done;
    first_path = first_shard_path(checked);
    if (first_path == NULL) {
        status = allot_fail_memory(err, strlen(path) + 1, "a path");
        goto done;
    }
    text_capture_llama_log();
    text_forget_llama_error();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = vocab_only;
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    *out = llama_model_load_from_file(first_path, params);
    if (*out == NULL) {
        const char *cause = text_last_llama_error();
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: libllama cannot load it: %s", path,
                            cause[0] != '\0' ? cause : "no reason given");
    }
done:
    free(first_path);
    gguf_model_close(checked);
    return status;
}
