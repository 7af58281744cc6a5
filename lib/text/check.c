/* check.c - what libllama aborts on, found before it sees the file.  SPDX-License-Identifier: MIT */
#include "text/check.h"

#include "base/error.h"
#include "base/strbuf.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tokens ------------------------------------------------------------------------------------- */

/* As libllama takes it: up to the first NUL. */
struct token_text {
    const char *bytes;
    size_t len;
};

static int compare_token_texts(const void *a, const void *b)
{
    const struct token_text *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order != 0)
        return order;
    return x->len < y->len ? -1 : x->len > y->len;
}

/* libllama calls the empty token number N [EMPTY_N]. Is this text such a name, of a token that is empty? */
static bool names_empty_token(const struct token_text *text, const struct token_text *texts, uint64_t n)
{
    char copy[32], name[32];
    unsigned long long id;
    if (text->len >= sizeof copy)
        return false;
    memcpy(copy, text->bytes, text->len);
    copy[text->len] = '\0';
    if (sscanf(copy, "[EMPTY_%19llu]", &id) != 1 || id >= n || texts[id].len != 0)
        return false;
    snprintf(name, sizeof name, "[EMPTY_%llu]", id);
    return strcmp(copy, name) == 0;
}

/* Sorts texts. */
static allot_status check_tokens_differ(struct token_text *texts, uint64_t n, const char *path,
                                        struct allot_error *err)
{
    const struct token_text *twice = NULL;
    for (uint64_t i = 0; i < n && twice == NULL; i++)
        if (names_empty_token(&texts[i], texts, n))
            twice = &texts[i];
    if (twice == NULL)
        qsort(texts, n, sizeof *texts, compare_token_texts);
    for (uint64_t i = 1; i < n && twice == NULL; i++)
        if (texts[i].len > 0 && compare_token_texts(&texts[i - 1], &texts[i]) == 0)
            twice = &texts[i];
    if (twice != NULL)
        return allot_fail(
            err, ALLOT_ERR_FORMAT,
            "%s: tokenizer.ggml.tokens lists the token \"%.*s\" twice (libllama ends tokens at a "
            "NUL and calls the empty one number N [EMPTY_N])",
            path, (int)(twice->len < 64 ? twice->len : 64), twice->bytes);
    return ALLOT_OK;
}

allot_status check_token_list(const struct gguf_model *model, struct allot_error *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    struct gguf_array list;
    if (gguf_model_kv(model, key) == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: has no tokenizer (no %s)", model->path, key);
    if (!gguf_model_array(model, key, &list) || list.type != GGUF_TYPE_STRING)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s is not a list of strings", model->path, key);
    if (list.n < 1 || list.n > INT32_MAX)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s has %" PRId64 " tokens", model->path, key, list.n);
    size_t n = (size_t)list.n;
    struct token_text *texts = malloc(n * sizeof *texts);
    if (texts == NULL)
        return allot_fail_memory(err, n * sizeof *texts, "the list of tokens");
    const uint8_t *at = list.data;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = gguf_array_next_string(&at, &len);
        texts[i] = (struct token_text){bytes, strnlen(bytes, len)};
    }
    allot_status status = check_tokens_differ(texts, n, model->path, err);
    free(texts);
    return status;
}

/* ---- Hyperparameters ---------------------------------------------------------------------------- */

enum { MAX_LAYERS = 512, MAX_EXPERTS = 1024 }; /* libllama's */

struct hparams {
    const struct gguf_model *model;
    const char *arch;
    int64_t n_layers;
};

static const char *key_of(const struct hparams *hparams, const char *suffix, char key[static 192])
{
    snprintf(key, 192, "%.120s.%s", hparams->arch, suffix);
    return key;
}

/* The number under ARCH.suffix, or the one for a layer if there is a list of one per layer. */
static int64_t read_number(const struct hparams *hparams, const char *suffix, int64_t layer, int64_t fallback)
{
    char key[192];
    int64_t value;
    struct gguf_array list;
    if (!gguf_model_array(hparams->model, key_of(hparams, suffix, key), &list))
        return gguf_model_i64(hparams->model, key, &value) ? value : fallback;
    if ((list.type != GGUF_TYPE_UINT32 && list.type != GGUF_TYPE_INT32) || list.n != hparams->n_layers)
        return fallback;
    uint32_t element;
    memcpy(&element, list.data + (size_t)layer * sizeof element, sizeof element);
    return element;
}

static allot_status check_range(const struct hparams *hparams, const char *suffix, int64_t low, int64_t high,
                                struct allot_error *err)
{
    char key[192];
    int64_t value = read_number(hparams, suffix, 0, low);
    if (value < low || value > high)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s is %" PRId64 ", not a whole number from %" PRId64 " to %" PRId64,
                          hparams->model->path, key_of(hparams, suffix, key), value, low, high);
    return ALLOT_OK;
}

/* Has the layer projections that heads share? Recurrent layers (they have tensors ssm_...) and those without
 * attention may have no heads. */
static bool has_attention(const struct gguf_model *model, int64_t layer)
{
    bool attention = false;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        if (tensor->layer != layer)
            continue;
        const char *role = strchr(tensor->name + strlen("blk."), '.') + 1;
        if (strncmp(role, "ssm_", strlen("ssm_")) == 0)
            return false;
        attention = attention || strcmp(role, "attn_q.weight") == 0 || strcmp(role, "attn_k.weight") == 0 ||
                    strcmp(role, "attn_qkv.weight") == 0;
    }
    return attention;
}

/* Queries, keys and values in one tensor: libllama takes the heads out of it unasked. Linear attention has as
 * many keys and values as queries. */
static bool fused_rows_fit(const struct hparams *hparams, int64_t layer, int64_t heads, int64_t kv_heads,
                           int64_t key_length)
{
    char name[64];
    int64_t value_length = read_number(hparams, "attention.value_length", 0, key_length);
    snprintf(name, sizeof name, "blk.%" PRId64 ".attn_qkv.weight", layer);
    const struct gguf_tensor *t = gguf_model_tensor(hparams->model, name);
    return t == NULL || t->ne[1] == heads * key_length + kv_heads * (key_length + value_length) ||
           t->ne[1] == 3 * heads * key_length;
}

static allot_status check_heads(const struct hparams *hparams, int64_t layer, struct allot_error *err)
{
    const char *path = hparams->model->path;
    int64_t heads = read_number(hparams, "attention.head_count", layer, 0);
    int64_t kv_heads = read_number(hparams, "attention.head_count_kv", layer, heads);
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s.attention.head_count and head_count_kv give layer %" PRId64
                          " %" PRId64 " heads for %" PRId64 " key/value heads",
                          path, hparams->arch, layer, heads, kv_heads);
    int64_t width = read_number(hparams, "embedding_length", 0, 0);
    int64_t key_length = read_number(hparams, "attention.key_length", 0, 0);
    if (key_length == 0 && width % heads != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s.embedding_length of %" PRId64 " is not a multiple of the %" PRId64
                          " heads of layer %" PRId64,
                          path, hparams->arch, width, heads, layer);
    if (key_length == 0)
        key_length = width / heads;
    int64_t n_rot = read_number(hparams, "rope.dimension_count", 0, key_length);
    if (!fused_rows_fit(hparams, layer, heads, kv_heads, key_length))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: tensor blk.%" PRId64 ".attn_qkv.weight has not the rows of %" PRId64
                          " heads and %" PRId64 " key/value heads of %" PRId64 " channels",
                          path, layer, heads, kv_heads, key_length);
    if (key_length < 1 || n_rot < 0 || n_rot > key_length || n_rot % 2 != 0)
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s: heads of %" PRId64 " channels, %" PRId64
                          " of them for the rotary embedding, which takes an even number",
                          path, hparams->arch, key_length, n_rot);
    return ALLOT_OK;
}

static allot_status check_experts(const struct hparams *hparams, struct allot_error *err)
{
    allot_status status = check_range(hparams, "expert_count", 0, MAX_EXPERTS, err);
    if (status != ALLOT_OK)
        return status;
    int64_t n = read_number(hparams, "expert_count", 0, 0), most = 0;
    int64_t groups = read_number(hparams, "expert_group_count", 0, 0);
    int64_t groups_used = read_number(hparams, "expert_group_used_count", 0, 0);
    for (int64_t layer = 0; layer < hparams->n_layers; layer++) {
        int64_t used = read_number(hparams, "expert_used_count", layer, 0);
        most = used > most ? used : most;
    }
    if (most > n || (most == 0 && n > 0))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s.expert_used_count is %" PRId64 " and expert_count %" PRId64,
                          hparams->model->path, hparams->arch, most, n);
    if ((groups > 0 && groups >= n) ||
        (groups > 1 && (n % groups != 0 || groups_used < 1 || groups_used >= groups)))
        return allot_fail(err, ALLOT_ERR_FORMAT,
                          "%s: metadata %s.expert_group_count: %" PRId64 " of %" PRId64 " groups for %" PRId64
                          " experts",
                          hparams->model->path, hparams->arch, groups_used, groups, n);
    return ALLOT_OK;
}

static allot_status check_reals(const struct hparams *hparams, struct allot_error *err)
{
    static const char *const suffixes[] = {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
                                           "attention.group_norm_epsilon", "rope.freq_base",
                                           "rope.scaling.factor"};
    char key[192];
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        double value;
        if (gguf_model_f64(hparams->model, key_of(hparams, suffixes[i], key), &value) &&
            (!isfinite(value) || value < 0))
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: metadata %s is %g, not a finite number >= 0",
                              hparams->model->path, key, value);
    }
    return ALLOT_OK;
}

/* libllama asserts that some layers see a window only, if there is one. */
static allot_status check_windows(const struct hparams *hparams, struct allot_error *err)
{
    char key[192];
    if (read_number(hparams, "attention.sliding_window", 0, 0) > 0 &&
        read_number(hparams, "attention.sliding_window_pattern", 0, 0) == 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: metadata %s is 1: no layer has the sliding window",
                          hparams->model->path, key_of(hparams, "attention.sliding_window_pattern", key));
    return ALLOT_OK;
}

/* libllama asserts that it knows the name. */
static allot_status check_rope_scaling(const struct hparams *hparams, struct allot_error *err)
{
    static const char *const known[] = {"none", "linear", "yarn", "longrope"};
    char key[192];
    char *type = gguf_model_str(hparams->model, key_of(hparams, "rope.scaling.type", key));
    bool ok = type == NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known && !ok; i++)
        ok = strcmp(type, known[i]) == 0;
    allot_status status = ALLOT_OK;
    if (!ok)
        status =
            allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: metadata %s is \"%s\", which libllama does not know",
                       hparams->model->path, key, type);
    free(type);
    return status;
}

allot_status check_hyperparameters(const struct gguf_model *model, struct allot_error *err)
{
    char *arch = gguf_model_str(model, "general.architecture");
    if (arch == NULL) /* libllama says so */
        return ALLOT_OK;
    struct hparams hparams = {.model = model, .arch = arch};
    allot_status status = check_range(&hparams, "block_count", 1, MAX_LAYERS, err);
    if (status == ALLOT_OK)
        hparams.n_layers = read_number(&hparams, "block_count", 0, 1);
    if (status == ALLOT_OK)
        status = check_range(&hparams, "nextn_predict_layers", 0, hparams.n_layers, err);
    if (status == ALLOT_OK)
        status = check_range(&hparams, "context_length", 1, UINT32_MAX, err);
    if (status == ALLOT_OK)
        status = check_range(&hparams, "embedding_length", 1, INT32_MAX, err);
    if (status == ALLOT_OK)
        status = check_experts(&hparams, err);
    if (status == ALLOT_OK)
        status = check_reals(&hparams, err);
    if (status == ALLOT_OK)
        status = check_rope_scaling(&hparams, err);
    if (status == ALLOT_OK)
        status = check_windows(&hparams, err);
    for (int64_t layer = 0; layer < hparams.n_layers && status == ALLOT_OK; layer++)
        if (has_attention(model, layer))
            status = check_heads(&hparams, layer, err);
    free(arch);
    return status;
}

/* ---- Tensors ------------------------------------------------------------------------------------ */

/* Added to or multiplied with activations, which the CPU kernels do in float32 only. */
static bool is_elementwise(const struct gguf_tensor *tensor)
{
    return tensor->n_dims == 1 || str_ends_with(tensor->name, "_norm.weight") ||
           str_ends_with(tensor->name, ".bias") || strncmp(tensor->name, "rope_", strlen("rope_")) == 0;
}

allot_status check_tensor_types(const struct gguf_model *model, struct allot_error *err)
{
    ggml_cpu_init();
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        bool elementwise = is_elementwise(tensor);
        if (elementwise ? tensor->type != GGML_TYPE_F32
                        : ggml_get_type_traits_cpu(tensor->type)->vec_dot == NULL)
            return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s has type %s, and libllama %s",
                              model->path, tensor->name, ggml_type_name(tensor->type),
                              elementwise ? "takes only f32 there" : "cannot multiply with it");
    }
    return ALLOT_OK;
}
