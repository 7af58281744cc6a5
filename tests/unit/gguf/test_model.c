/* test_model.c - what the reader says of good files, and the one line it gives for each bad field.
 * SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include "base/hash.h"
#include "ggml.h"
#include "gguf/model.h"

static struct synth synth; /* large: not on the stack */

static struct gguf_model *open_synth(void)
{
    struct gguf_model *model;
    struct allot_error err;
    char path[64];
    int fd = synth_memfd(path);
    synth_fill(fd, synth.data, synth.n);
    if (gguf_model_open(&model, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    close(fd);
    return model;
}

static void test_good_file(void **state)
{
    static const struct {
        const char *name;
        int n_dims, layer;
        int64_t ne[4], n_rows, row_bytes, n_bytes, data_offset;
        enum ggml_type type;
    } expected[] = {
        /* llama.cpp's order: no layer first, then layer 2 before layer 10 */
        {"output.weight", 2, -1, {64, 3, 1, 1}, 3, 36, 108, 0, GGML_TYPE_Q4_0},
        {"blk.2.down.weight", 3, 2, {32, 2, 1, 1}, 2, 64, 128, 192, GGML_TYPE_F16},
        {"blk.2.norm.weight", 1, 2, {5, 1, 1, 1}, 1, 20, 20, 320, GGML_TYPE_F32},
        {"blk.10.up.weight", 2, 10, {8, 2, 1, 1}, 2, 32, 64, 128, GGML_TYPE_F32},
    };
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        synth_model(&synth, version);
        struct gguf_model *model = open_synth();
        assert_int_equal(model->n_shards, 1);
        assert_int_equal(model->n_kv, 18);
        assert_int_equal(model->n_tensors, 4);
        assert_int_equal(model->alignment, 32);
        assert_int_equal(model->total_bytes, synth.n);
        for (int i = 0; i < 4; i++) {
            const struct gguf_tensor *t = &model->tensors[i];
            assert_string_equal(t->name, expected[i].name);
            assert_int_equal(t->n_dims, expected[i].n_dims);
            assert_int_equal(t->layer, expected[i].layer);
            assert_memory_equal(t->ne, expected[i].ne, sizeof t->ne);
            assert_int_equal(t->n_rows, expected[i].n_rows);
            assert_int_equal(t->n_elements, t->n_rows * t->ne[0]);
            assert_int_equal(t->row_bytes, expected[i].row_bytes);
            assert_int_equal(t->n_bytes, expected[i].n_bytes);
            assert_int_equal(t->type, expected[i].type);
            assert_int_equal(t->file_offset, synth_find(&synth, "data") + (size_t)expected[i].data_offset);
            assert_memory_equal(t->data, synth.data + t->file_offset, (size_t)t->n_bytes);
            gguf_tensor_forget(t);
            assert_memory_equal(t->data, synth.data + t->file_offset, (size_t)t->n_bytes);
            assert_ptr_equal(gguf_model_tensor(model, t->name), t);
        }
        assert_null(gguf_model_tensor(model, "blk.2.down"));
        assert_null(gguf_model_tensor(model, ""));
        gguf_model_close(model);
    }
    gguf_model_close(NULL);
}

static void test_metadata(void **state)
{
    /* What each key is as an integer, as a float and as a bool; NONE: it is not one. */
    enum { I = 1, F = 2, B = 4 };
    static const struct {
        const char *key;
        int kinds;
        int64_t integer;
        double real;
    } rows[] = {
        {"k.u8", I | F, 200, 200},
        {"k.i8", I | F, -7, -7},
        {"k.u16", I | F, 65535, 65535},
        {"k.i16", I | F, -2, -2},
        {"k.u32", I | F, 4000000000, 4e9},
        {"k.i32", I | F, -9, -9},
        {"k.i64", I | F, -5000000000, -5e9},
        {"k.u64", 0, 0, 0}, /* 2^64 - 1 does not fit */
        {"k.f32", F, 0, 0.5},
        {"k.f64", F, 0, 1e300},
        {"k.bool", B, 1, 0},
        {"k.empty", 0, 0, 0},
        {"a.u16", 0, 0, 0},
        {"absent", 0, 0, 0},
    };
    (void)state;
    synth_model(&synth, 3);
    struct gguf_model *model = open_synth();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t integer;
        double real;
        bool truth;
        print_message("key %s\n", rows[i].key);
        assert_int_equal(gguf_model_i64(model, rows[i].key, &integer), (rows[i].kinds & I) != 0);
        if (rows[i].kinds & I)
            assert_true(integer == rows[i].integer);
        assert_int_equal(gguf_model_f64(model, rows[i].key, &real), (rows[i].kinds & F) != 0);
        if (rows[i].kinds & F)
            assert_true(real == rows[i].real);
        assert_int_equal(gguf_model_bool(model, rows[i].key, &truth), (rows[i].kinds & B) != 0);
        if (rows[i].kinds & B)
            assert_true(truth == (rows[i].integer != 0));
    }
    static const struct {
        const char *key, *text;
        int64_t array_len;
    } others[] = {{"general.architecture", "llama", -1},
                  {"k.empty", "", -1},
                  {"k.u8", NULL, -1},
                  {"absent", NULL, -1},
                  {"a.u16", NULL, 4},
                  {"a.bool", NULL, 2},
                  {"a.str", NULL, 3},
                  {"a.none", NULL, 0}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *text = gguf_model_str(model, others[i].key);
        if (others[i].text)
            assert_string_equal(text, others[i].text);
        else
            assert_null(text);
        free(text);
        assert_true(gguf_model_array_len(model, others[i].key) == others[i].array_len);
    }
    /* raw is the encoded value: an array's with element type and count */
    const struct gguf_kv *kv = gguf_model_kv(model, "a.str");
    assert_int_equal(kv->type, 9);
    assert_int_equal(kv->raw_size, 4 + 8 + 3 * 8 + 3 + 4);
    assert_memory_equal(kv->raw, synth.data + synth_find(&synth, "a.str.element"), kv->raw_size);
    assert_ptr_equal(kv, &model->kv[15]); /* file order */
    gguf_model_close(model);
}

/* ---- Bad fields --------------------------------------------------------------------------------- */

struct bad_field {
    const char *field; /* NULL: none */
    size_t size;
    uint64_t value;
    allot_status status;
    const char *message; /* must be part of the message */
};

static const struct bad_field bad_fields[] = {
    {"magic", 4, 0x46554748, ALLOT_ERR_FORMAT, "not a GGUF file"},
    {"version", 4, 0, ALLOT_ERR_FORMAT, "version 0"},
    {"version", 4, 1, ALLOT_ERR_UNSUPPORTED, "version 1"},
    {"version", 4, 4, ALLOT_ERR_UNSUPPORTED, "version 4"},
    {"version", 4, 0x03000000, ALLOT_ERR_UNSUPPORTED, "big-endian"},
    {"n_tensors", 8, 3, ALLOT_OK, NULL}, /* cannot be told from padding, in ggml neither */
    {"n_tensors", 8, 5, ALLOT_ERR_FORMAT, "tensor 5 of 5"},
    {"n_tensors", 8, 1000000, ALLOT_ERR_FORMAT, "claims 1000000 tensors"},
    {"n_tensors", 8, UINT64_MAX, ALLOT_ERR_FORMAT, "claims 18446744073709551615 tensors"},
    {"n_kv", 8, 19, ALLOT_ERR_FORMAT, "the name of tensor 1 of 4"},
    {"n_kv", 8, 1u << 31, ALLOT_ERR_FORMAT, "claims 2147483648 metadata"},
    {"n_kv", 8, INT64_MIN, ALLOT_ERR_FORMAT, "claims 9223372036854775808 metadata"},
    {"general.architecture.len", 8, 0, ALLOT_ERR_FORMAT, "the name of key 1 of 18 is empty"},
    {"general.architecture.len", 8, 1u << 20, ALLOT_ERR_FORMAT, "ends inside the name of key 1"},
    {"general.architecture.len", 8, UINT64_MAX, ALLOT_ERR_FORMAT, "the name of key 1 of 18"},
    {"general.architecture.text", 1, 0, ALLOT_ERR_FORMAT, "the name of key 1 of 18 contains a NUL"},
    {"general.architecture.type", 4, 13, ALLOT_ERR_FORMAT, "key 'general.architecture' has unknown type 13"},
    {"general.architecture.value.len", 8, 1u << 29, ALLOT_ERR_FORMAT, "inside key 'general.architecture'"},
    {"general.architecture.value.len", 8, INT64_MAX, ALLOT_ERR_FORMAT, "string of 9223372036854775807 bytes"},
    {"general.alignment.value", 4, 0, ALLOT_ERR_FORMAT, "general.alignment"},
    {"general.alignment.value", 4, 1, ALLOT_ERR_FORMAT, "general.alignment"},
    {"general.alignment.value", 4, 24, ALLOT_ERR_FORMAT, "'general.alignment' is 24, not a power of two"},
    {"general.alignment.value", 4, 1u << 31, ALLOT_ERR_FORMAT, "not a multiple of the alignment 2147483648"},
    {"general.alignment.type", 4, 5, ALLOT_ERR_FORMAT, "'general.alignment' is not a u32"},
    {"k.i8.text", 4, 0x38752e6b /* k.u8 */, ALLOT_ERR_FORMAT, "key 'k.u8' appears twice"},
    {"a.u16.element", 4, 9, ALLOT_ERR_UNSUPPORTED, "key 'a.u16' is an array of arrays"},
    {"a.u16.element", 4, 99, ALLOT_ERR_FORMAT, "key 'a.u16' is an array of unknown type 99"},
    {"a.u16.count", 8, 1u << 30, ALLOT_ERR_FORMAT, "inside key 'a.u16'"},
    {"a.u16.count", 8, UINT64_MAX / 2 + 2, ALLOT_ERR_FORMAT, "'a.u16' is an array of 9223372036854775809"},
    {"a.str.count", 8, 1u << 20, ALLOT_ERR_FORMAT, "inside key 'a.str'"},
    {"a.str.2.len", 8, 1u << 20, ALLOT_ERR_FORMAT, "inside key 'a.str'"},
    {"output.weight.len", 8, 64, ALLOT_ERR_FORMAT,
     "the name of tensor 1 of 4 is 64 bytes long, the limit is 63"},
    {"output.weight.len", 8, 0, ALLOT_ERR_FORMAT, "the name of tensor 1 of 4 is empty"},
    {"output.weight.n_dims", 4, 5, ALLOT_ERR_FORMAT,
     "tensor 'output.weight' has 5 dimensions, the limit is 4"},
    {"output.weight.n_dims", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "4294967295 dimensions"},
    {"output.weight.ne0", 8, 0, ALLOT_ERR_FORMAT, "tensor 'output.weight' has dimension 0 of 0"},
    {"output.weight.ne0", 8, UINT64_MAX, ALLOT_ERR_FORMAT, "tensor 'output.weight' has dimension 0 of -1"},
    {"output.weight.ne0", 8, 65, ALLOT_ERR_FORMAT,
     "rows of 65 elements, not a multiple of q4_0's block of 32"},
    {"output.weight.ne1", 8, INT64_MAX / 32, ALLOT_ERR_FORMAT, "'output.weight' has too many elements"},
    {"output.weight.ne1", 8, INT64_MAX / 65, ALLOT_ERR_FORMAT, "fewer than its tensors need"},
    {"output.weight.ggml_type", 4, 4, ALLOT_ERR_UNSUPPORTED,
     "'output.weight' has ggml type 4, which ggml has removed"},
    {"output.weight.ggml_type", 4, 31, ALLOT_ERR_UNSUPPORTED, "type 31, which ggml has removed"},
    {"output.weight.ggml_type", 4, 37, ALLOT_ERR_UNSUPPORTED, "type 37, which ggml has removed"},
    {"output.weight.ggml_type", 4, GGML_TYPE_COUNT, ALLOT_ERR_FORMAT, "unknown ggml type 43"},
    {"output.weight.ggml_type", 4, UINT32_MAX, ALLOT_ERR_FORMAT, "unknown ggml type 4294967295"},
    {"output.weight.ggml_type", 4, GGML_TYPE_Q8_0, ALLOT_ERR_FORMAT,
     "'output.weight' and 'blk.10.up.weight' overlap"},
    {"output.weight.offset", 8, 32, ALLOT_ERR_FORMAT, "'output.weight' and 'blk.10.up.weight' overlap"},
    {"blk.10.up.weight.offset", 8, 0, ALLOT_ERR_FORMAT, "overlap"},
    {"blk.10.up.weight.offset", 8, 96, ALLOT_ERR_FORMAT, "overlap"},
    {"blk.10.up.weight.offset", 8, 129, ALLOT_ERR_FORMAT, "offset 129, not a multiple of the alignment 32"},
    {"blk.10.up.weight.offset", 8, 1u << 20, ALLOT_ERR_FORMAT, "tensor 'blk.10.up.weight' at "},
    {"blk.10.up.weight.offset", 8, INT64_MAX - 31, ALLOT_ERR_FORMAT, "beyond any possible end"},
    {"blk.10.up.weight.offset", 8, UINT64_MAX - 31, ALLOT_ERR_FORMAT, "has offset 18446744073709551584"},
    {"blk.2.norm.weight.text", 6, 0x756f2e322e6b6c62 /* blk.2. */, ALLOT_OK,
     NULL}, /* unchanged: the rows can fail */
};

static void test_bad_fields(void **state)
{
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    for (size_t i = 0; i < sizeof bad_fields / sizeof *bad_fields; i++) {
        const struct bad_field *row = &bad_fields[i];
        struct gguf_model *model = NULL;
        struct allot_error err;
        synth_model(&synth, 3);
        synth_patch(&synth, row->field, &row->value, row->size);
        synth_fill(fd, synth.data, synth.n);
        allot_status status = gguf_model_open(&model, path, &err);
        if (status != row->status)
            fail_msg("%s = %llu: status %d (%s), expected %d", row->field, (unsigned long long)row->value,
                     status, status ? err.message : "opened", row->status);
        if (status == ALLOT_OK) {
            gguf_model_close(model);
            continue;
        }
        synth_check_message(err.message, path);
        assert_int_equal(err.status, status);
        if (!strstr(err.message, row->message))
            fail_msg("%s = %llu: \"%s\" does not say \"%s\"", row->field, (unsigned long long)row->value,
                     err.message, row->message);
    }
    close(fd);
}

static void test_duplicate_tensor(void **state)
{
    static const uint64_t ne[] = {8};
    struct gguf_model *model;
    struct allot_error err;
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    synth_start(&synth, 3, 3, 0);
    synth_tensor(&synth, "twin", 1, ne, 0, 0);
    synth_tensor(&synth, "other", 1, ne, 0, 32);
    synth_tensor(&synth, "twin", 1, ne, 0, 64);
    synth_pad(&synth, 32);
    synth_data(&synth, 96);
    synth_fill(fd, synth.data, synth.n);
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tensor 'twin' appears twice"));
    close(fd);
}

/* A cut file is refused with the number of bytes that are missing, as far as they can be known. */
static void test_missing_bytes(void **state)
{
    struct gguf_model *model;
    struct allot_error err;
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    synth_model(&synth, 3);
    size_t end = synth_find(&synth, "data_end"), start = synth_find(&synth, "data");
    const struct {
        size_t length;
        const char *message;
    } rows[] = {
        {end - 1, " 1 fewer than its tensors need; tensor 'blk.2.norm.weight' at "},
        {end - 100, " 100 fewer than its tensors need; tensor 'blk.2.down.weight' at "},
        {start, " 340 fewer than its tensors need; tensor 'output.weight' at "},
        {synth_find(&synth, "header_end") - 3,
         "ends inside tensor 'blk.2.norm.weight': at least 3 bytes are missing"},
        {synth_find(&synth, "a.str.2.text") + 1, "ends inside key 'a.str': at least 3 bytes are missing"},
        {20, "ends inside the file's first 24 bytes: at least 4 bytes are missing"},
        {2, "at least 2 bytes are missing"},
        {0, "at least 4 bytes are missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        synth_fill(fd, synth.data, rows[i].length);
        assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_ERR_FORMAT);
        if (!strstr(err.message, rows[i].message))
            fail_msg("length %zu: \"%s\" does not say \"%s\"", rows[i].length, err.message, rows[i].message);
    }
    close(fd);
}

static void test_paths(void **state)
{
    struct gguf_model *model;
    struct allot_error err;
    (void)state;
    assert_int_equal(gguf_model_open(&model, "/nowhere/model.gguf", &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "/nowhere/model.gguf"));
    assert_int_equal(gguf_model_open(&model, TEST_DATA_DIR, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, TEST_DATA_DIR));
}

/* A file with neither metadata nor tensors is a GGUF file all the same. */
static void test_empty_model(void **state)
{
    (void)state;
    synth_start(&synth, 3, 0, 0);
    struct gguf_model *model = open_synth();
    assert_int_equal(model->n_kv, 0);
    assert_int_equal(model->n_tensors, 0);
    assert_null(gguf_model_tensor(model, "x"));
    assert_null(gguf_model_kv(model, "x"));
    gguf_model_close(model);
}

/* ---- Order, quantizable tensors, checksum ---------------------------------------------------------- */

static void test_order(void **state)
{
    /* In the order that std::map with llama.cpp's comparer gives: %d takes signs and blanks, no final dot
     * needed. */
    static const char *const names[] = {"blk.-7.weight", "blk",        "blk.",      "blk.x.weight",
                                        "output",        "token_embd", "blk.0.b",   "blk.1.a",
                                        "blk.2",         "blk.2.a",    "blk.2.a.b", "blk.02.a"};
    static const char *const sorted[] = {"blk.-7.weight", "blk",        "blk.",    "blk.x.weight",
                                         "output",        "token_embd", "blk.0.b", "blk.1.a",
                                         "blk.02.a",      "blk.2",      "blk.2.a", "blk.2.a.b"};
    const size_t n = sizeof names / sizeof *names;
    static const uint64_t ne[] = {8};
    (void)state;
    synth_start(&synth, 3, n, 0);
    for (size_t i = 0; i < n; i++)
        synth_tensor(&synth, names[n - 1 - i], 1, ne, 0, 32 * i);
    synth_pad(&synth, 32);
    synth_data(&synth, 32 * n);
    struct gguf_model *model = open_synth();
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(model->tensors[i].name, sorted[i]);
        assert_ptr_equal(gguf_model_tensor(model, sorted[i]), &model->tensors[i]);
        assert_true(model->tensors[i].layer >= -1);
    }
    gguf_model_close(model);
}

static void test_quantizable(void **state)
{
    static const struct {
        const char *name;
        int64_t ne[4];
        bool quantizable;
    } rows[] = {
        {"blk.0.attn_q.weight", {64, 64, 1, 1}, true},
        {"output.weight", {64, 64, 1, 1}, true},
        {"token_embd.weight", {64, 64, 1, 1}, true},
        {"blk.0.ffn_down_exps.weight", {64, 64, 4, 1}, true},
        {"blk.0.attn_q.weight", {64, 1, 1, 1}, false},
        {"blk.0.attn_q.weight", {64, 1, 2, 1}, true},
        {"blk.0.attn_q.bias", {64, 64, 1, 1}, false},
        {"blk.0.attn_q.weights", {64, 64, 1, 1}, false},
        {"weight", {64, 64, 1, 1}, true},
        {"eight", {64, 64, 1, 1}, true}, /* rfind's npos equals 5 - 6 */
        {"ight", {64, 64, 1, 1}, false},
        {"blk.0.attn_norm.weight", {64, 64, 1, 1}, false},
        {"blk.0.ffn_gate_inp.weight", {64, 64, 1, 1}, false},
        {"blk.0.ffn_gate_inp_shexp.weight", {64, 64, 1, 1}, true},
        {"blk.0.ffn_gate_tid2eid.weight", {64, 64, 1, 1}, false},
        {"blk.0.altup_router.weight", {64, 64, 1, 1}, false},
        {"blk.0.laurel_l.weight", {64, 64, 1, 1}, false},
        {"per_layer_model_proj.weight", {64, 64, 1, 1}, false},
        {"per_layer_token_embd.weight", {64, 64, 1, 1}, true},
        {"position_embd.weight", {64, 64, 1, 1}, false},
        {"xposition_embd.weight", {64, 64, 1, 1}, true},
        {"v.position_embd.weight", {64, 64, 1, 1}, false},
        {"token_types.weight", {64, 64, 1, 1}, false},
        {"blk.0.token_types.weight", {64, 64, 1, 1}, true},
        {"blk.0.ssm_conv1d.weight", {64, 64, 1, 1}, false},
        {"blk.0.ssm_in.weight", {64, 64, 1, 1}, true},
        {"blk.0.shortconv.conv.weight", {64, 64, 1, 1}, false},
        {"blk.0.shortconv.in_proj.weight", {64, 64, 1, 1}, true},
        {"blk.0.indexer.k_proj.weight", {64, 64, 1, 1}, false},
        {"blk.0.indexer.q_proj.weight", {64, 64, 1, 1}, false},
        {"blk.0.indexer.attn_k.weight", {64, 64, 1, 1}, true},
        {"blk.0.time_mix_w1.weight", {64, 64, 1, 1}, false},
        {"blk.0.time_mix_decay_w2.weight", {64, 64, 1, 1}, false},
        {"blk.0.time_mix_key.weight", {64, 64, 1, 1}, true},
        {"enc.blk.0.attn_rel_b.weight", {64, 64, 1, 1}, false},
        {"v.sam.neck.0.weight", {64, 64, 1, 1}, false},
        {"v.patch_embd.weight", {64, 64, 1, 1}, false},
        {"a.rvq.codebook.weight", {64, 64, 1, 1}, false},
        {"mm.a.code_embd.weight", {64, 64, 1, 1}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf_tensor t = {.name = (char *)(uintptr_t)rows[i].name, .n_dims = 4};
        memcpy(t.ne, rows[i].ne, sizeof t.ne);
        if (gguf_tensor_quantizable(&t) != rows[i].quantizable)
            fail_msg("%s: expected %d", rows[i].name, rows[i].quantizable);
    }
}

static bool stop_at_once(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)stage;
    (*(int *)user)++;
    assert_true(done <= total);
    return true;
}

static void test_sha256(void **state)
{
    char hex[65], expected[HASH_HEX];
    struct allot_error err;
    int calls = 0;
    struct allot_progress stop = {.report = stop_at_once, .user = &calls};
    (void)state;
    synth_model(&synth, 3);
    struct gguf_model *model = open_synth();
    hash_bytes(expected, synth.data, synth.n);
    assert_int_equal(gguf_model_sha256(model, hex, NULL, &err), ALLOT_OK);
    assert_string_equal(hex, expected);
    assert_int_equal(gguf_model_sha256(model, hex, &stop, &err), ALLOT_ERR_INTERRUPTED);
    assert_int_equal(calls, 1);
    gguf_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),     cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_bad_fields),    cmocka_unit_test(test_duplicate_tensor),
        cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_paths),
        cmocka_unit_test(test_empty_model),   cmocka_unit_test(test_order),
        cmocka_unit_test(test_quantizable),   cmocka_unit_test(test_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
