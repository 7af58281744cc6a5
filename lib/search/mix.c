/* mix.c - what a mix of llama-quantize gives to a model's tensors.  SPDX-License-Identifier: MIT */
#include "search/mix.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "gguf.h"
#include "quant/quant.h"
#include "search/mix_rules.h"

/* ---- Names -------------------------------------------------------------------------------------------- */

#define NAME(name, type) #name,
static const char *const names[N_MIXES] = {MIX_LIST(NAME)};
#undef NAME

static const struct {
    const char *name;
    enum mix_id mix;
} aliases[] = {{"Q3_K", MIX_Q3_K_M}, {"Q4_K", MIX_Q4_K_M}, {"Q5_K", MIX_Q5_K_M}};

size_t mix_count(void)
{
    return N_MIXES;
}

const char *mix_name(size_t index)
{
    return names[index];
}

/* N_MIXES if there is none. */
static enum mix_id find(const char *name)
{
    int i = 0;
    for (size_t k = 0; k < sizeof aliases / sizeof *aliases; k++)
        if (strcasecmp(aliases[k].name, name) == 0)
            return aliases[k].mix;
    while (i < N_MIXES && strcasecmp(names[i], name) != 0)
        i++;
    return (enum mix_id)i;
}

const char *mix_find(const char *name)
{
    const enum mix_id mix = find(name);
    return mix == N_MIXES ? NULL : names[mix];
}

static allot_status unknown_mix(const char *name, struct allot_error *err)
{
    struct strbuf list = {0};
    for (size_t i = 0; i < N_MIXES; i++)
        strbuf_addf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    allot_status status = strbuf_check(&list, err);
    if (status == ALLOT_OK)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "unknown mix '%.60s'; llama-quantize has %s", name,
                            list.data);
    strbuf_release(&list);
    return status;
}

/* ---- The model ---------------------------------------------------------------------------------------- */

/* How many tensors of a role there are, or came before. */
struct counts {
    int64_t values, downs, gates, ups;
};

/* What is known of a model, and how far a walk through its tensors has come. */
struct walk {
    const struct gguf_model *model;
    enum mix_id mix;
    unsigned conditions; /* those that do not depend on the tensor */
    int64_t n_layers, n_experts, n_values;
    bool tied;          /* no output.weight */
    bool latent_stacks; /* not only experts' matrices are stacked */
    struct counts before;
};

/* A number of 32 bits, or the first of a list of them, one per layer; the fallback if there is none. */
static int64_t number(const struct gguf_model *model, const char *arch, const char *suffix, int64_t fallback)
{
    char key[128];
    struct gguf_array list;
    int64_t value;
    uint32_t first;
    snprintf(key, sizeof key, "%.60s.%s", arch, suffix);
    if (!gguf_model_array(model, key, &list))
        return gguf_model_i64(model, key, &value) && value >= 0 && value <= UINT32_MAX ? value : fallback;
    if (list.n < 1 || (list.type != GGUF_TYPE_UINT32 && list.type != GGUF_TYPE_INT32))
        return fallback;
    memcpy(&first, list.data, sizeof first);
    return first;
}

/* Does libllama take it for a model of 70 billion parameters? */
static bool is_70b(const char *arch, int64_t n_layers, int64_t n_heads, int64_t n_kv_heads)
{
    static const struct {
        const char *arch;
        int64_t n_layers;
        bool grouped; /* only if heads share keys and values */
    } sizes[] = {{"llama", 80, true}, {"llama-embed", 80, true}, {"qwen2", 80, false},
                 {"deci", 80, false}, {"olmo", 80, false},       {"jais2", 68, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(arch, sizes[i].arch) == 0)
            return n_layers == sizes[i].n_layers && (!sizes[i].grouped || n_heads != n_kv_heads);
    return false;
}

static void read_numbers(struct walk *walk, const char *arch, bool has_imatrix)
{
    const struct gguf_model *model = walk->model;
    const int64_t n_blocks = number(model, arch, "block_count", 0);
    const int64_t n_own = n_blocks - number(model, arch, "nextn_predict_layers", 0);
    const int64_t n_loops = number(model, arch, "num_loops", 1);
    const int64_t n_heads = number(model, arch, "attention.head_count", 0);
    const int64_t n_kv_heads = number(model, arch, "attention.head_count_kv", n_heads);

    walk->n_layers = n_blocks;
    walk->n_experts = number(model, arch, "expert_count", 0);
    if (strcmp(arch, "nanbeige") == 0 && n_loops > 1) /* each pass through the same layers counts */
        walk->n_layers = n_loops <= INT32_MAX && n_own <= INT32_MAX ? n_own * n_loops : 0;
    if (strcmp(arch, "graniteswitch") == 0) /* a layer without weights is put behind the others */
        walk->n_layers = n_own + 1;
    walk->latent_stacks = strcmp(arch, "bailingmoe3") == 0;
    walk->conditions =
        (n_kv_heads > 0 && n_heads / n_kv_heads >= 4 ? GQA_4 : 0) | (walk->n_experts >= 4 ? EXPERTS_4 : 0) |
        (walk->n_experts == 8 ? EXPERTS_8 : 0) | (is_70b(arch, n_own, n_heads, n_kv_heads) ? SIZE_70B : 0) |
        (strcmp(arch, "falcon") == 0 ? FALCON : NOT_FALCON) | (has_imatrix ? IMATRIX : NO_IMATRIX);
}

static enum mix_role role_of(const char *name, bool tied)
{
    static const struct {
        const char *part; /* of the name */
        enum mix_role role;
    } parts[] = {
        {"attn_qkv.weight", VALUE},
        {"attn_kv_b.weight", VALUE},
        {"attn_v.weight", VALUE},
        {"attn_k.weight", KEY},
        {"attn_q.weight", QUERY},
        {"attn_output.weight", ATTENTION_OUT},
        {"ffn_up", UP},
        {"ffn_gate", GATE},
        {"ffn_down", DOWN},
    };
    if (strcmp(name, "output.weight") == 0)
        return OUTPUT;
    if (strcmp(name, "token_embd.weight") == 0 || strcmp(name, "per_layer_token_embd.weight") == 0)
        return tied ? OUTPUT : EMBEDDING;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i].part))
            return parts[i].role;
    return OTHER;
}

static allot_status start(struct walk *walk, bool has_imatrix, struct allot_error *err)
{
    enum { MOST_LAYERS = 512 }; /* libllama's own limit */
    const struct gguf_model *model = walk->model;
    allot_status status = ALLOT_OK;
    char *arch = gguf_model_str(model, "general.architecture");
    if (!arch)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata general.architecture is missing: not a model",
                          model->path);
    walk->tied = gguf_model_tensor(model, "output.weight") == NULL;
    read_numbers(walk, arch, has_imatrix);
    for (int64_t i = 0; i < model->n_tensors; i++)
        walk->n_values += role_of(model->tensors[i].name, walk->tied) == VALUE;
    if (walk->n_layers < 1 || walk->n_layers > MOST_LAYERS)
        status = allot_fail(err, ALLOT_ERR_FORMAT,
                            "%s: metadata %.60s.block_count is missing or tells no number of layers from 1 "
                            "to %d",
                            model->path, arch, MOST_LAYERS);
    free(arch);
    return status;
}

/* ---- Its tensors -------------------------------------------------------------------------------------- */

static int64_t *count_of(struct counts *counts, enum mix_role role)
{
    switch (role) {
    case VALUE:
        return &counts->values;
    case DOWN:
        return &counts->downs;
    case GATE:
        return &counts->gates;
    case UP:
        return &counts->ups;
    default:
        return NULL;
    }
}

/* The layer that rules go by. llama-quantize counts tensors as they come; but the feed-forward parts of
 * models with experts, which may have many of a kind in a layer, go by their names - with the smallest types
 * they do not - and one outside the layers makes it stop. */
static allot_status find_layer(int64_t *layer, struct walk *walk, const struct gguf_tensor *tensor,
                               enum mix_role role, struct allot_error *err)
{
    int64_t *count = count_of(&walk->before, role);
    *layer = count ? (*count)++ : 0;
    if (!(role & FEED_FORWARD) || walk->n_experts < 2 || !mix_reads_layers(walk->mix))
        return ALLOT_OK;
    if (tensor->layer < 0 || tensor->layer >= walk->n_layers)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: tensor %s is in none of the %" PRId64
                          " layers: llama-quantize makes no %s of such a model with experts",
                          walk->model->path, tensor->name, walk->n_layers, names[walk->mix]);
    *layer = tensor->layer;
    return ALLOT_OK;
}

/* llama-quantize's fallback for rows that are no whole blocks, or its refusal where it has none. */
static allot_status fit(enum ggml_type *type, const struct walk *walk, const struct gguf_tensor *tensor,
                        struct allot_error *err)
{
    const struct quant_type *wanted = quant_type_find(*type);
    if (wanted->block > 32 && wanted->fallback == GGML_TYPE_F16 && !quant_type_fits(*type, tensor->ne[0]))
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED,
                          "%s: llama-quantize makes no %s of it: the rows of tensor %s are %" PRId64
                          " long, blocks of %s %d",
                          walk->model->path, names[walk->mix], tensor->name, tensor->ne[0], wanted->name,
                          wanted->block);
    *type = quant_type_fallback(*type, tensor->ne[0]);
    return ALLOT_OK;
}

static allot_status next_type(enum ggml_type *type, struct walk *walk, const struct gguf_tensor *tensor,
                              struct allot_error *err)
{
    const enum ggml_type own = mix_own_type(walk->mix);
    const bool kept = own == GGML_TYPE_COUNT || !gguf_tensor_quantizable(tensor);
    *type = kept ? tensor->type : own;
    if (kept || !ggml_is_quantized(own))
        return ALLOT_OK;

    const enum mix_role role = role_of(tensor->name, walk->tied);
    const bool stacked = tensor->ne[2] > 1 && (!walk->latent_stacks || (role & FEED_FORWARD));
    const unsigned conditions =
        walk->conditions | (quant_type_fits(own, tensor->ne[0]) ? 0 : UNEVEN) | (stacked ? STACKED : 0);
    int64_t layer;
    allot_status status = find_layer(&layer, walk, tensor, role, err);
    if (status != ALLOT_OK)
        return status;
    *type =
        mix_rule_type(walk->mix, role, conditions, layer, role == VALUE ? walk->n_values : walk->n_layers);
    return fit(type, walk, tensor, err);
}

allot_status mix_types(enum ggml_type *types, const struct gguf_model *model, const char *mix,
                       bool has_imatrix, struct allot_error *err)
{
    const enum mix_id id = find(mix);
    struct walk walk = {.model = model, .mix = id};
    if (id == N_MIXES)
        return unknown_mix(mix, err);
    allot_status status = start(&walk, has_imatrix, err);
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++)
        status = next_type(&types[i], &walk, &model->tensors[i], err);
    return status;
}

bool mix_needs_imatrix(const char *mix, enum ggml_type type, const char *tensor_name)
{
    if (find(mix) == MIX_Q2_K_S && type == GGML_TYPE_Q2_K)
        return quant_name_needs_imatrix(tensor_name);
    return quant_type_needs_imatrix(type, tensor_name);
}
