/* test_net_forward.c - log-probabilities against libllama's on F32 models.  SPDX-License-Identifier: MIT
 *
 * More models (absolute paths, ':' between them) can be named in ALLOT_TEST_MODELS; each is copied
 * to F32 with the stock llama-quantize first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "libllama.h"
#include "random_model.h"

/* The first N_CTX tokens of the licence text every Debian has, as the model's own tokenizer cuts it. */
static void read_text_ids(const char *path, int32_t ids[static N_CTX])
{
    struct llama_model_params mp = llama_model_default_params();
    mp.vocab_only = true;
    struct llama_model *model = llama_model_load_from_file(path, mp);
    assert_non_null(model);
    char text[8192];
    FILE *f = fopen("/usr/share/common-licenses/GPL-3", "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    int32_t all[8192];
    int32_t n_ids = llama_tokenize(llama_model_get_vocab(model), text, (int32_t)n, all, 8192, true, false);
    assert_true(n_ids >= N_CTX);
    memcpy(ids, all, sizeof(int32_t) * N_CTX);
    llama_model_free(model);
}

static void compare_f32_copy(const char *path)
{
    char command[1024];
    const char *f32 = in_folder("f32.gguf");
    snprintf(command, sizeof command, "'%s/llama-quantize' --allow-requantize '%s' '%s' F32 >'%s/log' 2>&1",
             STOCK_TOOLS_DIR, path, f32, folder);
    assert_int_equal(system(command), 0);
    int32_t ids[N_CTX];
    read_text_ids(f32, ids);
    assert_true(agrees(path, f32, ids, 2, 0.05));
    remove(f32);
}

static void test_trained_models(void **state)
{
    (void)state;
    compare_f32_copy(TEST_DATA_DIR "/tiny-llama-bf16.gguf");
    const char *more = getenv("ALLOT_TEST_MODELS");
    char *list = strdup(more ? more : "");
    for (char *path = strtok(list, ":"); path; path = strtok(NULL, ":"))
        compare_f32_copy(path);
    free(list);
}

static void test_random_models(void **state)
{
    (void)state;
    static const struct random_model rows[] = {
        {2, 96, 160, 300, 6, 2, 16, .tied = true, .biases = true, .rope_factors = true, .seed = 1},
        {3, 64, 96, 2500, 4, 4, 32, .tied = false,
         .settings = "rope.scaling.type=linear rope.scaling.factor=4.0", .seed = 2},
        {1, 32, 64, 4500, 2, 1, 16, .tied = true, .rope_factors = true,
         .settings = "rope.scaling.type=linear rope.scaling.factor=2.0", .seed = 3},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/random-%zu.gguf", folder, i);
        assert_true(random_model_write(path, &rows[i]));
        assert_true(agrees(path, path, NULL, (int)i + 1, 2e-3));
        remove(path);
    }
}

/* What libllama would obey and this network cannot is refused, never ignored. */
static void test_unknown_settings(void **state)
{
    (void)state;
    const struct random_model settings = {
        1, 32, 64, 300, 2, 1, 16, .settings = "attention.key_length_swa=8", .seed = 4};
    struct allot_error err = {0};
    struct gguf_model *model;
    struct net net;
    const char *path = in_folder("settings.gguf");
    assert_true(random_model_write(path, &settings));
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
    assert_int_equal(net_open(&net, model, &err), ALLOT_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "key_length_swa"));
    gguf_model_close(model);
    remove(path);
}

static int set_up(void **state)
{
    llama_log_set(print_errors, NULL);
    return make_folder(state);
}

static int tear_down(void **state)
{
    (void)state;
    remove(in_folder("log"));
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_models),
                                       cmocka_unit_test(test_trained_models),
                                       cmocka_unit_test(test_unknown_settings)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
