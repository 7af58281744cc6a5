/* make-synthetic.c - writes a GGUF model of any size with random weights.  SPDX-License-Identifier: MIT
 *
 * usage: make-synthetic OUT.gguf LAYERS WIDTH FFN VOCAB HEADS KV_HEADS SEED [stablelm]
 *
 * A llama, or a stablelm: layer norms with biases, and half of each head rotated.
 * For tests of memory and speed at real sizes: the weights mean nothing (normal enough, standard deviation
 * 0.02; norms 1). The tokenizer is a byte-level BPE with a few merges, so that any text can be tokenized. The
 * file is written with ggml's own writer; weights depend on the seed, tensor and position only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pool.h"
#include "base/rng.h"
#include "ggml.h"
#include "gguf.h"

enum { SLAB = 1 << 20, N_MERGES = 8, MIN_VOCAB = 256 + N_MERGES + 2, TOKEN_NORMAL = 1, TOKEN_CONTROL = 3 };

struct shape {
    uint32_t layers, width, ffn, vocab, heads, kv_heads;
    bool stablelm;
};

/* The character that GPT-2's byte-level BPE prints for a byte, in UTF-8. */
static void byte_text(int byte, char text[static 4])
{
    int code = byte;
    if (byte <= 32 || (byte >= 127 && byte <= 160) || byte == 173) {
        code = 256;
        for (int b = 0; b < byte; b++)
            code += b <= 32 || (b >= 127 && b <= 160) || b == 173;
    }
    if (code < 128)
        snprintf(text, 4, "%c", code);
    else
        snprintf(text, 4, "%c%c", 0xc0 | (code >> 6), 0x80 | (code & 63));
}

/* 256 bytes, the merged pairs, fillers, and the end-of-text token last. */
static bool set_tokenizer(struct gguf_context *file, uint32_t vocab)
{
    static const char *const merges[N_MERGES] = {"t h", "i n", "e r", "a n", "o n", "r e", "th e", "Ġ the"};
    enum { TEXT = 24 };
    char *texts = calloc(vocab, TEXT);
    const char **tokens = calloc(vocab, sizeof *tokens);
    int32_t *types = calloc(vocab, sizeof *types);
    bool ok = texts && tokens && types;
    for (uint32_t i = 0; ok && i < vocab; i++) {
        char *text = texts + (size_t)i * TEXT;
        tokens[i] = text;
        types[i] = TOKEN_NORMAL;
        if (i < 256) {
            byte_text((int)i, text);
        } else if (i < 256 + N_MERGES) {
            const char *space = strchr(merges[i - 256], ' ');
            snprintf(text, TEXT, "%.*s%s", (int)(space - merges[i - 256]), merges[i - 256], space + 1);
        } else {
            snprintf(text, TEXT, "[unused%u]", i);
        }
    }
    if (ok) {
        snprintf(texts + (size_t)(vocab - 1) * TEXT, TEXT, "<|endoftext|>");
        types[vocab - 1] = TOKEN_CONTROL;
        gguf_set_val_str(file, "tokenizer.ggml.model", "gpt2");
        gguf_set_val_str(file, "tokenizer.ggml.pre", "gpt-2");
        gguf_set_arr_str(file, "tokenizer.ggml.tokens", tokens, vocab);
        gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, vocab);
        gguf_set_arr_str(file, "tokenizer.ggml.merges", (const char **)merges, N_MERGES);
        gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", vocab - 1);
        gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", vocab - 1);
        gguf_set_val_bool(file, "tokenizer.ggml.add_bos_token", false);
    }
    free(texts);
    free(tokens);
    free(types);
    return ok;
}

static void set_number(struct gguf_context *file, const struct shape *s, const char *name, uint32_t value)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", s->stablelm ? "stablelm" : "llama", name);
    gguf_set_val_u32(file, key, value);
}

static void set_architecture(struct gguf_context *file, const struct shape *s)
{
    gguf_set_val_str(file, "general.architecture", s->stablelm ? "stablelm" : "llama");
    gguf_set_val_str(file, "general.name", "synthetic");
    set_number(file, s, "block_count", s->layers);
    set_number(file, s, "context_length", 2048);
    set_number(file, s, "embedding_length", s->width);
    set_number(file, s, "feed_forward_length", s->ffn);
    set_number(file, s, "attention.head_count", s->heads);
    set_number(file, s, "attention.head_count_kv", s->kv_heads);
    if (s->stablelm)
        gguf_set_val_f32(file, "stablelm.attention.layer_norm_epsilon", 1e-5f);
    else
        gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_f32(file, s->stablelm ? "stablelm.rope.freq_base" : "llama.rope.freq_base", 10000.0f);
    set_number(file, s, "rope.dimension_count", s->width / s->heads / (s->stablelm ? 2 : 1));
    set_number(file, s, "vocab_size", s->vocab);
    gguf_set_val_u32(file, "general.file_type", 32);
    gguf_set_val_u32(file, "general.quantization_version", 2);
}

/* rows 0 stands for a vector. */
static void add(struct ggml_context *ctx, struct gguf_context *file, const char *name, int64_t columns,
                int64_t rows)
{
    struct ggml_tensor *t = rows ? ggml_new_tensor_2d(ctx, GGML_TYPE_BF16, columns, rows)
                                 : ggml_new_tensor_1d(ctx, GGML_TYPE_F32, columns);
    ggml_set_name(t, name);
    gguf_add_tensor(file, t);
}

static void add_norm(struct ggml_context *ctx, struct gguf_context *file, const struct shape *s,
                     const char *name)
{
    char full[GGML_MAX_NAME + 8];
    snprintf(full, sizeof full, "%s.weight", name);
    add(ctx, file, full, s->width, 0);
    snprintf(full, sizeof full, "%s.bias", name);
    if (s->stablelm)
        add(ctx, file, full, s->width, 0);
}

static void add_tensors(struct ggml_context *ctx, struct gguf_context *file, const struct shape *s)
{
    int64_t width = s->width, kv = width / s->heads * s->kv_heads;
    const struct {
        const char *name;
        int64_t columns, rows;
    } layer[] = {{"attn_norm", width, 0},     {"attn_q", width, width},      {"attn_k", width, kv},
                 {"attn_v", width, kv},       {"attn_output", width, width}, {"ffn_norm", width, 0},
                 {"ffn_gate", width, s->ffn}, {"ffn_up", width, s->ffn},     {"ffn_down", s->ffn, width}};
    add(ctx, file, "output.weight", width, s->vocab);
    add_norm(ctx, file, s, "output_norm");
    add(ctx, file, "token_embd.weight", width, s->vocab);
    for (uint32_t l = 0; l < s->layers; l++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            char name[GGML_MAX_NAME];
            snprintf(name, sizeof name, "blk.%u.%s%s", l, layer[i].name, layer[i].rows ? ".weight" : "");
            if (layer[i].rows)
                add(ctx, file, name, layer[i].columns, layer[i].rows);
            else
                add_norm(ctx, file, s, name);
        }
}

/* Weights [first, first + n) of a matrix, as BF16. */
struct slab {
    uint64_t key;
    int64_t first, n;
    uint16_t *out;
};

enum { PIECE = 1 << 14 };

/* The sum of four uniform draws (one 64-bit number each): near enough to normal, and fast. */
static void fill_piece(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct slab *slab = user;
    int64_t end = (item + 1) * PIECE < slab->n ? (item + 1) * PIECE : slab->n;
    /* A uniform draw from 0..65535 has standard deviation 65536/sqrt(12); four of them twice that. */
    const float scale = 0.02f / (65536.0f * 0.57735027f);
    for (int64_t i = item * PIECE; i < end; i++) {
        uint64_t r = rng_u64(slab->key, (uint64_t)(slab->first + i));
        int32_t sum =
            (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) - 2 * 65535;
        float x = (float)sum * scale;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        slab->out[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* Data and padding of one tensor to the file. */
static bool write_tensor(FILE *out, const struct ggml_tensor *t, uint64_t key, uint16_t *buf,
                         struct pool *pool)
{
    static const char zeros[GGUF_DEFAULT_ALIGNMENT];
    int64_t n = ggml_nelements(t);
    size_t bytes = ggml_nbytes(t);
    const float vector_value = strstr(t->name, ".bias") ? 0.05f : 1.0f;
    if (t->type == GGML_TYPE_F32)
        for (int64_t i = 0; i < n; i++)
            if (fwrite(&vector_value, sizeof vector_value, 1, out) != 1)
                return false;
    for (int64_t first = 0; t->type != GGML_TYPE_F32 && first < n; first += SLAB) {
        struct slab slab = {key, first, n - first < SLAB ? n - first : SLAB, buf};
        pool_run(pool, (slab.n + PIECE - 1) / PIECE, fill_piece, &slab);
        if (fwrite(buf, sizeof *buf, (size_t)slab.n, out) != (size_t)slab.n)
            return false;
    }
    size_t padding = GGML_PAD(bytes, GGUF_DEFAULT_ALIGNMENT) - bytes;
    return fwrite(zeros, 1, padding, out) == padding;
}

static bool write_model(const char *path, const struct shape *s, uint64_t seed)
{
    struct allot_error err;
    struct pool *pool = NULL;
    uint16_t *buf = malloc(SLAB * sizeof *buf);
    FILE *out = NULL;
    struct ggml_init_params params = {.mem_size =
                                          ggml_tensor_overhead() * ((size_t)s->layers * 11 + 4) + 1024,
                                      .mem_buffer = NULL,
                                      .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *file = gguf_init_empty();
    bool ok = buf && !pool_new(&pool, 0, &err) && set_tokenizer(file, s->vocab);
    if (ok) {
        set_architecture(file, s);
        add_tensors(ctx, file, s);
        ok = gguf_write_to_file(file, path, true);
    }
    ok = ok && (out = fopen(path, "ab"));
    uint64_t number = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(ctx); ok && t; t = ggml_get_next_tensor(ctx, t))
        ok = write_tensor(out, t, rng_u64(seed, number++), buf, pool);
    if (out && fclose(out))
        ok = false;
    pool_free(pool);
    gguf_free(file);
    ggml_free(ctx);
    free(buf);
    return ok;
}

int main(int argc, char **argv)
{
    uint32_t v[6] = {0};
    bool stablelm = argc == 10 && strcmp(argv[9], "stablelm") == 0, ok = argc == 9 || stablelm;
    for (int i = 0; ok && i < 6; i++) {
        v[i] = (uint32_t)strtoul(argv[2 + i], NULL, 10);
        ok = v[i] >= 1 && v[i] < 1u << 20;
    }
    const struct shape s = {v[0], v[1], v[2], v[3], v[4], v[5], stablelm};
    if (!ok || s.vocab < MIN_VOCAB || s.width % s.heads || s.width / s.heads % 2 || s.heads % s.kv_heads) {
        fprintf(stderr,
                "usage: make-synthetic OUT.gguf LAYERS WIDTH FFN VOCAB HEADS KV_HEADS SEED [stablelm]\n"
                "(VOCAB at least %d; WIDTH a multiple of 2*HEADS; HEADS a multiple of KV_HEADS)\n",
                MIN_VOCAB);
        return 2;
    }
    if (!write_model(argv[1], &s, strtoull(argv[8], NULL, 10))) {
        fprintf(stderr, "make-synthetic: cannot write %s\n", argv[1]);
        unlink(argv[1]);
        return 1;
    }
    return 0;
}
