/* test_measure.c - whole measurements of the tiny model: ties, texts, refusals.  SPDX-License-Identifier: MIT
 */
#include "fixture.h"

#include <pthread.h>

#include "measure/window.h"

static const struct measure_options small = {.n_ctx = 128, .n_threads = 1};

static struct measure_result measure(const char *base, const char *const *candidates, size_t n_candidates,
                                     const char *const *texts, size_t n_texts,
                                     const struct measure_options *options)
{
    struct measure_result result;
    struct allot_error err = {0};
    if (measure_run(&result, base, candidates, n_candidates, texts, n_texts, options, NULL, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    return result;
}

/* The base as its own candidate, beside a real one. */
static void test_a_model_against_itself(void **state)
{
    (void)state;
    const char *candidates[] = {write_quantized("q3.gguf", "Q3_K_M"), tiny_path};
    const char *texts[] = {write_english("text.txt", 1, 150)};
    struct measure_result result = measure(tiny_path, candidates, 2, texts, 1, &small);
    const struct measure_stats *other = &result.stats[0], *self = &result.stats[2];
    assert_int_equal(self->n_tokens, self->n_windows * 63);
    assert_true(self->kl.mean == 0.0 && self->kl.se == 0.0 && self->kl_max == 0.0);
    assert_true(self->same_top.mean == 1.0 && self->same_top.se == 0.0);
    assert_true(self->ln_ratio.mean == 0.0 && self->ln_ratio.se == 0.0);
    assert_true(self->nll.mean == self->nll_base.mean);
    assert_true(self->dp_rms == 0.0);
    assert_true(other->kl.mean > 1e-3 && other->kl.mean < 1.0);
    assert_true(other->kl.se > 0.0 && other->same_top.mean < 1.0);
    assert_near(other->ln_ratio.mean, other->nll.mean - other->nll_base.mean, 1e-12);
    /* paired with the first candidate */
    assert_true(other->kl_minus_first.mean == 0.0 && other->kl_minus_first.se == 0.0);
    assert_near(self->kl_minus_first.mean, -other->kl.mean, 1e-15);
    assert_near(self->kl_minus_first.se, other->kl.se, 1e-15);
    measure_result_release(&result);
}

/* Any two candidates are paired, over all texts: seen from each as the first. */
static void test_differences_of_any_two(void **state)
{
    (void)state;
    const char *files[] = {write_quantized("q2.gguf", "Q2_K"), write_quantized("q3.gguf", "Q3_K_M"),
                           write_quantized("q4.gguf", "Q4_K_S")};
    const char *texts[] = {write_english("first.txt", 2, 60), write_english("second.txt", 3, 40)};
    struct measure_result all = measure(tiny_path, files, 3, texts, 2, &small);
    for (size_t first = 0; first < 3; first++) {
        const char *turned[] = {files[first], files[(first + 1) % 3], files[(first + 2) % 3]};
        struct measure_result result = measure(tiny_path, turned, 3, texts, 2, &small);
        for (size_t i = 0; i < 3; i++) {
            const size_t c = (first + i) % 3;
            const struct measure_mean want = result.stats[i * 3 + 2].kl_minus_first,
                                      got = all.differences[c * 3 + first],
                                      back = all.differences[first * 3 + c];
            assert_true(got.mean == want.mean && got.se == want.se);
            assert_true(back.mean == -got.mean && back.se == got.se);
            assert_near(got.mean, all.stats[c * 3 + 2].kl.mean - all.stats[first * 3 + 2].kl.mean, 1e-15);
            assert_true(i == 0 ? got.se == 0 : got.se > 0);
        }
        measure_result_release(&result);
    }
    measure_result_release(&all);
}

static void test_texts_and_their_pool(void **state)
{
    (void)state;
    const char *candidates[] = {write_quantized("q4.gguf", "Q4_K_S")};
    const char *texts[] = {write_english("first.txt", 2, 120), write_english("second.txt", 3, 60)};
    struct measure_result both = measure(tiny_path, candidates, 1, texts, 2, &small);
    assert_int_equal(both.n_texts, 2);
    const struct measure_stats *columns = both.stats, *pooled = &both.stats[2];
    assert_true(columns[0].n_windows > columns[1].n_windows && columns[1].n_windows > 1);
    assert_int_equal(pooled->n_windows, columns[0].n_windows + columns[1].n_windows);
    double n0 = (double)columns[0].n_tokens, n1 = (double)columns[1].n_tokens;
    assert_near(pooled->kl.mean, (n0 * columns[0].kl.mean + n1 * columns[1].kl.mean) / (n0 + n1), 1e-14);
    assert_near(pooled->nll.mean, (n0 * columns[0].nll.mean + n1 * columns[1].nll.mean) / (n0 + n1), 1e-12);
    assert_near(pooled->kl_max, fmax(columns[0].kl_max, columns[1].kl_max), 0.0);
    /* each text as if it were alone */
    for (int t = 0; t < 2; t++) {
        struct measure_result alone = measure(tiny_path, candidates, 1, &texts[t], 1, &small);
        assert_memory_equal(&alone.stats[0], &both.stats[t], sizeof alone.stats[0]);
        assert_memory_equal(&alone.stats[0], &alone.stats[1], sizeof alone.stats[0]);
        assert_string_equal(alone.text_sha256[0], both.text_sha256[t]);
        measure_result_release(&alone);
    }
    assert_string_not_equal(both.text_sha256[0], both.text_sha256[1]);
    measure_result_release(&both);
}

/* As many windows as threads, fewer, and more, of two texts. */
static void test_threads_change_nothing(void **state)
{
    (void)state;
    const char *candidates[] = {write_quantized("q2.gguf", "Q2_K"), tiny_path};
    const char *texts[] = {write_english("first.txt", 4, 70), write_english("second.txt", 9, 40)};
    struct measure_options options = {.n_ctx = 128};
    for (options.max_windows = 0; options.max_windows < 3; options.max_windows++) {
        struct measure_result one = {0};
        for (options.n_threads = 1; options.n_threads <= 4; options.n_threads++) {
            struct measure_result result = measure(tiny_path, candidates, 2, texts, 2, &options);
            if (options.max_windows == 0)
                assert_true(result.stats[2].n_windows > 6);
            else
                assert_int_equal(result.stats[2].n_windows, 2 * options.max_windows);
            if (options.n_threads == 1) {
                one = result;
                continue;
            }
            assert_memory_equal(result.stats, one.stats, 6 * sizeof *one.stats);
            measure_result_release(&result);
        }
        measure_result_release(&one);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------------- */

static void rename_token(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    int64_t key = gguf_find_key(metadata, "tokenizer.ggml.tokens");
    size_t n = gguf_get_arr_n(metadata, key);
    const char **tokens = malloc(n * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++)
        tokens[i] = strdup(i == 700 ? "changed" : gguf_get_arr_str(metadata, key, i));
    gguf_set_arr_str(metadata, "tokenizer.ggml.tokens", tokens, n);
    for (size_t i = 0; i < n; i++)
        free((char *)tokens[i]);
    free(tokens);
}

static void spoil_norm(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)metadata;
    ggml_get_data_f32(ggml_get_tensor(tensors, "output_norm.weight"))[3] = NAN;
}

/* NaN for the token "~" alone: what does not hold it is measured without fault. */
static void spoil_tilde(struct gguf_context *metadata, struct ggml_context *tensors)
{
    int64_t key = gguf_find_key(metadata, "tokenizer.ggml.tokens");
    size_t id = 0;
    while (strcmp(gguf_get_arr_str(metadata, key, id), "~") != 0)
        assert_true(++id < gguf_get_arr_n(metadata, key));
    struct ggml_tensor *rows = ggml_get_tensor(tensors, "token_embd.weight");
    assert_int_equal(rows->type, GGML_TYPE_BF16);
    memset((char *)rows->data + id * rows->nb[1], 0xff, rows->nb[1]);
}

static void drop_norm(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)metadata;
    ggml_set_name(ggml_get_tensor(tensors, "output_norm.weight"), "another.weight");
}

static void test_refusals(void **state)
{
    (void)state;
    const char *english = write_english("text.txt", 5, 60), *ten = write_english("ten.txt", 6, 1);
    const char *renamed = write_changed("renamed.gguf", rename_token);
    const char *spoiled = write_changed("spoiled.gguf", spoil_norm);
    const struct {
        const char *base, *candidate, *text;
        struct measure_options options;
        allot_status status;
        const char *messages[3];
    } rows[] = {
        {tiny_path,
         tiny_path,
         ten,
         {512, 0, 1},
         ALLOT_ERR_ARGUMENT,
         {"ten.txt", "at least 512 tokens", "it has"}},
        {tiny_path, tiny_path, english, {127, 0, 1}, ALLOT_ERR_ARGUMENT, {"even", "127"}},
        {tiny_path, tiny_path, english, {30, 0, 1}, ALLOT_ERR_ARGUMENT, {"at least 32"}},
        {tiny_path,
         renamed,
         english,
         {64, 1, 1},
         ALLOT_ERR_ARGUMENT,
         {"renamed.gguf", "token 700", "\"changed\""}},
        {tiny_path,
         spoiled,
         english,
         {64, 1, 1},
         ALLOT_ERR_NUMERIC,
         {"spoiled.gguf", "not finite", "token 32"}},
        {spoiled, tiny_path, english, {64, 1, 1}, ALLOT_ERR_NUMERIC, {"spoiled.gguf", "not finite"}},
        {tiny_path, "absent.gguf", english, {64, 1, 1}, ALLOT_ERR_IO, {"absent.gguf"}},
        {tiny_path, english, english, {64, 1, 1}, ALLOT_ERR_FORMAT, {"text.txt"}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct measure_result result;
        struct allot_error err = {0};
        allot_status status = measure_run(&result, rows[r].base, &rows[r].candidate, 1, &rows[r].text, 1,
                                          &rows[r].options, NULL, &err);
        if (status != rows[r].status)
            fail_msg("row %zu: status %d (%s)", r, status, err.message);
        for (int m = 0; m < 3 && rows[r].messages[m] != NULL; m++)
            assert_message(&err, rows[r].messages[m]);
        assert_null(result.stats);
    }
}

/* Three windows of the second text fail, the first of them is told however many threads meet them. */
static void test_first_failure_is_told(void **state)
{
    (void)state;
    const char *candidates[] = {write_changed("tilde.gguf", spoil_tilde)};
    const char *texts[] = {write_english("first.txt", 10, 60), write_english("second.txt", 11, 40)};
    FILE *file = fopen(texts[1], "ab");
    assert_non_null(file);
    for (int i = 0; i < 90; i++)
        fputs(" 7~7", file);
    assert_int_equal(fclose(file), 0);
    struct measure_options options = {.n_ctx = 64, .n_threads = 1};
    struct allot_error first = {0};
    for (; options.n_threads <= 4; options.n_threads++) {
        for (int repeat = 0; repeat < 3; repeat++) {
            struct measure_result result;
            struct allot_error err = {0};
            assert_int_equal(measure_run(&result, tiny_path, candidates, 1, texts, 2, &options, NULL, &err),
                             ALLOT_ERR_NUMERIC);
            assert_message(&err, "tilde.gguf: its output is not finite");
            assert_message(&err, "of text 2");
            assert_null(strstr(err.message, "window 0 of"));
            if (first.message[0] == '\0')
                first = err;
            assert_string_equal(err.message, first.message);
        }
    }
}

static void test_number_of_threads(void **state)
{
    (void)state;
    const int64_t mib = 1 << 20;
    const struct {
        int asked;
        int64_t windows, bytes;
        int want;
    } rows[] = {
        {8, 100, mib, 8},
        {8, 3, mib, 3},
        {1, 100, mib, 1},
        {8, 8, 512 * mib, 8},
        {8, 8, 512 * mib + 1, 7},
        {64, 50, 900 * mib, 4},
        {64, 3, 900 * mib, 3},
        {2, 9, 5000 * mib, 1},
        {4096, 1, 9000 * mib, 1},
        {4096, 5000, mib, 4096},
        {4096, 5000, 2 * mib, 2048},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        assert_int_equal(window_threads(rows[r].asked, rows[r].windows, rows[r].bytes), rows[r].want);
}

static void test_model_that_libllama_refuses(void **state)
{
    (void)state;
    const char *candidates[] = {write_changed("normless.gguf", drop_norm)};
    const char *texts[] = {write_english("text.txt", 7, 60)};
    struct measure_result result;
    struct allot_error err = {0};
    assert_int_equal(measure_run(&result, tiny_path, candidates, 1, texts, 1, &small, NULL, &err),
                     ALLOT_ERR_UNSUPPORTED);
    assert_message(&err, "normless.gguf: libllama cannot load it");
    assert_message(&err, "output_norm"); /* libllama's own reason */
}

/* ---- Notes --------------------------------------------------------------------------------------- */

static uint32_t trained_context;

static void set_context(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_u32(metadata, "llama.context_length", trained_context);
}

static void keep_note(void *user, const char *line)
{
    snprintf(user, 512, "%s", line);
}

static void test_windows_beyond_the_trained_context(void **state)
{
    (void)state;
    static const struct {
        uint32_t trained;
        const char *note; /* NULL: none */
    } rows[] = {{64, NULL}, {63, "trained on 63 tokens of context, windows have 64"}, {UINT32_MAX, NULL}};
    const char *texts[] = {write_english("text.txt", 9, 60)};
    const struct measure_options options = {.n_ctx = 64, .max_windows = 1, .n_threads = 1};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        trained_context = rows[r].trained;
        const char *base = write_changed("context.gguf", set_context);
        char note[512] = "";
        struct allot_progress progress = {.note = keep_note, .user = note};
        struct measure_result result;
        struct allot_error err = {0};
        if (measure_run(&result, base, &base, 1, texts, 1, &options, &progress, &err) != ALLOT_OK)
            fail_msg("%s", err.message);
        if (rows[r].note == NULL)
            assert_string_equal(note, "");
        else
            assert_non_null(strstr(note, rows[r].note));
        measure_result_release(&result);
    }
}

/* ---- Progress ------------------------------------------------------------------------------------- */

struct watch {
    int64_t stop_at, last, total;
    pthread_t caller;
    int n_reports, n_wrong;
};

static bool watch_windows(void *user, const char *stage, int64_t done, int64_t total)
{
    struct watch *watch = user;
    if (strcmp(stage, "measure") != 0)
        return false;
    watch->n_wrong += done < watch->last || done > total || !pthread_equal(watch->caller, pthread_self());
    watch->last = done;
    watch->total = total;
    watch->n_reports++;
    return watch->stop_at >= 0 && done >= watch->stop_at;
}

static void test_progress_and_interruption(void **state)
{
    (void)state;
    const char *candidates[] = {tiny_path}, *texts[] = {write_english("text.txt", 8, 120)};
    struct measure_options options = {.n_ctx = 64, .max_windows = 5, .n_threads = 1};
    for (; options.n_threads <= 3; options.n_threads++) {
        for (int64_t stop_at = -1; stop_at <= 3; stop_at += 2) {
            struct watch watch = {.stop_at = stop_at, .caller = pthread_self()};
            struct allot_progress progress = {.report = watch_windows, .user = &watch};
            struct measure_result result;
            struct allot_error err = {0};
            allot_status status =
                measure_run(&result, tiny_path, candidates, 1, texts, 1, &options, &progress, &err);
            assert_int_equal(status, stop_at < 0 ? ALLOT_OK : ALLOT_ERR_INTERRUPTED);
            assert_int_equal(watch.n_wrong, 0);
            assert_int_equal(watch.total, 5);
            if (stop_at < 0)
                assert_int_equal(watch.last, 5);
            else if (options.n_threads == 1)
                assert_int_equal(watch.last, stop_at);
            assert_int_equal(result.stats == NULL, stop_at >= 0);
            measure_result_release(&result);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_against_itself),
        cmocka_unit_test(test_differences_of_any_two),
        cmocka_unit_test(test_texts_and_their_pool),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_first_failure_is_told),
        cmocka_unit_test(test_number_of_threads),
        cmocka_unit_test(test_model_that_libllama_refuses),
        cmocka_unit_test(test_progress_and_interruption),
        cmocka_unit_test(test_windows_beyond_the_trained_context),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
