/* architecture_cases.h - every architecture with its features switched on, as small random models.
 * SPDX-License-Identifier: MIT
 *
 * Windows, original contexts and soft-caps are small enough to matter over N_CTX tokens of the tests. */
#ifndef TESTS_ARCHITECTURE_CASES_H
#define TESTS_ARCHITECTURE_CASES_H

#include "random_model.h"

#define YARN "rope.scaling.type=yarn rope.scaling.factor=4.0 rope.scaling.original_context_length=128 "
#define LINEAR "!rope.scaling.type=linear rope.scaling.factor=3.0 "
#define GRANITE "embedding_scale=1.7 residual_scale=0.37 logit_scale=0.83 attention.scale=0.41 "

static const struct architecture_case {
    const char *name;
    struct random_model model; /* layers, width, ff, vocab, heads, kv_heads, head_dim */
} architecture_cases[] = {
    {"llama, yarn, rope factors, biases",
     {2, 48, 80, 300, 6, 2, 8, .settings = YARN "rope.scaling.attn_factor=1.3", .rope_factors = true,
      .biases = true, .seed = 1}},
    {"llama, long factors, fused qkv, other head width",
     {2, 48, 80, 300, 4, 2, 16,
      .settings = "rope.scaling.type=longrope rope.scaling.original_context_length=20", .long_factors = true,
      .biases = true, .fused_qkv = true, .seed = 2}},
    {"llama, no scaling",
     {2, 48, 80, 300, 6, 2, 8, .settings = "rope.scaling.type=none !rope.scaling.factor=4.0", .seed = 29}},
    {"llama, yarn with a factor below 1",
     {2, 48, 80, 300, 4, 2, 16, .seed = 32,
      .settings = "rope.scaling.type=yarn rope.scaling.factor=0.5 rope.scaling.original_context_length=128"}},
    {"qwen2, tied, output bias",
     {2, 48, 80, 300, 6, 2, 8, .arch = "qwen2", .tied = true, .embd_sd = 0.3f, .biases = true, .seed = 3}},
    {"qwen2, yarn, fused qkv",
     {2, 64, 96, 300, 2, 1, 32, .arch = "qwen2", .settings = YARN, .fused_qkv = true, .biases = true,
      .seed = 4}},
    {"qwen3, other head width, yarn",
     {2, 48, 80, 300, 4, 2, 16, .arch = "qwen3", .settings = YARN, .biases = true, .seed = 5}},
    {"qwen3, tied, linear scaling, fused qkv",
     {2, 48, 80, 300, 3, 3, 16, .arch = "qwen3", .settings = LINEAR, .tied = true, .embd_sd = 0.3f,
      .fused_qkv = true, .seed = 6}},
    {"gemma2, small soft-caps, window",
     {3, 48, 80, 300, 4, 2, 16, .arch = "gemma2", .tied = true, .embd_sd = 0.2f, .seed = 7,
      .settings = "attention.sliding_window=20 attn_logit_softcapping=0.7 final_logit_softcapping=1.5"}},
    {"gemma2, soft-caps by default, partial rotation, window pattern and base, linear scaling, biases",
     {3, 48, 80, 300, 4, 2, 16, .arch = "gemma2", .n_rot = 8, .tied = true, .embd_sd = 0.4f, .biases = true,
      .seed = 8,
      .settings = LINEAR "attention.sliding_window=20 attention.sliding_window_pattern=3 "
                         "rope.freq_base_swa=300.0"}},
    {"gemma2, no scaling of layers without a window",
     {3, 48, 80, 300, 4, 2, 16, .arch = "gemma2", .tied = true, .embd_sd = 0.2f, .seed = 33,
      .settings = "attention.sliding_window=20 rope.scaling.type=none rope.scaling.factor=4.0"}},
    {"gemma2, a soft-cap far above the logits",
     {2, 48, 80, 300, 4, 2, 16, .arch = "gemma2", .tied = true, .embd_sd = 0.4f, .seed = 43,
      .settings = "attention.sliding_window=20 final_logit_softcapping=100000.0"}},
    {"gemma3, seven layers, window, linear scaling, final soft-cap",
     {7, 48, 64, 300, 4, 1, 16, .arch = "gemma3", .tied = true, .embd_sd = 0.2f, .seed = 9,
      .settings = LINEAR "rope.freq_base=100000.0 attention.sliding_window=20 final_logit_softcapping=1.5"}},
    {"gemma3, untied, window pattern and base, fused qkv, biases",
     {4, 48, 64, 300, 2, 2, 16, .arch = "gemma3", .embd_sd = 0.2f, .fused_qkv = true, .biases = true,
      .seed = 10,
      .settings = "attention.sliding_window=20 attention.sliding_window_pattern=2 rope.freq_base_swa=300.0"}},
    {"gemma3, no window",
     {2, 48, 64, 300, 2, 2, 16, .arch = "gemma3", .tied = true, .embd_sd = 0.2f, .seed = 11}},
    {"gemma3, window, yarn",
     {3, 48, 64, 300, 2, 2, 16, .arch = "gemma3", .tied = true, .embd_sd = 0.2f, .seed = 30,
      .settings = YARN "attention.sliding_window=20 attention.sliding_window_pattern=2"}},
    {"phi3, long factors, partial rotation, fused qkv",
     {2, 64, 96, 300, 4, 2, 16, .arch = "phi3", .n_rot = 8, .long_factors = true, .fused_qkv = true,
      .seed = 12, .settings = "rope.scaling.original_context_length=20 rope.scaling.attn_factor=1.19"}},
    {"phi3, short factors, split qkv, tied, biases",
     {2, 64, 96, 300, 4, 4, 16, .arch = "phi3", .long_factors = true, .tied = true, .embd_sd = 0.3f,
      .biases = true, .seed = 13,
      .settings = "!rope.scaling.original_context_length=512 !attention.sliding_window=20"}},
    {"granite, multipliers, biases",
     {2, 48, 80, 300, 6, 2, 8, .arch = "granite", .biases = true, .settings = GRANITE, .seed = 14}},
    {"granite, no rotation, tied",
     {2, 48, 80, 300, 4, 2, 16, .arch = "granite", .tied = true, .embd_sd = 0.3f, .seed = 15,
      .settings = GRANITE "rope.scaling.finetuned=false"}},
    {"granite, rope factors, no multipliers",
     {2, 48, 80, 300, 6, 2, 8, .arch = "granite", .rope_factors = true, .fused_qkv = true,
      .settings = "logit_scale=1.0 !residual_scale=0.0", .seed = 16}},
    {"smollm3, layers without rotation, yarn",
     {5, 48, 80, 300, 6, 2, 8, .arch = "smollm3", .tied = true, .embd_sd = 0.3f, .settings = YARN,
      .seed = 17}},
    {"smollm3, untied, fused qkv, biases",
     {4, 48, 80, 300, 4, 2, 16, .arch = "smollm3", .fused_qkv = true, .biases = true, .seed = 18}},
    {"glm4, partial rotation, split qkv, biases",
     {2, 48, 80, 300, 4, 2, 16, .arch = "glm4", .n_rot = 8, .biases = true, .seed = 19}},
    {"glm4, partial rotation, fused qkv, tied, yarn",
     {2, 48, 80, 300, 4, 1, 16, .arch = "glm4", .n_rot = 8, .fused_qkv = true, .biases = true, .tied = true,
      .embd_sd = 0.3f, .settings = YARN, .seed = 20}},
    {"llama with experts",
     {2, 48, 64, 300, 6, 2, 8, .experts = 8, .used = 2, .idle_expert = true, .biases = true, .seed = 21}},
    {"llama with experts, scaling of their weights ignored, tied",
     {2, 48, 64, 300, 6, 2, 8, .experts = 8, .used = 3, .tied = true, .embd_sd = 0.3f, .fused_qkv = true,
      .settings = "!expert_weights_scale=2.5", .seed = 22}},
    {"qwen2moe, shared expert with a gate",
     {2, 48, 32, 300, 6, 2, 8, .arch = "qwen2moe", .experts = 8, .used = 3, .shared_ff = 80,
      .idle_expert = true, .biases = true, .seed = 23}},
    {"qwen3moe, other head width, yarn",
     {2, 48, 32, 300, 4, 2, 16, .arch = "qwen3moe", .experts = 8, .used = 3, .idle_expert = true,
      .settings = YARN "!expert_weights_scale=2.5", .seed = 224}},
    {"llama with one expert", {2, 48, 64, 300, 6, 2, 8, .experts = 1, .used = 1, .seed = 34}},
    {"qwen3moe, tied, one expert a token, biases",
     {2, 48, 64, 300, 4, 2, 16, .arch = "qwen3moe", .experts = 8, .used = 1, .tied = true, .embd_sd = 0.3f,
      .biases = true, .seed = 25}},
    {"olmoe",
     {2, 48, 64, 300, 3, 3, 16, .arch = "olmoe", .experts = 8, .used = 2, .idle_expert = true, .seed = 26}},
    {"granite with experts, shared expert, fused qkv",
     {2, 48, 64, 300, 6, 2, 8, .arch = "granite", .experts = 8, .used = 2, .shared_ff = 80, .fused_qkv = true,
      .settings = GRANITE, .seed = 31}},
    {"granitemoe, multipliers",
     {2, 48, 64, 300, 6, 2, 8, .arch = "granitemoe", .experts = 8, .used = 2, .idle_expert = true,
      .biases = true, .settings = GRANITE, .seed = 27}},
    {"granitemoe, shared expert, tied",
     {2, 48, 64, 300, 6, 2, 8, .arch = "granitemoe", .experts = 8, .used = 3, .shared_ff = 80, .tied = true,
      .embd_sd = 0.3f, .settings = GRANITE, .seed = 28}},
};

enum { N_ARCHITECTURE_CASES = sizeof architecture_cases / sizeof *architecture_cases };

#undef YARN
#undef LINEAR
#undef GRANITE

#endif
