/* arch.c - the architectures and what is their own.  SPDX-License-Identifier: MIT
 *
 * What each has was taken from libllama's loaders and graphs (src/models/NAME.cpp). */
#include "net/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* Granite's multipliers: of the embedding, of both branches, of the attention scores, and the divisor of the
 * logits. */
static allot_status read_granitemoe(struct net *net, struct allot_error *err)
{
    double embedding = 0, residual = 0, attention = 0, logits = 0;
    char key[128];
    allot_status status = read_real(net, "logit_scale", -1, &logits, err);
    if (status == ALLOT_OK)
        status = read_real(net, "embedding_scale", 0, &embedding, err);
    if (status == ALLOT_OK)
        status = read_real(net, "residual_scale", 0, &residual, err);
    if (status == ALLOT_OK)
        status = read_real(net, "attention.scale", 0, &attention, err);
    if (status == ALLOT_OK && logits == 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata %s is 0", net->model->path,
                            arch_key(net, "logit_scale", key));
    if (status != ALLOT_OK)
        return status;
    net->logit_scale = (float)(1 / logits);
    net->embd_scale = embedding > 0 ? (float)embedding : 1;
    net->residual_scale = residual > 0 ? (float)residual : 1;
    if (attention > 0)
        net->attn_scale = (float)attention;
    return ALLOT_OK;
}

/* rope.scaling.finetuned false takes the rotary embedding away. */
static allot_status read_granite(struct net *net, struct allot_error *err)
{
    bool rotates = true;
    char key[128];
    gguf_model_bool(net->model, arch_key(net, "rope.scaling.finetuned", key), &rotates);
    for (int64_t il = 0; il < net->n_layers && !rotates; il++)
        net->layers[il].rope = NET_ROPE_NONE;
    return read_granitemoe(net, err);
}

/* Every fourth layer of SmolLM3 has no rotary embedding. */
static allot_status read_smollm3(struct net *net, struct allot_error *err)
{
    (void)err;
    for (int64_t il = 3; il < net->n_layers; il += 4)
        net->layers[il].rope = NET_ROPE_NONE;
    return ALLOT_OK;
}

/* Of each period of layers all but the last see a window of tokens, and rotate with a table of their own.
 * A list that says it of each layer is refused. */
static allot_status read_windows(struct net *net, int64_t window, int64_t period, struct allot_error *err)
{
    char key[128];
    struct gguf_array list = {0};
    bool listed = gguf_model_array(net->model, arch_key(net, "attention.sliding_window_pattern", key), &list);
    if (listed)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: metadata %s is a list, which is not supported",
                          net->model->path, key);
    allot_status status =
        read_count(net, "attention.sliding_window_pattern", UINT32_MAX, period, &period, err);
    if (status == ALLOT_OK && period == 1) /* libllama aborts */
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                            "%s: metadata %s is 1: no layer has the sliding window", net->model->path, key);
    for (int64_t il = 0; il < net->n_layers && status == ALLOT_OK; il++) {
        if (il % period < period - 1) {
            net->layers[il].window = window;
            net->layers[il].rope = NET_ROPE_WINDOWED;
        }
    }
    return status;
}

/* A soft-cap with which libllama's way of computing it, cap * tanh(1 / cap * x), makes sense: with 0 and with
 * those near the end of float32's range nothing is left of x. */
static allot_status read_softcap(const struct net *net, const char *suffix, double fallback, double *cap,
                                 struct allot_error *err)
{
    char key[128];
    allot_status status = read_real(net, suffix, fallback, cap, err);
    if (status == ALLOT_OK && (*cap < 1e-30 || *cap > 1e30))
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata %s is %g, not a soft-cap from 1e-30 to 1e30",
                            net->model->path, arch_key(net, suffix, key), *cap);
    return status;
}

static float gemma_attn_scale(const struct net *net, int64_t layers_of_27b)
{
    int64_t width = net->n_layers == layers_of_27b ? net->n_embd / net->n_heads : net->head_dim;
    return 1.0f / sqrtf((float)width);
}

static allot_status read_gemma2(struct net *net, struct allot_error *err)
{
    double base = 0, scores = 0, logits = 0;
    int64_t window = 0;
    allot_status status = read_real(net, "rope.freq_base_swa", net->ropes[NET_ROPE_PLAIN].base, &base, err);
    if (status == ALLOT_OK)
        status = read_softcap(net, "attn_logit_softcapping", 50, &scores, err);
    if (status == ALLOT_OK)
        status = read_softcap(net, "final_logit_softcapping", 30, &logits, err);
    if (status == ALLOT_OK)
        status = read_count(net, "attention.sliding_window", INT32_MAX, 4096, &window, err);
    if (status == ALLOT_OK)
        status = read_windows(net, window, 2, err);
    net->ropes[NET_ROPE_WINDOWED].base = base;
    net->attn_softcap = (float)scores;
    net->final_softcap = (float)logits;
    net->embd_scale = sqrtf((float)net->n_embd);
    net->attn_scale = gemma_attn_scale(net, 46);
    return status;
}

static allot_status read_gemma3(struct net *net, struct allot_error *err)
{
    double base = 0, logits = 0;
    int64_t window = 0;
    char key[128];
    allot_status status = read_real(net, "rope.freq_base_swa", 10000, &base, err);
    if (status == ALLOT_OK)
        status = read_real(net, "final_logit_softcapping", 0, &logits, err);
    if (status == ALLOT_OK && logits != 0) /* 0: none, other than in Gemma 2 */
        status = read_softcap(net, "final_logit_softcapping", 0, &logits, err);
    if (status != ALLOT_OK)
        return status;
    net->ropes[NET_ROPE_WINDOWED].base = base;
    net->ropes[NET_ROPE_WINDOWED].scale = 1;
    net->final_softcap = (float)logits;
    net->embd_scale = sqrtf((float)net->n_embd);
    net->attn_scale = gemma_attn_scale(net, 62);
    bool none =
        gguf_model_i64(net->model, arch_key(net, "attention.sliding_window", key), &window) && window == 0;
    if (!none)
        status = read_count(net, "attention.sliding_window", INT32_MAX, 0, &window, err);
    if (status == ALLOT_OK && window > 0)
        status = read_windows(net, window, 6, err);
    return status;
}

enum { MOE = ARCH_EXPERTS | ARCH_ALL_EXPERTS | ARCH_EXPERT_WIDTH };

static const struct net_arch archs[] = {
    {"llama", ARCH_ROPE_FREQS | ARCH_BIASES | ARCH_EXPERTS | ARCH_RENORMALISE, NULL},
    {"qwen2", ARCH_ROPE_NEOX | ARCH_Q_IS_EMBD | ARCH_OUTPUT_BIAS, NULL},
    {"qwen2moe", ARCH_ROPE_NEOX | ARCH_Q_IS_EMBD | ARCH_OUTPUT_OWN | MOE | ARCH_SHARED_GATED, NULL},
    {"qwen3", ARCH_ROPE_NEOX | ARCH_QK_NORM, NULL},
    {"qwen3moe", ARCH_ROPE_NEOX | ARCH_QK_NORM | MOE | ARCH_RENORMALISE, NULL},
    {"olmoe",
     ARCH_ROPE_NEOX | ARCH_QK_NORM_WIDE | ARCH_PLAIN_QKV | ARCH_Q_IS_EMBD | ARCH_OUTPUT_OWN | ARCH_EXPERTS |
         ARCH_ALL_EXPERTS,
     NULL},
    {"gemma2", ARCH_ROPE_NEOX | ARCH_ROPE_PARTIAL | ARCH_POST_NORMS | ARCH_GELU | ARCH_OUTPUT_TIED,
     read_gemma2},
    {"gemma3", ARCH_ROPE_NEOX | ARCH_ROPE_PARTIAL | ARCH_POST_NORMS | ARCH_GELU | ARCH_QK_NORM, read_gemma3},
    {"phi3", ARCH_ROPE_NEOX | ARCH_ROPE_PARTIAL | ARCH_ROPE_LONG_SHORT | ARCH_FUSED_GATE | ARCH_Q_IS_EMBD,
     NULL},
    {"granite", ARCH_ROPE_FREQS | ARCH_BIASES | ARCH_EXPERTS | ARCH_RENORMALISE | ARCH_SHARED, read_granite},
    {"granitemoe", ARCH_ROPE_FREQS | ARCH_BIASES | ARCH_EXPERTS | ARCH_RENORMALISE | ARCH_SHARED,
     read_granitemoe},
    {"smollm3", 0, read_smollm3},
    {"glm4", ARCH_ROPE_PARTIAL | ARCH_POST_NORMS | ARCH_FUSED_GATE, NULL},
};
enum { N_ARCHS = sizeof archs / sizeof *archs };

const struct net_arch *net_arch_find(const char *name)
{
    for (int i = 0; i < N_ARCHS; i++)
        if (strcmp(archs[i].name, name) == 0)
            return &archs[i];
    return NULL;
}

void net_arch_names(char list[static 256])
{
    size_t n = 0;
    for (int i = 0; i < N_ARCHS && n < 256; i++)
        n += (size_t)snprintf(list + n, 256 - n, "%s%s", i > 0 ? ", " : "", archs[i].name);
}
