/* test_net_open.c - models and circumstances that are refused.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "gguf.h"
#include "llama.h"
#include "base/gemm.h"
#include "net/net.h"
#include "random_model.h"
#include "tiny.h"

static char path[300];

/* ---- What is wrong with a model ------------------------------------------------------------------- */

static void nothing(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)metadata;
    (void)tensors;
}

static void ff_wrong(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_u32(metadata, "llama.feed_forward_length", 65);
}

static void ff_missing(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_remove_key(metadata, "llama.feed_forward_length");
}

static void ff_list(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    const uint32_t list[] = {64, 7}; /* the first counts */
    gguf_set_arr_data(metadata, "llama.feed_forward_length", GGUF_TYPE_UINT32, list, 2);
}

static void ff_list_wrong(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    const uint32_t list[] = {63, 64};
    gguf_set_arr_data(metadata, "llama.feed_forward_length", GGUF_TYPE_UINT32, list, 2);
}

static void ff_list_short(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    const uint32_t list[] = {64};
    gguf_set_arr_data(metadata, "llama.feed_forward_length", GGUF_TYPE_UINT32, list, 1);
}

static void eps_missing(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_remove_key(metadata, "llama.attention.layer_norm_rms_epsilon");
}

static void eps_whole(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_u32(metadata, "llama.attention.layer_norm_rms_epsilon", 1);
}

static void context_missing(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_remove_key(metadata, "llama.context_length");
}

static void used_without_experts(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_u32(metadata, "llama.expert_used_count", 2);
}

static void heads_signed(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_i32(metadata, "llama.attention.head_count", 2);
}

static void norm_not_finite(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)metadata;
    ((float *)ggml_get_tensor(tensors, "output_norm.weight")->data)[5] = NAN;
}

/* Halves the values' bytes, which does not matter. */
static void factors_bf16(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)metadata;
    struct ggml_tensor *factors = ggml_get_tensor(tensors, "rope_freqs.weight");
    factors->type = GGML_TYPE_BF16;
    factors->nb[0] = 2;
    factors->nb[1] = factors->nb[2] = factors->nb[3] = 2 * (size_t)factors->ne[0];
}

/* ---- Models ----------------------------------------------------------------------------------------- */

/* A random model of another architecture, its settings wrong: what is refused, and by libllama not always. */
static void test_refused_settings(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *settings, *complaint;
    } rows[] = {
        {"gemma2", "attn_logit_softcapping=0.0", "gemma2.attn_logit_softcapping is 0, not a soft-cap"},
        {"gemma2", "final_logit_softcapping=0.0", "gemma2.final_logit_softcapping is 0, not a soft-cap"},
        {"gemma2", "attention.sliding_window_pattern=1", "sliding_window_pattern is 1: no layer has"},
        {"gemma3", "final_logit_softcapping=0.0", NULL},
        {"gemma3", "final_logit_softcapping=1e38", "final_logit_softcapping is 1e+38, not a soft-cap"},
        {"gemma3", "attention.sliding_window=16 attention.sliding_window_pattern=1", "is 1: no layer has"},
        {"gemma3", "attention.sliding_window=0", NULL},
        {"gemma3", "attention.sliding_window=3000000000", "sliding_window is missing or not an unsigned"},
        {"gemma3", "attention.sliding_window=16.0", "sliding_window is missing or not an unsigned"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const struct random_model small = {
            2,        32, 64, 300, 2, 1, 16, .arch = rows[r].arch, .tied = true, .settings = rows[r].settings,
            .seed = 5};
        struct gguf_model *model = NULL;
        struct net net;
        struct allot_error err = {0};
        assert_true(random_model_write(path, &small));
        assert_int_equal(gguf_model_open(&model, path, &err), ALLOT_OK);
        allot_status status = net_open(&net, model, &err);
        if ((status == ALLOT_OK) != (rows[r].complaint == NULL) ||
            (status != ALLOT_OK && strstr(err.message, rows[r].complaint) == NULL))
            fail_msg("%s %s: \"%s\"", rows[r].arch, rows[r].settings, err.message);
        if (status == ALLOT_OK)
            net_release(&net);
        gguf_model_close(model);
    }
}

/* A small random model with the tiny model's tokenizer of 2048 tokens, changed. */
static void write_model(int vocab, void (*change)(struct gguf_context *, struct ggml_context *))
{
    const struct random_model small = {2, 32, 64, vocab, 2, 1, 16, .rope_factors = true, .seed = 5};
    assert_true(random_model_write(path, &small));
    struct ggml_context *tensors = NULL;
    struct gguf_context *source =
        gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = false, .ctx = &tensors});
    struct gguf_context *copy = tiny_metadata();
    assert_non_null(source);
    gguf_set_kv(copy, source);
    gguf_set_val_str(copy, "tokenizer.ggml.model", "gpt2");
    change(copy, tensors);
    for (int64_t i = 0; i < gguf_get_n_tensors(source); i++)
        gguf_add_tensor(copy, ggml_get_tensor(tensors, gguf_get_tensor_name(source, i)));
    assert_true(gguf_write_to_file(copy, path, false));
    gguf_free(copy);
    gguf_free(source);
    ggml_free(tensors);
}

static bool libllama_loads(void)
{
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (model != NULL)
        llama_model_free(model);
    return model != NULL;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        int vocab;
        void (*change)(struct gguf_context *metadata, struct ggml_context *tensors);
        const char *complaint; /* NULL: none */
        bool only_here;        /* libllama loads it, or aborts: not asked */
    } rows[] = {
        {2048, nothing, NULL, false},
        {2047, nothing, "token_embd.weight has 2047 rows for the 2048 tokens", false},
        {2049, nothing, "token_embd.weight has 2049 rows for the 2048 tokens", false},
        {2048, ff_list, NULL, false},
        {2048, ff_wrong, "blk.0.ffn_gate.weight has shape (64, 32), expected (65, 32)", false},
        {2048, ff_missing, "llama.feed_forward_length is missing", false},
        {2048, ff_list_wrong, "blk.0.ffn_gate.weight has shape (64, 32), expected (63, 32)", false},
        {2048, ff_list_short, "llama.feed_forward_length has no number", false},
        {2048, eps_missing, "layer_norm_rms_epsilon is missing", false},
        {2048, eps_whole, "layer_norm_rms_epsilon is missing or not a finite float32", false},
        {2048, context_missing, "llama.context_length is missing", false},
        {2048, heads_signed, "llama.attention.head_count is missing or not an unsigned", false},
        {2048, used_without_experts, "llama.expert_used_count is 2 without experts", true},
        {2048, norm_not_finite, "tensor output_norm.weight, row 0: a weight is not finite", true},
        {2048, factors_bf16, "tensor rope_freqs.weight has type bf16", true},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct gguf_model *model = NULL;
        struct net net;
        struct allot_error err = {0};
        write_model(rows[r].vocab, rows[r].change);
        if (gguf_model_open(&model, path, &err) != ALLOT_OK)
            fail_msg("%s", err.message);
        allot_status status = net_open(&net, model, &err);
        if (rows[r].complaint == NULL && status != ALLOT_OK)
            fail_msg("%s", err.message);
        if (rows[r].complaint != NULL &&
            (status == ALLOT_OK || strstr(err.message, rows[r].complaint) == NULL))
            fail_msg("\"%s\" does not say \"%s\"", err.message, rows[r].complaint);
        if (!rows[r].only_here && libllama_loads() != (rows[r].complaint == NULL))
            fail_msg("libllama does not agree about: %s", err.message);
        if (status == ALLOT_OK)
            net_release(&net);
        gguf_model_close(model);
    }
}

/* OpenBLAS waits for ever for memory that it does not get, from the moment it is loaded. Its own process,
 * because it is loaded once. */
static void test_no_memory_for_openblas(void **state)
{
    (void)state;
    assert_null(dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD));
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit little = {64 << 20, 64 << 20};
        struct allot_error err = {0};
        alarm(60);
        bool told = setrlimit(RLIMIT_AS, &little) == 0 && gemm_init(&err) == ALLOT_ERR_MEMORY &&
                    strstr(err.message, "OpenBLAS") != NULL && gemm_init(&err) == ALLOT_ERR_MEMORY;
        _exit(told ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void silent(enum ggml_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

static int start(void **state)
{
    llama_log_set(silent, NULL);
    if (make_folder(state) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    remove(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_for_openblas),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_refused_settings)};
    return cmocka_run_group_tests(tests, start, finish);
}
