/* test_mutations.c - a small GGUF file cut at every length and changed at every byte of its header, opened by
 * us and by ggml. We never crash, fail with one line naming the file, agree with ggml on what is inside, and
 * differ on what is acceptable only for listed reasons. ggml runs in a child first, because it may abort.
 * SPDX-License-Identifier: MIT */
#include "gguf/synth.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "ggml.h"
#include "gguf.h"
#include "gguf/model.h"

enum verdict { UNKNOWN, TRYING, ACCEPTED, REJECTED, ABORTED };

static struct synth synth, mutant;
static const uint8_t replacements[] = {0x00, 0x01, 0x7f, 0x80, 0xff}; /* and three that depend on the byte */
enum { N_REPLACEMENTS = sizeof replacements + 3 };

static uint8_t replacement(uint8_t old, size_t which)
{
    if (which < sizeof replacements)
        return replacements[which];
    return which == sizeof replacements       ? (uint8_t)(old + 1)
           : which == sizeof replacements + 1 ? (uint8_t)(old - 1)
                                              : (uint8_t)(old ^ 0x20);
}

static void make_mutant(size_t number)
{
    size_t at = number / N_REPLACEMENTS;
    memcpy(mutant.data, synth.data, synth.n);
    mutant.n = synth.n;
    mutant.data[at] = replacement(synth.data[at], number % N_REPLACEMENTS);
}

static struct gguf_context *ggml_open(const void *bytes, size_t n)
{
    const struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
    return gguf_init_from_buffer(bytes, n, params);
}

static void silence(enum ggml_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

/* ggml's verdict on every mutant: a child works through them and is replaced when ggml aborts it. */
static void ask_ggml(uint8_t *verdicts, size_t n)
{
    size_t next = 0;
    while (next < n) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            int null = open("/dev/null", O_WRONLY);
            dup2(null, 2);
            ggml_log_set(silence, NULL);
            for (size_t i = next; i < n; i++) {
                verdicts[i] = TRYING;
                make_mutant(i);
                struct gguf_context *ctx = ggml_open(mutant.data, mutant.n);
                verdicts[i] = ctx ? ACCEPTED : REJECTED;
                gguf_free(ctx);
            }
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        while (next < n && (verdicts[next] == ACCEPTED || verdicts[next] == REJECTED))
            next++;
        if (next < n) {
            assert_int_equal(verdicts[next], TRYING);
            verdicts[next++] = ABORTED;
        }
    }
}

/* Pointers must lie inside the file and show its bytes, without overlap. */
static void check_data(const struct gguf_model *model, const struct synth *file)
{
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        assert_true(t->n_bytes > 0 && t->file_offset >= 24);
        assert_true((uint64_t)t->file_offset + (uint64_t)t->n_bytes <= file->n);
        assert_memory_equal(t->data, file->data + t->file_offset, (size_t)t->n_bytes);
        assert_true(t->n_bytes == t->n_rows * t->row_bytes);
        for (int64_t j = 0; j < i; j++) {
            const struct gguf_tensor *u = &model->tensors[j];
            assert_true(u->file_offset + u->n_bytes <= t->file_offset ||
                        t->file_offset + t->n_bytes <= u->file_offset);
        }
    }
}

/* ggml also wants the data in the order of the headers, without gaps; we do not. */
static bool tightly_packed(const struct gguf_model *model)
{
    int64_t bytes = 0, first = INT64_MAX, last = 0, a = model->alignment;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        bytes += (t->n_bytes + a - 1) / a * a;
        first = t->file_offset < first ? t->file_offset : first;
        last = t->file_offset + (t->n_bytes + a - 1) / a * a > last
                   ? t->file_offset + (t->n_bytes + a - 1) / a * a
                   : last;
    }
    return bytes == last - first;
}

static void compare_with_ggml(const struct gguf_model *model, const struct synth *file)
{
    struct gguf_context *ctx = ggml_open(file->data, file->n);
    assert_non_null(ctx);
    assert_int_equal(model->n_kv, gguf_get_n_kv(ctx));
    assert_int_equal(model->n_tensors, gguf_get_n_tensors(ctx));
    assert_int_equal(model->alignment, gguf_get_alignment(ctx));
    for (int64_t i = 0; i < model->n_kv; i++) {
        const struct gguf_kv *kv = &model->kv[i];
        assert_string_equal(kv->key, gguf_get_key(ctx, i));
        assert_int_equal(kv->type, gguf_get_kv_type(ctx, i));
        if (kv->type == GGUF_TYPE_ARRAY)
            assert_int_equal(gguf_model_array_len(model, kv->key), gguf_get_arr_n(ctx, i));
    }
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const char *name = gguf_get_tensor_name(ctx, i);
        const struct gguf_tensor *t = gguf_model_tensor(model, name);
        assert_non_null(t);
        assert_int_equal(t->type, gguf_get_tensor_type(ctx, i));
        assert_int_equal(t->n_bytes, gguf_get_tensor_size(ctx, i));
        assert_int_equal(t->file_offset, gguf_get_data_offset(ctx) + gguf_get_tensor_offset(ctx, i));
    }
    gguf_free(ctx);
}

/* Why we may refuse what ggml's reader lets pass (libllama refuses the first of them later). */
static bool may_be_stricter(const char *message)
{
    static const char *const reasons[] = {
        "fewer than its tensors need",
        "contains a NUL byte",
        "not a power of two of at least 8",
        " of 0 elements",
        "is empty",
        "lies beyond any possible end",
        "too many bytes to count",
        "split.",
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(message, reasons[i]))
            return true;
    return false;
}

static void test_every_byte(void **state)
{
    char path[64];
    int fd = synth_memfd(path);
    int counts[ABORTED + 1][2] = {{0}}; /* [ggml's verdict][do we open it] */
    (void)state;
    synth_model(&synth, 3);
    size_t n = synth_find(&synth, "data") * N_REPLACEMENTS;
    uint8_t *verdicts = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(verdicts != MAP_FAILED);
    ask_ggml(verdicts, n);

    for (size_t i = 0; i < n; i++) {
        struct gguf_model *model;
        struct allot_error err;
        make_mutant(i);
        synth_fill(fd, mutant.data, mutant.n);
        allot_status status = gguf_model_open(&model, path, &err);
        counts[verdicts[i]][status == ALLOT_OK]++;
        if (status != ALLOT_OK) {
            synth_check_message(err.message, path);
            if (verdicts[i] == ACCEPTED && !may_be_stricter(err.message))
                fail_msg("byte %zu, ggml opens it: %s", i / N_REPLACEMENTS, err.message);
            continue;
        }
        check_data(model, &mutant);
        if (verdicts[i] == ACCEPTED)
            compare_with_ggml(model, &mutant);
        else if (tightly_packed(model))
            fail_msg("byte %zu = %d: we open what ggml does not", i / N_REPLACEMENTS,
                     mutant.data[i / N_REPLACEMENTS]);
        gguf_model_close(model);
    }
    print_message("ggml accepts %d (we refuse %d of them), refuses %d (we open %d of them), aborts on %d\n",
                  counts[ACCEPTED][0] + counts[ACCEPTED][1], counts[ACCEPTED][0],
                  counts[REJECTED][0] + counts[REJECTED][1], counts[REJECTED][1],
                  counts[ABORTED][0] + counts[ABORTED][1]);
    /* The comparison means something only if both verdicts are frequent. */
    assert_true(counts[ACCEPTED][1] > 500 && counts[REJECTED][0] > 500);
    munmap(verdicts, n);
    close(fd);
}

static void test_every_length(void **state)
{
    char path[64];
    int fd = synth_memfd(path);
    (void)state;
    synth_model(&synth, 2);
    size_t end = synth_find(&synth, "data_end");
    for (size_t length = 0; length <= synth.n; length++) {
        struct gguf_model *model;
        struct allot_error err;
        synth_fill(fd, synth.data, length);
        allot_status status = gguf_model_open(&model, path, &err);
        assert_int_equal(status == ALLOT_OK, length >= end); /* padding after the last tensor may be absent */
        if (status == ALLOT_OK)
            gguf_model_close(model);
        else
            synth_check_message(err.message, path);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_byte),
                                       cmocka_unit_test(test_every_length)};
    setenv("GGML_NO_BACKTRACE", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
