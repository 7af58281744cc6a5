/* make-random.c - writes a small random model of an architecture, with the tokenizer of another file.
 * SPDX-License-Identifier: MIT
 *
 * usage: make-random OUT.gguf ARCHITECTURE TOKENIZER.gguf SEED
 *
 * Two layers of width 256; with experts for the architectures that must have them: four, of which a token
 * takes two and nobody takes number 1, and a shared one for qwen2moe. F32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/random_model.h"
#include "gguf/model.h"

int main(int argc, char **argv)
{
    struct allot_error err;
    struct gguf_model *source = NULL;
    if (argc != 5) {
        fprintf(stderr, "usage: make-random OUT.gguf ARCHITECTURE TOKENIZER.gguf SEED\n");
        return 2;
    }
    if (gguf_model_open(&source, argv[3], &err) != ALLOT_OK) {
        fprintf(stderr, "make-random: %s\n", err.message);
        return 1;
    }
    bool experts = strstr(argv[2], "moe") != NULL;
    struct random_model m = {
        .layers = 2,
        .width = 256,
        .ff = 256,
        .vocab = (int)gguf_model_array_len(source, "tokenizer.ggml.tokens"),
        .heads = 4,
        .kv_heads = strcmp(argv[2], "olmoe") == 0 ? 4 : 2, /* OLMoE has no fewer */
        .head_dim = 64,
        .arch = argv[2],
        .tied = strcmp(argv[2], "gemma2") == 0,
        .settings = strncmp(argv[2], "granite", 7) == 0 ? "logit_scale=4.0" : NULL,
        .experts = experts ? 4 : 0,
        .used = 2,
        .idle_expert = experts,
        .shared_ff = strcmp(argv[2], "qwen2moe") == 0 ? 512 : 0,
        .tokenizer = source,
        .seed = strtoull(argv[4], NULL, 10),
    };
    bool ok = random_model_write(argv[1], &m);
    gguf_model_close(source);
    return ok ? 0 : 1;
}
