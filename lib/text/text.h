/* text.h - text files to token sequences, with libllama's tokenizer.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_TEXT_H
#define ALLOT_TEXT_TEXT_H

#include "allot.h"

/* The vocabulary of a GGUF model (weights are not loaded). */
struct text_vocab;
allot_status text_vocab_open(struct text_vocab **out, const char *model_path, struct allot_error *err);
void text_vocab_close(struct text_vocab *vocab);
int32_t text_vocab_size(const struct text_vocab *vocab);

/* Tokens of one text file. */
struct text_tokens {
    int32_t *ids;
    int64_t n;
    char sha256[65]; /* of the file's bytes */
};

/* The text as llama-perplexity and llama-imatrix take it from -f (without --escape, which is their default):
 * one newline at the end of the file is dropped, special tokens are added as the model says, special-token
 * text in the file is not parsed. An EOS that the model adds is taken off the end again: the stock tools
 * refuse such models, and it is no part of the text. Fails on a file that cannot be read or is empty, and on
 * text that the vocabulary cannot spell or that has code points beyond U+10FFFF (libllama would end the
 * process); other invalid UTF-8 is the tokenizer's business. */
allot_status text_tokenize_file(struct text_tokens *out, const struct text_vocab *vocab, const char *path,
                                struct allot_error *err);
void text_tokens_release(struct text_tokens *tokens);

/* Windows as llama-imatrix, llama-perplexity and llama.cpp's KL tool take them: [i*n_ctx, (i+1)*n_ctx), not
 * overlapping, the first token of each replaced by BOS when the model adds one. ids is (n, n_ctx). */
struct text_windows {
    int32_t *ids;
    int64_t n;       /* windows */
    int32_t n_ctx;   /* tokens per window */
    char sha256[65]; /* of n_ctx and the ids: identity for caches */
};

/* Takes windows from the texts in order, each text by itself, at most max_windows in all (< 1: no
 * limit). When limited, every text gives the same number (what a short one lacks comes from the others; the
 * first ones give one more if it does not divide, so with fewer windows than texts the last texts give none),
 * taken evenly from its whole length: of N windows, share m, those numbered floor((2k+1)N / 2m). The stock
 * tools' --chunks takes the first ones instead, so compare with them without a limit. A text shorter than one
 * window is an error that says how many tokens are needed; n_paths >= 1, n_ctx >= 2. */
allot_status text_windows_from_files(struct text_windows *out, const struct text_vocab *vocab,
                                     const char *const *paths, size_t n_paths, int32_t n_ctx,
                                     int64_t max_windows, struct allot_error *err);
/* Takes n windows of n_ctx ids over (also on failure) that come from elsewhere, and hashes them. */
allot_status text_windows_from_ids(struct text_windows *out, int32_t *ids, int64_t n, int32_t n_ctx,
                                   struct allot_error *err);
/* Keeps `most` of the windows, if there are more: of N those numbered floor((2k+1)N / 2m). */
allot_status text_windows_thin(struct text_windows *windows, int64_t most, struct allot_error *err);
void text_windows_release(struct text_windows *windows);

/* Makes libllama and ggml log through allot: errors are kept for the next failure message,
 * everything else is dropped. Called by text_vocab_open and measure; idempotent, thread-safe. */
void text_capture_llama_log(void);
/* The first error line that libllama or ggml logged on the calling thread since its text_forget_llama_error
 * (the later ones of a failure only say that it failed), without the function name and "error loading model"
 * before it, or "". Valid until the same thread forgets. */
const char *text_last_llama_error(void);
/* Call it on the same thread before the libllama call whose failure is to be explained. */
void text_forget_llama_error(void);

#endif
