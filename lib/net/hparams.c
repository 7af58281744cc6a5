/* hparams.c - hyperparameters from a model's metadata, checked.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gguf.h"
#include "net/arch.h"

/* Of layers and experts libllama's. */
enum { MAX_LAYERS = 512, MAX_EXPERTS = 1024, MAX_WIDTH = 1 << 20, MAX_HEADS = 1 << 16 };

/* ---- Numbers ------------------------------------------------------------------------------------- */

const char *arch_key(const struct net *net, const char *suffix, char key[static 128])
{
    snprintf(key, 128, "%s.%s", net->arch->name, suffix);
    return key;
}

static bool has_type(const struct gguf_model *model, const char *key, enum gguf_type type)
{
    const struct gguf_kv *kv = gguf_model_kv(model, key);
    return kv != NULL && kv->type == type;
}

allot_status read_count(const struct net *net, const char *suffix, int64_t limit, int64_t fallback,
                        int64_t *value, struct allot_error *err)
{
    char key[128];
    arch_key(net, suffix, key);
    if (gguf_model_kv(net->model, key) == NULL && fallback >= 0) {
        *value = fallback;
        return ALLOT_OK;
    }
    if (!has_type(net->model, key, GGUF_TYPE_UINT32) || !gguf_model_i64(net->model, key, value) ||
        *value < 1 || *value > limit)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s is missing or not an unsigned number from 1 to %" PRId64,
                          net->model->path, key, limit);
    return ALLOT_OK;
}

allot_status read_real(const struct net *net, const char *suffix, double fallback, double *value,
                       struct allot_error *err)
{
    char key[128];
    arch_key(net, suffix, key);
    if (gguf_model_kv(net->model, key) == NULL && fallback >= 0) {
        *value = fallback;
        return ALLOT_OK;
    }
    if (!has_type(net->model, key, GGUF_TYPE_FLOAT32) || !gguf_model_f64(net->model, key, value) ||
        !isfinite(*value) || *value < 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s is missing or not a finite float32 number >= 0", net->model->path,
                          key);
    return ALLOT_OK;
}

/* A width of the feed-forward parts: one number, or a list of one per layer, of which libllama takes the
 * first for all layers of these architectures. */
static allot_status read_ff(const struct net *net, const char *suffix, int64_t fallback, int64_t *n_ff,
                            struct allot_error *err)
{
    char key[128];
    struct gguf_array list;
    uint32_t value = 0;
    if (!gguf_model_array(net->model, arch_key(net, suffix, key), &list))
        return read_count(net, suffix, INT32_MAX, fallback, n_ff, err);
    if (list.type == GGUF_TYPE_UINT32 && list.n == net->n_layers)
        memcpy(&value, list.data, sizeof value);
    if (value < 1 || value > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s has no number from 1 to %d for each of %" PRId64 " layers",
                          net->model->path, key, INT32_MAX, net->n_layers);
    *n_ff = value;
    return ALLOT_OK;
}

/* ---- Architecture -------------------------------------------------------------------------------- */

static allot_status find_architecture(struct net *net, struct allot_error *err)
{
    char *name = gguf_model_str(net->model, "general.architecture");
    char known[256];
    allot_status status = ALLOT_OK;
    if (name == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata general.architecture is missing: not a model",
                          net->model->path);
    net->arch = net_arch_find(name);
    if (net->arch == NULL) {
        net_arch_names(known);
        status =
            allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: architecture %s is not supported (supported: %s)",
                       net->model->path, name, known);
    }
    free(name);
    return status;
}

/* ---- Parts --------------------------------------------------------------------------------------- */

static allot_status read_heads(struct net *net, struct allot_error *err)
{
    int64_t value_length = 0;
    allot_status status = read_count(net, "attention.head_count", MAX_HEADS, -1, &net->n_heads, err);
    if (status == ALLOT_OK)
        status = read_count(net, "attention.head_count_kv", MAX_HEADS, net->n_heads, &net->n_kv_heads, err);
    if (status == ALLOT_OK && net->n_heads % net->n_kv_heads != 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT,
                            "%s: %" PRId64 " heads do not share %" PRId64 " key/value heads evenly",
                            net->model->path, net->n_heads, net->n_kv_heads);
    if (status == ALLOT_OK)
        status = read_count(net, "attention.key_length", MAX_HEADS, net->n_embd / net->n_heads,
                            &net->head_dim, err);
    if (status == ALLOT_OK)
        status = read_count(net, "attention.value_length", MAX_HEADS, net->n_embd / net->n_heads,
                            &value_length, err);
    if (status != ALLOT_OK)
        return status;
    if (net->head_dim < 1 || value_length != net->head_dim)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: keys of %" PRId64 " and values of %" PRId64 " channels", net->model->path,
                          net->head_dim, value_length);
    if (has(net, ARCH_Q_IS_EMBD) && net->n_heads * net->head_dim != net->n_embd)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: %" PRId64 " heads of %" PRId64 " channels for an embedding of %" PRId64,
                          net->model->path, net->n_heads, net->head_dim, net->n_embd);
    net->attn_scale = 1.0f / sqrtf((float)net->head_dim);
    return ALLOT_OK;
}

/* libllama ends the process if a dense model says how many experts a token takes. */
static allot_status read_no_experts(const struct net *net, struct allot_error *err)
{
    int64_t used = 0;
    char key[128];
    if (gguf_model_i64(net->model, arch_key(net, "expert_used_count", key), &used) && used != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata %s is %" PRId64 " without experts",
                          net->model->path, key, used);
    return ALLOT_OK;
}

static allot_status read_experts(struct net *net, struct allot_error *err)
{
    bool always = has(net, ARCH_ALL_EXPERTS);
    int64_t groups = 0;
    char key[128];
    if (!always && gguf_model_i64(net->model, arch_key(net, "expert_count", key), &net->n_experts) &&
        net->n_experts == 0)
        return read_no_experts(net, err);
    allot_status status = read_count(net, "expert_count", MAX_EXPERTS, always ? -1 : 0, &net->n_experts, err);
    if (status == ALLOT_OK && net->n_experts == 0)
        return read_no_experts(net, err);
    if (status != ALLOT_OK)
        return status;
    if (!has(net, ARCH_EXPERTS))
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: experts in architecture %s are not supported",
                          net->model->path, net->arch->name);
    status = read_count(net, "expert_used_count", net->n_experts, -1, &net->n_experts_used, err);
    if (status == ALLOT_OK && has(net, ARCH_EXPERT_WIDTH))
        status = read_ff(net, "expert_feed_forward_length", net->n_ff / net->n_experts_used, &net->n_ff, err);
    if (status == ALLOT_OK && gguf_model_i64(net->model, arch_key(net, "expert_group_count", key), &groups) &&
        (groups > 1 || groups >= net->n_experts))
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: experts in groups (%s is %" PRId64 ")",
                            net->model->path, key, groups);
    return status;
}

/* The shared expert's width; by default the dense one for those that always have it. */
static allot_status read_shared(struct net *net, int64_t n_ff_dense, struct allot_error *err)
{
    allot_status status;
    int64_t given = 0;
    char key[128];
    if (net->n_experts == 0 || !(has(net, ARCH_SHARED) || has(net, ARCH_SHARED_GATED)))
        return ALLOT_OK;
    arch_key(net, "expert_shared_feed_forward_length", key);
    bool none = gguf_model_i64(net->model, key, &given) && given == 0;
    if (!none && (status = read_count(net, "expert_shared_feed_forward_length", INT32_MAX, 0, &given, err)) !=
                     ALLOT_OK)
        return status;
    net->n_ff_shared = given > 0 || !has(net, ARCH_SHARED_GATED) ? given : n_ff_dense;
    if (net->n_ff_shared == 0 && has(net, ARCH_SHARED_GATED))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata %s is 0", net->model->path, key);
    return ALLOT_OK;
}

static allot_status read_scaling_type(struct net *net, struct allot_error *err)
{
    char key[128];
    char *type = gguf_model_str(net->model, arch_key(net, "rope.scaling.type", key));
    static const char *const known[] = {"linear", "none", "yarn", "longrope"};
    allot_status status = ALLOT_ERR_UNSUPPORTED;
    if (type == NULL)
        return ALLOT_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(type, known[i]) == 0) {
            net->rope_scaling = (enum rope_scaling)i;
            status = ALLOT_OK;
        }
    if (status != ALLOT_OK)
        allot_fail(err, status, "%s: rope scaling \"%s\" is not supported (supported: %s, %s, %s, %s)",
                   net->model->path, type, known[0], known[1], known[2], known[3]);
    free(type);
    return status;
}

/* Rotary embedding (llama-context.cpp, llama_context::llama_context; ggml_rope_yarn_corr_dims). */
static allot_status read_rope(struct net *net, struct allot_error *err)
{
    const struct gguf_model *model = net->model;
    double base = 0, factor = 0, linear = 0, magnitude = 1;
    char key[128];
    allot_status status = read_count(net, "rope.dimension_count", MAX_WIDTH, net->head_dim, &net->n_rot, err);
    if (status == ALLOT_OK)
        status = read_real(net, "rope.freq_base", 10000.0, &base, err);
    if (status == ALLOT_OK)
        status = read_real(net, "rope.scaling.factor", 0.0, &factor, err);
    if (status == ALLOT_OK)
        status = read_real(net, "rope.scale_linear", 0.0, &linear, err);
    if (status == ALLOT_OK)
        status = read_real(net, "rope.scaling.attn_factor", 1.0, &magnitude, err);
    if (status == ALLOT_OK)
        status = read_count(net, "rope.scaling.original_context_length", UINT32_MAX, net->n_ctx_trained,
                            &net->n_ctx_original, err);
    if (status == ALLOT_OK)
        status = read_scaling_type(net, err);
    if (status != ALLOT_OK)
        return status;
    if (net->n_rot > net->head_dim || net->n_rot % 2 != 0 || base <= 0 ||
        (net->n_rot != net->head_dim && !has(net, ARCH_ROPE_PARTIAL)))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: rotary embedding over %" PRId64 " of %" PRId64 " channels with base %g",
                          model->path, net->n_rot, net->head_dim, base);
    if (gguf_model_kv(model, arch_key(net, "rope.scaling.factor", key)) == NULL)
        factor = linear;
    bool scaled = factor > 0 && net->rope_scaling != ROPE_SCALING_NONE;
    net->ropes[NET_ROPE_PLAIN] = (struct net_rope){base, scaled ? 1.0 / factor : 1.0};
    /* libllama takes the scaling "none" of the others only */
    net->ropes[NET_ROPE_WINDOWED] = (struct net_rope){base, factor > 0 ? 1.0 / factor : 1.0};
    net->rope_magnitude = magnitude;
    if (net->rope_scaling == ROPE_SCALING_YARN && scaled && factor < 1)
        net->rope_magnitude /= 1.0 + 0.1 * log(factor);
    return ALLOT_OK;
}

/* Settings that libllama obeys and this network does not have. */
static allot_status refuse_settings(const struct net *net, struct allot_error *err)
{
    static const struct {
        const char *suffix;
        enum { HEAD_DIM, N_ROT } must_be;
    } twins[] = {{"attention.key_length_swa", HEAD_DIM},
                 {"attention.value_length_swa", HEAD_DIM},
                 {"rope.dimension_count_swa", N_ROT}};
    bool causal = true;
    int64_t value;
    char key[128];
    if (gguf_model_bool(net->model, arch_key(net, "attention.causal", key), &causal) && !causal)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: attention that is not causal is not supported",
                          net->model->path);
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++) {
        int64_t wanted = twins[i].must_be == HEAD_DIM ? net->head_dim : net->n_rot;
        if (gguf_model_i64(net->model, arch_key(net, twins[i].suffix, key), &value) && value != wanted)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: %s of %" PRId64 " is not supported",
                              net->model->path, key, value);
    }
    if (gguf_model_kv(net->model, arch_key(net, "rope.dimension_sections", key)) != NULL ||
        gguf_model_kv(net->model, arch_key(net, "deepstack_mapping", key)) != NULL)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: %s is not supported", net->model->path, key);
    if (gguf_model_i64(net->model, arch_key(net, "nextn_predict_layers", key), &value) && value > 0)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: layers that predict further tokens (%s)",
                          net->model->path, key);
    return ALLOT_OK;
}

static allot_status allocate_layers(struct net *net, struct allot_error *err)
{
    if (net->n_layers > net->model->n_tensors)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %" PRId64 " layers but %" PRId64 " tensors",
                          net->model->path, net->n_layers, net->model->n_tensors);
    net->layers = calloc((size_t)net->n_layers, sizeof *net->layers);
    if (net->layers == NULL)
        return allot_fail_memory(err, (size_t)net->n_layers * sizeof *net->layers, "the layers");
    return ALLOT_OK;
}

allot_status read_hyperparameters(struct net *net, struct allot_error *err)
{
    double eps;
    int64_t n_ff_dense = 0;
    net->logit_scale = net->embd_scale = net->residual_scale = 1;
    allot_status status = find_architecture(net, err);
    if (status == ALLOT_OK)
        status = read_count(net, "context_length", UINT32_MAX, -1, &net->n_ctx_trained,
                            err); /* libllama insists */
    if (status == ALLOT_OK)
        status = read_count(net, "block_count", MAX_LAYERS, -1, &net->n_layers, err);
    if (status == ALLOT_OK)
        status = allocate_layers(net, err);
    if (status == ALLOT_OK)
        status = read_ff(net, "feed_forward_length", has(net, ARCH_EXPERT_WIDTH) ? 0 : -1, &net->n_ff, err);
    if (status == ALLOT_OK)
        status = read_count(net, "embedding_length", MAX_WIDTH, -1, &net->n_embd, err);
    if (status == ALLOT_OK)
        status = read_heads(net, err);
    n_ff_dense = net->n_ff;
    if (status == ALLOT_OK)
        status = read_experts(net, err);
    if (status == ALLOT_OK)
        status = read_shared(net, n_ff_dense, err);
    if (status == ALLOT_OK && net->n_ff < 1)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: no width of the feed-forward parts is given",
                            net->model->path);
    if (status == ALLOT_OK)
        status = read_real(net, "attention.layer_norm_rms_epsilon", -1, &eps, err);
    if (status == ALLOT_OK)
        status = read_rope(net, err);
    if (status == ALLOT_OK)
        status = refuse_settings(net, err);
    if (status == ALLOT_OK && net->arch->read != NULL)
        status = net->arch->read(net, err);
    if (status == ALLOT_OK &&
        (!isfinite(net->attn_scale) || net->attn_scale <= 0 || net->ropes[NET_ROPE_WINDOWED].base <= 0))
        status = allot_fail(err, ALLOT_ERR_FORMAT,
                            "%s: attention scores times %g, rotary embedding of windowed layers with base %g",
                            net->model->path, (double)net->attn_scale, net->ropes[NET_ROPE_WINDOWED].base);
    if (status == ALLOT_OK)
        net->rms_eps = (float)eps;
    return status;
}
