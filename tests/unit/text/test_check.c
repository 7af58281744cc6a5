/* test_check.c - models that libllama would abort on are refused.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "gguf.h"
#include "text/check.h"
#include "text/load.h"
#include "tiny.h"

static char path[300];

/* ---- Copies of the tiny model with little in them -------------------------------------------------- */

enum kind { U32, REAL, LIST, SCALING };
static const char *const scalings[] = {"spiral", "yarn"};

/* What one entry of the metadata is set to. */
struct setting {
    const char *key;
    enum kind kind;
    double number; /* LIST: the number for layer 0; all others have 2. SCALING: which of them */
};

static void set(struct gguf_context *metadata, const struct setting *setting)
{
    uint32_t list[6] = {(uint32_t)setting->number, 2, 2, 2, 2, 2};
    if (setting->key == NULL)
        return;
    if (setting->kind == U32)
        gguf_set_val_u32(metadata, setting->key, (uint32_t)setting->number);
    else if (setting->kind == REAL)
        gguf_set_val_f32(metadata, setting->key, (float)setting->number);
    else if (setting->kind == SCALING)
        gguf_set_val_str(metadata, setting->key, scalings[(int)setting->number]);
    else
        gguf_set_arr_data(metadata, setting->key, GGUF_TYPE_UINT32, list, 6);
}

/* Adds tensors of 256 values a row, all zero; a vector has no rows. */
static void add_matrix(struct gguf_context *metadata, struct ggml_context *tensors, const char *name,
                       enum ggml_type type, int64_t n_rows)
{
    const int64_t shape[] = {256, n_rows};
    struct ggml_tensor *tensor = ggml_new_tensor(tensors, type, n_rows > 0 ? 2 : 1, shape);
    memset(tensor->data, 0, ggml_nbytes(tensor));
    ggml_set_name(tensor, name);
    gguf_add_tensor(metadata, tensor);
}

static void add_tensor(struct gguf_context *metadata, struct ggml_context *tensors, const char *name,
                       enum ggml_type type, int n_dims)
{
    add_matrix(metadata, tensors, name, type, n_dims == 2 ? 2 : 0);
}

static struct ggml_context *tensor_space(void)
{
    return ggml_init((struct ggml_init_params){.mem_size = 1 << 20});
}

/* Writes the copy, frees both and opens it as allot does. */
static struct gguf_model *write_and_open(struct gguf_context *metadata, struct ggml_context *tensors)
{
    struct gguf_model *model = NULL;
    struct allot_error err = {0};
    assert_true(gguf_write_to_file(metadata, path, false));
    gguf_free(metadata);
    ggml_free(tensors);
    if (gguf_model_open(&model, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return model;
}

static void assert_verdict(allot_status status, const struct allot_error *err, const char *complaint)
{
    if (complaint == NULL && status != ALLOT_OK)
        fail_msg("refused: %s", err->message);
    if (complaint != NULL && status == ALLOT_OK)
        fail_msg("not refused: \"%s\" was to be said", complaint);
    if (complaint == NULL)
        return;
    if (strstr(err->message, complaint) == NULL || strstr(err->message, path) == NULL)
        fail_msg("\"%s\" does not say \"%s\" of %s", err->message, complaint, path);
    assert_null(strchr(err->message, '\n'));
}

/* ---- Hyperparameters ------------------------------------------------------------------------------- */

#define HEADS "llama.attention.head_count"
#define KV_HEADS "llama.attention.head_count_kv"
#define RMS_EPS "llama.attention.layer_norm_rms_epsilon"

static const struct {
    struct setting first, second;
    const char *complaint; /* NULL: none */
    bool recurrent;        /* layer 0 has a tensor of recurrent layers too */
    int64_t fused_rows;    /* above 0: of its attn_qkv, in the place of attn_q */
} hyperparameters[] = {
    {.complaint = NULL}, /* the tiny model as it is: 6 layers, 4 heads, 2 of keys and values */
    {{"llama.block_count", U32, 0}, .complaint = "llama.block_count is 0"},
    {{"llama.block_count", U32, 512}, .complaint = NULL},
    {{"llama.block_count", U32, 513}, .complaint = "llama.block_count is 513"},
    {{"llama.block_count", U32, 4294967295}, .complaint = "llama.block_count is 4294967295"},
    {{"llama.nextn_predict_layers", U32, 7}, .complaint = "llama.nextn_predict_layers is 7"},
    {{"llama.context_length", U32, 0}, .complaint = "llama.context_length is 0"},
    {{"llama.context_length", U32, 4294967295}, .complaint = NULL},
    {{"llama.embedding_length", U32, 0}, .complaint = "llama.embedding_length is 0"},
    {{"llama.embedding_length", U32, 257}, .complaint = "257 is not a multiple of the 4 heads of layer 0"},
    {{HEADS, U32, 0}, .complaint = "layer 0 0 heads for 2 key/value heads"},
    {{HEADS, U32, 3}, .complaint = "layer 0 3 heads for 2 key/value heads"},
    {{KV_HEADS, U32, 0}, .complaint = "layer 0 4 heads for 0 key/value heads"},
    {{KV_HEADS, U32, 3}, .complaint = "layer 0 4 heads for 3 key/value heads"},
    {{KV_HEADS, U32, 8}, .complaint = "layer 0 4 heads for 8 key/value heads"},
    {{KV_HEADS, LIST, 4}, .complaint = NULL},
    {{KV_HEADS, LIST, 0}, .complaint = "layer 0 4 heads for 0 key/value heads"},
    {{KV_HEADS, LIST, 0}, .recurrent = true, .complaint = NULL},
    {{HEADS, U32, 256},
     {"llama.rope.dimension_count", U32, 1},
     .complaint = "heads of 1 channels, 1 of them"},
    {{"llama.rope.dimension_count", U32, 63}, .complaint = "heads of 64 channels, 63 of them"},
    {{"llama.rope.dimension_count", U32, 66}, .complaint = "heads of 64 channels, 66 of them"},
    {{"llama.attention.key_length", U32, 96}, {HEADS, U32, 6}, .complaint = NULL},
    {{HEADS, U32, 4}, .fused_rows = 512, .complaint = NULL}, /* 4 + 2 + 2 heads of 64 */
    {{HEADS, U32, 4}, .fused_rows = 768, .complaint = NULL}, /* 4 + 4 + 4 */
    {{HEADS, U32, 2},
     .fused_rows = 512,
     .complaint = "has not the rows of 2 heads and 2 key/value heads of 128"},
    {{KV_HEADS, LIST, 4},
     .fused_rows = 512,
     .complaint = "has not the rows of 4 heads and 4 key/value heads"},
    {{"llama.attention.sliding_window", U32, 16},
     {"llama.attention.sliding_window_pattern", U32, 2},
     .complaint = NULL},
    {{"llama.attention.sliding_window", U32, 16},
     {"llama.attention.sliding_window_pattern", U32, 1},
     .complaint = "llama.attention.sliding_window_pattern is 1"},
    {{"llama.attention.sliding_window_pattern", U32, 1}, .complaint = NULL},
    {{"llama.rope.scaling.type", SCALING, 0}, .complaint = "scaling.type is \"spiral\""},
    {{"llama.rope.scaling.type", SCALING, 1}, .complaint = NULL},
    {{RMS_EPS, REAL, NAN}, .complaint = RMS_EPS " is nan"},
    {{RMS_EPS, REAL, INFINITY}, .complaint = RMS_EPS " is inf"},
    {{RMS_EPS, REAL, -1e-5}, .complaint = RMS_EPS " is -1e-05"},
    {{RMS_EPS, REAL, 0}, .complaint = NULL},
    {{"llama.attention.layer_norm_epsilon", REAL, -1}, .complaint = "layer_norm_epsilon is -1"},
    {{"llama.rope.freq_base", REAL, NAN}, .complaint = "llama.rope.freq_base is nan"},
    {{"llama.expert_count", U32, 1025}, .complaint = "llama.expert_count is 1025"},
    {{"llama.expert_count", U32, 4}, .complaint = "expert_used_count is 0 and expert_count 4"},
    {{"llama.expert_count", U32, 2},
     {"llama.expert_used_count", U32, 9},
     .complaint = "expert_used_count is 9 and expert_count 2"},
    {{"llama.expert_count", U32, 4}, {"llama.expert_used_count", LIST, 4}, .complaint = NULL},
    {{"llama.expert_count", U32, 4},
     {"llama.expert_used_count", LIST, 5},
     .complaint = "expert_used_count is 5 and expert_count 4"},
    {{"llama.expert_group_count", U32, 2}, .complaint = "2 groups for 0 experts"},
};

static void test_hyperparameters(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof hyperparameters / sizeof *hyperparameters; r++) {
        struct gguf_context *metadata = tiny_metadata();
        struct ggml_context *tensors = tensor_space();
        set(metadata, &hyperparameters[r].first);
        set(metadata, &hyperparameters[r].second);
        if (hyperparameters[r].fused_rows > 0)
            add_matrix(metadata, tensors, "blk.0.attn_qkv.weight", GGML_TYPE_BF16,
                       hyperparameters[r].fused_rows);
        else
            add_tensor(metadata, tensors, "blk.0.attn_q.weight", GGML_TYPE_BF16, 2);
        if (hyperparameters[r].recurrent)
            add_tensor(metadata, tensors, "blk.0.ssm_conv1d.weight", GGML_TYPE_F32, 2);
        struct gguf_model *model = write_and_open(metadata, tensors);
        struct allot_error err = {0};
        assert_verdict(check_hyperparameters(model, &err), &err, hyperparameters[r].complaint);
        gguf_model_close(model);
    }
}

/* ---- Types of tensors ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    enum ggml_type type;
    int n_dims;
    const char *complaint;
} tensor_types[] = {
    {"blk.0.attn_q.weight", GGML_TYPE_F32, 2, NULL},
    {"blk.0.attn_q.weight", GGML_TYPE_F16, 2, NULL},
    {"blk.0.attn_q.weight", GGML_TYPE_BF16, 2, NULL},
    {"blk.0.attn_q.weight", GGML_TYPE_Q4_K, 2, NULL},
    {"token_embd.weight", GGML_TYPE_IQ2_XXS, 2, NULL},
    {"blk.0.attn_q.weight", GGML_TYPE_I8, 2, "tensor blk.0.attn_q.weight has type i8"},
    {"blk.0.attn_q.weight", GGML_TYPE_I16, 2, "has type i16"},
    {"blk.0.attn_q.weight", GGML_TYPE_I32, 2, "has type i32"},
    {"blk.0.attn_q.weight", GGML_TYPE_I64, 2, "has type i64"},
    {"blk.0.attn_q.weight", GGML_TYPE_F64, 2, "has type f64"},
    {"blk.0.attn_q.weight", GGML_TYPE_Q8_1, 2, "has type q8_1"},
    {"token_embd.weight", GGML_TYPE_Q8_K, 2, "tensor token_embd.weight has type q8_K"},
    {"output_norm.weight", GGML_TYPE_F32, 1, NULL},
    {"output_norm.weight", GGML_TYPE_F16, 1, "tensor output_norm.weight has type f16"},
    {"output_norm.weight", GGML_TYPE_I32, 1, "has type i32"},
    {"blk.0.attn_q_norm.weight", GGML_TYPE_BF16, 2, "has type bf16"},
    {"blk.0.ffn_up_exps.bias", GGML_TYPE_Q8_0, 2, "has type q8_0"},
    {"rope_freqs.weight", GGML_TYPE_F32, 1, NULL},
    {"rope_freqs.weight", GGML_TYPE_BF16, 1, "tensor rope_freqs.weight has type bf16"},
    {"rope_freqs.weight", GGML_TYPE_BF16, 2, "tensor rope_freqs.weight has type bf16"},
};

static void test_tensor_types(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof tensor_types / sizeof *tensor_types; r++) {
        struct gguf_context *metadata = tiny_metadata();
        struct ggml_context *tensors = tensor_space();
        add_tensor(metadata, tensors, tensor_types[r].name, tensor_types[r].type, tensor_types[r].n_dims);
        struct gguf_model *model = write_and_open(metadata, tensors);
        struct allot_error err = {0};
        assert_verdict(check_tensor_types(model, &err), &err, tensor_types[r].complaint);
        gguf_model_close(model);
    }
}

/* ---- Where they are asked -------------------------------------------------------------------------- */

/* Loading asks both; a vocabulary has neither layers nor weights to ask about. */
static void test_loading_checks(void **state)
{
    (void)state;
    static const struct {
        struct setting setting;
        enum ggml_type type;
        const char *complaint;
    } rows[] = {
        {{"llama.block_count", U32, 0}, GGML_TYPE_BF16, "llama.block_count is 0"},
        {{.key = NULL}, GGML_TYPE_I8, "has type i8"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct gguf_context *metadata = tiny_metadata();
        struct ggml_context *tensors = tensor_space();
        set(metadata, &rows[r].setting);
        add_tensor(metadata, tensors, "blk.0.attn_q.weight", rows[r].type, 2);
        gguf_model_close(write_and_open(metadata, tensors));
        struct llama_model *model;
        struct allot_error err = {0};
        assert_verdict(text_llama_load(&model, path, TEXT_LOAD_MODEL, &err), &err, rows[r].complaint);
        assert_null(model);
        assert_verdict(text_llama_load(&model, path, TEXT_LOAD_VOCABULARY, &err), &err, NULL);
        llama_model_free(model);
    }
}

static int start(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/changed.gguf", folder);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    remove(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hyperparameters),
        cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_loading_checks),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
