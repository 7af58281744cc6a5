/* test_splits.c - models in several shards: joined whatever shard is given, and every way in which they fail
 * to belong together. SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include "gguf/model.h"

enum { N_SHARDS = 3 };

/* One way to spoil a split: a key of one shard given another value, a missing file, a name. */
struct spoiled {
    const char *what;
    int shard;         /* the one that is spoiled */
    const char *field; /* the value patched, or NULL */
    uint32_t value;
    int removed;          /* shard to delete, or -1 */
    const char *twin;     /* name for this shard's tensor, or NULL */
    const char *basename; /* name pattern of the files (shard from 1, count) */
    int given;            /* shard to open */
    allot_status status;
    const char *message;
};

#define RULE "m-%05d-of-%05d.gguf"
static const struct spoiled rows[] = {
    {"good, first", 0, NULL, 0, -1, NULL, RULE, 0, ALLOT_OK, NULL},
    {"good, second", 0, NULL, 0, -1, NULL, RULE, 1, ALLOT_OK, NULL},
    {"good, last", 0, NULL, 0, -1, NULL, RULE, 2, ALLOT_OK, NULL},
    {"second missing", 0, NULL, 0, 1, NULL, RULE, 0, ALLOT_ERR_IO,
     "m-00002-of-00003.gguf: shard 2 of 3 is missing"},
    {"first missing", 0, NULL, 0, 0, NULL, RULE, 2, ALLOT_ERR_IO,
     "m-00001-of-00003.gguf: shard 1 of 3 is missing"},
    {"wrong number in the given shard", 0, "split.no.value", 1, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "this is shard 2 of 3, but its name does not end in '-00002-of-00003.gguf'"},
    {"wrong number in another shard", 2, "split.no.value", 1, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "m-00003-of-00003.gguf: split.no is 1, but the name says shard 3 of 3"},
    {"number out of range", 0, "split.no.value", 3, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "'split.no' is not an integer"},
    {"number is no integer", 0, "split.no.type", 6, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "'split.no' is not an integer"},
    {"count too large", 0, "split.count.value", 70000, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "'split.count' is not an integer from 0 to 65535"},
    {"another count in the given shard", 0, "split.count.value", 4, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "this is shard 1 of 4"},
    {"another count in another shard", 1, "split.count.value", 4, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "m-00002-of-00003.gguf: split.count is 4, but other shards say 3"},
    {"tensor count", 0, "split.tensors.count.value", 4, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "split.tensors.count is 4, but the 3 shards hold 3 tensors"},
    {"tensor count of a later shard", 2, "split.tensors.count.value", 2, -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "m-00003-of-00003.gguf: split.tensors.count is 2"},
    {"no tensor count", 0, "split.tensors.count.text", 'X', -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "'split.tensors.count' is missing"},
    {"no number in another shard", 1, "split.no.text", 'X', -1, NULL, RULE, 0, ALLOT_ERR_FORMAT,
     "m-00002-of-00003.gguf: key 'split.no' is missing"},
    {"twice the same tensor", 2, NULL, 0, -1, "blk.0.w", RULE, 1, ALLOT_ERR_FORMAT,
     "tensor 'blk.0.w' is also in"},
    {"another shard is damaged", 1, "blk.1.w.ggml_type", 4, -1, NULL, RULE, 0, ALLOT_ERR_UNSUPPORTED,
     "m-00002-of-00003.gguf: tensor 'blk.1.w' has ggml type 4"},
    {"names without a rule", 0, NULL, 0, -1, NULL, "part%dof%d.gguf", 0, ALLOT_ERR_FORMAT,
     "its name does not end in '-00001-of-00003.gguf', so the other shards cannot be found"},
};

static struct synth synth;

static void make_shard(int number, const struct spoiled *row)
{
    static const uint64_t ne[] = {8};
    char name[32];
    snprintf(name, sizeof name, "blk.%d.w", number);
    bool spoiled = number == row->shard;
    synth_start(&synth, 3, 1, number == 0 ? 4 : 3);
    if (number == 0)
        synth_kv_str(&synth, "general.architecture", "llama");
    synth_kv_u32(&synth, "split.no", (uint32_t)number);
    synth_kv_u32(&synth, "split.count", N_SHARDS);
    synth_kv_u32(&synth, "split.tensors.count", 3);
    synth_tensor(&synth, spoiled && row->twin ? row->twin : name, 1, ne, 0, 0);
    synth_pad(&synth, 32);
    for (int i = 0; i < 32; i++)
        synth_u8(&synth, NULL, (uint8_t)(number + 1));
    if (spoiled && row->field)
        synth_patch(&synth, row->field, &row->value, strstr(row->field, ".text") ? 1 : 4);
}

static void shard_path(char path[4200], const char *folder, const struct spoiled *row, int number)
{
    char pattern[4200];
    snprintf(pattern, sizeof pattern, "%s/%s", folder, strcmp(row->basename, RULE) == 0 ? "m" : "part");
    if (strcmp(row->basename, RULE) == 0)
        snprintf(path, 4200, "%.4000s-%05d-of-%05d.gguf", pattern, number + 1, N_SHARDS);
    else
        snprintf(path, 4200, "%.4000s%dof%d.gguf", pattern, number + 1, N_SHARDS);
}

static void check_good(const struct gguf_model *model, const char *given, const char *folder,
                       const struct spoiled *row)
{
    char path[4200];
    assert_string_equal(model->path, given);
    assert_int_equal(model->n_shards, N_SHARDS);
    assert_int_equal(model->n_kv, 4); /* the first shard's, whichever was given */
    assert_string_equal(model->kv[0].key, "general.architecture");
    assert_int_equal(model->n_tensors, 3);
    int64_t first_size = model->tensors[0].file_offset + 32, others_size = model->tensors[1].file_offset + 32;
    assert_int_equal(model->total_bytes, first_size + 2 * others_size);
    for (int i = 0; i < N_SHARDS; i++) {
        shard_path(path, folder, row, i);
        assert_string_equal(gguf_model_shard_path(model, i), path);
        assert_int_equal(model->tensors[i].shard, i);
        assert_int_equal(model->tensors[i].layer, i);
        for (int b = 0; b < 32; b++)
            assert_int_equal(model->tensors[i].data[b], i + 1);
    }
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const struct spoiled *row = &rows[r];
        struct gguf_model *model;
        struct allot_error err;
        char path[4200], *folder = synth_folder();
        for (int i = 0; i < N_SHARDS; i++) {
            make_shard(i, row);
            shard_path(path, folder, row, i);
            if (i != row->removed)
                synth_save(path, synth.data, synth.n);
        }
        shard_path(path, folder, row, row->given);
        allot_status status = gguf_model_open(&model, path, &err);
        print_message("%s: %s\n", row->what, status ? err.message : "opened");
        assert_int_equal(status, row->status);
        if (status == ALLOT_OK) {
            check_good(model, path, folder, row);
            gguf_model_close(model);
        } else {
            synth_check_message(err.message, folder);
            if (!strstr(err.message, row->message))
                fail_msg("the message does not say \"%s\"", row->message);
        }
        for (int i = 0; i < N_SHARDS; i++) {
            shard_path(path, folder, row, i);
            unlink(path);
        }
        assert_int_equal(rmdir(folder), 0);
        free(folder);
    }
}

/* Shards may differ in alignment, in their keys and in how many tensors they hold; offsets count from each
 * shard's own padded header. One of them holds no tensor. */
static void test_other_layouts(void **state)
{
    static const struct {
        uint32_t alignment;    /* 0: without the key, 32 */
        int n_tensors, filler; /* bytes of a key that moves the data */
    } layouts[N_SHARDS] = {{64, 2, 0}, {0, 0, 3}, {256, 3, 101}};
    static const struct spoiled good = {.basename = RULE};
    static char text[128];
    char path[4200], name[32], *folder = synth_folder();
    struct gguf_model *model;
    struct allot_error err;
    int n = 0;
    (void)state;
    for (int i = 0; i < N_SHARDS; i++) {
        const uint32_t alignment = layouts[i].alignment ? layouts[i].alignment : 32;
        synth_start(&synth, 3, (uint64_t)layouts[i].n_tensors, 4 + (layouts[i].alignment > 0));
        synth_kv_u32(&synth, "split.no", (uint32_t)i);
        synth_kv_u32(&synth, "split.count", N_SHARDS);
        synth_kv_u32(&synth, "split.tensors.count", 5);
        memset(text, 'x', sizeof text);
        text[layouts[i].filler] = '\0';
        synth_kv_str(&synth, "filler", text);
        if (layouts[i].alignment)
            synth_kv_u32(&synth, "general.alignment", alignment);
        for (int t = 0; t < layouts[i].n_tensors; t++) {
            const uint64_t ne[] = {(uint64_t)(5 + n + t)};
            snprintf(name, sizeof name, "blk.%d.w", n + t);
            synth_tensor(&synth, name, 1, ne, 0, (uint64_t)t * alignment);
        }
        for (int t = 0; t < layouts[i].n_tensors; t++, n++) {
            synth_pad(&synth, alignment);
            for (int b = 0; b < 4 * (5 + n); b++)
                synth_u8(&synth, NULL, (uint8_t)(16 * n + b % 16));
        }
        shard_path(path, folder, &good, i);
        synth_save(path, synth.data, synth.n);
    }
    if (gguf_model_open(&model, path, &err))
        fail_msg("%s", err.message);
    assert_int_equal(model->n_tensors, 5);
    assert_int_equal(model->alignment, 64); /* the first shard's */
    for (int i = 0; i < 5; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        snprintf(name, sizeof name, "blk.%d.w", i);
        assert_string_equal(t->name, name);
        assert_int_equal(t->shard, i < 2 ? 0 : 2);
        assert_int_equal(t->file_offset % layouts[t->shard].alignment, 0);
        assert_int_equal(t->n_bytes, 4 * (5 + i));
        for (int b = 0; b < t->n_bytes; b++)
            assert_int_equal(t->data[b], 16 * i + b % 16);
    }
    gguf_model_close(model);
    for (int i = 0; i < N_SHARDS; i++) {
        shard_path(path, folder, &good, i);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
    free(folder);
}

/* split.count 1 or 0 is one file, under any name. */
static void test_single(void **state)
{
    (void)state;
    for (uint32_t count = 0; count <= 1; count++) {
        struct gguf_model *model;
        struct allot_error err;
        char path[64];
        int fd = synth_memfd(path);
        synth_start(&synth, 3, 0, 1);
        synth_kv_u32(&synth, "split.count", count);
        synth_fill(fd, synth.data, synth.n);
        assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
        assert_int_equal(model->n_shards, 1);
        gguf_model_close(model);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_other_layouts),
                                       cmocka_unit_test(test_single)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
