/* test_writer.c - headers against ggml's own writer and against a file made by llama-quantize.
 * SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include "base/file.h"
#include "ggml.h"
#include "gguf.h"
#include "gguf/writer.h"

static struct synth synth;

static void expect_same_bytes(const struct strbuf *sb, const struct gguf_context *ctx)
{
    size_t n = gguf_get_meta_size(ctx);
    void *expected = malloc(n);
    assert_non_null(expected);
    gguf_get_meta_data(ctx, expected);
    assert_int_equal(sb->len, n);
    assert_memory_equal(sb->data, expected, n);
    free(expected);
}

/* The same steps on both: set, set again, removed. */
static void change_keys(struct gguf_context *ctx, struct gguf_header *h)
{
    const char *strings[] = {"", "two", "drei"};
    gguf_set_val_u32(ctx, "k.u16", 70000); /* moves to the end, with another type */
    gguf_header_set_u32(h, "k.u16", 70000);
    gguf_set_val_str(ctx, "new.text", "Grüße");
    gguf_header_set_str(h, "new.text", "Grüße");
    gguf_set_arr_str(ctx, "new.list", strings, 3);
    gguf_header_set_strs(h, "new.list", strings, 3);
    gguf_set_arr_str(ctx, "new.none", strings, 0);
    gguf_header_set_strs(h, "new.none", NULL, 0);
    gguf_remove_key(ctx, "general.architecture"); /* first, middle, absent, last */
    gguf_header_remove(h, "general.architecture");
    gguf_remove_key(ctx, "k.f64");
    gguf_header_remove(h, "k.f64");
    gguf_remove_key(ctx, "absent");
    gguf_header_remove(h, "absent");
    gguf_remove_key(ctx, "new.none");
    gguf_header_remove(h, "new.none");
}

/* Both headers are built in the same steps: keys of every type copied, set, set again and removed; tensors of
 * several types with trailing dimensions of 1. */
static void test_against_ggml(void **state)
{
    static const struct {
        const char *name;
        int64_t ne[4];
        enum ggml_type type;
    } tensors[] = {
        {"token_embd.weight", {256, 3, 1, 1}, GGML_TYPE_Q4_K},
        {"blk.0.norm.weight", {5, 1, 1, 1}, GGML_TYPE_F32},
        {"blk.0.exps.weight", {32, 3, 7, 1}, GGML_TYPE_Q5_1},
        {"odd", {1, 1, 3, 1}, GGML_TYPE_F16},
        {"four", {2, 1, 1, 2}, GGML_TYPE_BF16},
        {"one", {1, 1, 1, 1}, GGML_TYPE_F32},
    };
    const size_t n = sizeof tensors / sizeof *tensors;
    struct gguf_header h = {0};
    struct strbuf sb = {0};
    struct allot_error err;
    struct gguf_model *model;
    int64_t offsets[8], file_size;
    char path[64];
    int fd = synth_memfd(path);
    (void)state;

    synth_model(&synth, 3);
    synth_patch(&synth, "k.bool.value", "\7", 1);      /* true, but not 1 */
    synth_patch(&synth, "a.bool.values", "\0\xff", 2); /* false, true */
    synth_fill(fd, synth.data, synth.n);
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
    struct gguf_context *source =
        gguf_init_from_buffer(synth.data, synth.n, (struct gguf_init_params){.no_alloc = true});
    struct gguf_context *ctx = gguf_init_empty();
    assert_non_null(source);

    gguf_set_kv(ctx, source);
    for (int64_t i = 0; i < model->n_kv; i++)
        gguf_header_copy_kv(&h, &model->kv[i]);
    change_keys(ctx, &h);
    assert_int_equal(gguf_header_encode(&h, &sb, NULL, &file_size, &err), ALLOT_OK);
    expect_same_bytes(&sb, ctx); /* without tensors */
    assert_int_equal(file_size, sb.len);

    struct ggml_context *storage =
        ggml_init((struct ggml_init_params){.mem_size = 2 * n * ggml_tensor_overhead(), .no_alloc = true});
    for (size_t i = 0; i < n; i++) {
        struct ggml_tensor *t = ggml_new_tensor(storage, tensors[i].type, 4, tensors[i].ne);
        ggml_set_name(t, tensors[i].name);
        gguf_add_tensor(ctx, t);
        gguf_header_add_tensor(&h, tensors[i].name, tensors[i].ne, tensors[i].type);
    }
    strbuf_release(&sb);
    assert_int_equal(gguf_header_encode(&h, &sb, offsets, &file_size, &err), ALLOT_OK);
    expect_same_bytes(&sb, ctx);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(offsets[i], gguf_get_meta_size(ctx) + gguf_get_tensor_offset(ctx, (int64_t)i));
    assert_int_equal(file_size, offsets[n - 1] + GGUF_WRITER_ALIGNMENT); /* "one" is padded too */

    ggml_free(storage);
    gguf_free(source);
    gguf_free(ctx);
    gguf_header_release(&h);
    strbuf_release(&sb);
    gguf_model_close(model);
    close(fd);
}

/* The key general.alignment follows the layout, which is always 32. */
static void test_other_alignment(void **state)
{
    static const uint64_t ne[] = {8};
    const int64_t ne4[] = {8, 1, 1, 1};
    struct gguf_header h = {0};
    struct strbuf sb = {0};
    struct allot_error err;
    struct gguf_model *model;
    int64_t offset, file_size;
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    synth_start(&synth, 3, 2, 1);
    synth_kv_u32(&synth, "general.alignment", 64);
    synth_tensor(&synth, "a", 1, ne, 0, 0);
    synth_tensor(&synth, "b", 1, ne, 0, 64);
    synth_pad(&synth, 64);
    synth_data(&synth, 128);
    synth_fill(fd, synth.data, synth.n);
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
    assert_int_equal(model->alignment, 64);
    gguf_header_copy_kv(&h, &model->kv[0]);
    gguf_header_add_tensor(&h, "a", ne4, GGML_TYPE_F32);
    gguf_model_close(model);

    assert_int_equal(gguf_header_encode(&h, &sb, &offset, &file_size, &err), ALLOT_OK);
    assert_true(offset + 32 == file_size);
    synth_fill(fd, sb.data, sb.len);
    assert_int_equal(ftruncate(fd, file_size), 0);
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
    assert_int_equal(model->alignment, 32);
    assert_true(model->tensors[0].file_offset == offset);
    gguf_model_close(model);
    gguf_header_release(&h);
    strbuf_release(&sb);
    close(fd);
}

/* A header rewritten as llama-quantize does it has that program's bytes, and the same file size. */
static void test_against_llama_quantize(void **state)
{
    struct gguf_header h = {0};
    struct strbuf sb = {0};
    struct allot_error err;
    struct gguf_model *source, *quantized;
    struct file_map map;
    char *folder = synth_folder(), path[4200], command[12000];
    const char *input = TEST_DATA_DIR "/tiny-llama-bf16.gguf";
    int64_t file_type, file_size, *offsets;
    (void)state;
    snprintf(path, sizeof path, "%.4000s/out.gguf", folder);
    snprintf(command, sizeof command, "'%s/llama-quantize' '%s' '%s' Q4_K_M 2 > '%.4000s/log' 2>&1",
             STOCK_TOOLS_DIR, input, path, folder);
    if (system(command) != 0)
        fail_msg("failed: %s", command);
    assert_int_equal(gguf_model_open(&source, input, &err), ALLOT_OK);
    assert_int_equal(gguf_model_open(&quantized, path, &err), ALLOT_OK);
    assert_int_equal(file_map_open(&map, path, &err), ALLOT_OK);
    assert_true(gguf_model_i64(quantized, "general.file_type", &file_type));

    for (int64_t i = 0; i < source->n_kv; i++)
        gguf_header_copy_kv(&h, &source->kv[i]);
    gguf_header_set_u32(&h, "general.quantization_version", 2);
    gguf_header_set_u32(&h, "general.file_type", (uint32_t)file_type);
    for (int64_t i = 0; i < source->n_tensors; i++) {
        const struct gguf_tensor *t = &source->tensors[i], *q = gguf_model_tensor(quantized, t->name);
        assert_non_null(q);
        gguf_header_add_tensor(&h, t->name, t->ne, q->type);
        /* It changes the types of quantizable tensors only, and here of all of them. */
        assert_int_equal(q->type != t->type, gguf_tensor_quantizable(t));
    }
    offsets = malloc(h.n_tensors * sizeof *offsets);
    assert_non_null(offsets);
    assert_int_equal(gguf_header_encode(&h, &sb, offsets, &file_size, &err), ALLOT_OK);
    assert_int_equal(file_size, map.size);
    assert_memory_equal(sb.data, map.data, sb.len);
    for (int64_t i = 0; i < source->n_tensors; i++)
        assert_true(offsets[i] == gguf_model_tensor(quantized, source->tensors[i].name)->file_offset);

    free(offsets);
    gguf_header_release(&h);
    strbuf_release(&sb);
    file_map_close(&map);
    gguf_model_close(source);
    gguf_model_close(quantized);
    unlink(path);
    snprintf(path, sizeof path, "%.4000s/log", folder);
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
    free(folder);
}

static void test_impossible_tensors(void **state)
{
    static const struct {
        const char *name;
        int64_t ne[4];
        int type;
        const char *message;
    } rows[] = {
        {"", {32, 1, 1, 1}, 0, "1 to 63 bytes"},
        {"a123456789012345678901234567890123456789012345678901234567890123",
         {32, 1, 1, 1},
         0,
         "1 to 63 bytes"},
        {"b", {0, 1, 1, 1}, 0, "tensor 'b' has an impossible shape"},
        {"b", {32, -1, 1, 1}, 0, "tensor 'b' has an impossible shape"},
        {"b", {INT64_MAX, 2, 1, 1}, 0, "tensor 'b' has an impossible shape"},
        {"b", {INT64_MAX / 2, 1, 1, 1}, 0, "tensor 'b' is too large"},
        {"b", {32, 1, 1, 1}, 4, "tensor 'b' has unknown ggml type 4"},
        {"b", {32, 1, 1, 1}, -1, "tensor 'b' has unknown ggml type -1"},
        {"b", {32, 1, 1, 1}, GGML_TYPE_COUNT, "tensor 'b' has unknown ggml type 43"},
        {"b", {32, 1, 1, 1}, GGML_TYPE_Q4_K, "not a multiple of q4_K's block of 256"},
        {"first", {32, 1, 1, 1}, 0, "tensor 'first' would be written twice"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t ne[] = {32, 1, 1, 1};
        struct gguf_header h = {0};
        struct strbuf sb = {0};
        struct allot_error err;
        int64_t file_size;
        gguf_header_add_tensor(&h, "first", ne, GGML_TYPE_F32);
        gguf_header_add_tensor(&h, rows[i].name, rows[i].ne, (enum ggml_type)rows[i].type);
        assert_int_equal(gguf_header_encode(&h, &sb, NULL, &file_size, &err), ALLOT_ERR_ARGUMENT);
        if (!strstr(err.message, rows[i].message))
            fail_msg("\"%s\" does not say \"%s\"", err.message, rows[i].message);
        gguf_header_release(&h);
        strbuf_release(&sb);
    }
}

static void test_padded(void **state)
{
    (void)state;
    assert_true(gguf_padded(0) == 0 && gguf_padded(1) == 32 && gguf_padded(32) == 32 &&
                gguf_padded(33) == 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_ggml),
        cmocka_unit_test(test_other_alignment),
        cmocka_unit_test(test_against_llama_quantize),
        cmocka_unit_test(test_impossible_tensors),
        cmocka_unit_test(test_padded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
