/* test_rebuild.c - layouts as types of other models: by name, by relative depth, in hybrids.
 * SPDX-License-Identifier: MIT */
#include "models.h"

#include <math.h>

#include "base/strbuf.h"
#include "search/rebuild.h"

static char notes[4096];

static void keep_note(void *user, const char *line)
{
    (void)user;
    strncat(notes, line, sizeof notes - strlen(notes) - 2);
    strcat(notes, "\n");
}

static const struct allot_progress listener = {.note = keep_note};

/* Learns a model under a name and closes it. */
static struct layout learn(struct gguf_model *model, const char *name)
{
    static int number;
    char sha256[HASH_HEX];
    const struct layout_origin origin = {.name = name};
    struct layout layout;
    struct allot_error err = {0};
    snprintf(sha256, sizeof sha256, "%08x%056d", ++number, 0);
    if (layout_learn(&layout, model, sha256, &origin, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    gguf_model_close(model);
    return layout;
}

struct applied {
    enum ggml_type types[4000];
    struct layout_fit fit;
    allot_status status;
    struct allot_error err;
};

static struct applied *apply(const struct layout *layout, const struct gguf_model *model, bool scale_depth)
{
    static struct applied a;
    memset(&a, 0, sizeof a);
    notes[0] = '\0';
    a.status = layout_apply(a.types, &a.fit, layout, model, NULL, scale_depth, &listener, &a.err);
    if (a.status == ALLOT_OK)
        assert_string_equal(a.err.message, "");
    return &a;
}

static enum ggml_type type_of(const struct applied *a, const struct gguf_model *model, const char *name)
{
    const struct gguf_tensor *t = gguf_model_tensor(model, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return a->types[t - model->tensors];
}

/* ---- The same depth --------------------------------------------------------------------------------- */

/* Types of varied(), but with some tensors kept exact in a type that is not the model's. */
static enum ggml_type with_halves(const char *role, int layer)
{
    return strcmp(role, "attn_v") == 0 && layer == 1 ? GGML_TYPE_F16
           : strcmp(role, "ffn_up") == 0             ? GGML_TYPE_F32
                                                     : varied(role, layer);
}

static void test_same_depth(void **state)
{
    struct layout layout = learn(make_model("a.gguf", "llama", 4, false, with_halves), "a");
    struct gguf_model *model = make_model("b.gguf", "llama", 4, false, all_bf16);
    const struct applied *a = apply(&layout, model, false);
    int n_exact = 0;
    (void)state;
    assert_int_equal(a->status, ALLOT_OK);
    assert_string_equal(notes, "");
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        char role[64] = "";
        int layer = -1;
        if (sscanf(t->name, "blk.%d.%63[^.]", &layer, role) != 2)
            sscanf(t->name, "%63[^.]", role);
        const enum ggml_type learned = strstr(role, "norm") ? GGML_TYPE_F32 : with_halves(role, layer);
        const bool exact = learned == GGML_TYPE_F16 || learned == GGML_TYPE_F32;
        assert_int_equal(a->types[i], exact ? t->type : learned);
        n_exact += exact && t->type == GGML_TYPE_BF16;
    }
    assert_int_equal(n_exact, 1 + 4);
    gguf_model_close(model);
    layout_release(&layout);
}

static void test_refusals(void **state)
{
    struct layout layout = learn(make_model("a.gguf", "llama", 4, false, varied), "mine");
    struct gguf_model *model = make_model("b.gguf", "qwen3", 4, false, all_bf16);
    const struct applied *a = apply(&layout, model, true);
    (void)state;
    assert_int_equal(a->status, ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(a->err.message, "layout 'mine' is of the architecture llama"));
    assert_non_null(strstr(a->err.message, "qwen3"));
    gguf_model_close(model);
    model = make_model("b.gguf", "llama", 5, false, all_bf16);
    a = apply(&layout, model, false);
    assert_int_equal(a->status, ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(a->err.message, "4 layers"));
    assert_non_null(strstr(a->err.message, "--scale-depth"));
    gguf_model_close(model);
    layout_release(&layout);
}

/* Rows that do not fit get llama-quantize's fallback; what only one of the two has is told of. */
static void test_misfits(void **state)
{
    struct maker m = maker_start("llama");
    (void)state;
    maker_add(&m, "blk.0.attn_q.weight", GGML_TYPE_Q4_K, 256, 4);
    maker_add(&m, "blk.0.attn_k.weight", GGML_TYPE_Q6_K, 256, 4);
    maker_add(&m, "blk.0.attn_v.weight", GGML_TYPE_Q5_K, 256, 4);
    maker_add(&m, "blk.0.attn_output.weight", GGML_TYPE_IQ4_XS, 256, 4);
    maker_add(&m, "blk.0.ffn_up.weight", GGML_TYPE_Q8_0, 256, 4);
    maker_add(&m, "blk.0.ffn_down.weight", GGML_TYPE_Q8_0, 256, 4);
    maker_add(&m, "blk.0.ssm_in.weight", GGML_TYPE_Q8_0, 256, 4);
    struct layout layout = learn(maker_open(&m, "a.gguf"), "a");
    m = maker_start("llama");
    maker_add(&m, "blk.0.attn_q.weight", GGML_TYPE_BF16, 96, 4);
    maker_add(&m, "blk.0.attn_k.weight", GGML_TYPE_BF16, 96, 4);
    maker_add(&m, "blk.0.attn_v.weight", GGML_TYPE_BF16, 96, 4);
    maker_add(&m, "blk.0.attn_output.weight", GGML_TYPE_BF16, 96, 4);
    maker_add(&m, "blk.0.ffn_up.weight", GGML_TYPE_BF16, 100, 4);
    maker_add(&m, "blk.0.ffn_down.weight", GGML_TYPE_BF16, 96, 4);
    maker_add(&m, "blk.0.ffn_gate.weight", GGML_TYPE_BF16, 96, 4);
    struct gguf_model *model = maker_open(&m, "b.gguf");
    const struct applied *a = apply(&layout, model, false);
    assert_int_equal(a->status, ALLOT_OK);
    assert_int_equal(type_of(a, model, "blk.0.attn_q.weight"), GGML_TYPE_Q5_0);
    assert_int_equal(type_of(a, model, "blk.0.attn_k.weight"), GGML_TYPE_Q8_0);
    assert_int_equal(type_of(a, model, "blk.0.attn_v.weight"), GGML_TYPE_Q5_1);
    assert_int_equal(type_of(a, model, "blk.0.attn_output.weight"), GGML_TYPE_IQ4_NL);
    assert_int_equal(type_of(a, model, "blk.0.ffn_up.weight"), GGML_TYPE_F16);
    assert_int_equal(type_of(a, model, "blk.0.ffn_down.weight"), GGML_TYPE_Q8_0);
    assert_int_equal(type_of(a, model, "blk.0.ffn_gate.weight"), GGML_TYPE_BF16);
    assert_int_equal(a->fit.n_fallbacks, 5);
    assert_int_equal(a->fit.n_missing, 1);
    assert_int_equal(a->fit.n_unused, 1);
    assert_non_null(
        strstr(notes, "says nothing of 1 tensors, which keep their type: blk.0.ffn_gate.weight\n"));
    assert_non_null(strstr(notes, "5 tensors have rows that do not fit its type: "));
    assert_non_null(strstr(notes, "blk.0.attn_q.weight (Q5_0 instead of Q4_K)"));
    assert_non_null(strstr(notes, "has 1 tensors that the model has not"));
    gguf_model_close(model);
    layout_release(&layout);
}

/* Where only one has an output of its own. */
static enum ggml_type small_output(const char *role, int layer)
{
    return strcmp(role, "output") == 0       ? GGML_TYPE_Q4_K
           : strcmp(role, "token_embd") == 0 ? GGML_TYPE_Q6_K
                                             : varied(role, layer);
}

static enum ggml_type large_output(const char *role, int layer)
{
    return strcmp(role, "output") == 0 ? GGML_TYPE_Q8_0 : small_output(role, layer);
}

static enum ggml_type exact_output(const char *role, int layer)
{
    return strcmp(role, "output") == 0 ? GGML_TYPE_F16 : small_output(role, layer);
}

static void test_tied(void **state)
{
    static const struct {
        bool tied_layout, tied_model;
        enum ggml_type (*type)(const char *role, int layer);
        enum ggml_type embeddings, output;
    } rows[] = {
        {false, false, large_output, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0},
        {true, true, large_output, GGML_TYPE_Q6_K, GGML_TYPE_COUNT},
        {true, false, large_output, GGML_TYPE_Q6_K, GGML_TYPE_Q6_K},
        {false, true, large_output, GGML_TYPE_Q8_0, GGML_TYPE_COUNT},
        {false, true, small_output, GGML_TYPE_Q6_K, GGML_TYPE_COUNT},
        {false, true, exact_output, GGML_TYPE_BF16, GGML_TYPE_COUNT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layout layout =
            learn(make_model("a.gguf", "llama", 2, rows[i].tied_layout, rows[i].type), "a");
        struct gguf_model *model = make_model("b.gguf", "llama", 2, rows[i].tied_model, all_bf16);
        const struct applied *a = apply(&layout, model, false);
        assert_int_equal(a->status, ALLOT_OK);
        assert_int_equal(a->fit.n_missing, 0);
        assert_int_equal(a->fit.tied_differs, rows[i].tied_layout != rows[i].tied_model);
        assert_int_equal(strstr(notes, "output of its own") != NULL, a->fit.tied_differs);
        assert_int_equal(type_of(a, model, "token_embd.weight"), rows[i].embeddings);
        if (!rows[i].tied_model)
            assert_int_equal(type_of(a, model, "output.weight"), rows[i].output);
        gguf_model_close(model);
        layout_release(&layout);
    }
}

/* ---- Another depth ---------------------------------------------------------------------------------- */

static void test_scaled(void **state)
{
    static const int depths[] = {1, 2, 3, 5, 8, 13, 31};
    const size_t n_depths = sizeof depths / sizeof *depths;
    (void)state;
    for (size_t k = 0; k < n_depths * n_depths; k++) {
        const int m = depths[k / n_depths], n = depths[k % n_depths];
        struct layout layout = learn(make_model("a.gguf", "llama", m, false, varied), "a");
        struct gguf_model *model = make_model("b.gguf", "llama", n, false, all_bf16);
        const struct applied *a = apply(&layout, model, true);
        assert_int_equal(a->status, ALLOT_OK);
        assert_int_equal(a->fit.scaled, m != n);
        assert_int_equal(strstr(notes, "by relative depth") != NULL, m != n);
        assert_int_equal(a->fit.n_missing, 0);
        for (int l = 0; l < n; l++) {
            char name[64];
            const int from = n == 1 ? 0 : (int)floor((double)l * (m - 1) / (n - 1) + 0.5);
            snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
            assert_int_equal(type_of(a, model, name), varied("ffn_down", from));
        }
        gguf_model_close(model);
        layout_release(&layout);
    }
}

/* Layers of two kinds, of which every fourth is the other: the nearest of its kind counts. And a layer that
 * predicts a further token takes after its like, not after its place. */
static struct gguf_model *make_mixed(const char *name, int layers, bool exact)
{
    struct maker m = maker_start("qwen35");
    char full[64];
    for (int l = 0; l <= layers; l++) {
        const bool full_attention = l == layers || l % 4 == 3;
        snprintf(full, sizeof full, "blk.%d.%s.weight", l, full_attention ? "attn_q" : "attn_qkv");
        maker_add(&m, full, exact ? GGML_TYPE_BF16 : varied("mixed role", l), 256, 4);
    }
    snprintf(full, sizeof full, "blk.%d.nextn.eh_proj.weight", layers);
    maker_add(&m, full, exact ? GGML_TYPE_BF16 : GGML_TYPE_IQ4_NL, 256, 4);
    return maker_open(&m, name);
}

static void test_scaled_kinds(void **state)
{
    enum { M = 10, N = 20 };
    struct layout layout = learn(make_mixed("a.gguf", M, false), "a");
    struct gguf_model *model = make_mixed("b.gguf", N, true);
    const struct applied *a = apply(&layout, model, true);
    (void)state;
    assert_int_equal(layout.n_layers, M);
    assert_int_equal(a->status, ALLOT_OK);
    assert_int_equal(a->fit.n_missing, 0);
    for (int l = 0; l <= N; l++) {
        const bool full_attention = l == N || l % 4 == 3;
        const int place = (int)floor((double)l * (M - 1) / (N - 1) + 0.5);
        int best = -1;
        for (int k = 0; k < M; k++)
            if ((k % 4 == 3) == full_attention && (best < 0 || abs(k - place) < abs(best - place)))
                best = k;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", l, full_attention ? "attn_q" : "attn_qkv");
        assert_int_equal(type_of(a, model, name), varied("mixed role", l == N ? M : best));
    }
    assert_int_equal(type_of(a, model, "blk.20.nextn.eh_proj.weight"), GGML_TYPE_IQ4_NL);
    gguf_model_close(model);
    layout_release(&layout);
}

/* ---- Hybrids ---------------------------------------------------------------------------------------- */

static void test_hybrid_texts(void **state)
{
    static const struct {
        const char *text, *message; /* NULL: it is one */
    } rows[] = {
        {"base=a", NULL},
        {"base=a,attn_kv=b,other=c", NULL},
        {"attn_kv=b,base=a", NULL},
        {"base=a b,ffn_down=c=d", NULL}, /* no layout is called c=d, but that is another matter */
        {"", "no GROUP=NAME"},
        {"a", "no GROUP=NAME"},
        {"base=a,", "no GROUP=NAME"},
        {"base=", "no GROUP=NAME"},
        {"=a", "no GROUP=NAME"},
        {"attn_kv=a", "no base=NAME"},
        {"base=a,base=b", "base is given twice"},
        {"base=a,attn_q=b,attn_q=c", "attn_q is given twice"},
        {"base=a,attn=b", "unknown group 'attn'; known are base, embeddings, lm_head, attn_q, attn_kv"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct hybrid hybrid;
        struct allot_error err = {0};
        const allot_status status = hybrid_parse(&hybrid, rows[i].text, &err);
        assert_int_equal(status, rows[i].message ? ALLOT_ERR_ARGUMENT : ALLOT_OK);
        if (rows[i].message && !strstr(err.message, rows[i].message))
            fail_msg("'%s': %s", rows[i].text, err.message);
        hybrid_release(&hybrid);
    }
}

static allot_status hybrid_of(enum ggml_type *types, const struct rebuild_source *source, const char *text,
                              const struct gguf_model *model, struct allot_error *err)
{
    struct hybrid hybrid;
    struct layout_fit fits[N_ROLES + 1];
    notes[0] = '\0';
    assert_int_equal(hybrid_parse(&hybrid, text, err), ALLOT_OK);
    const allot_status status = hybrid_types(types, fits, source, &hybrid, model, &listener, err);
    hybrid_release(&hybrid);
    return status;
}

static void test_hybrids(void **state)
{
    struct gguf_model *model = make_model("m.gguf", "llama", 3, false, all_bf16);
    struct layout first[] = {learn(make_model("a.gguf", "llama", 3, false, varied), "a")},
                  second[] = {learn(make_model("b.gguf", "llama", 3, false, all_q4), "b"),
                              learn(make_model("c.gguf", "llama", 3, true, all_q4), "tied")};
    const struct layout_list lists[] = {{first, 1}, {second, 2}};
    const struct rebuild_source source = {.lists = lists, .n_lists = 2};
    enum ggml_type types[100];
    struct allot_error err = {0};
    (void)state;
    assert_int_equal(hybrid_of(types, &source, "base=a,attn_kv=b,lm_head=b", model, &err), ALLOT_OK);
    assert_string_equal(notes, "");
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const char *name = model->tensors[i].name;
        char role[64] = "";
        int layer = -1;
        if (sscanf(name, "blk.%d.%63[^.]", &layer, role) != 2)
            sscanf(name, "%63[^.]", role);
        const bool replaced =
            strcmp(role, "attn_k") == 0 || strcmp(role, "attn_v") == 0 || strcmp(role, "output") == 0;
        assert_int_equal(types[i], strstr(role, "norm") ? GGML_TYPE_F32
                                   : replaced           ? GGML_TYPE_Q4_K
                                                        : varied(role, layer));
    }
    /* What a part lacks counts only in its own group, and what the base lacks only in the rest. */
    assert_int_equal(hybrid_of(types, &source, "base=a,attn_q=tied", model, &err), ALLOT_OK);
    assert_string_equal(notes, "");
    assert_int_equal(hybrid_of(types, &source, "base=tied,embeddings=a", model, &err), ALLOT_OK);
    assert_non_null(strstr(notes, "layout 'tied' has no output of its own"));
    assert_int_equal(hybrid_of(types, &source, "base=a,moe_experts=b", model, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "no tensors of the group moe_experts"));
    assert_int_equal(hybrid_of(types, &source, "base=zzz", model, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "'zzz'"));
    assert_non_null(strstr(err.message, "a, b, tied"));
    layout_release(&first[0]);
    layout_release(&second[0]);
    layout_release(&second[1]);
    gguf_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_depth),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_misfits),      cmocka_unit_test(test_tied),
        cmocka_unit_test(test_scaled),       cmocka_unit_test(test_scaled_kinds),
        cmocka_unit_test(test_hybrid_texts), cmocka_unit_test(test_hybrids),
    };
    return cmocka_run_group_tests_name("rebuild", tests, make_folder, remove_folder);
}
