/* roles.c - which part of a model a tensor is.  SPDX-License-Identifier: MIT */
#include "search/roles.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

enum { MAX_DEPTH = 65536 }; /* what has a higher number is no layer of any model */

static const char *const names_of[N_ROLES] = {
    [ROLE_EMBEDDINGS] = "embeddings",
    [ROLE_LM_HEAD] = "lm_head",
    [ROLE_ATTN_Q] = "attn_q",
    [ROLE_ATTN_KV] = "attn_kv",
    [ROLE_ATTN_QKV] = "attn_qkv",
    [ROLE_ATTN_OUTPUT] = "attn_output",
    [ROLE_INDEXER] = "indexer",
    [ROLE_FFN_UP_GATE] = "ffn_up_gate",
    [ROLE_FFN_DOWN] = "ffn_down",
    [ROLE_MOE_EXPERTS] = "moe_experts",
    [ROLE_MOE_SHARED] = "moe_shared",
    [ROLE_MOE_ROUTER] = "moe_router",
    [ROLE_SSM] = "ssm",
    [ROLE_PER_LAYER] = "per_layer",
    [ROLE_MTP] = "mtp",
    [ROLE_VISION] = "vision",
    [ROLE_OTHER] = "other",
    [ROLE_UNCLAIMED] = "unclaimed",
};

/* Names without "blk.N.", "enc.blk.N." or "dec.blk.N." in front and ".weight" behind. The first row that
 * matches counts, so that an architecture's own come before those of all, and spelled-out names before
 * patterns. */
static const struct {
    const char *architecture; /* pattern; NULL: any */
    const char *name;         /* pattern */
    enum role role;
} rows[] = {
    /* ---- What a name means in one architecture only ---- */
    /* Linear attention takes its queries, keys and values from one matrix; layers of full attention, which
     * are fewer, have theirs apart. */
    {"qwen3next", "attn_qkv", ROLE_SSM},
    {"qwen3next", "attn_gate", ROLE_SSM},
    {"qwen35*", "attn_qkv", ROLE_SSM},
    {"qwen35*", "attn_gate", ROLE_SSM},
    {"gemma3n", "proj", ROLE_PER_LAYER},
    {"gemma4*", "proj", ROLE_PER_LAYER},
    {"gemma3n", "inp_gate", ROLE_PER_LAYER},
    {"gemma4*", "inp_gate", ROLE_PER_LAYER},
    /* The way into and out of a narrower space in which only the experts work. */
    {"nemotron_h_moe", "ffn_latent_*", ROLE_MOE_SHARED},
    {"kimi-k3", "ffn_routed_*", ROLE_MOE_SHARED},
    {"cogvlm", "vis_*", ROLE_VISION},

    /* ---- What it means in all ---- */
    {NULL, "*norm*", ROLE_OTHER}, /* before all: attn_q_norm is no attn_q */
    {NULL, "token_embd", ROLE_EMBEDDINGS},
    {NULL, "per_layer_token_embd", ROLE_EMBEDDINGS},
    {NULL, "position_embd", ROLE_EMBEDDINGS},
    {NULL, "token_types", ROLE_EMBEDDINGS},
    {NULL, "output", ROLE_LM_HEAD},
    {NULL, "attn_q", ROLE_ATTN_Q},
    {NULL, "attn_q_a", ROLE_ATTN_Q}, /* multi-head latent attention: down, and up again */
    {NULL, "attn_q_b", ROLE_ATTN_Q},
    {NULL, "attn_k", ROLE_ATTN_KV},
    {NULL, "attn_v", ROLE_ATTN_KV},
    {NULL, "attn_kv", ROLE_ATTN_KV},
    {NULL, "attn_kv_a_mqa", ROLE_ATTN_KV},
    {NULL, "attn_kv_b", ROLE_ATTN_KV},
    {NULL, "attn_k_b", ROLE_ATTN_KV},
    {NULL, "attn_v_b", ROLE_ATTN_KV},
    {NULL, "attn_compressor_*", ROLE_ATTN_KV},
    {NULL, "attn_qkv", ROLE_ATTN_QKV},
    {NULL, "attn_output", ROLE_ATTN_OUTPUT},
    {NULL, "attn_output_a", ROLE_ATTN_OUTPUT},
    {NULL, "attn_output_b", ROLE_ATTN_OUTPUT},
    {NULL, "attn_o", ROLE_ATTN_OUTPUT}, /* of encoders with decoders */
    {NULL, "attn_gate", ROLE_ATTN_OUTPUT},
    {NULL, "cross_attn_q", ROLE_ATTN_Q},
    {NULL, "cross_attn_k", ROLE_ATTN_KV},
    {NULL, "cross_attn_v", ROLE_ATTN_KV},
    {NULL, "cross_attn_o", ROLE_ATTN_OUTPUT},
    {NULL, "indexer*", ROLE_INDEXER},
    {NULL, "ffn_up", ROLE_FFN_UP_GATE}, /* holds the gate too in some */
    {NULL, "ffn_gate", ROLE_FFN_UP_GATE},
    {NULL, "ffn_down", ROLE_FFN_DOWN},
    {NULL, "ffn_gate_inp*", ROLE_MOE_ROUTER},
    {NULL, "ffn_gate_tid2eid", ROLE_MOE_ROUTER},
    {NULL, "exp_probs_b*", ROLE_MOE_ROUTER},
    {NULL, "ffn_*_exps", ROLE_MOE_EXPERTS},
    {NULL, "ffn_*_chexps", ROLE_MOE_EXPERTS},
    {NULL, "ffn_*_shexp", ROLE_MOE_SHARED},
    {NULL, "ffn_up.[0-9]*", ROLE_MOE_EXPERTS}, /* a matrix per expert, in older files */
    {NULL, "ffn_gate.[0-9]*", ROLE_MOE_EXPERTS},
    {NULL, "ffn_down.[0-9]*", ROLE_MOE_EXPERTS},
    {NULL, "ssm_*", ROLE_SSM},
    {NULL, "shortconv.*", ROLE_SSM},
    {NULL, "time_mix_*", ROLE_SSM},
    {NULL, "channel_mix_key", ROLE_FFN_UP_GATE},
    {NULL, "channel_mix_receptance", ROLE_FFN_UP_GATE},
    {NULL, "channel_mix_value", ROLE_FFN_DOWN},
    {NULL, "channel_mix_lerp*", ROLE_OTHER},
    {NULL, "nextn.*", ROLE_MTP},
    {NULL, "per_layer_*", ROLE_PER_LAYER},
    {NULL, "altup_*", ROLE_PER_LAYER},
    {NULL, "laurel_*", ROLE_PER_LAYER},
    {NULL, "ple_*", ROLE_PER_LAYER},
    {NULL, "hc_*", ROLE_PER_LAYER},
    {NULL, "output_hc_*", ROLE_PER_LAYER},
    {NULL, "*_res_score", ROLE_PER_LAYER},
    {NULL, "rope_*", ROLE_OTHER},
    {NULL, "attn_rel_b", ROLE_OTHER},
    {NULL, "cross_attn_rel_b", ROLE_OTHER},
    {NULL, "attn_rot_embd", ROLE_OTHER},
    {NULL, "attn_sinks", ROLE_OTHER},
    {NULL, "layer_output_scale", ROLE_OTHER},
    {NULL, "cls*", ROLE_OTHER}, /* heads that classify or embed */
    {NULL, "dense_[0-9]", ROLE_OTHER},

    /* ---- Fallback: names that resemble these ---- */
    {NULL, "*attn_qkv*", ROLE_ATTN_QKV},
    {NULL, "*attn_q*", ROLE_ATTN_Q},
    {NULL, "*attn_k*", ROLE_ATTN_KV},
    {NULL, "*attn_v*", ROLE_ATTN_KV},
    {NULL, "*attn_o*", ROLE_ATTN_OUTPUT},
    {NULL, "*_exps*", ROLE_MOE_EXPERTS},
    {NULL, "*_shexp*", ROLE_MOE_SHARED},
    {NULL, "*ffn_up*", ROLE_FFN_UP_GATE},
    {NULL, "*ffn_gate*", ROLE_FFN_UP_GATE},
    {NULL, "*ffn_down*", ROLE_FFN_DOWN},
};

const char *role_name(enum role role)
{
    return role < N_ROLES ? names_of[role] : "?";
}

enum role role_by_name(const char *name)
{
    size_t role = 0;
    while (role < N_ROLES && strcmp(names_of[role], name) != 0)
        role++;
    return (enum role)role;
}

int role_layer(const char *tensor_name)
{
    int64_t layer = 0;
    if (strncmp(tensor_name, "blk.", 4) != 0 || !isdigit((unsigned char)tensor_name[4]))
        return -1;
    const char *at = tensor_name + 4;
    for (; isdigit((unsigned char)*at) && layer < MAX_DEPTH; at++)
        layer = 10 * layer + (*at - '0');
    return *at == '.' && layer < MAX_DEPTH ? (int)layer : -1;
}

const char *role_stem(const char *tensor_name)
{
    if (role_layer(tensor_name) < 0)
        return tensor_name;
    return strchr(tensor_name + 4, '.') + 1;
}

enum role role_of(const char *architecture, const char *tensor_name)
{
    char name[256];
    const bool coded = strncmp(tensor_name, "enc.", 4) == 0 || strncmp(tensor_name, "dec.", 4) == 0;
    snprintf(name, sizeof name, "%s", role_stem(tensor_name + (coded ? 4 : 0)));
    if (!str_ends_with(name, ".weight"))
        return ROLE_OTHER; /* biases, scales, states */
    name[strlen(name) - strlen(".weight")] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((!rows[i].architecture ||
             (architecture && fnmatch(rows[i].architecture, architecture, 0) == 0)) &&
            fnmatch(rows[i].name, name, 0) == 0)
            return rows[i].role;
    return ROLE_UNCLAIMED;
}

void roles_of(enum role *roles, const char *architecture, const char *const *names, size_t n)
{
    for (size_t first = 0, end; first < n; first = end) {
        const int layer = role_layer(names[first]);
        bool mtp = false;
        for (end = first; end < n && role_layer(names[end]) == layer; end++)
            mtp |= layer >= 0 && strncmp(role_stem(names[end]), "nextn.", 6) == 0;
        for (size_t i = first; i < end; i++)
            roles[i] = mtp ? ROLE_MTP : role_of(architecture, names[i]);
    }
}

int roles_depth(const enum role *roles, const char *const *names, size_t n)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        const int layer = role_layer(names[i]);
        if (roles[i] != ROLE_MTP && layer >= depth)
            depth = layer + 1;
    }
    return depth;
}
