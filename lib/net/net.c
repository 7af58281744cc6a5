/* net.c - opening a network: the tensors of a model and what they are for.  SPDX-License-Identifier: MIT */
#include "net/net.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gguf/convert.h"
#include "net/arch.h"
#include "base/gemm.h"

/* How many rows and columns a tensor of a layer has, in terms of the hyperparameters. */
enum extent { ONE, EMBD, Q_WIDTH, KV_WIDTH, QKV_WIDTH, Q_NORM, K_NORM, FF, UP_WIDTH, EXPERTS, SHARED_FF };

/* Which part of a layer a tensor belongs to; whether the part is there, presence() knows. */
enum part {
    ALWAYS,
    SPLIT_QKV,
    FUSED_QKV,
    QKV_BIAS,
    FUSED_BIAS,
    QK_NORM,
    POST_NORM,
    DENSE,
    DENSE_GATE,
    MIXTURE,
    SHARED,
    SHARED_GATING,
    OUT_BIAS,
    FFN_BIAS
};

static const struct slot_spec {
    const char *suffix;
    enum extent rows, cols; /* rows ONE: a vector */
    enum part part;
    bool stack; /* a matrix for each expert */
} slot_specs[NET_N_SLOTS] = {
    [NET_ATTN_NORM] = {"attn_norm.weight", ONE, EMBD, ALWAYS, false},
    [NET_ATTN_Q] = {"attn_q.weight", Q_WIDTH, EMBD, SPLIT_QKV, false},
    [NET_ATTN_K] = {"attn_k.weight", KV_WIDTH, EMBD, SPLIT_QKV, false},
    [NET_ATTN_V] = {"attn_v.weight", KV_WIDTH, EMBD, SPLIT_QKV, false},
    [NET_ATTN_QKV] = {"attn_qkv.weight", QKV_WIDTH, EMBD, FUSED_QKV, false},
    [NET_ATTN_Q_NORM] = {"attn_q_norm.weight", ONE, Q_NORM, QK_NORM, false},
    [NET_ATTN_K_NORM] = {"attn_k_norm.weight", ONE, K_NORM, QK_NORM, false},
    [NET_ATTN_OUT] = {"attn_output.weight", EMBD, Q_WIDTH, ALWAYS, false},
    [NET_ATTN_POST_NORM] = {"post_attention_norm.weight", ONE, EMBD, POST_NORM, false},
    [NET_FFN_NORM] = {"ffn_norm.weight", ONE, EMBD, ALWAYS, false},
    [NET_FFN_GATE] = {"ffn_gate.weight", FF, EMBD, DENSE_GATE, false},
    [NET_FFN_UP] = {"ffn_up.weight", UP_WIDTH, EMBD, DENSE, false},
    [NET_FFN_DOWN] = {"ffn_down.weight", EMBD, FF, DENSE, false},
    [NET_ROUTER] = {"ffn_gate_inp.weight", EXPERTS, EMBD, MIXTURE, false},
    [NET_EXPERTS_GATE] = {"ffn_gate_exps.weight", FF, EMBD, MIXTURE, true},
    [NET_EXPERTS_UP] = {"ffn_up_exps.weight", FF, EMBD, MIXTURE, true},
    [NET_EXPERTS_DOWN] = {"ffn_down_exps.weight", EMBD, FF, MIXTURE, true},
    [NET_SHARED_ROUTER] = {"ffn_gate_inp_shexp.weight", ONE, EMBD, SHARED_GATING, false},
    [NET_SHARED_GATE] = {"ffn_gate_shexp.weight", SHARED_FF, EMBD, SHARED, false},
    [NET_SHARED_UP] = {"ffn_up_shexp.weight", SHARED_FF, EMBD, SHARED, false},
    [NET_SHARED_DOWN] = {"ffn_down_shexp.weight", EMBD, SHARED_FF, SHARED, false},
    [NET_FFN_POST_NORM] = {"post_ffw_norm.weight", ONE, EMBD, POST_NORM, false},
    [NET_ATTN_Q_BIAS] = {"attn_q.bias", ONE, Q_WIDTH, QKV_BIAS, false},
    [NET_ATTN_K_BIAS] = {"attn_k.bias", ONE, KV_WIDTH, QKV_BIAS, false},
    [NET_ATTN_V_BIAS] = {"attn_v.bias", ONE, KV_WIDTH, QKV_BIAS, false},
    [NET_ATTN_QKV_BIAS] = {"attn_qkv.bias", ONE, QKV_WIDTH, FUSED_BIAS, false},
    [NET_ATTN_OUT_BIAS] = {"attn_output.bias", ONE, EMBD, OUT_BIAS, false},
    [NET_FFN_GATE_BIAS] = {"ffn_gate.bias", ONE, FF, FFN_BIAS, false},
    [NET_FFN_UP_BIAS] = {"ffn_up.bias", ONE, FF, FFN_BIAS, false},
    [NET_FFN_DOWN_BIAS] = {"ffn_down.bias", ONE, EMBD, FFN_BIAS, false},
};

bool net_slot_is_stack(enum net_slot slot)
{
    return slot_specs[slot].stack;
}

static int64_t extent_size(const struct net *net, enum extent e)
{
    int64_t q = net->n_heads * net->head_dim, kv = net->n_kv_heads * net->head_dim;
    switch (e) {
    case EMBD:
        return net->n_embd;
    case Q_WIDTH:
        return q;
    case KV_WIDTH:
        return kv;
    case QKV_WIDTH:
        return q + 2 * kv;
    case Q_NORM:
        return has(net, ARCH_QK_NORM_WIDE) ? q : net->head_dim;
    case K_NORM: /* wide: libllama wants that of q, so that there are as many heads of both */
        return has(net, ARCH_QK_NORM_WIDE) ? q : net->head_dim;
    case FF:
        return net->n_ff;
    case UP_WIDTH:
        return has(net, ARCH_FUSED_GATE) ? 2 * net->n_ff : net->n_ff;
    case EXPERTS:
        return net->n_experts;
    case SHARED_FF:
        return net->n_ff_shared;
    case ONE:
        break;
    }
    return 1;
}

enum presence { ABSENT, OPTIONAL, REQUIRED };

static enum presence required_if(bool condition)
{
    return condition ? REQUIRED : ABSENT;
}

static enum presence optional_if(bool condition)
{
    return condition ? OPTIONAL : ABSENT;
}

/* fused: the layer has one tensor for q, k and v. */
static enum presence presence(const struct net *net, enum part part, bool fused)
{
    bool dense = net->n_experts == 0;
    switch (part) {
    case SPLIT_QKV:
        return required_if(!fused);
    case FUSED_QKV:
        return required_if(fused);
    case QKV_BIAS:
        return optional_if(!fused && !has(net, ARCH_PLAIN_QKV));
    case FUSED_BIAS:
        return optional_if(fused);
    case QK_NORM:
        return required_if(has(net, ARCH_QK_NORM) || has(net, ARCH_QK_NORM_WIDE));
    case POST_NORM:
        return required_if(has(net, ARCH_POST_NORMS));
    case DENSE:
        return required_if(dense);
    case DENSE_GATE:
        return required_if(dense && !has(net, ARCH_FUSED_GATE));
    case MIXTURE:
        return required_if(!dense);
    case SHARED:
        return required_if(net->n_ff_shared > 0);
    case SHARED_GATING:
        return required_if(net->n_ff_shared > 0 && has(net, ARCH_SHARED_GATED));
    case OUT_BIAS:
        return optional_if(has(net, ARCH_BIASES));
    case FFN_BIAS:
        return optional_if(dense && has(net, ARCH_BIASES));
    case ALWAYS:
        break;
    }
    return REQUIRED;
}

/* "rows, cols", or "stack, rows, cols". */
static const char *shape_text(char text[static 64], int64_t stack, int64_t rows, int64_t cols)
{
    int n = stack == 1 ? 0 : snprintf(text, 64, "%" PRId64 ", ", stack);
    snprintf(text + n, 64 - (size_t)n, "%" PRId64 ", %" PRId64, rows, cols);
    return text;
}

static allot_status check_shape(const struct net *net, const struct gguf_tensor *t, int64_t stack,
                                int64_t rows, int64_t cols, struct allot_error *err)
{
    char shape[64], expected[64];
    if (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != stack || t->ne[3] != 1)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s has shape (%s), expected (%s)",
                          net->model->path, t->name,
                          shape_text(shape, t->ne[2] * t->ne[3], t->ne[1], t->ne[0]),
                          shape_text(expected, stack, rows, cols));
    return ALLOT_OK;
}

/* Vectors must be float32, as libllama's kernels take them. */
static allot_status check_vector(const struct net *net, const struct gguf_tensor *t, int64_t width,
                                 struct allot_error *err)
{
    allot_status status = check_shape(net, t, 1, 1, width, err);
    if (status == ALLOT_OK && t->type != GGML_TYPE_F32)
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s has type %s: a vector must be f32",
                            net->model->path, t->name, ggml_type_name(t->type));
    return status;
}

static const struct gguf_tensor *find_slot(const struct net *net, int64_t layer, enum net_slot slot,
                                           char name[static 96])
{
    snprintf(name, 96, "blk.%" PRId64 ".%s", layer, slot_specs[slot].suffix);
    return gguf_model_tensor(net->model, name);
}

static allot_status open_layer(struct net *net, int64_t il, int64_t *n_known, struct allot_error *err)
{
    struct net_layer *layer = &net->layers[il];
    int64_t weights = 0;
    char name[96];
    bool fused = find_slot(net, il, NET_ATTN_QKV, name) != NULL && !has(net, ARCH_PLAIN_QKV);
    for (int slot = 0; slot < NET_N_SLOTS; slot++) {
        const struct slot_spec *spec = &slot_specs[slot];
        enum presence rule = presence(net, spec->part, fused);
        const struct gguf_tensor *t = rule == ABSENT ? NULL : find_slot(net, il, (enum net_slot)slot, name);
        if (t == NULL && rule == REQUIRED)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s is missing", net->model->path, name);
        if (t == NULL)
            continue;
        int64_t rows = extent_size(net, spec->rows), cols = extent_size(net, spec->cols);
        allot_status status = spec->rows == ONE
                                  ? check_vector(net, t, cols, err)
                                  : check_shape(net, t, spec->stack ? net->n_experts : 1, rows, cols, err);
        if (status != ALLOT_OK)
            return status;
        layer->tensors[slot] = t;
        weights += spec->stack ? 0 : t->n_elements;
        ++*n_known;
    }
    if (weights > net->max_layer_weights)
        net->max_layer_weights = weights;
    return ALLOT_OK;
}

/* Divisors of the frequencies; *factors stays NULL where the model has none. */
static allot_status open_factors(struct net *net, const char *name, float **factors, int64_t *n_known,
                                 struct allot_error *err)
{
    const struct gguf_tensor *t = gguf_model_tensor(net->model, name);
    if (t == NULL)
        return ALLOT_OK;
    ++*n_known;
    net->rope_tensors[factors == &net->rope_factors_long] = t;
    allot_status status = check_vector(net, t, net->n_rot / 2, err);
    if (status != ALLOT_OK)
        return status;
    *factors = malloc(sizeof(float) * (size_t)t->ne[0]);
    if (*factors == NULL)
        return allot_fail_memory(err, sizeof(float) * (size_t)t->ne[0], name);
    status = gguf_tensor_to_f32(net->model, t, 0, 1, *factors, NULL, err);
    for (int64_t i = 0; i < t->ne[0] && status == ALLOT_OK; i++)
        if ((*factors)[i] == 0)
            status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s holds a zero", net->model->path, name);
    return status;
}

static allot_status open_rope_factors(struct net *net, int64_t *n_known, struct allot_error *err)
{
    bool either = has(net, ARCH_ROPE_FREQS), longrope = net->rope_scaling == ROPE_SCALING_LONGROPE;
    if (either && !longrope)
        return open_factors(net, "rope_freqs.weight", &net->rope_factors, n_known, err);
    if (!either && !has(net, ARCH_ROPE_LONG_SHORT))
        return ALLOT_OK;
    allot_status status = open_factors(net, "rope_factors_short.weight", &net->rope_factors, n_known, err);
    if (status == ALLOT_OK)
        status = open_factors(net, "rope_factors_long.weight", &net->rope_factors_long, n_known, err);
    return status;
}

/* The forward pass ends before the output norm, so that what is wrong with it must be found here. */
static allot_status check_output_norm(const struct net *net, struct allot_error *err)
{
    const struct gguf_tensor *t = net->output_norm;
    allot_status status = check_vector(net, t, net->n_embd, err);
    if (status != ALLOT_OK)
        return status;
    float *values = malloc(sizeof *values * (size_t)t->ne[0]);
    if (values == NULL)
        return allot_fail_memory(err, sizeof *values * (size_t)t->ne[0], t->name);
    status = gguf_tensor_to_f32(net->model, t, 0, 1, values, NULL, err);
    free(values);
    return status;
}

static allot_status open_ends(struct net *net, int64_t *n_known, struct allot_error *err)
{
    const struct gguf_model *model = net->model;
    net->token_embd = gguf_model_tensor(model, "token_embd.weight");
    net->output_norm = gguf_model_tensor(model, "output_norm.weight");
    if (!has(net, ARCH_OUTPUT_TIED))
        net->output = gguf_model_tensor(model, "output.weight");
    if (has(net, ARCH_OUTPUT_BIAS))
        net->output_bias = gguf_model_tensor(model, "output.bias");
    if (net->token_embd == NULL || net->output_norm == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s is missing", model->path,
                          net->token_embd == NULL ? "token_embd.weight" : "output_norm.weight");
    if (net->output == NULL && has(net, ARCH_OUTPUT_OWN))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor output.weight is missing", model->path);
    *n_known += 2 + (net->output != NULL) + (net->output_bias != NULL);
    if (net->output == NULL)
        net->output = net->token_embd;
    net->n_vocab = net->token_embd->ne[1];
    if (net->n_vocab > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: a vocabulary of %" PRId64 " tokens", model->path,
                          net->n_vocab);
    int64_t n_tokens = gguf_model_array_len(model, "tokenizer.ggml.tokens");
    if (n_tokens >= 0 && n_tokens != net->n_vocab)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: tensor %s has %" PRId64 " rows for the %" PRId64
                          " tokens of tokenizer.ggml.tokens",
                          model->path, net->token_embd->name, net->n_vocab, n_tokens);
    allot_status status = check_shape(net, net->token_embd, 1, net->n_vocab, net->n_embd, err);
    if (status == ALLOT_OK)
        status = check_shape(net, net->output, 1, net->n_vocab, net->n_embd, err);
    if (status == ALLOT_OK && net->output_bias != NULL)
        status = check_vector(net, net->output_bias, net->n_vocab, err);
    if (status == ALLOT_OK)
        status = check_output_norm(net, err);
    return status;
}

/* A tensor that is there but plays no part here would make every result silently wrong. */
static allot_status refuse_unknown(const struct net *net, struct allot_error *err)
{
    for (int64_t i = 0; i < net->model->n_tensors; i++) {
        const struct gguf_tensor *t = &net->model->tensors[i];
        bool known = t == net->token_embd || t == net->output_norm || t == net->output ||
                     t == net->output_bias || t == net->rope_tensors[0] || t == net->rope_tensors[1];
        for (int slot = 0; slot < NET_N_SLOTS && !known && t->layer >= 0 && t->layer < net->n_layers; slot++)
            known = net->layers[t->layer].tensors[slot] == t;
        if (!known)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s has no place in architecture %s",
                              net->model->path, t->name, net->arch->name);
    }
    return ALLOT_OK;
}

allot_status net_open(struct net *net, const struct gguf_model *model, struct allot_error *err)
{
    *net = (struct net){.model = model};
    int64_t n_known = 0;
    allot_status status = gemm_init(err);
    if (status == ALLOT_OK)
        status = read_hyperparameters(net, err);
    if (status == ALLOT_OK)
        status = open_ends(net, &n_known, err);
    for (int64_t il = 0; il < net->n_layers && status == ALLOT_OK; il++)
        status = open_layer(net, il, &n_known, err);
    if (status == ALLOT_OK)
        status = open_rope_factors(net, &n_known, err);
    if (status == ALLOT_OK && n_known != model->n_tensors)
        status = refuse_unknown(net, err);
    if (status != ALLOT_OK)
        net_release(net);
    return status;
}

void net_release(struct net *net)
{
    free(net->layers);
    free(net->rope_factors);
    free(net->rope_factors_long);
    *net = (struct net){0};
}
