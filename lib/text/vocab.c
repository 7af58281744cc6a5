/* vocab.c - what a vocabulary can spell.  SPDX-License-Identifier: MIT
 *
 * Every tokenizer throws a C++ exception, which would end the process, at a code point beyond Unicode's last.
 * SentencePiece tokenizers (tokenizer.ggml.model "llama") write a character that is no token as one token per
 * byte, and libllama throws one if the vocabulary has no token for such a byte. So texts are checked before
 * they are tokenized. */
#include "text/vocab.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_pieces(const void *a, const void *b)
{
    const struct vocab_piece *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, sizeof x->bytes);
    return order != 0 ? order : (int)x->len - (int)y->len;
}

/* <0x00> to <0xFF>, upper-case, as libllama looks them up. */
static bool parse_byte_token(const char *text, uint8_t *byte)
{
    static const char digits[] = "0123456789ABCDEF";
    if (strlen(text) != 6 || strncmp(text, "<0x", 3) != 0 || text[5] != '>')
        return false;
    const char *high = strchr(digits, text[3]), *low = strchr(digits, text[4]);
    if (high == NULL || low == NULL)
        return false;
    *byte = (uint8_t)((high - digits) * 16 + (low - digits));
    return true;
}

allot_status vocab_index_bytes(struct text_vocab *vocab, struct allot_error *err)
{
    vocab->spells_bytes = llama_vocab_type(vocab->llama) == LLAMA_VOCAB_TYPE_SPM;
    int32_t n_tokens = llama_vocab_n_tokens(vocab->llama);
    int n_known = 0;
    size_t n_pieces = 0;
    for (int32_t id = 0; id < n_tokens; id++) {
        const char *text = llama_vocab_get_text(vocab->llama, id);
        size_t len = strlen(text);
        uint8_t byte = 0;
        bool is_byte = parse_byte_token(text, &byte);
        if (!is_byte && len == 1) {
            byte = (uint8_t)text[0];
            is_byte = true;
        }
        if (is_byte && !vocab->byte_known[byte]) {
            vocab->byte_known[byte] = true;
            n_known++;
        }
        n_pieces += len >= 2 && len <= sizeof vocab->pieces->bytes;
    }
    vocab->all_bytes_known = n_known == 256;
    if (!vocab->spells_bytes || vocab->all_bytes_known || n_pieces == 0)
        return ALLOT_OK;
    vocab->pieces = calloc(n_pieces, sizeof *vocab->pieces);
    if (vocab->pieces == NULL)
        return allot_fail_memory(err, n_pieces * sizeof *vocab->pieces, "the list of short tokens");
    for (int32_t id = 0; id < n_tokens; id++) {
        const char *text = llama_vocab_get_text(vocab->llama, id);
        size_t len = strlen(text);
        if (len < 2 || len > sizeof vocab->pieces->bytes)
            continue;
        struct vocab_piece *piece = &vocab->pieces[vocab->n_pieces++];
        memcpy(piece->bytes, text, len);
        piece->len = (uint8_t)len;
    }
    qsort(vocab->pieces, vocab->n_pieces, sizeof *vocab->pieces, compare_pieces);
    return ALLOT_OK;
}

/* As libllama steps through text: by the first byte alone. */
static size_t utf8_len(uint8_t first)
{
    return first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static bool can_spell(const struct text_vocab *vocab, const uint8_t *bytes, size_t len)
{
    bool all = true;
    for (size_t i = 0; i < len; i++)
        all = all && vocab->byte_known[bytes[i]];
    if (all || len < 2)
        return all;
    struct vocab_piece wanted = {.len = (uint8_t)len};
    memcpy(wanted.bytes, bytes, len);
    return vocab->n_pieces > 0 &&
           bsearch(&wanted, vocab->pieces, vocab->n_pieces, sizeof wanted, compare_pieces) != NULL;
}

/* Four bytes that libllama decodes to more than U+10FFFF; what does not decode it replaces. */
static bool is_beyond_unicode(const uint8_t *bytes, size_t n)
{
    return n >= 4 && ((bytes[0] == 0xf4 && bytes[1] >= 0x90) || (bytes[0] >= 0xf5 && bytes[0] <= 0xf7)) &&
           (bytes[1] & 0xc0) == 0x80 && (bytes[2] & 0xc0) == 0x80 && (bytes[3] & 0xc0) == 0x80;
}

static allot_status check_code_points(const uint8_t *text, size_t n, const char *path,
                                      struct allot_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (is_beyond_unicode(text + i, n - i))
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: bytes %02X %02X %02X %02X at byte %zu spell a code point beyond U+10FFFF: "
                              "not a text",
                              path, text[i], text[i + 1], text[i + 2], text[i + 3], i);
    return ALLOT_OK;
}

allot_status vocab_check_bytes(const struct text_vocab *vocab, const uint8_t *text, size_t n,
                               const char *path, struct allot_error *err)
{
    static const uint8_t space[] = {0xe2, 0x96, 0x81}; /* what SentencePiece writes for ' ' */
    allot_status status = check_code_points(text, n, path, err);
    if (status != ALLOT_OK || !vocab->spells_bytes || vocab->all_bytes_known)
        return status;
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_len(text[i]);
        if (len > n - i)
            len = n - i;
        bool known = text[i] == ' ' ? can_spell(vocab, space, sizeof space) : can_spell(vocab, text + i, len);
        if (i == 0) /* the tokenizer may put a space before the text */
            known = known && can_spell(vocab, space, sizeof space);
        if (!known)
            return allot_fail(
                err, ALLOT_ERR_UNSUPPORTED,
                "%s: the character at byte %zu cannot be tokenized: the vocabulary of %s has neither "
                "it nor its bytes (0x%02X ...)",
                path, i, vocab->path, text[i]);
    }
    return ALLOT_OK;
}
