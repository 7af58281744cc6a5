/* vocab.h - inside of struct text_vocab, for the files of this part.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_VOCAB_H
#define ALLOT_TEXT_VOCAB_H

#include "allot.h"
#include "llama.h"

struct vocab_piece {
    char bytes[4];
    uint8_t len;
};

struct text_vocab {
    struct llama_model *model;
    const struct llama_vocab *llama;
    char *path;
    /* For the tokenizers that write unknown characters as bytes (vocab_check_bytes). */
    bool spells_bytes, all_bytes_known;
    bool byte_known[256];
    struct vocab_piece *pieces; /* tokens of 2 to 4 bytes, sorted; only if some byte is unknown */
    size_t n_pieces;
};

/* Fills the last group of fields. */
allot_status vocab_index_bytes(struct text_vocab *vocab, struct allot_error *err);
/* Fails if the text holds a code point beyond U+10FFFF or a character that the tokenizer could not spell,
 * naming `path` and the place. */
allot_status vocab_check_bytes(const struct text_vocab *vocab, const uint8_t *text, size_t n,
                               const char *path, struct allot_error *err);

#endif
