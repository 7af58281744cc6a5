/* test_quantize.c - whole files equal llama-quantize's, byte for byte.  SPDX-License-Identifier: MIT */
#include "quant/fixture.h"

static uint64_t seed;
static struct pool *pool;

/* A job and the same for the stock tool. */
struct comparison {
    const char *model_path;
    struct gguf_model *model;
    enum ggml_type *asked; /* by the rules; the job gets the fallbacks */
    enum ggml_type *types;
    const float **importances; /* all NULL: without an imatrix */
    uint32_t n_entries;
};

static struct comparison open_comparison(const char *model_path)
{
    struct comparison c = {.model_path = model_path, .model = open_model(model_path)};
    const size_t n = (size_t)c.model->n_tensors;
    c.asked = calloc(n, sizeof *c.asked);
    c.types = calloc(n, sizeof *c.types);
    c.importances = calloc(n, sizeof *c.importances);
    assert_true(c.asked && c.types && c.importances);
    for (size_t i = 0; i < n; i++)
        c.types[i] = c.asked[i] = c.model->tensors[i].type;
    return c;
}

static void close_comparison(struct comparison *c)
{
    free_importances(c->importances, c->model->n_tensors);
    free(c->asked);
    free(c->types);
    gguf_model_close(c->model);
}

static void add_imatrix(struct comparison *c)
{
    c->n_entries = write_fixture_imatrix(in_folder("imatrix.gguf"), c->model, seed, c->importances);
}

static void ask(struct comparison *c, int64_t i, enum ggml_type type)
{
    const int64_t n_per_row = c->model->tensors[i].ne[0];
    /* The stock tool has no fallback for these two and stops. */
    if ((type == GGML_TYPE_Q1_0 || type == GGML_TYPE_NVFP4) && !quant_type_fits(type, n_per_row))
        type = GGML_TYPE_F16;
    c->asked[i] = type;
    c->types[i] = quant_type_fallback(type, n_per_row);
}

static allot_status run_ours(const struct comparison *c, struct pool *with, const char *out,
                             struct quantize_result *result, struct allot_error *err)
{
    const struct quantize_key keys[] = {
        {.key = "quantize.imatrix.file", .str = in_folder("imatrix.gguf")},
        {.key = "quantize.imatrix.dataset", .str = "words.txt"},
        {.key = "quantize.imatrix.entries_count", .u32 = c->n_entries},
        {.key = "quantize.imatrix.chunks_count", .u32 = 3},
    };
    const struct quantize_job job = {
        .model = c->model,
        .types = c->types,
        .imatrix = c->importances,
        .file_type = 7,
        .keys = keys,
        .n_keys = c->n_entries ? 4 : 0,
        .out_path = out,
        .identity = "test",
    };
    int64_t expected_size;
    allot_status status = quantize_file_size(&job, &expected_size, err);
    if (!status)
        status = quantize_write(&job, with, result, NULL, err);
    if (!status)
        assert_int_equal(result->file_bytes, expected_size);
    return status;
}

static bool run_stock(const struct comparison *c, const char *out)
{
    write_recipe(in_folder("recipe.txt"), c->model, c->asked);
    const char *args[16] = {"--allow-requantize", "--tensor-type-file", in_folder("recipe.txt")};
    int n = 3;
    if (c->n_entries) {
        args[n++] = "--imatrix";
        args[n++] = in_folder("imatrix.gguf");
    }
    args[n++] = c->model_path;
    args[n++] = out;
    args[n++] = "Q8_0";
    args[n++] = "2";
    return stock_quantize(args);
}

static void compare_with_stock(const struct comparison *c)
{
    struct quantize_result result = {0};
    struct allot_error err;
    const char *ours = in_folder("ours.gguf"), *stock = in_folder("stock.gguf");
    if (!run_stock(c, stock)) {
        print_stock_log();
        fail_msg("llama-quantize failed");
    }
    if (run_ours(c, pool, ours, &result, &err))
        fail_msg("%s", err.message);
    assert_same_files(ours, stock);
    assert_int_equal(result.floored_tensors, 0);
    assert_int_equal(result.resumed_tensors, 0);
    assert_false(exists(in_folder("ours.gguf.allot-partial")));
}

/* Types whose search grid takes ggml seconds to build, in every process. */
static bool builds_large_grid(enum ggml_type type)
{
    return type == GGML_TYPE_IQ1_S || type == GGML_TYPE_IQ1_M || type == GGML_TYPE_IQ2_XXS ||
           type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S;
}

static const enum ggml_type sources[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16};

/* Each type over all tensors, with and without an imatrix, from each float type. */
static void every_type_equals_stock(void **state)
{
    (void)state;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t s = 0; s < 2 * sizeof sources / sizeof sources[0]; s++) {
        write_fixture_model(in_folder("model.gguf"), sources[s / 2], seed);
        struct comparison c = open_comparison(in_folder("model.gguf"));
        if (s % 2)
            add_imatrix(&c);
        for (size_t k = 0; k < n; k++) {
            if (builds_large_grid(types[k].type) || (types[k].needs_imatrix && !c.n_entries))
                continue;
            for (int64_t i = 0; i < c.model->n_tensors; i++)
                if (gguf_tensor_quantizable(&c.model->tensors[i]))
                    ask(&c, i, types[k].type);
            compare_with_stock(&c);
        }
        close_comparison(&c);
    }
}

static void types_with_large_grids_equal_stock(void **state)
{
    (void)state;
    static const enum ggml_type types[] = {GGML_TYPE_IQ1_S, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_S,
                                           GGML_TYPE_IQ2_XS, GGML_TYPE_IQ1_M};
    write_fixture_model(in_folder("model.gguf"), GGML_TYPE_BF16, seed);
    struct comparison c = open_comparison(in_folder("model.gguf"));
    add_imatrix(&c);
    int next = 0;
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (gguf_tensor_quantizable(&c.model->tensors[i]) && c.model->tensors[i].ne[0] % 256 == 0)
            ask(&c, i, types[next++ % 5]);
    assert_true(next >= 5);
    compare_with_stock(&c);
    close_comparison(&c);
}

/* Token embeddings and output need no imatrix for the types that otherwise do. */
static void embeddings_are_exempt_from_the_imatrix(void **state)
{
    (void)state;
    write_fixture_model(in_folder("model.gguf"), GGML_TYPE_F16, seed);
    struct comparison c = open_comparison(in_folder("model.gguf"));
    struct quantize_result result;
    struct allot_error err;
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (strstr(c.model->tensors[i].name, "token_embd") ||
            strcmp(c.model->tensors[i].name, "output.weight") == 0)
            ask(&c, i, GGML_TYPE_IQ3_XXS);
    compare_with_stock(&c);

    /* Elsewhere both refuse. */
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (strstr(c.model->tensors[i].name, "attn_q"))
            ask(&c, i, GGML_TYPE_IQ3_XXS);
    assert_false(run_stock(&c, in_folder("stock.gguf")));
    assert_int_equal(run_ours(&c, pool, in_folder("refused.gguf"), &result, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "blk.0.attn_q.weight"));
    assert_false(exists(in_folder("refused.gguf")) || exists(in_folder("refused.gguf.allot-partial")));
    close_comparison(&c);
}

static void quantized_sources_equal_stock(void **state)
{
    (void)state;
    static const enum ggml_type from[] = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_1, GGML_TYPE_Q6_K};
    static const enum ggml_type to[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_F16};
    for (size_t k = 0; k < sizeof from / sizeof from[0]; k++) {
        write_fixture_model(in_folder("model.gguf"), from[k], seed);
        struct comparison c = open_comparison(in_folder("model.gguf"));
        int next = 0;
        for (int64_t i = 0; i < c.model->n_tensors; i++)
            if (gguf_tensor_quantizable(&c.model->tensors[i]))
                ask(&c, i, to[next++ % 4]); /* Q8_0 to Q8_0: copied */
        compare_with_stock(&c);
        close_comparison(&c);
    }
}

/* A trained model with its tokenizer and one type after the other. */
static void trained_model_equals_stock(void **state)
{
    (void)state;
    size_t n, next = 0;
    const struct quant_type *types = quant_types(&n);
    struct comparison c = open_comparison(TEST_DATA_DIR "/tiny-llama-bf16.gguf");
    add_imatrix(&c);
    for (int64_t i = 0; i < c.model->n_tensors; i++) {
        if (!gguf_tensor_quantizable(&c.model->tensors[i]))
            continue;
        while (builds_large_grid(types[next % n].type))
            next++;
        ask(&c, i, types[next++ % n].type);
    }
    compare_with_stock(&c);
    close_comparison(&c);
}

/* Three shards in, one file out, without split.* keys. */
static void shards_are_joined_as_stock_does(void **state)
{
    (void)state;
    struct ggml_init_params params = {.mem_size = 16 << 20};
    for (int shard = 0; shard < 3; shard++) {
        struct ggml_context *ctx = ggml_init(params);
        struct gguf_context *gguf = gguf_init_empty();
        char name[64];
        snprintf(name, sizeof name, "part-%05d-of-00003.gguf", shard + 1);
        if (shard == 0) {
            gguf_set_val_str(gguf, "general.architecture", "llama");
            gguf_set_val_u32(gguf, "llama.context_length", 128);
            gguf_set_val_u32(gguf, "llama.embedding_length", 256);
            gguf_set_val_u32(gguf, "llama.block_count", 11);
            gguf_set_val_u32(gguf, "llama.feed_forward_length", 256);
            gguf_set_val_u32(gguf, "llama.attention.head_count", 4);
            gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
            gguf_set_val_u32(gguf, "llama.vocab_size", 40);
        }
        gguf_set_val_u16(gguf, "split.no", (uint16_t)shard);
        gguf_set_val_u16(gguf, "split.count", 3);
        gguf_set_val_i32(gguf, "split.tensors.count", N_FIXTURE_TENSORS);
        for (int i = shard; i < N_FIXTURE_TENSORS; i += 3)
            add_fixture_tensor(gguf, ctx, &fixture_tensors[i], GGML_TYPE_F16, seed + (uint64_t)i);
        assert_true(gguf_write_to_file(gguf, in_folder(name), false));
        gguf_free(gguf);
        ggml_free(ctx);
    }
    struct comparison c = open_comparison(in_folder("part-00001-of-00003.gguf"));
    assert_int_equal(c.model->n_tensors, N_FIXTURE_TENSORS);
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (gguf_tensor_quantizable(&c.model->tensors[i]))
            ask(&c, i, GGML_TYPE_Q5_K);
    compare_with_stock(&c);

    struct gguf_model *joined = open_model(in_folder("ours.gguf"));
    assert_null(gguf_model_kv(joined, "split.count"));
    gguf_model_close(joined);

    /* No shard may be the output, not even through a link. */
    struct quantize_result result;
    struct allot_error err;
    assert_int_equal(symlink("part-00002-of-00003.gguf", in_folder("link.gguf")), 0);
    assert_int_equal(run_ours(&c, pool, in_folder("link.gguf"), &result, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "part-00002-of-00003.gguf"));
    close_comparison(&c);
}

/* A layout alignment other than 32 is not carried over: the output is readable. */
static void other_alignments_are_dropped(void **state)
{
    (void)state;
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 16 << 20});
    struct gguf_context *gguf = gguf_init_empty();
    struct quantize_result result;
    struct allot_error err;
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_u32(gguf, "general.alignment", 32);
    for (int i = 0; i < N_FIXTURE_TENSORS; i++)
        add_fixture_tensor(gguf, ctx, &fixture_tensors[i], GGML_TYPE_F16, seed);
    const int64_t key = gguf_find_key(gguf, "general.alignment");
    assert_true(key >= 0 && gguf_write_to_file(gguf, in_folder("aligned.gguf"), false));
    gguf_free(gguf);
    ggml_free(ctx);
    struct comparison c = open_comparison(in_folder("aligned.gguf"));
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (gguf_tensor_quantizable(&c.model->tensors[i]))
            ask(&c, i, GGML_TYPE_Q4_0);
    if (run_ours(&c, pool, in_folder("out.gguf"), &result, &err))
        fail_msg("%s", err.message);
    struct gguf_model *plain = open_model(in_folder("out.gguf"));
    assert_non_null(gguf_model_kv(plain, "general.alignment"));
    gguf_model_close(plain);

    /* As if the same file had been read with another alignment. */
    c.model->alignment = 64;
    if (run_ours(&c, pool, in_folder("out.gguf"), &result, &err))
        fail_msg("%s", err.message);
    struct gguf_model *written = open_model(in_folder("out.gguf"));
    assert_null(gguf_model_kv(written, "general.alignment"));
    gguf_model_close(written);
    close_comparison(&c);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    static const int n_threads[] = {1, 2, 3, 64};
    char first[65] = "";
    write_fixture_model(in_folder("model.gguf"), GGML_TYPE_F16, seed);
    struct comparison c = open_comparison(in_folder("model.gguf"));
    add_imatrix(&c);
    for (int64_t i = 0; i < c.model->n_tensors; i++)
        if (gguf_tensor_quantizable(&c.model->tensors[i]))
            ask(&c, i, i % 2 ? GGML_TYPE_Q3_K : GGML_TYPE_Q5_1);
    for (size_t k = 0; k < sizeof n_threads / sizeof n_threads[0]; k++) {
        struct quantize_result result;
        struct allot_error err;
        struct pool *other;
        assert_int_equal(pool_new(&other, n_threads[k], &err), ALLOT_OK);
        if (run_ours(&c, other, in_folder("threads.gguf"), &result, &err))
            fail_msg("%s", err.message);
        pool_free(other);
        assert_int_equal(strlen(result.sha256), 64);
        if (first[0])
            assert_string_equal(result.sha256, first);
        memcpy(first, result.sha256, sizeof first);
    }
    struct gguf_model *written = open_model(in_folder("threads.gguf"));
    char sha256[65];
    struct allot_error err;
    assert_int_equal(gguf_model_sha256(written, sha256, NULL, &err), ALLOT_OK);
    assert_string_equal(sha256, first);
    gguf_model_close(written);
    close_comparison(&c);
}

static int start(void **state)
{
    struct allot_error err;
    return make_folder(state) || pool_new(&pool, 2, &err) ? -1 : 0;
}

static int finish(void **state)
{
    pool_free(pool);
    return remove_folder(state);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_equals_stock),
        cmocka_unit_test(types_with_large_grids_equal_stock),
        cmocka_unit_test(embeddings_are_exempt_from_the_imatrix),
        cmocka_unit_test(quantized_sources_equal_stock),
        cmocka_unit_test(trained_model_equals_stock),
        cmocka_unit_test(shards_are_joined_as_stock_does),
        cmocka_unit_test(other_alignments_are_dropped),
        cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
