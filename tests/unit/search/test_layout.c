/* test_layout.c - layouts: learned from tensors, kept in an archive, damaged there.
 * SPDX-License-Identifier: MIT */
#include "models.h"

#include "base/rng.h"
#include "search/layout.h"

static const char sha_a[] = "aaaaaaaa11111111111111111111111111111111111111111111111111111111",
                  sha_b[] = "bbbbbbbb11111111111111111111111111111111111111111111111111111111";

static struct layout learn(const struct gguf_model *model, const char *sha256, const char *name)
{
    const struct layout_origin origin = {.name = name,
                                         .repository = "someone/model-GGUF",
                                         .revision = "0123456789abcdef0123456789abcdef01234567",
                                         .file = "sub/model.gguf",
                                         .date = "2026-01-31",
                                         .learning_only = true};
    struct layout layout;
    struct allot_error err = {0};
    if (layout_learn(&layout, model, sha256, &origin, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return layout;
}

static struct layout learn_made(enum ggml_type (*type)(const char *role, int layer), const char *sha256,
                                const char *name)
{
    struct gguf_model *model = make_model("made.gguf", "llama", 3, false, type);
    struct layout layout = learn(model, sha256, name);
    gguf_model_close(model);
    return layout;
}

static struct archive *open_archive(void)
{
    struct archive *archive = NULL;
    struct allot_error err = {0};
    if (archive_open(&archive, in_folder("layouts.allot"), &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return archive;
}

static void close_archive(struct archive *archive)
{
    archive_close(archive);
    unlink(in_folder("layouts.allot"));
}

/* ---- Learning --------------------------------------------------------------------------------------- */

/* Case 35: general.file_type says Q4_K, the tensors say otherwise, and they count. */
static void test_file_type_lies(void **state)
{
    struct maker m = maker_start("llama");
    (void)state;
    gguf_set_val_u32(m.file, "general.file_type", 15); /* mostly Q4_K_M */
    for (int l = 0; l < 8; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", l);
        maker_add(&m, name, GGML_TYPE_Q4_K, WIDTH, 4);
    }
    maker_add(&m, "blk.0.ffn_down.weight", GGML_TYPE_Q2_K, WIDE, 600);
    maker_add(&m, "token_embd.weight", GGML_TYPE_Q2_K, WIDE, 600);
    struct gguf_model *model = maker_open(&m, "lies.gguf");
    struct layout layout = learn(model, sha_a, "lies");
    assert_int_equal(layout.n_tensors, 10);
    for (size_t i = 0; i < layout.n_tensors; i++)
        assert_int_equal(layout.tensors[i].type,
                         strstr(layout.tensors[i].name, "attn_q") ? GGML_TYPE_Q4_K : GGML_TYPE_Q2_K);
    layout_release(&layout);
    gguf_model_close(model);
}

static enum ggml_type half(const char *role, int layer)
{
    return strcmp(role, "attn_k") == 0 ? GGML_TYPE_F16 : varied(role, layer);
}

static enum ggml_type brain(const char *role, int layer)
{
    return strcmp(role, "attn_k") == 0 ? GGML_TYPE_BF16 : varied(role, layer);
}

static enum ggml_type eight(const char *role, int layer)
{
    return strcmp(role, "attn_k") == 0 ? GGML_TYPE_Q8_0 : varied(role, layer);
}

/* F16, BF16 and F32 are one class; nothing else is. */
static void test_equal_layouts(void **state)
{
    struct layout a = learn_made(half, sha_a, "a"), b = learn_made(brain, sha_b, "b"),
                  c = learn_made(eight, sha_a, "c");
    (void)state;
    assert_string_equal(a.hash, b.hash);
    assert_string_not_equal(a.hash, c.hash);
    assert_int_equal(strlen(a.hash), 64);
    struct gguf_model *other = make_model("other.gguf", "qwen2", 3, false, half);
    struct layout d = learn(other, sha_a, "d");
    assert_string_not_equal(a.hash, d.hash);
    gguf_model_close(other);
    layout_release(&a);
    layout_release(&b);
    layout_release(&c);
    layout_release(&d);
}

static void test_names(void **state)
{
    static const struct {
        const char *file, *given, *name; /* NULL: refused */
    } rows[] = {
        {"model-Q4_K_M.gguf", NULL, "model-Q4_K_M"},
        {"x/y/model.gguf", NULL, "model"},
        {"model-00001-of-00003.gguf", NULL, "model"},
        {"model-1-of-3.gguf", NULL, "model-1-of-3"},
        {"model.bin", NULL, "model.bin"},
        {"a.gguf", "my name", "my name"},
        {"a=b.gguf", NULL, NULL},
        {"a,b.gguf", NULL, NULL},
        {"a,b.gguf", "ab", "ab"},
        {".gguf", NULL, NULL},
        {"a.gguf", "", NULL},
        {"a.gguf", "x\ny", NULL},
        {"a\tb.gguf", "x", NULL},
    };
    struct gguf_model *model = make_model("made.gguf", "llama", 1, true, all_q4);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct layout_origin origin = {.name = rows[i].given, .file = rows[i].file};
        struct layout layout;
        struct allot_error err;
        const allot_status status = layout_learn(&layout, model, sha_a, &origin, &err);
        assert_int_equal(status, rows[i].name ? ALLOT_OK : ALLOT_ERR_ARGUMENT);
        if (rows[i].name)
            assert_string_equal(layout.name, rows[i].name);
        if (rows[i].name)
            layout_release(&layout);
    }
    gguf_model_close(model);
}

static void test_no_model(void **state)
{
    const struct layout_origin origin = {.name = "x"};
    struct layout layout;
    struct allot_error err;
    struct maker m = maker_start(NULL);
    (void)state;
    maker_add(&m, "x.weight", GGML_TYPE_F32, 32, 0);
    struct gguf_model *model = maker_open(&m, "none.gguf");
    assert_int_equal(layout_learn(&layout, model, sha_a, &origin, &err), ALLOT_ERR_FORMAT);
    assert_non_null(strstr(err.message, "general.architecture"));
    gguf_model_close(model);
    m = maker_start("llama");
    model = maker_open(&m, "none.gguf");
    assert_int_equal(layout_learn(&layout, model, sha_a, &origin, &err), ALLOT_ERR_FORMAT);
    gguf_model_close(model);
}

static void test_origins(void **state)
{
    static const struct {
        const char *text, *repository, *revision, *file; /* no repository: refused */
        bool reproducible;
    } rows[] = {
        {"o/r@0123456789012345678901234567890123456789:a/b.gguf", "o/r",
         "0123456789012345678901234567890123456789", "a/b.gguf", true},
        {"o/r@main:b.gguf", "o/r", "main", "b.gguf", false},
        {"o/r@012345678901234567890123456789012345678g:b.gguf", "o/r",
         "012345678901234567890123456789012345678g", "b.gguf", false},
        {"o/r:b.gguf", "o/r", NULL, "b.gguf", false},
        {"o/r@ABCDEF6789012345678901234567890123456789", "o/r", "ABCDEF6789012345678901234567890123456789",
         NULL, true},
        {"o/r", "o/r", NULL, NULL, false},
        {"", NULL, NULL, NULL, false},
        {"@rev:b", NULL, NULL, NULL, false},
        {"o/r@:b", NULL, NULL, NULL, false},
        {"o/r@x:", NULL, NULL, NULL, false},
    };
    struct gguf_model *model = make_model("made.gguf", "llama", 1, true, all_q4);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layout_origin origin = {.name = "x"};
        struct layout layout;
        struct allot_error err;
        char *copy = NULL;
        if (!rows[i].repository) {
            assert_int_equal(layout_origin_parse(&origin, &copy, rows[i].text, &err), ALLOT_ERR_ARGUMENT);
            assert_null(copy);
            continue;
        }
        assert_int_equal(layout_origin_parse(&origin, &copy, rows[i].text, &err), ALLOT_OK);
        assert_int_equal(layout_learn(&layout, model, sha_a, &origin, &err), ALLOT_OK);
        assert_string_equal(layout.repository, rows[i].repository);
        assert_string_equal(layout.revision, rows[i].revision ? rows[i].revision : "");
        assert_string_equal(layout.file, rows[i].file ? rows[i].file : "made.gguf");
        assert_int_equal(layout_reproducible(&layout), rows[i].reproducible);
        layout_release(&layout);
        free(copy);
    }
    gguf_model_close(model);
}

/* ---- In an archive ---------------------------------------------------------------------------------- */

static void put(struct archive *archive, const struct layout *layout)
{
    struct allot_error err = {0};
    if (layout_put(archive, layout, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
}

static void assert_same(const struct layout *a, const struct layout *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->architecture, b->architecture);
    assert_string_equal(a->repository, b->repository);
    assert_string_equal(a->revision, b->revision);
    assert_string_equal(a->file, b->file);
    assert_string_equal(a->date, b->date);
    assert_string_equal(a->sha256, b->sha256);
    assert_string_equal(a->hash, b->hash);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->learning_only, b->learning_only);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct layout_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->layer, y->layer);
        assert_int_equal(x->role, y->role);
        assert_int_equal(x->n_elements, y->n_elements);
    }
}

static void test_round_trip(void **state)
{
    struct layout a = learn_made(varied, sha_a, "b first"), b = learn_made(half, sha_b, "aaaaaaaa11");
    struct archive *archive = open_archive();
    struct layout_list list;
    struct allot_error err;
    bool ambiguous;
    (void)state;
    assert_int_equal(a.n_tensors, 27);
    assert_int_equal(a.n_layers, 3);
    assert_int_equal(layout_list_load(&list, archive, &err), ALLOT_OK);
    assert_int_equal(list.n, 0);
    put(archive, &a);
    put(archive, &b);
    put(archive, &b);
    archive_close(archive);
    archive = open_archive();
    assert_int_equal(layout_list_load(&list, archive, &err), ALLOT_OK);
    assert_int_equal(list.n, 2); /* by name */
    assert_same(&list.items[0], &b);
    assert_same(&list.items[1], &a);
    assert_ptr_equal(layout_list_find(&list, "b first", &ambiguous), &list.items[1]);
    assert_ptr_equal(layout_list_find(&list, "aaaaaaaa1", &ambiguous), &list.items[1]);
    assert_ptr_equal(layout_list_find(&list, "aaaaaaaa11", &ambiguous), &list.items[0]); /* a name first */
    assert_null(layout_list_find(&list, "aaaaaaa", &ambiguous));
    assert_null(layout_list_find(&list, "B FIRST", &ambiguous));
    assert_false(ambiguous);
    layout_list_release(&list);
    layout_release(&a);
    layout_release(&b);
    close_archive(archive);
}

static void test_collisions(void **state)
{
    struct layout a = learn_made(varied, sha_a, "one"), b = learn_made(half, sha_b, "one"),
                  renamed = learn_made(varied, sha_a, "two");
    struct archive *archive = open_archive();
    struct layout_list list;
    struct allot_error err;
    bool ambiguous;
    void *blob = NULL;
    size_t size = 0;
    (void)state;
    put(archive, &a);
    assert_int_equal(layout_put(archive, &b, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "'one' is taken"));
    put(archive, &renamed); /* the same file under another name takes its place */
    put(archive, &b);
    assert_int_equal(layout_list_load(&list, archive, &err), ALLOT_OK);
    assert_int_equal(list.n, 2);
    layout_list_release(&list);
    /* Two of one name, as a merge of archives may leave them. */
    assert_int_equal(archive_blob(archive, "layout", sha_a, &blob, &size, &err), ALLOT_OK);
    memcpy((char *)blob + sizeof "allot layout 1", "one", 3);
    assert_int_equal(archive_blob_put(archive, "layout", sha_a, blob, size, &err), ALLOT_OK);
    free(blob);
    assert_int_equal(layout_list_load(&list, archive, &err), ALLOT_OK);
    assert_null(layout_list_find(&list, "one", &ambiguous));
    assert_true(ambiguous);
    assert_non_null(layout_list_find(&list, "bbbbbbbb", &ambiguous));
    layout_list_release(&list);
    layout_release(&a);
    layout_release(&b);
    layout_release(&renamed);
    close_archive(archive);
}

/* What a blob of these bytes gives: ALLOT_OK or ALLOT_ERR_FORMAT, nothing else. */
static allot_status load_bytes(struct archive *archive, const char *key, const void *bytes, size_t size)
{
    struct layout_list list;
    struct allot_error err;
    assert_int_equal(archive_blob_put(archive, "layout", key, bytes, size, &err), ALLOT_OK);
    const allot_status status = layout_list_load(&list, archive, &err);
    assert_true(status == ALLOT_OK || status == ALLOT_ERR_FORMAT);
    layout_list_release(&list);
    return status;
}

static void test_damaged(void **state)
{
    struct layout layout = learn_made(varied, sha_a, "x");
    struct archive *archive = open_archive();
    struct allot_error err;
    void *blob = NULL;
    size_t size = 0;
    (void)state;
    put(archive, &layout);
    assert_int_equal(archive_blob(archive, "layout", sha_a, &blob, &size, &err), ALLOT_OK);
    char *bytes = malloc(size + 1);
    for (size_t n = 0; n < size; n += n < 300 ? 1 : 7)
        assert_int_equal(load_bytes(archive, sha_a, blob, n), ALLOT_ERR_FORMAT);
    memcpy(bytes, blob, size);
    bytes[size] = '\0';
    assert_int_equal(load_bytes(archive, sha_a, bytes, size + 1), ALLOT_ERR_FORMAT);
    assert_int_equal(load_bytes(archive, sha_a, blob, size), ALLOT_OK);
    /* A changed byte of the texts may pass; one of the layout is found by its hash. */
    size_t n_tensors_at = 0, fields = 0;
    while (fields < 12)
        fields += ((char *)blob)[n_tensors_at++] == '\0';
    for (uint64_t i = 0; i < 600; i++) {
        memcpy(bytes, blob, size);
        const size_t at = (size_t)(rng_u64(7, i) % size);
        bytes[at] = (char)(bytes[at] ^ (1 + rng_u64(8, i) % 255));
        const allot_status status = load_bytes(archive, sha_a, bytes, size);
        if (status == ALLOT_OK && at > n_tensors_at)
            /* Only a number of weights may have changed into another. */
            assert_true(strspn(&bytes[at], "0123456789") > 0);
    }
    assert_int_equal(load_bytes(archive, sha_b, blob, size), ALLOT_ERR_FORMAT); /* under a wrong key */
    free(bytes);
    free(blob);
    layout_release(&layout);
    close_archive(archive);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_type_lies), cmocka_unit_test(test_equal_layouts),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_origins),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_collisions),     cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests_name("layout", tests, make_folder, remove_folder);
}
