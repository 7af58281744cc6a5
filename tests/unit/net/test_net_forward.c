/* test_net_forward.c - log-probabilities against libllama's on F32 models.  SPDX-License-Identifier: MIT
 *
 * More models (absolute paths, ':' between them) can be named in ALLOT_TEST_MODELS; each is copied
 * to F32 with the stock llama-quantize first. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "llama.h"
#include "net/net.h"
#include "random_model.h"

enum { N_CTX = 256 };

/* Log-probabilities (N_CTX, vocab) as libllama computes them with an F32 cache and no flash attention. */
static float *libllama_log_probs(const char *path, const int32_t *ids, int64_t n_vocab)
{
    struct llama_model_params mp = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(path, mp);
    assert_non_null(model);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = N_CTX;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.n_threads = cp.n_threads_batch = 2;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    assert_non_null(ctx);
    assert_int_equal(llama_vocab_n_tokens(llama_model_get_vocab(model)), n_vocab);
    struct llama_batch batch = llama_batch_init(N_CTX, 0, 1);
    batch.n_tokens = N_CTX;
    for (int i = 0; i < N_CTX; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    assert_int_equal(llama_decode(ctx, batch), 0);
    float *out = malloc(sizeof *out * (size_t)(N_CTX * n_vocab));
    for (int t = 0; t < N_CTX; t++) {
        const float *logits = llama_get_logits_ith(ctx, t);
        double sum = 0, top = logits[0];
        for (int64_t v = 0; v < n_vocab; v++)
            top = fmax(top, logits[v]);
        for (int64_t v = 0; v < n_vocab; v++)
            sum += exp(logits[v] - top);
        for (int64_t v = 0; v < n_vocab; v++)
            out[t * n_vocab + v] = (float)(logits[v] - top - log(sum));
    }
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return out;
}

static void compare(const char *path, const int32_t *given_ids, int n_threads)
{
    struct allot_error err = {0};
    struct gguf_model *model = NULL;
    struct net net;
    struct pool *pool = NULL;
    if (gguf_model_open(&model, path, &err) != ALLOT_OK || net_open(&net, model, &err) != ALLOT_OK ||
        pool_new(&pool, n_threads, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    int32_t ids[N_CTX];
    for (int i = 0; i < N_CTX; i++)
        ids[i] = given_ids ? given_ids[i] : (int32_t)(rng_u64(11, (uint64_t)i) % (uint64_t)net.n_vocab);
    float *x = malloc(sizeof *x * (size_t)(N_CTX * net.n_embd));
    float *ours = malloc(sizeof *ours * (size_t)(N_CTX * net.n_vocab));
    struct net_batch batch = {ids, 1, N_CTX};
    if (net_forward(&net, pool, &batch, x, NULL, N_CTX, NULL, NULL, &err) != ALLOT_OK ||
        net_log_probs(&net, pool, x, N_CTX, ours, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    float *theirs = libllama_log_probs(path, ids, net.n_vocab);
    double worst = 0, sum = 0;
    for (int64_t i = 0; i < N_CTX * net.n_vocab; i++) {
        double d = fabs((double)ours[i] - theirs[i]);
        worst = d <= worst ? worst : d; /* NaN sticks */
        sum += d;
    }
    double mean = sum / (double)(N_CTX * net.n_vocab);
    print_message("%s: largest difference %.2g, mean %.2g\n", path, worst, mean);
    assert_true(worst < 2e-3);
    assert_true(mean < 1e-4);
    free(x);
    free(ours);
    free(theirs);
    net_release(&net);
    pool_free(pool);
    gguf_model_close(model);
}

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
    compare(f32, ids, 2);
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
        {3, 64, 96, 2500, 4, 4, 32, .tied = false, .linear_scale = 4.0f, .seed = 2},
        {1, 32, 64, 4500, 2, 1, 16, .tied = true, .rope_factors = true, .linear_scale = 2.0f, .seed = 3},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/random-%zu.gguf", folder, i);
        assert_true(random_model_write(path, &rows[i]));
        compare(path, NULL, (int)i + 1);
        remove(path);
    }
}

/* What libllama would obey and this network cannot is refused, never ignored. */
static void test_unknown_settings(void **state)
{
    (void)state;
    const struct random_model settings = {1, 32, 64, 300, 2, 1, 16, .attn_factor = 1.5f, .seed = 4};
    struct allot_error err = {0};
    struct gguf_model *model;
    struct net net;
    const char *path = in_folder("settings.gguf");
    assert_true(random_model_write(path, &settings));
    assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
    assert_int_equal(net_open(&net, model, &err), ALLOT_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "attn_factor"));
    gguf_model_close(model);
    remove(path);
}

static void silent(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int set_up(void **state)
{
    llama_log_set(silent, NULL);
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
