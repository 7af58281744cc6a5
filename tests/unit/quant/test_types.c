/* test_types.c - the table of types against ggml, its CPU backend and llama-quantize.
 * SPDX-License-Identifier: MIT */
#include "quant/fixture.h"

#include <strings.h>

#include "ggml-cpu.h"

static void table_equals_ggml(void **state)
{
    (void)state;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    double last = 0;
    for (size_t i = 0; i < n; i++) {
        const struct quant_type *t = &types[i];
        const struct ggml_type_traits *traits = ggml_get_type_traits(t->type);
        const double bits = 8.0 * t->block_bytes / t->block;
        assert_int_equal(strcasecmp(t->name, ggml_type_name(t->type)), 0);
        for (const char *c = t->name; *c; c++)
            assert_false(*c >= 'a' && *c <= 'z');
        assert_int_equal(t->block, ggml_blck_size(t->type));
        assert_int_equal(t->block_bytes, ggml_type_size(t->type));
        assert_int_equal(t->aborts_without, ggml_quantize_requires_imatrix(t->type));
        assert_true(traits->to_float || t->type == GGML_TYPE_F32);
        assert_true(!t->aborts_without || t->needs_imatrix);
        assert_true(!t->needs_imatrix || t->uses_imatrix);
        assert_true(bits >= last);
        last = bits;
        assert_ptr_equal(quant_type_find(t->type), t);
        assert_ptr_equal(quant_type_by_name(t->name), t);
        assert_ptr_equal(quant_type_by_name(ggml_type_name(t->type)), t);
        assert_non_null(strstr(quant_type_names(), t->name));
        for (int f = 0; f < 2; f++)
            assert_true(t->scale_at[f] < t->block_bytes);
    }
    assert_null(quant_type_by_name("Q6_0"));
    assert_null(quant_type_by_name(""));
    assert_null(quant_type_by_name("Q4_K_M"));
    assert_null(quant_type_find(GGML_TYPE_Q8_1));
    assert_null(quant_type_find(GGML_TYPE_COUNT));
}

/* Every type that ggml can quantize is there, and no other. */
static void table_is_complete(void **state)
{
    (void)state;
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const enum ggml_type type = (enum ggml_type)i;
        const bool is_float = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
        const bool removed = ggml_blck_size(type) == 0;
        const bool for_activations = type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K;
        const bool expected = is_float || (!removed && ggml_is_quantized(type) && !for_activations);
        if (expected != (quant_type_find(type) != NULL))
            fail_msg("%s: expected %d", ggml_type_name(type), expected);
    }
}

/* llama-quantize's exemptions do not help where ggml itself aborts. */
static void importances_are_asked_for_by_name_and_type(void **state)
{
    (void)state;
    static const struct {
        enum ggml_type type;
        const char *name;
        bool expected;
    } rows[] = {
        {GGML_TYPE_IQ3_XXS, "blk.0.attn_q.weight", true},
        {GGML_TYPE_IQ3_XXS, "token_embd.weight", false},
        {GGML_TYPE_IQ3_XXS, "per_layer_token_embd.weight", false},
        {GGML_TYPE_IQ3_XXS, "output.weight", false},
        {GGML_TYPE_IQ3_XXS, "output_norm.weight", true},
        {GGML_TYPE_IQ3_XXS, "blk.0.output.weight", true},
        {GGML_TYPE_IQ1_M, "output.weight", false},
        {GGML_TYPE_IQ2_S, "output.weight", false},
        {GGML_TYPE_IQ1_S, "output.weight", true},
        {GGML_TYPE_IQ2_XXS, "token_embd.weight", true},
        {GGML_TYPE_IQ2_XS, "per_layer_token_embd.weight", true},
        {GGML_TYPE_Q4_K, "blk.0.attn_q.weight", false},
        {GGML_TYPE_Q2_K, "blk.0.attn_q.weight", false},
        {GGML_TYPE_F16, "blk.0.attn_q.weight", false},
        {GGML_TYPE_Q8_K, "blk.0.attn_q.weight", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (quant_type_needs_imatrix(rows[i].type, rows[i].name) != rows[i].expected)
            fail_msg("%s, %s: expected %d", ggml_type_name(rows[i].type), rows[i].name, rows[i].expected);
}

/* A row of random but valid blocks (building ggml's search grids would take seconds). */
static void random_blocks(const struct quant_type *t, uint8_t *row, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks * t->block_bytes; i++)
        row[i] = (uint8_t)rng_u64(21, (uint64_t)i);
    for (int64_t i = 0; i < n_blocks; i++) {
        uint8_t *block = row + i * t->block_bytes;
        for (int f = 0; f < 2; f++) {
            if (t->scale_at[f] >= 0)
                block[t->scale_at[f] + 1] &= 0x3f; /* FP16 below 2 */
        }
        if (t->type == GGML_TYPE_IQ1_M)
            block[55] &= 0x3f; /* the upper nibble of its spread scale */
    }
}

/* The CPU backend multiplies by a matrix of the type, and looks rows up in it. */
static void cpu_backend_runs_every_type(void **state)
{
    (void)state;
    enum { COLUMNS = 512, ROWS = 8 };
    static float x[COLUMNS * ROWS], back[COLUMNS * ROWS];
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (int i = 0; i < COLUMNS * ROWS; i++)
        x[i] = (float)rng_normal(11, (uint64_t)i);
    for (size_t k = 0; k < n; k++) {
        const struct quant_type *t = &types[k];
        struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 8 << 20});
        struct ggml_tensor *w = ggml_new_tensor_2d(ctx, t->type, COLUMNS, ROWS);
        struct ggml_tensor *ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
        struct ggml_tensor *v = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, COLUMNS, 1);
        if (strncmp(t->name, "IQ", 2) == 0)
            random_blocks(t, w->data, COLUMNS * ROWS / t->block);
        else
            assert_int_equal(quant_rows(t->type, x, w->data, ROWS, COLUMNS, NULL), QUANT_OK);
        assert_true(quant_row_valid(t->type, w->data, ggml_nbytes(w)));
        ((int32_t *)ids->data)[0] = ROWS - 2;
        for (int i = 0; i < COLUMNS; i++)
            ((float *)v->data)[i] = (float)rng_normal(12, (uint64_t)i);
        struct ggml_tensor *row = ggml_get_rows(ctx, w, ids), *product = ggml_mul_mat(ctx, w, v);
        struct ggml_cgraph *graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, row);
        ggml_build_forward_expand(graph, product);
        assert_int_equal(ggml_graph_compute_with_ctx(ctx, graph, 1), GGML_STATUS_SUCCESS);

        struct allot_error err;
        assert_int_equal(quant_to_f32(t->type, w->data, back, COLUMNS * ROWS, &err), ALLOT_OK);
        assert_memory_equal(row->data, back + COLUMNS * (ROWS - 2), COLUMNS * sizeof(float));
        for (int r = 0; r < ROWS; r++) {
            double dot = 0, scale = 0;
            for (int i = 0; i < COLUMNS; i++) {
                dot += (double)back[r * COLUMNS + i] * ((float *)v->data)[i];
                scale += fabs((double)back[r * COLUMNS + i] * ((float *)v->data)[i]);
            }
            if (!(fabs(((float *)product->data)[r] - dot) <= 0.02 * scale))
                fail_msg("%s: product %g, expected %g", t->name, (double)((float *)product->data)[r], dot);
        }
        ggml_free(ctx);
    }
}

static void conversion_refuses_what_it_cannot(void **state)
{
    (void)state;
    static const struct {
        enum ggml_type type;
        int64_t n;
        allot_status expected;
    } rows[] = {
        {GGML_TYPE_I32, 4, ALLOT_ERR_UNSUPPORTED},
        {GGML_TYPE_COUNT, 4, ALLOT_ERR_UNSUPPORTED},
        {(enum ggml_type)4, 32, ALLOT_ERR_UNSUPPORTED}, /* removed from ggml */
        {GGML_TYPE_Q4_0, 31, ALLOT_ERR_ARGUMENT},
        {GGML_TYPE_Q4_0, 32, ALLOT_OK},
        {GGML_TYPE_F32, 3, ALLOT_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t bytes[64] = {0};
        float back[64];
        struct allot_error err;
        assert_int_equal(quant_to_f32(rows[i].type, bytes, back, rows[i].n, &err), rows[i].expected);
    }
}

static void shapes_fall_back_as_in_llama_quantize(void **state)
{
    (void)state;
    static const struct {
        enum ggml_type type;
        int64_t n;
        enum ggml_type expected;
    } rows[] = {
        {GGML_TYPE_IQ1_S, 256, GGML_TYPE_IQ1_S},   {GGML_TYPE_IQ1_S, 160, GGML_TYPE_IQ4_NL},
        {GGML_TYPE_IQ1_M, 576, GGML_TYPE_IQ4_NL},  {GGML_TYPE_IQ2_XXS, 96, GGML_TYPE_IQ4_NL},
        {GGML_TYPE_IQ2_XS, 96, GGML_TYPE_IQ4_NL},  {GGML_TYPE_IQ2_S, 96, GGML_TYPE_IQ4_NL},
        {GGML_TYPE_IQ3_XXS, 96, GGML_TYPE_IQ4_NL}, {GGML_TYPE_IQ3_S, 96, GGML_TYPE_IQ4_NL},
        {GGML_TYPE_IQ4_XS, 96, GGML_TYPE_IQ4_NL},  {GGML_TYPE_IQ4_XS, 172, GGML_TYPE_F16},
        {GGML_TYPE_Q2_0, 64, GGML_TYPE_Q2_0},      {GGML_TYPE_Q2_0, 96, GGML_TYPE_Q4_0},
        {GGML_TYPE_Q2_K, 160, GGML_TYPE_Q4_0},     {GGML_TYPE_Q3_K, 160, GGML_TYPE_Q4_0},
        {GGML_TYPE_TQ1_0, 160, GGML_TYPE_Q4_0},    {GGML_TYPE_TQ2_0, 160, GGML_TYPE_Q4_0},
        {GGML_TYPE_Q4_K, 160, GGML_TYPE_Q5_0},     {GGML_TYPE_Q5_K, 160, GGML_TYPE_Q5_1},
        {GGML_TYPE_Q6_K, 160, GGML_TYPE_Q8_0},     {GGML_TYPE_Q6_K, 172, GGML_TYPE_F16},
        {GGML_TYPE_Q4_0, 160, GGML_TYPE_Q4_0},     {GGML_TYPE_Q4_0, 172, GGML_TYPE_F16},
        {GGML_TYPE_MXFP4, 48, GGML_TYPE_F16},      {GGML_TYPE_IQ4_NL, 48, GGML_TYPE_F16},
        {GGML_TYPE_NVFP4, 96, GGML_TYPE_F16},      {GGML_TYPE_Q1_0, 160, GGML_TYPE_F16},
        {GGML_TYPE_F16, 171, GGML_TYPE_F16},       {GGML_TYPE_F32, 1, GGML_TYPE_F32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const enum ggml_type got = quant_type_fallback(rows[i].type, rows[i].n);
        if (got != rows[i].expected)
            fail_msg("%s, %lld: %s instead of %s", ggml_type_name(rows[i].type), (long long)rows[i].n,
                     ggml_type_name(got), ggml_type_name(rows[i].expected));
        assert_int_equal(quant_type_fits(rows[i].type, rows[i].n), rows[i].type == rows[i].expected);
    }
}

/* The type that the stock tool's dry run announced for a tensor; its own type if it would be kept. */
static enum ggml_type announced_type(const char *log, const struct gguf_tensor *t)
{
    char key[128], name[32];
    snprintf(key, sizeof key, "] %s ", t->name);
    const char *line = strstr(log, key);
    if (!line)
        fail_msg("the stock tool did not mention %s", t->name);
    const char *end = strchrnul(line, '\n'), *arrow = strstr(line, " -> ");
    if (!arrow || arrow > end)
        return t->type;
    /* A fallback is announced by a warning without a line end before the size. */
    if (sscanf(strstr(arrow, "MiB ("), "MiB (%31[^)])", name) != 1)
        fail_msg("cannot read: %.*s", (int)(end - line), line);
    const struct quant_type *found = quant_type_by_name(name);
    assert_non_null(found);
    return found->type;
}

/* llama-quantize --pure FTYPE gives whole-block tensors the type, others its fallback; the ftype's name and
 * its number mean the same. The table and the fallback rule, by the stock tool itself. */
static void stock_ftypes_start_from_their_type(void **state)
{
    (void)state;
    const char *model_path = in_folder("model.gguf"), *imatrix_path = in_folder("i.gguf");
    write_fixture_model(model_path, GGML_TYPE_F32, 3);
    struct gguf_model *model = open_model(model_path);
    const float **importances = calloc((size_t)model->n_tensors, sizeof *importances);
    write_fixture_imatrix(imatrix_path, model, 4, importances);
    size_t n, n_text;
    const struct quant_type *types = quant_types(&n);
    for (size_t k = 0; k < 2 * n; k++) {
        const struct quant_type *t = &types[k / 2];
        char number[16];
        if (!t->ftype)
            continue;
        /* Where there is no fallback the stock tool stops at the odd rows. */
        const bool odd_by_rule = t->type == GGML_TYPE_Q1_0;
        write_text(in_folder("odd.txt"),
                   odd_by_rule ? "attn_[kv]|ffn_(down|up)\\.|gate_exps=f16" : "^none$=f16");
        snprintf(number, sizeof number, "%d", (int)t->file_type);
        const char *args[] = {"--dry-run",
                              "--pure",
                              "--imatrix",
                              imatrix_path,
                              "--tensor-type-file",
                              in_folder("odd.txt"),
                              model_path,
                              in_folder("no.gguf"),
                              k % 2 ? number : t->ftype,
                              "2",
                              NULL};
        const bool done = stock_quantize(args);
        if (!done)
            print_stock_log();
        assert_true(done);
        char *log = (char *)read_file(in_folder("stock.log"), &n_text);
        for (int64_t i = 0; i < model->n_tensors; i++) {
            const struct gguf_tensor *m = &model->tensors[i];
            enum ggml_type expected = m->type;
            if (gguf_tensor_quantizable(m))
                expected = quant_type_fallback(t->type, m->ne[0]);
            const enum ggml_type got = announced_type(log, m);
            if (got != expected)
                fail_msg("%s: %s is %s, expected %s", k % 2 ? number : t->ftype, m->name, ggml_type_name(got),
                         ggml_type_name(expected));
        }
        free(log);
    }
    free_importances(importances, model->n_tensors);
    gguf_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_equals_ggml),
        cmocka_unit_test(table_is_complete),
        cmocka_unit_test(importances_are_asked_for_by_name_and_type),
        cmocka_unit_test(cpu_backend_runs_every_type),
        cmocka_unit_test(conversion_refuses_what_it_cannot),
        cmocka_unit_test(shapes_fall_back_as_in_llama_quantize),
        cmocka_unit_test(stock_ftypes_start_from_their_type),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
