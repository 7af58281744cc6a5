/* net.c - opening a network: hyperparameters and tensors, checked.  SPDX-License-Identifier: MIT */
#include "net/net.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "gguf.h"
#include "gguf/convert.h"
#include "net/gemm.h"
#include "net/layer.h"

/* How many rows and columns a tensor of a layer has, in terms of the hyperparameters. */
enum extent { ONE, EMBD, Q_WIDTH, KV_WIDTH, FF };

static const struct slot_spec {
    const char *suffix;
    enum extent rows, cols; /* rows ONE: a vector */
    bool required;
} slot_specs[NET_N_SLOTS] = {
    [NET_ATTN_NORM] = {"attn_norm.weight", ONE, EMBD, true},
    [NET_ATTN_Q] = {"attn_q.weight", Q_WIDTH, EMBD, true},
    [NET_ATTN_K] = {"attn_k.weight", KV_WIDTH, EMBD, true},
    [NET_ATTN_V] = {"attn_v.weight", KV_WIDTH, EMBD, true},
    [NET_ATTN_OUT] = {"attn_output.weight", EMBD, Q_WIDTH, true},
    [NET_FFN_NORM] = {"ffn_norm.weight", ONE, EMBD, true},
    [NET_FFN_GATE] = {"ffn_gate.weight", FF, EMBD, true},
    [NET_FFN_UP] = {"ffn_up.weight", FF, EMBD, true},
    [NET_FFN_DOWN] = {"ffn_down.weight", EMBD, FF, true},
    [NET_ATTN_Q_BIAS] = {"attn_q.bias", ONE, Q_WIDTH, false},
    [NET_ATTN_K_BIAS] = {"attn_k.bias", ONE, KV_WIDTH, false},
    [NET_ATTN_V_BIAS] = {"attn_v.bias", ONE, KV_WIDTH, false},
    [NET_ATTN_OUT_BIAS] = {"attn_output.bias", ONE, EMBD, false},
    [NET_FFN_GATE_BIAS] = {"ffn_gate.bias", ONE, FF, false},
    [NET_FFN_UP_BIAS] = {"ffn_up.bias", ONE, FF, false},
    [NET_FFN_DOWN_BIAS] = {"ffn_down.bias", ONE, EMBD, false},
};

enum { MAX_LAYERS = 512 }; /* libllama's */

static const char supported[] = "llama (dense)";

static int64_t extent_size(const struct net *net, enum extent e)
{
    switch (e) {
    case EMBD:
        return net->n_embd;
    case Q_WIDTH:
        return net->n_heads * net->head_dim;
    case KV_WIDTH:
        return net->n_kv_heads * net->head_dim;
    case FF:
        return net->n_ff;
    case ONE:
        break;
    }
    return 1;
}

/* Vectors must be float32, as libllama's kernels take them. */
static allot_status check_shape(const struct net *net, const struct gguf_tensor *t, int64_t rows,
                                int64_t cols, struct allot_error *err)
{
    if (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: tensor %s has shape (%" PRId64 ", %" PRId64 "), expected (%" PRId64
                          ", %" PRId64 ")",
                          net->model->path, t->name, t->n_elements / t->ne[0], t->ne[0], rows, cols);
    if (rows == 1 && t->type != GGML_TYPE_F32)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s has type %s: a vector must be f32",
                          net->model->path, t->name, ggml_type_name(t->type));
    return ALLOT_OK;
}

static bool has_type(const struct gguf_model *model, const char *key, enum gguf_type type)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    return kv != NULL && kv->type == type;
}

/* An unsigned 32-bit number in [1, limit] under ARCH.suffix; fallback < 1: it must be there. */
static allot_status read_count(const struct gguf_model *model, const char *suffix, int64_t limit,
                               int64_t fallback, int64_t *value, struct allot_error *err)
{
    char key[128];
    snprintf(key, sizeof key, "llama.%s", suffix);
    if (gguf_model_kv(model, key) == NULL && fallback > 0) {
        *value = fallback;
        return ALLOT_OK;
    }
    if (!has_type(model, key, GGUF_TYPE_UINT32) || !gguf_model_i64(model, key, value) || *value < 1 ||
        *value > limit)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s is missing or not an unsigned number from 1 to %" PRId64,
                          model->path, key, limit);
    return ALLOT_OK;
}

/* fallback < 0: it must be there. */
static allot_status read_real(const struct gguf_model *model, const char *suffix, double fallback,
                              double *value, struct allot_error *err)
{
    char key[128];
    snprintf(key, sizeof key, "llama.%s", suffix);
    if (gguf_model_kv(model, key) == NULL && fallback >= 0) {
        *value = fallback;
        return ALLOT_OK;
    }
    if (!has_type(model, key, GGUF_TYPE_FLOAT32) || !gguf_model_f64(model, key, value) || !isfinite(*value) ||
        *value < 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s is missing or not a finite float32 number >= 0", model->path, key);
    return ALLOT_OK;
}

/* The width of the feed-forward parts: one number, or a list of one per layer, of which libllama takes the
 * first for all layers of this architecture. */
static allot_status read_ff(struct net *net, struct allot_error *err)
{
    static const char key[] = "llama.feed_forward_length";
    struct gguf_array list;
    uint32_t value = 0;
    if (!gguf_model_array(net->model, key, &list))
        return read_count(net->model, "feed_forward_length", INT32_MAX, 0, &net->n_ff, err);
    if (list.type == GGUF_TYPE_UINT32 && list.n == net->n_layers)
        memcpy(&value, list.data, sizeof value);
    if (value < 1 || value > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s has no number from 1 to %d for each of %" PRId64 " layers",
                          net->model->path, key, INT32_MAX, net->n_layers);
    net->n_ff = value;
    return ALLOT_OK;
}

static allot_status check_architecture(const struct gguf_model *model, struct allot_error *err)
{
    char *name = gguf_model_str(model, "general.architecture");
    allot_status status = ALLOT_OK;
    int64_t experts = 0;
    if (name == NULL)
        status = allot_fail(err, ALLOT_ERR_FORMAT,
                            "%s: metadata general.architecture is missing: not a model", model->path);
    else if (strcmp(name, "llama") != 0)
        status =
            allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: architecture %s is not supported (supported: %s)",
                       model->path, name, supported);
    else if (gguf_model_i64(model, "llama.expert_count", &experts) && experts > 0)
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                            "%s: a mixture of experts (%" PRId64 ") is not supported (supported: %s)",
                            model->path, experts, supported);
    free(name);
    return status;
}

/* Rotary embedding: linear scaling only. */
static allot_status read_rope(struct net *net, struct allot_error *err)
{
    const struct gguf_model *model = net->model;
    int64_t n_rot;
    double factor = 0, linear = 0;
    allot_status status = read_count(model, "rope.dimension_count", 1 << 20, net->head_dim, &n_rot, err);
    if (status == ALLOT_OK)
        status = read_real(model, "rope.freq_base", 10000.0, &net->rope_base, err);
    if (status == ALLOT_OK)
        status = read_real(model, "rope.scaling.factor", 0.0, &factor, err);
    if (status == ALLOT_OK)
        status = read_real(model, "rope.scale_linear", 0.0, &linear, err);
    if (status != ALLOT_OK)
        return status;
    if (n_rot != net->head_dim || n_rot % 2 != 0 || net->rope_base <= 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: rotary embedding over %" PRId64 " of %" PRId64 " channels with base %g",
                          model->path, n_rot, net->head_dim, net->rope_base);
    char *type = gguf_model_str(model, "llama.rope.scaling.type");
    bool none = type != NULL && strcmp(type, "none") == 0;
    if (type != NULL && !none && strcmp(type, "linear") != 0)
        status =
            allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                       "%s: rope scaling \"%s\" is not supported (supported: linear)", model->path, type);
    free(type);
    if (gguf_model_kv(model, "llama.rope.scaling.factor") == NULL)
        factor = linear;
    net->rope_scale = factor > 0 && !none ? 1.0 / factor : 1.0;
    return status;
}

/* Settings that libllama obeys and this network does not have. */
static allot_status refuse_settings(const struct gguf_model *model, struct allot_error *err)
{
    double attn_factor = 1;
    bool causal = true;
    allot_status status = read_real(model, "rope.scaling.attn_factor", 1.0, &attn_factor, err);
    if (status != ALLOT_OK)
        return status;
    if (attn_factor != 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: llama.rope.scaling.attn_factor of %g is not supported", model->path,
                          attn_factor);
    if (gguf_model_bool(model, "llama.attention.causal", &causal) && !causal)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: attention that is not causal is not supported",
                          model->path);
    return ALLOT_OK;
}

static allot_status read_hyperparameters(struct net *net, struct allot_error *err)
{
    const struct gguf_model *model = net->model;
    double eps;
    int64_t n_trained;
    allot_status status = check_architecture(model, err);
    if (status == ALLOT_OK)
        status = read_count(model, "context_length", UINT32_MAX, 0, &n_trained, err); /* libllama insists */
    if (status == ALLOT_OK)
        status = read_count(model, "block_count", MAX_LAYERS, 0, &net->n_layers, err);
    if (status == ALLOT_OK)
        status = read_ff(net, err);
    if (status == ALLOT_OK)
        status = read_count(model, "embedding_length", 1 << 20, 0, &net->n_embd, err);
    if (status == ALLOT_OK)
        status = read_count(model, "attention.head_count", 1 << 16, 0, &net->n_heads, err);
    if (status == ALLOT_OK)
        status = read_count(model, "attention.head_count_kv", 1 << 16, net->n_heads, &net->n_kv_heads, err);
    if (status == ALLOT_OK && net->n_heads % net->n_kv_heads != 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT,
                            "%s: %" PRId64 " heads do not share %" PRId64 " key/value heads evenly",
                            model->path, net->n_heads, net->n_kv_heads);
    if (status == ALLOT_OK)
        status = read_count(model, "attention.key_length", 1 << 16, net->n_embd / net->n_heads,
                            &net->head_dim, err);
    int64_t value_length = 0;
    if (status == ALLOT_OK)
        status = read_count(model, "attention.value_length", 1 << 16, net->head_dim, &value_length, err);
    if (status == ALLOT_OK && value_length != net->head_dim)
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                            "%s: keys of %" PRId64 " and values of %" PRId64 " channels", model->path,
                            net->head_dim, value_length);
    if (status == ALLOT_OK)
        status = read_real(model, "attention.layer_norm_rms_epsilon", -1, &eps, err);
    if (status == ALLOT_OK)
        status = read_rope(net, err);
    if (status == ALLOT_OK)
        status = refuse_settings(model, err);
    if (status != ALLOT_OK)
        return status;
    net->rms_eps = (float)eps;
    net->attn_scale = 1.0f / sqrtf((float)net->head_dim);
    return ALLOT_OK;
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
    for (int slot = 0; slot < NET_N_SLOTS; slot++) {
        const struct slot_spec *spec = &slot_specs[slot];
        const struct gguf_tensor *t = find_slot(net, il, (enum net_slot)slot, name);
        if (t == NULL && spec->required)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s is missing", net->model->path, name);
        if (t == NULL)
            continue;
        allot_status status =
            check_shape(net, t, extent_size(net, spec->rows), extent_size(net, spec->cols), err);
        if (status != ALLOT_OK)
            return status;
        layer->tensors[slot] = t;
        weights += t->n_elements;
        ++*n_known;
    }
    if (weights > net->max_layer_weights)
        net->max_layer_weights = weights;
    return ALLOT_OK;
}

static allot_status open_rope_factors(struct net *net, int64_t *n_known, struct allot_error *err)
{
    const struct gguf_tensor *t = gguf_model_tensor(net->model, "rope_freqs.weight");
    if (t == NULL)
        return ALLOT_OK;
    ++*n_known;
    allot_status status = check_shape(net, t, 1, net->head_dim / 2, err);
    if (status != ALLOT_OK)
        return status;
    net->rope_factors = malloc(sizeof(float) * (size_t)t->ne[0]);
    if (net->rope_factors == NULL)
        return allot_fail_memory(err, sizeof(float) * (size_t)t->ne[0], "rope_freqs");
    status = gguf_tensor_to_f32(net->model, t, 0, 1, net->rope_factors, NULL, err);
    for (int64_t i = 0; i < t->ne[0] && status == ALLOT_OK; i++)
        if (net->rope_factors[i] == 0)
            status =
                allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s holds a zero", net->model->path, t->name);
    return status;
}

/* The forward pass ends before the output norm, so that what is wrong with it must be found here. */
static allot_status check_output_norm(const struct net *net, struct allot_error *err)
{
    const struct gguf_tensor *t = net->output_norm;
    allot_status status = check_shape(net, t, 1, net->n_embd, err);
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
    net->output = gguf_model_tensor(model, "output.weight");
    if (net->token_embd == NULL || net->output_norm == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: tensor %s is missing", model->path,
                          net->token_embd == NULL ? "token_embd.weight" : "output_norm.weight");
    *n_known += net->output == NULL ? 2 : 3;
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
    allot_status status = check_shape(net, net->token_embd, net->n_vocab, net->n_embd, err);
    if (status == ALLOT_OK)
        status = check_shape(net, net->output, net->n_vocab, net->n_embd, err);
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
                     strcmp(t->name, "rope_freqs.weight") == 0;
        for (int slot = 0; slot < NET_N_SLOTS && !known && t->layer >= 0 && t->layer < net->n_layers; slot++)
            known = net->layers[t->layer].tensors[slot] == t;
        if (!known)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s has no place in architecture %s",
                              net->model->path, t->name, supported);
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
    if (status == ALLOT_OK && net->n_layers > model->n_tensors)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: %" PRId64 " layers but %" PRId64 " tensors",
                            model->path, net->n_layers, model->n_tensors);
    if (status == ALLOT_OK) {
        net->layers = calloc((size_t)net->n_layers, sizeof *net->layers);
        if (net->layers == NULL)
            status = allot_fail_memory(err, (size_t)net->n_layers * sizeof *net->layers, "the layers");
    }
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
    *net = (struct net){0};
}
