/* text.c - text files to token sequences.  SPDX-License-Identifier: MIT */
#include "text/text.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "text/load.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

/* Tokenizers of language models only: BERT's adds [CLS] and [SEP] and has no next token to predict. */
static allot_status check_tokenizer(const struct text_vocab *vocab, struct allot_error *err)
{
    enum llama_vocab_type type = llama_vocab_type(vocab->llama);
    int32_t n = llama_vocab_n_tokens(vocab->llama);
    llama_token bos = llama_vocab_bos(vocab->llama), eos = llama_vocab_eos(vocab->llama);
    if (type == LLAMA_VOCAB_TYPE_NONE || n < 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: has no tokenizer", vocab->path);
    if (type == LLAMA_VOCAB_TYPE_WPM)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: BERT tokenizers are not supported", vocab->path);
    if (llama_vocab_get_add_bos(vocab->llama) && (bos < 0 || bos >= n))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: texts should begin with a BOS token, but none is defined", vocab->path);
    if (llama_vocab_get_add_eos(vocab->llama) && (eos < 0 || eos >= n))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: texts should end with an EOS token, but none is defined", vocab->path);
    return ALLOT_OK;
}

allot_status text_vocab_open(struct text_vocab **out, const char *model_path, struct allot_error *err)
{
    *out = NULL;
    allot_status status;
    struct text_vocab *vocab = calloc(1, sizeof *vocab);
    if (vocab == NULL || (vocab->path = strdup(model_path)) == NULL) {
        status = allot_fail_memory(err, sizeof *vocab, "a vocabulary");
        goto fail;
    }
    status = text_llama_load(&vocab->model, model_path, TEXT_LOAD_VOCABULARY, err);
    if (status != ALLOT_OK)
        goto fail;
    vocab->llama = llama_model_get_vocab(vocab->model);
    status = check_tokenizer(vocab, err);
    if (status == ALLOT_OK)
        status = vocab_index_bytes(vocab, err);
    if (status != ALLOT_OK)
        goto fail;
    *out = vocab;
    return ALLOT_OK;
fail:
    text_vocab_close(vocab);
    return status;
}

void text_vocab_close(struct text_vocab *vocab)
{
    if (vocab == NULL)
        return;
    if (vocab->model != NULL)
        llama_model_free(vocab->model);
    free(vocab->pieces);
    free(vocab->path);
    free(vocab);
}

int32_t text_vocab_size(const struct text_vocab *vocab)
{
    return llama_vocab_n_tokens(vocab->llama);
}

/* The tokens of n bytes; *n_ids of them in *ids, which the caller frees. */
static allot_status tokenize(int32_t **ids, int64_t *n_ids, const struct text_vocab *vocab,
                             const uint8_t *bytes, size_t n, const char *path, struct allot_error *err)
{
    if (n > INT32_MAX - 16)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: a text may have at most %d bytes, it has %zu",
                          path, INT32_MAX - 16, n);
    /* Hardly any text has more tokens than bytes; libllama says how many if one does. */
    int64_t capacity = (int64_t)n + 2;
    for (;;) {
        int32_t *grown = malloc((size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return allot_fail_memory(err, (size_t)capacity * sizeof *grown, "tokens");
        text_forget_llama_error();
        int32_t count = llama_tokenize(vocab->llama, (const char *)bytes, (int32_t)n, grown,
                                       (int32_t)capacity, true, false);
        if (count >= 0) {
            *ids = grown;
            *n_ids = count;
            return ALLOT_OK;
        }
        free(grown);
        if (count == INT32_MIN)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: too long to tokenize: %s", path,
                              text_last_llama_error());
        if (-(int64_t)count <= capacity)
            return allot_fail(err, ALLOT_ERR_INTERNAL, "%s: libllama's tokenizer failed", path);
        capacity = -(int64_t)count;
    }
}

allot_status text_tokenize_file(struct text_tokens *out, const struct text_vocab *vocab, const char *path,
                                struct allot_error *err)
{
    *out = (struct text_tokens){0};
    struct file_map map = {0};
    allot_status status = file_map_open(&map, path, err);
    if (status != ALLOT_OK)
        return status;
    /* llama-perplexity and llama-imatrix take one newline off the end of a -f file. */
    size_t n = map.size;
    if (n > 0 && map.data[n - 1] == '\n')
        n--;
    if (n == 0) {
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: the text is empty", path);
        goto done;
    }
    status = vocab_check_bytes(vocab, map.data, n, path, err);
    if (status == ALLOT_OK)
        status = tokenize(&out->ids, &out->n, vocab, map.data, n, path, err);
    if (status != ALLOT_OK)
        goto done;
    int32_t n_vocab = text_vocab_size(vocab);
    for (int64_t i = 0; i < out->n && status == ALLOT_OK; i++)
        if (out->ids[i] < 0 || out->ids[i] >= n_vocab)
            status = allot_fail(err, ALLOT_ERR_FORMAT,
                                "%s: token %lld came out as %d, outside the vocabulary of %s", path,
                                (long long)i, out->ids[i], vocab->path);
    if (status != ALLOT_OK)
        goto done;
    if (llama_vocab_get_add_eos(vocab->llama) && out->n > 0 &&
        out->ids[out->n - 1] == llama_vocab_eos(vocab->llama))
        out->n--;
    hash_bytes(out->sha256, map.data, map.size);
done:
    if (status != ALLOT_OK)
        text_tokens_release(out);
    file_map_close(&map);
    return status;
}

void text_tokens_release(struct text_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct text_tokens){0};
}
