/* windows.c - the windows of a set of texts.  SPDX-License-Identifier: MIT */
#include "text/text.h"

#include "base/error.h"
#include "base/hash.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

/* Shares max windows among texts that have `available` each: equal shares, what a short text cannot
 * use going to the others, remainders to the first ones. */
static void share_windows(int64_t *share, const int64_t *available, size_t n_texts, int64_t max)
{
    memset(share, 0, n_texts * sizeof *share);
    for (;;) {
        int64_t left = max, hungry = 0;
        for (size_t t = 0; t < n_texts; t++) {
            left -= share[t];
            hungry += share[t] < available[t];
        }
        if (left == 0 || hungry == 0)
            return;
        int64_t each = left / hungry,
                extra = each == 0 ? left : 0; /* remainders once, when all else is given */
        for (size_t t = 0; t < n_texts; t++) {
            int64_t room = available[t] - share[t];
            if (room == 0)
                continue;
            int64_t more = each + (extra > 0);
            extra -= extra > 0;
            share[t] += more < room ? more : room;
        }
    }
}

/* Of `available` windows, the k-th of `share`: from the middle of its stretch. */
static int64_t middle_window(int64_t k, int64_t available, int64_t share)
{
    return (2 * k + 1) * available / (2 * share);
}

/* Copies `share` of the text's windows. */
static void copy_windows(int32_t *to, const struct text_tokens *tokens, int64_t available, int64_t share,
                         int32_t n_ctx, int32_t bos)
{
    for (int64_t k = 0; k < share; k++, to += n_ctx) {
        memcpy(to, tokens->ids + middle_window(k, available, share) * n_ctx, (size_t)n_ctx * sizeof *to);
        if (bos >= 0)
            to[0] = bos;
    }
}

static allot_status hash_windows(struct text_windows *windows, struct allot_error *err)
{
    struct hash *hash = NULL;
    allot_status status = hash_new(&hash, err);
    if (status != ALLOT_OK)
        return status;
    hash_update(hash, &windows->n_ctx, sizeof windows->n_ctx);
    hash_update(hash, windows->ids, (size_t)(windows->n * windows->n_ctx) * sizeof *windows->ids);
    hash_final(hash, windows->sha256);
    return ALLOT_OK;
}

/* Tokenizes every text and counts its windows. */
static allot_status read_texts(struct text_tokens *tokens, int64_t *available, const struct text_vocab *vocab,
                               const char *const *paths, size_t n_paths, int32_t n_ctx,
                               struct allot_error *err)
{
    for (size_t t = 0; t < n_paths; t++) {
        allot_status status = text_tokenize_file(&tokens[t], vocab, paths[t], err);
        if (status != ALLOT_OK)
            return status;
        available[t] = tokens[t].n / n_ctx;
        if (available[t] == 0)
            return allot_fail(
                err, ALLOT_ERR_ARGUMENT,
                "%s: the text is too short: at least %d tokens are needed for one window, it has %lld",
                paths[t], n_ctx, (long long)tokens[t].n);
    }
    return ALLOT_OK;
}

allot_status text_windows_from_files(struct text_windows *out, const struct text_vocab *vocab,
                                     const char *const *paths, size_t n_paths, int32_t n_ctx,
                                     int64_t max_windows, struct allot_error *err)
{
    *out = (struct text_windows){.n_ctx = n_ctx};
    if (n_ctx < 2 || n_paths < 1)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "windows need a text and at least 2 tokens each");
    allot_status status;
    struct text_tokens *tokens = calloc(n_paths, sizeof *tokens);
    int64_t *available = calloc(n_paths, sizeof *available), *share = calloc(n_paths, sizeof *share);
    if (tokens == NULL || available == NULL || share == NULL) {
        status = allot_fail_memory(err, n_paths * sizeof *tokens, "the list of texts");
        goto done;
    }
    status = read_texts(tokens, available, vocab, paths, n_paths, n_ctx, err);
    if (status != ALLOT_OK)
        goto done;
    share_windows(share, available, n_paths, max_windows < 1 ? INT64_MAX : max_windows);
    for (size_t t = 0; t < n_paths; t++)
        out->n += share[t];
    size_t bytes = (size_t)(out->n * n_ctx) * sizeof *out->ids;
    out->ids = malloc(bytes);
    if (out->ids == NULL) {
        status = allot_fail_memory(err, bytes, "the windows");
        goto done;
    }
    int32_t bos = llama_vocab_get_add_bos(vocab->llama) ? llama_vocab_bos(vocab->llama) : -1;
    int32_t *to = out->ids;
    for (size_t t = 0; t < n_paths; t++) {
        copy_windows(to, &tokens[t], available[t], share[t], n_ctx, bos);
        to += share[t] * n_ctx;
    }
    status = hash_windows(out, err);
done:
    for (size_t t = 0; tokens != NULL && t < n_paths; t++)
        text_tokens_release(&tokens[t]);
    free(tokens);
    free(available);
    free(share);
    if (status != ALLOT_OK)
        text_windows_release(out);
    return status;
}

allot_status text_windows_from_ids(struct text_windows *out, int32_t *ids, int64_t n, int32_t n_ctx,
                                   struct allot_error *err)
{
    *out = (struct text_windows){.ids = ids, .n = n, .n_ctx = n_ctx};
    allot_status status = hash_windows(out, err);
    if (status != ALLOT_OK)
        text_windows_release(out);
    return status;
}

allot_status text_windows_thin(struct text_windows *windows, int64_t most, struct allot_error *err)
{
    if (windows->n <= most)
        return ALLOT_OK;
    for (int64_t k = 0; k < most; k++)
        memmove(windows->ids + k * windows->n_ctx,
                windows->ids + middle_window(k, windows->n, most) * windows->n_ctx,
                (size_t)windows->n_ctx * sizeof *windows->ids);
    windows->n = most;
    return hash_windows(windows, err);
}

void text_windows_release(struct text_windows *windows)
{
    free(windows->ids);
    *windows = (struct text_windows){0};
}
