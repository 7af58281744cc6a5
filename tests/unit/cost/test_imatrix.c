/* test_imatrix.c - importance matrices of the stock llama-imatrix read and written back byte for byte, ours
 * read by ggml and llama-quantize, and what they give for a tensor. SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include <dirent.h>
#include <math.h>

#include "base/file.h"
#include "base/hash.h"
#include "cost/imatrix.h"
#include "ggml.h"
#include "gguf.h"

#define MODEL TEST_DATA_DIR "/tiny-llama-bf16.gguf"

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = synth_folder();
    return 0;
}

static int remove_folder(void **state)
{
    char path[5000];
    struct dirent *entry;
    DIR *dir = opendir(folder);
    (void)state;
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            unlink(path);
        }
    closedir(dir);
    rmdir(folder);
    free(folder);
    return 0;
}

static const char *in_folder(const char *name)
{
    static char paths[4][5000]; /* so that one expression may use a few */
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void run(const char *command)
{
    if (system(command) != 0)
        fail_msg("failed: %s", command);
}

/* Runs the stock llama-imatrix on a text written here. */
static void make_stock(const char *name, const char *format)
{
    char command[16000];
    FILE *text = fopen(in_folder("text"), "w");
    assert_non_null(text);
    for (int i = 0; i < 120; i++)
        fprintf(text,
                "Sentence %d of this text says that small models learn what they read, %d times over.\n", i,
                i * i);
    fclose(text);
    snprintf(command, sizeof command,
             "'%s/llama-imatrix' -m '%s' -f '%s' -o '%s' --output-format %s -c 128 --chunks 4 -t 1 --no-ppl "
             "> '%s' 2>&1",
             STOCK_TOOLS_DIR, MODEL, in_folder("text"), in_folder(name), format, in_folder("log"));
    run(command);
}

static void must_read(struct imatrix *im, const char *path)
{
    struct allot_error err;
    if (imatrix_read(im, path, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
}

static void expect_same_files(const char *a, const char *b)
{
    struct file_map x, y;
    struct allot_error err;
    assert_int_equal(file_map_open(&x, a, &err), ALLOT_OK);
    assert_int_equal(file_map_open(&y, b, &err), ALLOT_OK);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    file_map_close(&x);
    file_map_close(&y);
}

/* ---- With the stock tools ------------------------------------------------------------------------- */

static void test_stock_round_trip(void **state)
{
    struct imatrix im, again;
    struct allot_error err;
    struct gguf_model *model;
    char first[65], line[512];
    (void)state;
    make_stock("stock.gguf", "gguf");
    must_read(&im, in_folder("stock.gguf"));
    assert_false(im.legacy);
    assert_int_equal(im.chunk_count, 4);
    assert_int_equal(im.chunk_size, 128);
    assert_int_equal(im.n_datasets, 1);
    assert_string_equal(im.datasets[0], in_folder("text"));
    for (size_t i = 0; i < im.n_entries; i++) {
        assert_true(i == 0 || strcmp(im.entries[i - 1].name, im.entries[i].name) < 0);
        assert_ptr_equal(imatrix_find(&im, im.entries[i].name), &im.entries[i]);
        assert_int_equal(im.entries[i].n_mats, 1);
        assert_true(im.entries[i].counts[0] == 4 * 128);
    }
    memcpy(first, im.sha256, sizeof first);
    assert_int_equal(imatrix_write(&im, in_folder("ours.gguf"), &err), ALLOT_OK);
    expect_same_files(in_folder("stock.gguf"), in_folder("ours.gguf"));
    assert_string_equal(im.sha256, first);
    must_read(&again, in_folder("ours.gguf"));
    assert_string_equal(again.sha256, first);
    imatrix_release(&again);

    assert_int_equal(gguf_model_open(&model, MODEL, &err), ALLOT_OK);
    imatrix_coverage(&im, model, line);
    assert_string_equal(line, "");
    gguf_model_close(model);
    imatrix_release(&im);
}

/* The older format of the same run holds the same means, up to its rounding. */
static void test_stock_legacy(void **state)
{
    struct imatrix im, legacy;
    struct allot_error err;
    struct gguf_model *model;
    int compared = 0;
    (void)state;
    make_stock("same.gguf", "gguf");
    make_stock("same.dat", "dat");
    /* the suffix means nothing */
    assert_int_equal(rename(in_folder("same.gguf"), in_folder("swap")), 0);
    assert_int_equal(rename(in_folder("same.dat"), in_folder("same.gguf")), 0);
    assert_int_equal(rename(in_folder("swap"), in_folder("same.dat")), 0);
    must_read(&im, in_folder("same.dat"));
    must_read(&legacy, in_folder("same.gguf"));
    assert_true(legacy.legacy && !im.legacy);
    assert_int_equal(legacy.n_entries, im.n_entries);
    assert_int_equal(legacy.chunk_count, 4);
    assert_string_equal(legacy.datasets[0], im.datasets[0]);
    assert_int_equal(gguf_model_open(&model, MODEL, &err), ALLOT_OK);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        float *a, *b;
        char reason[128];
        assert_int_equal(imatrix_weights(&im, t, &a, reason, &err), ALLOT_OK);
        assert_int_equal(imatrix_weights(&legacy, t, &b, reason, &err), ALLOT_OK);
        assert_int_equal(a != NULL, b != NULL);
        assert_int_equal(a != NULL, t->layer >= 0 && gguf_tensor_quantizable(t));
        for (int64_t c = 0; a && c < t->ne[0]; c++) {
            assert_true(fabsf(a[c] - b[c]) <= 1e-5f * a[c]);
            compared++;
        }
        free(a);
        free(b);
    }
    assert_true(compared > 1000);
    gguf_model_close(model);
    imatrix_release(&im);
    imatrix_release(&legacy);
}

static void add(struct imatrix *im, const char *name, int64_t n_per_mat, int64_t n_mats, const float *sums,
                const int64_t *counts)
{
    size_t n = (size_t)(n_per_mat * n_mats);
    float *s = malloc(n * sizeof *s);
    int64_t *c = malloc((size_t)n_mats * sizeof *c);
    struct allot_error err;
    assert_non_null(s);
    assert_non_null(c);
    for (size_t i = 0; i < n; i++)
        s[i] = sums ? sums[i] : (float)(i + 1);
    for (int64_t i = 0; i < n_mats; i++)
        c[i] = counts ? counts[i] : 1;
    if (imatrix_add(im, name, n_per_mat, n_mats, s, c, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* An imatrix made here is read by ggml, value by value, and by llama-quantize. */
static void test_ours_in_stock_tools(void **state)
{
    static const float sums[] = {1, 0, 0.25f, 3e38f, 5, 6e-40f};
    static const int64_t counts[] = {7, 0, 16777216};
    struct imatrix im = {.chunk_count = 3, .chunk_size = 64};
    struct allot_error err;
    struct gguf_model *model;
    struct ggml_context *data;
    char command[16000];
    (void)state;
    add(&im, "z", 2, 3, sums, counts);
    add(&im, "a", 5, 1, NULL, NULL);
    assert_int_equal(imatrix_write(&im, in_folder("made.gguf"), &err), ALLOT_OK);
    struct gguf_context *ctx =
        gguf_init_from_file(in_folder("made.gguf"), (struct gguf_init_params){.ctx = &data});
    assert_non_null(ctx);
    static const char *const names[] = {"a.in_sum2", "a.counts", "z.in_sum2", "z.counts"};
    assert_int_equal(gguf_get_n_tensors(ctx), 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(gguf_get_tensor_name(ctx, i), names[i]);
    const struct ggml_tensor *t = ggml_get_tensor(data, "z.in_sum2");
    assert_true(t->ne[0] == 2 && t->ne[1] == 3 && t->type == GGML_TYPE_F32);
    assert_memory_equal(t->data, sums, sizeof sums);
    t = ggml_get_tensor(data, "z.counts");
    assert_true(t->ne[0] == 1 && t->ne[1] == 3);
    for (int i = 0; i < 3; i++)
        assert_true(((const float *)t->data)[i] == (float)counts[i]);
    gguf_free(ctx);
    ggml_free(data);
    imatrix_release(&im);

    assert_int_equal(gguf_model_open(&model, MODEL, &err), ALLOT_OK);
    im.chunk_count = 1;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            add(&im, model->tensors[i].name, model->tensors[i].ne[0], 1, NULL, NULL);
    assert_int_equal(imatrix_write(&im, in_folder("full.gguf"), &err), ALLOT_OK);
    /* Q2_K_S is refused without an imatrix for every tensor */
    snprintf(command, sizeof command, "'%s/llama-quantize' --imatrix '%s' '%s' '%s' Q2_K_S 2 > '%s' 2>&1",
             STOCK_TOOLS_DIR, in_folder("full.gguf"), MODEL, in_folder("quantized.gguf"), in_folder("log"));
    run(command);
    gguf_model_close(model);
    imatrix_release(&im);
}

/* ---- Without them ------------------------------------------------------------------------------------ */

static void test_entries(void **state)
{
    struct imatrix im = {0};
    struct allot_error err;
    (void)state;
    assert_null(imatrix_find(&im, "a"));
    add(&im, "m", 1, 1, NULL, NULL);
    add(&im, "z", 1, 1, NULL, NULL);
    add(&im, "a", 1, 1, NULL, NULL);
    add(&im, "b", 1, 1, NULL, NULL);
    assert_string_equal(im.entries[0].name, "a");
    assert_string_equal(im.entries[1].name, "b");
    assert_string_equal(im.entries[3].name, "z");
    assert_int_equal(imatrix_add(&im, "m", 1, 1, calloc(1, 4), calloc(1, 8), &err), ALLOT_ERR_FORMAT);
    assert_int_equal(imatrix_add(&im, "n", 0, 1, calloc(1, 4), calloc(1, 8), &err), ALLOT_ERR_ARGUMENT);
    assert_int_equal(im.n_entries, 4);
    imatrix_release(&im);
    imatrix_release(&im); /* of a zeroed struct: nothing */

    struct imatrix empty = {0};
    assert_int_equal(imatrix_write(&empty, in_folder("empty.gguf"), &err), ALLOT_ERR_ARGUMENT);
    add(&im, "a-name-of-fifty-six-bytes-to-which-no-suffix-can-be-added", 1, 1, NULL, NULL);
    assert_int_equal(imatrix_write(&im, in_folder("long.gguf"), &err), ALLOT_ERR_ARGUMENT);
    assert_int_not_equal(access(in_folder("long.gguf"), F_OK), 0);
    imatrix_release(&im);
    add(&im, "a", 1, 1, NULL, NULL);
    assert_int_equal(imatrix_write(&im, "/nowhere/x.gguf", &err), ALLOT_ERR_IO);
    imatrix_release(&im);
}

static void test_weights(void **state)
{
    static const float sums[] = {2, 4, 6, 8, 10, 12};
    static const int64_t counts[] = {2, 0, 4};
    static const float ones[] = {1, 1, 1, 1, 1, 1};
    static const struct {
        const char *tensor;
        int64_t ne[4];
        bool legacy;
        float expected[6];
        const char *reason; /* NULL: there are weights */
    } rows[] = {
        /* a matrix never used weighs 1, the others keep their means */
        {"exps.weight", {2, 9, 3, 1}, false, {1, 2, 1, 1, 2.5f, 3}, NULL},
        {"exps.weight", {2, 9, 4, 1}, false, {0}, "has 6 values, the tensor needs 8"},
        /* the right length, but of another number of experts */
        {"exps.weight", {6, 9, 1, 1}, false, {0}, "has 3 matrices of 2 values, the tensor needs 1 of 6"},
        {"exps.weight", {3, 9, 2, 1}, false, {0}, "has 3 matrices of 2 values, the tensor needs 2 of 3"},
        /* one count for all: what llama-imatrix writes of dense stacks and makes of legacy files */
        {"one-count.weight", {2, 9, 3, 1}, false, {1, 1, 1, 1, 1, 1}, NULL},
        {"exps.weight", {2, 9, 3, 1}, true, {1, 2, 6, 8, 2.5f, 3}, NULL}, /* legacy, count 0: as they are */
        {"long.weight", {2, 9, 3, 1}, false, {0}, "has 120 values, the tensor needs 6"},
        {"absent.weight", {2, 9, 3, 1}, false, {0}, "no entry"},
        {"reshaped.weight", {6, 2, 1, 1}, false, {1, 1, 1, 1, 1, 1}, NULL},
        {"viewed.weight", {6, 2, 1, 1}, false, {1, 1, 1, 1, 1, 1}, NULL},
        {"copied.weight", {6, 2, 1, 1}, false, {1, 1, 1, 1, 1, 1}, NULL},
        {"turned.weight", {6, 2, 1, 1}, false, {0}, "no entry"},
        {"reshape", {6, 2, 1, 1}, false, {0}, "no entry"},
    };
    struct imatrix im = {0};
    (void)state;
    add(&im, "exps.weight", 2, 3, sums, counts);
    add(&im, "long.weight", 40, 3, NULL, NULL);
    add(&im, "one-count.weight", 6, 1, ones, NULL);
    add(&im, "reshaped.weight (reshaped)", 6, 1, ones, NULL);
    add(&im, "viewed.weight (reshaped) (view)", 6, 1, ones, NULL);
    add(&im, "CUDA0#copied.weight#0", 6, 1, ones, NULL);
    add(&im, "turned.weight (transposed)", 6, 1, ones, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf_tensor t = {.name = (char *)(uintptr_t)rows[i].tensor};
        struct allot_error err;
        float *weights;
        char reason[128];
        memcpy(t.ne, rows[i].ne, sizeof t.ne);
        im.legacy = rows[i].legacy;
        assert_int_equal(imatrix_weights(&im, &t, &weights, reason, &err), ALLOT_OK);
        if (rows[i].reason) {
            assert_null(weights);
            assert_string_equal(reason, rows[i].reason);
            continue;
        }
        assert_non_null(weights);
        assert_memory_equal(weights, rows[i].expected, sizeof rows[i].expected);
        free(weights);
    }
    imatrix_release(&im);
}

/* A model of n_blocks blocks with a norm and two matrices each, and the ends. */
static void fake_model(struct gguf_model *model, int n_blocks)
{
    static const char *const roles[] = {"down.weight", "norm.weight", "up.weight"};
    static struct gguf_tensor tensors[200];
    static char names[200][64];
    int n = 0;
    memset(tensors, 0, sizeof tensors);
    for (int i = 0; i < 2 + 3 * n_blocks; i++) {
        struct gguf_tensor *t = &tensors[n];
        if (i < 2)
            snprintf(names[n], sizeof names[n], "%s", i == 0 ? "output.weight" : "token_embd.weight");
        else
            snprintf(names[n], sizeof names[n], "blk.%d.%s", (i - 2) / 3, roles[(i - 2) % 3]);
        bool norm = strstr(names[n], "norm") != NULL;
        *t = (struct gguf_tensor){
            .name = names[n], .n_dims = 2, .ne = {4, norm ? 1 : 4, 1, 1}, .layer = i < 2 ? -1 : (i - 2) / 3};
        n++;
    }
    *model = (struct gguf_model){.n_tensors = n, .tensors = tensors};
}

static void test_coverage(void **state)
{
    static const struct {
        int n_blocks;
        const char *missing; /* blanks around each entry that is left out */
        const char *extra;
        const char *line;
    } rows[] = {
        {3, "", NULL, ""},
        {3, "", "stranger", ""},
        {3, " blk.1.up.weight ", NULL,
         "the imatrix covers 5 of 6 quantizable tensors; missing: blk.1.up.weight (no entry)"},
        {3, " blk.2.up.weight blk.2.down.weight ", NULL,
         "the imatrix covers 4 of 6 quantizable tensors; nothing for block 2"},
        {5,
         " blk.1.up.weight blk.1.down.weight blk.3.up.weight blk.3.down.weight blk.4.up.weight "
         "blk.4.down.weight ",
         "blk.9.up.weight",
         "the imatrix covers 4 of 10 quantizable tensors; nothing for blocks 1, 3-4; not in the model: "
         "blk.9.up.weight"},
        {4, " blk.0.up.weight blk.1.up.weight blk.2.up.weight blk.3.down.weight ",
         "blk.3.down.weight (turned)",
         "the imatrix covers 4 of 8 quantizable tensors; missing: blk.0.up.weight (no entry), "
         "blk.1.up.weight (no entry), "
         "blk.2.up.weight (no entry) and 1 more; not in the model: blk.3.down.weight (turned)"},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct gguf_model model;
        struct imatrix im = {0};
        char line[512];
        fake_model(&model, rows[r].n_blocks);
        for (int64_t i = 0; i < model.n_tensors; i++) {
            char padded[80];
            snprintf(padded, sizeof padded, " %s ", model.tensors[i].name);
            if (model.tensors[i].layer >= 0 && gguf_tensor_quantizable(&model.tensors[i]) &&
                !strstr(rows[r].missing, padded))
                add(&im, model.tensors[i].name, 4, 1, NULL, NULL);
        }
        if (rows[r].extra)
            add(&im, rows[r].extra, 4, 1, NULL, NULL);
        imatrix_coverage(&im, &model, line);
        assert_string_equal(line, rows[r].line);
        imatrix_release(&im);
    }

    /* A line that cannot hold everything is cut, not overrun. */
    struct gguf_model model;
    struct imatrix im = {0};
    char line[513];
    fake_model(&model, 60);
    for (int i = 0; i < 60; i += 2) {
        char name[300];
        snprintf(name, sizeof name, "blk.%d.up.weight", i);
        add(&im, name, 4, 1, NULL, NULL);
        snprintf(name, sizeof name, "%0200d", i);
        add(&im, name, 4, 1, NULL, NULL);
    }
    line[512] = 'x';
    imatrix_coverage(&im, &model, line);
    assert_true(strlen(line) <= 511 && line[512] == 'x');
    assert_non_null(
        strstr(line, "nothing for blocks 1, 3, 5, 7, 9, 11, ...; missing: blk.0.down.weight (no entry), "));
    imatrix_release(&im);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stock_round_trip),
        cmocka_unit_test(test_stock_legacy),
        cmocka_unit_test(test_ours_in_stock_tools),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
