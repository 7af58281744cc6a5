/* test_roles.c - the groups of tensors, architecture by architecture.  SPDX-License-Identifier: MIT */
#include "models.h"

#include "random_model.h"
#include "search/roles.h"

static void test_names(void **state)
{
    static const struct {
        const char *architecture, *name, *group;
    } rows[] = {
        {"llama", "token_embd.weight", "embeddings"},
        {"llama", "output.weight", "lm_head"},
        {"llama", "output_norm.weight", "other"},
        {"llama", "rope_freqs.weight", "other"},
        {"llama", "blk.0.attn_q.weight", "attn_q"},
        {"llama", "blk.0.attn_q.bias", "other"},
        {"llama", "blk.11.attn_k.weight", "attn_kv"},
        {"llama", "blk.11.attn_v.weight", "attn_kv"},
        {"llama", "blk.11.attn_output.weight", "attn_output"},
        {"llama", "blk.3.ffn_gate.weight", "ffn_up_gate"},
        {"llama", "blk.3.ffn_up.weight", "ffn_up_gate"},
        {"llama", "blk.3.ffn_down.weight", "ffn_down"},
        {"llama", "blk.3.ffn_norm.weight", "other"},
        {"llama", "blk.3.ffn_down.7.weight", "moe_experts"},
        {"qwen3", "blk.3.attn_q_norm.weight", "other"},
        {"qwen3moe", "blk.3.ffn_gate_exps.weight", "moe_experts"},
        {"qwen3moe", "blk.3.ffn_down_exps.weight", "moe_experts"},
        {"qwen3moe", "blk.3.ffn_gate_inp.weight", "moe_router"},
        {"qwen2moe", "blk.3.ffn_gate_inp_shexp.weight", "moe_router"},
        {"qwen2moe", "blk.3.ffn_up_shexp.weight", "moe_shared"},
        {"gemma4", "blk.3.ffn_gate_up_exps.weight", "moe_experts"},
        {"grovemoe", "blk.3.ffn_up_chexps.weight", "moe_experts"},
        {"phi3", "blk.3.attn_qkv.weight", "attn_qkv"},
        {"phi3", "blk.3.ffn_up.weight", "ffn_up_gate"},
        {"gemma3n", "per_layer_token_embd.weight", "embeddings"},
        {"gemma3n", "per_layer_model_proj.weight", "per_layer"},
        {"gemma3n", "blk.3.inp_gate.weight", "per_layer"},
        {"gemma3n", "blk.3.proj.weight", "per_layer"},
        {"gemma3n", "blk.3.laurel_l.weight", "per_layer"},
        {"gemma4", "blk.3.proj.weight", "per_layer"},
        {"llama", "blk.3.proj.weight", "unclaimed"},
        {"deepseek2", "blk.3.attn_q_a.weight", "attn_q"},
        {"deepseek2", "blk.3.attn_q_a_norm.weight", "other"},
        {"deepseek2", "blk.3.attn_q_b.weight", "attn_q"},
        {"deepseek2", "blk.3.attn_kv_a_mqa.weight", "attn_kv"},
        {"deepseek2", "blk.3.attn_k_b.weight", "attn_kv"},
        {"deepseek32", "blk.3.indexer.attn_q_b.weight", "indexer"},
        {"qwen3next", "blk.3.attn_qkv.weight", "ssm"},
        {"qwen35moe", "blk.3.attn_gate.weight", "ssm"},
        {"afmoe", "blk.3.attn_gate.weight", "attn_output"},
        {"qwen3next", "blk.3.ssm_ba.weight", "ssm"},
        {"mamba2", "blk.3.ssm_in.weight", "ssm"},
        {"lfm2", "blk.3.shortconv.in_proj.weight", "ssm"},
        {"rwkv7", "blk.3.time_mix_receptance.weight", "ssm"},
        {"rwkv7", "blk.3.channel_mix_key.weight", "ffn_up_gate"},
        {"rwkv7", "blk.3.channel_mix_value.weight", "ffn_down"},
        {"nemotron_h_moe", "blk.3.ffn_latent_up.weight", "moe_shared"},
        {"glm4moe", "blk.46.nextn.eh_proj.weight", "mtp"},
        {"glm4moe", "blk.46.exp_probs_b.bias", "other"},
        {"cogvlm", "blk.3.vis_up.weight", "vision"},
        {"t5", "enc.blk.3.attn_o.weight", "attn_output"},
        {"t5", "dec.blk.3.cross_attn_k.weight", "attn_kv"},
        {"t5", "enc.blk.3.ffn_up.weight", "ffn_up_gate"},
        /* Names that no row spells out. */
        {"new", "blk.3.attn_q_proj2.weight", "attn_q"},
        {"new", "blk.3.ffn_up_wide_exps.weight", "moe_experts"},
        {"new", "blk.3.ffn_down_2.weight", "ffn_down"},
        {"new", "blk.3.frobnicate.weight", "unclaimed"},
        {NULL, "blk.3.attn_q.weight", "attn_q"},
        {NULL, "blk.3.attn_gate.weight", "attn_output"},
        {"llama", "", "other"},
        {"llama", ".weight", "unclaimed"},
        {"llama", "blk..attn_q.weight", "attn_q"}, /* by resemblance: it is in no layer */
        {"[", "[a-.weight", "unclaimed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *group = role_name(role_of(rows[i].architecture, rows[i].name));
        if (strcmp(group, rows[i].group) != 0)
            fail_msg("%s of %s: %s, not %s", rows[i].name, rows[i].architecture, group, rows[i].group);
    }
}

static void test_group_names(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROLES; i++)
        assert_int_equal(role_by_name(role_name((enum role)i)), i);
    assert_int_equal(role_by_name("attn"), N_ROLES);
    assert_int_equal(role_by_name(""), N_ROLES);
}

static void test_stems(void **state)
{
    (void)state;
    assert_string_equal(role_stem("blk.12.attn_q.weight"), "attn_q.weight");
    assert_string_equal(role_stem("blk.x.attn_q.weight"), "blk.x.attn_q.weight");
    assert_string_equal(role_stem("blk.1"), "blk.1");
    assert_string_equal(role_stem("output.weight"), "output.weight");
    assert_int_equal(role_layer("blk.12.attn_q.weight"), 12);
    assert_int_equal(role_layer("blk.0."), 0);
    assert_int_equal(role_layer("blk.-1.x"), -1);
    assert_int_equal(role_layer("blk.1"), -1);
    assert_int_equal(role_layer("enc.blk.1.x"), -1);
}

/* A layer that predicts a further token is of that group altogether, and no layer of the model's depth. */
static void test_further_tokens(void **state)
{
    static const char *const names[] = {
        "output.weight",       "blk.0.attn_q.weight",        "blk.0.ffn_up.weight",     "blk.1.attn_q.weight",
        "blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight", "blk.2.nextn.enorm.weight"};
    static const char *const absurd[] = {"blk.99999999999999999999.attn_q.weight"};
    static const enum role expected[] = {ROLE_LM_HEAD, ROLE_ATTN_Q, ROLE_FFN_UP_GATE, ROLE_ATTN_Q,
                                         ROLE_MTP,     ROLE_MTP,    ROLE_MTP};
    enum role roles[7];
    (void)state;
    roles_of(roles, "glm4moe", names, 7);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(roles[i], expected[i]);
    assert_int_equal(roles_depth(roles, names, 7), 2);
    assert_int_equal(roles_depth(roles, names, 1), 0);
    assert_int_equal(roles_depth(&roles[1], absurd, 1), 0);
}

/* Nothing that llama-quantize would change is unclaimed, or called other, in any architecture that lib/net
 * knows. */
static void test_known_architectures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof random_archs / sizeof *random_archs; i++) {
        const char *arch = random_archs[i].name;
        const bool experts = strstr(arch, "moe") != NULL;
        struct random_model m = {.layers = 2,
                                 .width = 64,
                                 .ff = 64,
                                 .vocab = 32,
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .arch = arch,
                                 .experts = experts ? 4 : 0,
                                 .used = 2,
                                 .shared_ff = strcmp(arch, "qwen2moe") == 0 ? 64 : 0,
                                 .seed = 1};
        struct gguf_model *model = NULL;
        struct allot_error err;
        assert_true(random_model_write(in_folder("random.gguf"), &m));
        assert_int_equal(gguf_model_open(&model, in_folder("random.gguf"), &err), ALLOT_OK);
        for (int64_t t = 0; t < model->n_tensors; t++) {
            const enum role role = role_of(arch, model->tensors[t].name);
            if (role == ROLE_UNCLAIMED || (gguf_tensor_quantizable(&model->tensors[t]) && role == ROLE_OTHER))
                fail_msg("%s: %s is %s", arch, model->tensors[t].name, role_name(role));
        }
        gguf_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_group_names),
        cmocka_unit_test(test_stems),
        cmocka_unit_test(test_further_tokens),
        cmocka_unit_test(test_known_architectures),
    };
    return cmocka_run_group_tests_name("roles", tests, make_folder, remove_folder);
}
