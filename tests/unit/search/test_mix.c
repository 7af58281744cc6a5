/* test_mix.c - names of mixes, and what they cannot be made of. What types they give is
 * tests/conform/mix.sh's. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "folder.h"
#include "gguf.h"
#include "search/mix.h"

/* ---- Names -------------------------------------------------------------------------------------------- */

static void every_name_finds_its_mix(void **state)
{
    (void)state;
    assert_true(mix_count() > 30);
    for (size_t i = 0; i < mix_count(); i++) {
        char lower[32];
        size_t n = 0;
        for (const char *c = mix_name(i); *c; c++)
            lower[n++] = (char)tolower(*c);
        lower[n] = '\0';
        assert_string_equal(mix_find(mix_name(i)), mix_name(i));
        assert_string_equal(mix_find(lower), mix_name(i));
        for (size_t k = 0; k < i; k++)
            assert_true(strcasecmp(mix_name(k), mix_name(i)) != 0);
    }
}

static void aliases_and_strangers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *mix;
    } rows[] = {
        {"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"},    {"q5_k", "Q5_K_M"}, {"q6_k", "Q6_K"}, {"copy", "COPY"},
        {"", NULL},         {"Q4", NULL},          {"Q4_K_", NULL},    {"15", NULL},     {"Q8_K", NULL},
        {"NVFP4", NULL},    {"Q4_K_M,Q6_K", NULL}, {" Q4_K", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *found = mix_find(rows[i].name);
        if (rows[i].mix == NULL)
            assert_null(found);
        else
            assert_string_equal(found, rows[i].mix);
    }
}

static void importances_are_needed_by_type_tensor_and_mix(void **state)
{
    (void)state;
    static const char map[] = "blk.0.attn_q.weight", embedding[] = "token_embd.weight";
    assert_true(mix_needs_imatrix("IQ3_XXS", GGML_TYPE_IQ3_XXS, map));
    assert_true(mix_needs_imatrix("Q4_K_M", GGML_TYPE_IQ2_S, map));
    assert_false(mix_needs_imatrix("IQ3_XXS", GGML_TYPE_IQ3_XXS, embedding));
    assert_true(mix_needs_imatrix("q2_k_s", GGML_TYPE_Q2_K, map));
    assert_false(mix_needs_imatrix("Q2_K_S", GGML_TYPE_Q2_K, embedding));
    assert_false(mix_needs_imatrix("Q2_K_S", GGML_TYPE_Q4_K, map));
    assert_false(mix_needs_imatrix("Q2_K", GGML_TYPE_Q2_K, map));
}

/* ---- Models ------------------------------------------------------------------------------------------- */

/* Of one tensor of two rows; set adds metadata. */
static struct gguf_model *open_model(void (*set)(struct gguf_context *file), const char *tensor,
                                     int64_t width)
{
    const char *path = in_folder("model.gguf");
    struct gguf_model *model = NULL;
    struct allot_error err;
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){.mem_size = 1 << 20, .mem_buffer = NULL, .no_alloc = false});
    struct gguf_context *file = gguf_init_empty();
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, GGML_TYPE_BF16, width, 2);
    memset(t->data, 0, ggml_nbytes(t));
    ggml_set_name(t, tensor);
    gguf_add_tensor(file, t);
    set(file);
    assert_true(gguf_write_to_file(file, path, false));
    gguf_free(file);
    ggml_free(ctx);
    if (gguf_model_open(&model, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return model;
}

static void set_nothing(struct gguf_context *file)
{
    (void)file;
}

static void set_arch(struct gguf_context *file)
{
    gguf_set_val_str(file, "general.architecture", "llama");
}

static void set_layers(struct gguf_context *file)
{
    set_arch(file);
    gguf_set_val_u32(file, "llama.block_count", 2);
}

static void set_no_layers(struct gguf_context *file)
{
    set_arch(file);
    gguf_set_val_u32(file, "llama.block_count", 0);
}

static void set_negative_layers(struct gguf_context *file)
{
    set_arch(file);
    gguf_set_val_i64(file, "llama.block_count", -2);
}

static void set_too_many_layers(struct gguf_context *file)
{
    set_arch(file);
    gguf_set_val_u64(file, "llama.block_count", UINT64_MAX);
}

static void set_layers_in_words(struct gguf_context *file)
{
    set_arch(file);
    gguf_set_val_str(file, "llama.block_count", "two");
}

static void set_loops_without_end(struct gguf_context *file)
{
    gguf_set_val_str(file, "general.architecture", "nanbeige");
    gguf_set_val_u32(file, "nanbeige.block_count", UINT32_MAX);
    gguf_set_val_u32(file, "nanbeige.num_loops", UINT32_MAX);
}

static void set_strange_heads(struct gguf_context *file)
{
    const float heads = 8.0f;
    set_layers(file);
    gguf_set_arr_data(file, "llama.attention.head_count", GGUF_TYPE_FLOAT32, &heads, 1);
    gguf_set_arr_data(file, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, &heads, 0);
}

static void set_experts(struct gguf_context *file)
{
    set_layers(file);
    gguf_set_val_u32(file, "llama.expert_count", 4);
}

static void what_no_mix_is_made_of(void **state)
{
    (void)state;
    static const struct {
        void (*set)(struct gguf_context *file);
        const char *tensor;
        int64_t width;
        const char *mix;
        allot_status expected;
        const char *said; /* in the message */
    } rows[] = {
        {set_layers, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_OK, NULL},
        {set_layers, "blk.0.ffn_up.weight", 256, "Q4_X", ALLOT_ERR_ARGUMENT, "unknown mix 'Q4_X'"},
        {set_layers, "blk.0.ffn_up.weight", 256, "", ALLOT_ERR_ARGUMENT, "Q4_K_S, Q4_K_M"},
        {set_nothing, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "general.architecture"},
        {set_arch, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "llama.block_count"},
        {set_no_layers, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "llama.block_count"},
        {set_negative_layers, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "llama.block_count"},
        {set_too_many_layers, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "from 1 to 512"},
        {set_layers_in_words, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "llama.block_count"},
        {set_loops_without_end, "blk.0.ffn_up.weight", 256, "Q4_K_M", ALLOT_ERR_FORMAT, "block_count"},
        {set_strange_heads, "blk.0.attn_v.weight", 256, "Q2_K", ALLOT_OK, NULL},
        {set_layers, "blk.0.ffn_up.weight", 160, "Q1_0", ALLOT_ERR_UNSUPPORTED,
         "blk.0.ffn_up.weight are 160"},
        {set_layers, "blk.0.ffn_up.weight", 160, "Q2_0", ALLOT_OK, NULL},
        {set_layers, "blk.0.norm", 160, "Q1_0", ALLOT_OK, NULL}, /* kept */
        {set_experts, "blk.1.ffn_up.weight", 256, "Q4_0", ALLOT_OK, NULL},
        {set_experts, "blk.2.ffn_up.weight", 256, "Q4_0", ALLOT_ERR_UNSUPPORTED, "blk.2.ffn_up.weight"},
        {set_experts, "mtp.ffn_down.weight", 256, "Q6_K", ALLOT_ERR_UNSUPPORTED, "mtp.ffn_down.weight"},
        {set_experts, "mtp.ffn_down.weight", 256, "IQ2_M", ALLOT_OK, NULL},
        {set_experts, "mtp.ffn_down.weight", 256, "F16", ALLOT_OK, NULL},
        {set_layers, "mtp.ffn_down.weight", 256, "Q6_K", ALLOT_OK, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct allot_error err = {0};
        enum ggml_type type;
        struct gguf_model *model = open_model(rows[i].set, rows[i].tensor, rows[i].width);
        const allot_status status = mix_types(&type, model, rows[i].mix, false, &err);
        if (status != rows[i].expected || (rows[i].said && !strstr(err.message, rows[i].said)))
            fail_msg("row %zu: status %d, %s", i, (int)status, err.message);
        if (status != ALLOT_OK && status != ALLOT_ERR_ARGUMENT)
            assert_non_null(strstr(err.message, model->path));
        gguf_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_finds_its_mix),
        cmocka_unit_test(aliases_and_strangers),
        cmocka_unit_test(importances_are_needed_by_type_tensor_and_mix),
        cmocka_unit_test(what_no_mix_is_made_of),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
