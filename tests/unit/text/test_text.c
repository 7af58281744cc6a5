/* test_text.c - tokens and windows of text files, with real and with damaged vocabularies.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "gguf.h"
#include "text/text.h"
#include "text/vocab.h"
#include "tiny.h"

static struct text_vocab *tiny;

/* ---- Files -------------------------------------------------------------------------------------- */

static const char *write_bytes(const char *name, const void *bytes, size_t n)
{
    const char *path = in_folder(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return path;
}

static const char *write_text(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

/* About n words of numbered prose. */
static const char *write_prose(const char *name, int n)
{
    char *text = malloc((size_t)n * 16 + 1);
    assert_non_null(text);
    size_t len = 0;
    for (int i = 0; i < n; i++)
        len += (size_t)sprintf(text + len, "word%d is%c", i, i % 12 == 11 ? '\n' : ' ');
    const char *path = write_bytes(name, text, len);
    free(text);
    return path;
}

/* ---- Models with a vocabulary and nothing else, written by ggml ------------------------------------ */

struct spm {
    const char *tokens[16];
    int n;
    bool with_bytes; /* <0x00> .. <0xFF> after them */
    bool add_eos;
};

static const char *write_metadata(const char *name, struct gguf_context *metadata)
{
    const char *path = in_folder(name);
    assert_true(gguf_write_to_file(metadata, path, true));
    gguf_free(metadata);
    return path;
}

/* A SentencePiece vocabulary: <unk>, <s>, </s>, then the tokens. */
static const char *write_spm(const char *name, const struct spm *spm)
{
    static char byte_names[256][8];
    const char *tokens[3 + 16 + 256] = {"<unk>", "<s>", "</s>"};
    float scores[3 + 16 + 256] = {0};
    int32_t types[3 + 16 + 256] = {LLAMA_TOKEN_TYPE_UNKNOWN, LLAMA_TOKEN_TYPE_CONTROL,
                                   LLAMA_TOKEN_TYPE_CONTROL};
    size_t n = 3;
    for (int i = 0; i < spm->n; i++, n++) {
        tokens[n] = spm->tokens[i];
        scores[n] = -(float)i;
        types[n] = LLAMA_TOKEN_TYPE_NORMAL;
    }
    for (int b = 0; spm->with_bytes && b < 256; b++, n++) {
        snprintf(byte_names[b], sizeof byte_names[b], "<0x%02X>", b);
        tokens[n] = byte_names[b];
        types[n] = LLAMA_TOKEN_TYPE_BYTE;
    }
    struct gguf_context *metadata = tiny_metadata();
    gguf_remove_key(metadata, "tokenizer.ggml.merges");
    gguf_remove_key(metadata, "tokenizer.ggml.pre");
    gguf_set_val_str(metadata, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(metadata, "tokenizer.ggml.tokens", tokens, n);
    gguf_set_arr_data(metadata, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, n);
    gguf_set_arr_data(metadata, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, n);
    gguf_set_val_u32(metadata, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(metadata, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_bool(metadata, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(metadata, "tokenizer.ggml.add_eos_token", spm->add_eos);
    gguf_set_val_u32(metadata, "llama.vocab_size", (uint32_t)n);
    return write_metadata(name, metadata);
}

static struct text_vocab *open_vocab(const char *path)
{
    struct text_vocab *vocab = NULL;
    struct allot_error err = {0};
    if (text_vocab_open(&vocab, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return vocab;
}

static struct text_tokens tokenize(const struct text_vocab *vocab, const char *path)
{
    struct text_tokens tokens;
    struct allot_error err = {0};
    if (text_tokenize_file(&tokens, vocab, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return tokens;
}

static struct text_windows cut(const struct text_vocab *vocab, const char *const *paths, size_t n,
                               int32_t n_ctx, int64_t max)
{
    struct text_windows windows;
    struct allot_error err = {0};
    if (text_windows_from_files(&windows, vocab, paths, n, n_ctx, max, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return windows;
}

/* The bytes that the tokens stand for; caller frees. */
static char *spell(const struct text_vocab *vocab, const struct text_tokens *tokens, size_t *len)
{
    char *bytes = malloc((size_t)tokens->n * 128 + 1);
    assert_non_null(bytes);
    *len = 0;
    for (int64_t i = 0; i < tokens->n; i++) {
        int32_t n = llama_token_to_piece(vocab->llama, tokens->ids[i], bytes + *len, 128, 0, true);
        assert_true(n >= 0);
        *len += (size_t)n;
    }
    return bytes;
}

static void assert_message(const struct allot_error *err, const char *part)
{
    if (strstr(err->message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->message, part);
    assert_null(strchr(err->message, '\n'));
}

/* ---- Tokens --------------------------------------------------------------------------------------- */

/* The tiny model's tokenizer spells every byte, so that the text must come back, less one newline at the end.
 */
static void test_tokens_spell_the_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len, back;
    } rows[] = {
        {"plain words, and more.", 22, 22},
        {"ends in a newline\n", 18, 17},
        {"in two\n\n", 8, 7},
        {"\n\n", 2, 1},
        {"a literal \\n stays, tabs\tand\r\ntoo", 33, 33},
        {"<|endoftext|> is text here", 26, 26},
        {"\xc5\xbd"
         "elj ko \xe2\x82\xac \xf0\x9f\x99\x82",
         17, 17},
        {"nul \0 inside", 12, 12},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct text_tokens tokens = tokenize(tiny, write_bytes("row.txt", rows[r].text, rows[r].len));
        size_t len;
        char *bytes = spell(tiny, &tokens, &len);
        assert_int_equal(len, rows[r].back);
        assert_memory_equal(bytes, rows[r].text, len);
        assert_int_equal(strlen(tokens.sha256), 64);
        free(bytes);
        text_tokens_release(&tokens);
        assert_null(tokens.ids);
    }
}

static void test_special_text_is_not_parsed(void **state)
{
    (void)state;
    llama_token eos = llama_vocab_eos(tiny->llama);
    struct text_tokens tokens = tokenize(tiny, write_text("special.txt", "a <|endoftext|> b"));
    assert_string_equal(llama_vocab_get_text(tiny->llama, eos), "<|endoftext|>");
    for (int64_t i = 0; i < tokens.n; i++)
        assert_int_not_equal(tokens.ids[i], eos);
    text_tokens_release(&tokens);
}

static void test_bos_and_eos(void **state)
{
    (void)state;
    for (int add_eos = 0; add_eos < 2; add_eos++) {
        struct spm spm = {
            .tokens = {"\xe2\x96\x81", "a", "b"}, .n = 3, .with_bytes = true, .add_eos = add_eos};
        struct text_vocab *vocab = open_vocab(write_spm("spm.gguf", &spm));
        struct text_tokens tokens = tokenize(vocab, write_text("ab.txt", "ab ab"));
        static const int32_t expected[] = {1, 3, 4, 5, 3, 4, 5};
        assert_int_equal(llama_vocab_get_add_eos(vocab->llama), add_eos);
        assert_int_equal(tokens.n, 7);
        assert_memory_equal(tokens.ids, expected, sizeof expected);
        text_tokens_release(&tokens);
        /* Every window's first token gives way to BOS. */
        const char *paths[] = {write_text("abab.txt", "abababab")};
        struct text_windows windows = cut(vocab, paths, 1, 3, 0);
        static const int32_t window_ids[] = {1, 3, 4, 1, 4, 5, 1, 5, 4};
        assert_int_equal(windows.n, 3);
        assert_memory_equal(windows.ids, window_ids, sizeof window_ids);
        text_windows_release(&windows);
        text_vocab_close(vocab);
    }
}

/* libllama would end the process at a character that the vocabulary cannot spell. */
static void test_characters_without_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *text, *complaint; /* NULL: none */
    } rows[] = {
        {"ab ba", NULL},   {"a\xc3\xa9", NULL}, /* a token of two bytes, which have none of their own */
        {"abc", "byte 2"}, {"a\xc3\xa8", "byte 1"}, {"a\xc3", "byte 1"},
    };
    struct spm spm = {.tokens = {"\xe2\x96\x81", "a", "b", "\xc3\xa9"}, .n = 4};
    struct text_vocab *vocab = open_vocab(write_spm("few.gguf", &spm));
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct text_tokens tokens;
        struct allot_error err = {0};
        allot_status status = text_tokenize_file(&tokens, vocab, write_text("few.txt", rows[r].text), &err);
        assert_int_equal(status, rows[r].complaint == NULL ? ALLOT_OK : ALLOT_ERR_UNSUPPORTED);
        if (rows[r].complaint != NULL) {
            assert_message(&err, rows[r].complaint);
            assert_message(&err, "few.txt");
        }
        text_tokens_release(&tokens);
    }
    text_vocab_close(vocab);
}

/* libllama would end the process at a code point beyond U+10FFFF, whatever the tokenizer; it replaces all
 * else that is not UTF-8. */
static void test_code_points_beyond_unicode(void **state)
{
    (void)state;
    static const struct {
        const char *text, *complaint; /* NULL: none */
    } rows[] = {
        {"abc \xf4\x90\x80\x80 def", "bytes F4 90 80 80 at byte 4"},
        {"\xf5\x80\x80\x80", "at byte 0"},
        {"ab \xf0\xf7\xbf\xbf\xbf", "at byte 4"},
        {"last \xf4\x8f\xbf\xbf", NULL},
        {"cut \xf4\x90\x80", NULL},
        {"broken \xf4\x90\x80 \x80 \xf7 \xf8\x88\x80\x80\x80", NULL},
        {"overlong \xc0\xaf, surrogate \xed\xa0\x80, Latin-1 caf\xe9 \xff\xfe", NULL},
        {"\xef\xbb\xbf after a mark", NULL},
    };
    struct spm spm = {.tokens = {"\xe2\x96\x81", "a", "b"}, .n = 3, .with_bytes = true};
    struct text_vocab *vocabs[] = {tiny, open_vocab(write_spm("bytes.gguf", &spm))};
    for (size_t r = 0; r < 2 * (sizeof rows / sizeof *rows); r++) {
        const char *text = rows[r / 2].text, *complaint = rows[r / 2].complaint;
        struct text_tokens tokens;
        struct allot_error err = {0};
        allot_status status =
            text_tokenize_file(&tokens, vocabs[r % 2], write_text("beyond.txt", text), &err);
        assert_int_equal(status, complaint == NULL ? ALLOT_OK : ALLOT_ERR_FORMAT);
        if (complaint != NULL) {
            assert_message(&err, complaint);
            assert_message(&err, "beyond.txt");
        }
        text_tokens_release(&tokens);
    }
    text_vocab_close(vocabs[1]);
}

static void test_bad_texts(void **state)
{
    (void)state;
    struct text_tokens tokens;
    struct allot_error err = {0};
    assert_int_equal(text_tokenize_file(&tokens, tiny, write_text("empty.txt", ""), &err), ALLOT_ERR_FORMAT);
    assert_message(&err, "empty.txt: the text is empty");
    assert_int_equal(text_tokenize_file(&tokens, tiny, write_text("newline.txt", "\n"), &err),
                     ALLOT_ERR_FORMAT);
    assert_int_equal(text_tokenize_file(&tokens, tiny, in_folder("absent.txt"), &err), ALLOT_ERR_IO);
    assert_message(&err, "absent.txt");
    assert_int_equal(text_tokenize_file(&tokens, tiny, folder, &err), ALLOT_ERR_IO);
    assert_null(tokens.ids);
}

static void test_any_path(void **state)
{
    (void)state;
    char name[64], link_name[64];
    snprintf(name, sizeof name,
             "\xc5\xbd"
             "elj ko\xff.txt");
    snprintf(link_name, sizeof link_name,
             "\xc5\xbd"
             "elj ko\xff.gguf");
    struct text_tokens tokens = tokenize(tiny, write_text(name, "some text"));
    assert_true(tokens.n > 0);
    text_tokens_release(&tokens);
    assert_int_equal(symlink(tiny_path, in_folder(link_name)), 0);
    struct text_vocab *vocab = open_vocab(in_folder(link_name));
    assert_int_equal(text_vocab_size(vocab), 2048);
    text_vocab_close(vocab);
}

/* ---- Damaged vocabularies ----------------------------------------------------------------------- */

static void damage_duplicate(struct gguf_context *metadata)
{
    const char *tokens[] = {"a", "b", "", "", "b"};
    gguf_set_arr_str(metadata, "tokenizer.ggml.tokens", tokens, 5);
}

/* libllama takes "b" of it. */
static void damage_nul(struct gguf_context *metadata)
{
    static const char name[] = "tokenizer.ggml.tokens";
    const char *tokens[] = {"a", "b", "b?c"};
    gguf_set_arr_str(metadata, name, tokens, 3);
    *strchr(gguf_get_arr_str(metadata, gguf_find_key(metadata, name), 2), '?') = '\0';
}

static void damage_named_empty(struct gguf_context *metadata)
{
    const char *tokens[] = {"a", "[EMPTY_3]", "[EMPTY_03]", "", "[EMPTY_0]", "[EMPTY_9]"};
    gguf_set_arr_str(metadata, "tokenizer.ggml.tokens", tokens, 6);
}

static void damage_no_tokens(struct gguf_context *metadata)
{
    gguf_remove_key(metadata, "tokenizer.ggml.tokens");
}

static void damage_not_strings(struct gguf_context *metadata)
{
    int32_t numbers[] = {1, 2, 3};
    gguf_set_arr_data(metadata, "tokenizer.ggml.tokens", GGUF_TYPE_INT32, numbers, 3);
}

static void damage_short_types(struct gguf_context *metadata)
{
    int32_t types[] = {1, 1, 1};
    gguf_set_arr_data(metadata, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, 3);
}

static void damage_unknown_tokenizer(struct gguf_context *metadata)
{
    gguf_set_val_str(metadata, "tokenizer.ggml.model", "runes");
}

static void damage_unknown_architecture(struct gguf_context *metadata)
{
    gguf_set_val_str(metadata, "general.architecture", "abacus");
}

static void damage_no_tokenizer(struct gguf_context *metadata)
{
    gguf_set_val_str(metadata, "tokenizer.ggml.model", "no_vocab");
}

static void test_damaged_vocabularies(void **state)
{
    (void)state;
    static const struct {
        void (*damage)(struct gguf_context *metadata);
        const char *complaint;
    } rows[] = {
        {damage_duplicate, "the token \"b\" twice"},   {damage_nul, "the token \"b\" twice"},
        {damage_named_empty, "\"[EMPTY_3]\" twice"},   {damage_no_tokens, "no tokenizer"},
        {damage_not_strings, "not a list of strings"}, {damage_short_types, "toktypes"},
        {damage_unknown_tokenizer, "runes"},           {damage_unknown_architecture, "abacus"},
        {damage_no_tokenizer, "no tokenizer"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct gguf_context *metadata = tiny_metadata();
        rows[r].damage(metadata);
        struct text_vocab *vocab = NULL;
        struct allot_error err = {0};
        allot_status status = text_vocab_open(&vocab, write_metadata("damaged.gguf", metadata), &err);
        assert_int_not_equal(status, ALLOT_OK);
        assert_int_equal(err.status, status);
        assert_null(vocab);
        assert_message(&err, rows[r].complaint);
        assert_message(&err, "damaged.gguf");
    }
    struct text_vocab *vocab = NULL;
    struct allot_error err = {0};
    assert_int_equal(text_vocab_open(&vocab, in_folder("absent.gguf"), &err), ALLOT_ERR_IO);
    text_vocab_close(NULL);
}

/* ---- Windows ------------------------------------------------------------------------------------ */

static void test_windows_cover_each_text(void **state)
{
    (void)state;
    const char *paths[] = {write_prose("one.txt", 300), write_prose("two.txt", 100)};
    struct text_windows windows = cut(tiny, paths, 2, 32, 0);
    int64_t at = 0;
    for (size_t t = 0; t < 2; t++) {
        struct text_tokens tokens = tokenize(tiny, paths[t]);
        int64_t n = tokens.n / 32;
        assert_memory_equal(windows.ids + at * 32, tokens.ids, (size_t)(n * 32) * sizeof *tokens.ids);
        at += n;
        text_tokens_release(&tokens);
    }
    assert_int_equal(windows.n, at);
    assert_int_equal(windows.n_ctx, 32);
    text_windows_release(&windows);
}

/* Which window of the text this is. */
static int64_t find_window(const struct text_tokens *tokens, const int32_t *ids, int32_t n_ctx)
{
    for (int64_t w = 0; w < tokens->n / n_ctx; w++)
        if (memcmp(tokens->ids + w * n_ctx, ids, (size_t)n_ctx * sizeof *ids) == 0)
            return w;
    fail_msg("no such window");
    return -1;
}

static void test_limited_windows_are_spread(void **state)
{
    (void)state;
    const char *paths[] = {write_prose("long.txt", 900), write_prose("short.txt", 40),
                           write_prose("mid.txt", 300)};
    struct text_tokens tokens[3];
    int64_t available[3], total = 0;
    for (int t = 0; t < 3; t++) {
        tokens[t] = tokenize(tiny, paths[t]);
        available[t] = tokens[t].n / 32;
        total += available[t];
    }
    for (int64_t max = 1; max <= total + 1; max++) {
        struct text_windows windows = cut(tiny, paths, 3, 32, max);
        assert_int_equal(windows.n, max < total ? max : total);
        int64_t share[3] = {0}, last = -1, largest_gap[3] = {0}, w = 0;
        for (int t = 0; t < 3; t++, last = -1)
            for (; w < windows.n; w++) {
                /* Prose differs from window to window but starts alike, so ask in order. */
                const int32_t *ids = windows.ids + w * 32;
                bool here = false;
                for (int64_t k = last + 1; k < available[t] && !here; k++)
                    here = memcmp(tokens[t].ids + k * 32, ids, 32 * sizeof *ids) == 0;
                if (!here)
                    break;
                int64_t found = find_window(&tokens[t], ids, 32);
                if (found - last > largest_gap[t])
                    largest_gap[t] = found - last;
                last = found;
                share[t]++;
            }
        assert_int_equal(share[0] + share[1] + share[2], windows.n);
        for (int a = 0; a < 3; a++) {
            for (int b = 0; b < 3; b++) /* who has less than another has all it could give, or one less */
                assert_true(share[a] + 1 >= share[b] || share[a] == available[a]);
            if (share[a] > 0)
                assert_true(largest_gap[a] <= available[a] / share[a] + 1);
        }
        text_windows_release(&windows);
    }
    for (int t = 0; t < 3; t++)
        text_tokens_release(&tokens[t]);
}

/* Of 64 windows 8 are left, each from the middle of its stretch, and have the identity of such windows. */
static void test_windows_are_thinned(void **state)
{
    (void)state;
    enum { N = 64, N_CTX = 4, N_LEFT = 8 };
    int32_t *ids = malloc(N * N_CTX * sizeof *ids), *left = malloc(N_LEFT * N_CTX * sizeof *left);
    struct text_windows all, few;
    struct allot_error err;
    for (int i = 0; i < N * N_CTX; i++)
        ids[i] = 7 * i;
    for (int k = 0; k < N_LEFT; k++)
        memcpy(left + k * N_CTX, ids + (8 * k + 4) * N_CTX, N_CTX * sizeof *left);
    assert_int_equal(text_windows_from_ids(&all, ids, N, N_CTX, &err), ALLOT_OK);
    assert_int_equal(text_windows_from_ids(&few, left, N_LEFT, N_CTX, &err), ALLOT_OK);
    char before[65];
    memcpy(before, all.sha256, sizeof before);
    assert_int_equal(text_windows_thin(&all, N + 1, &err), ALLOT_OK);
    assert_int_equal(text_windows_thin(&all, N, &err), ALLOT_OK);
    assert_string_equal(all.sha256, before);
    assert_int_equal(text_windows_thin(&all, N_LEFT, &err), ALLOT_OK);
    assert_int_equal(all.n, N_LEFT);
    assert_memory_equal(all.ids, few.ids, N_LEFT * N_CTX * sizeof *ids);
    assert_string_equal(all.sha256, few.sha256);
    text_windows_release(&all);
    text_windows_release(&few);
}

static void test_windows_have_an_identity(void **state)
{
    (void)state;
    const char *one[] = {write_prose("a.txt", 200)}, *same[] = {write_prose("b.txt", 200)};
    const char *other[] = {write_prose("c.txt", 240)};
    struct text_windows a = cut(tiny, one, 1, 32, 0), b = cut(tiny, same, 1, 32, 0),
                        c = cut(tiny, other, 1, 32, 0);
    struct text_windows wide = cut(tiny, one, 1, 64, 0);
    assert_int_equal(strlen(a.sha256), 64);
    assert_string_equal(a.sha256, b.sha256);
    assert_string_not_equal(a.sha256, c.sha256);
    assert_string_not_equal(a.sha256, wide.sha256);
    text_windows_release(&a);
    text_windows_release(&b);
    text_windows_release(&c);
    text_windows_release(&wide);
}

static void test_short_texts_are_refused(void **state)
{
    (void)state;
    const char *paths[] = {write_prose("enough.txt", 600), write_text("ten.txt", "one two three")};
    struct text_windows windows;
    struct allot_error err = {0};
    assert_int_equal(text_windows_from_files(&windows, tiny, paths, 2, 512, 0, &err), ALLOT_ERR_ARGUMENT);
    assert_message(&err, "ten.txt");
    assert_message(&err, "at least 512 tokens");
    assert_null(windows.ids);
}

static int start(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    tiny = open_vocab(tiny_path);
    return 0;
}

static int finish(void **state)
{
    text_vocab_close(tiny);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_spell_the_text),
        cmocka_unit_test(test_special_text_is_not_parsed),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_characters_without_tokens),
        cmocka_unit_test(test_code_points_beyond_unicode),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_any_path),
        cmocka_unit_test(test_damaged_vocabularies),
        cmocka_unit_test(test_windows_cover_each_text),
        cmocka_unit_test(test_limited_windows_are_spread),
        cmocka_unit_test(test_windows_are_thinned),
        cmocka_unit_test(test_windows_have_an_identity),
        cmocka_unit_test(test_short_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
