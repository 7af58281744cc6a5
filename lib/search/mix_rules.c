/* mix_rules.c - the rules of llama-quantize's mixes.  SPDX-License-Identifier: MIT
 *
 * A mix has a type of its own, and rules for exceptions: for tensors of a role, where model and shape are
 * such, in some of the layers. The first rule that holds counts. What decides is src/llama-quant.cpp of
 * llama.cpp v0.4.0; tests/conform/mix.sh compares with it. */
#include "search/mix_rules.h"

/* Of a number of layers, or of tensors of the role. */
enum layers {
    ALL,
    FIRST_2,
    FIRST_4,
    FIRST_16TH,
    FIRST_8TH,
    MIDDLE, /* all but the first and the last eighth */
    SPREAD  /* the first and the last eighth, and every third between them */
};

#define M(name) (UINT64_C(1) << MIX_##name)
#define EVERY UINT64_MAX
#define SMALLEST (M(IQ1_S) | M(IQ1_M) | M(IQ2_XXS) | M(IQ2_XS) | M(IQ2_S) | M(IQ2_M))
#define OWN GGML_TYPE_COUNT /* the mix's own type */

static const struct rule {
    uint64_t mixes;
    unsigned roles;
    unsigned conditions; /* all of them */
    enum layers layers;
    enum ggml_type type;
} rules[] = {
    {EVERY, OUTPUT, FALCON, ALL, GGML_TYPE_Q8_0},
    {EVERY, OUTPUT, UNEVEN, ALL, GGML_TYPE_Q8_0},
    {M(Q8_0) | M(MXFP4_MOE), OUTPUT, 0, ALL, GGML_TYPE_Q8_0},
    {SMALLEST | M(IQ3_XXS), OUTPUT, 0, ALL, GGML_TYPE_Q5_K},
    {EVERY, OUTPUT, 0, ALL, GGML_TYPE_Q6_K},

    {M(MXFP4_MOE), ANY, STACKED, ALL, GGML_TYPE_MXFP4},
    {M(MXFP4_MOE), ANY, 0, ALL, GGML_TYPE_Q8_0},

    {M(IQ1_S) | M(IQ1_M) | M(IQ2_XXS) | M(IQ2_XS), EMBEDDING, 0, ALL, GGML_TYPE_Q2_K},
    {M(IQ2_S) | M(IQ2_M) | M(IQ3_XXS), EMBEDDING, 0, ALL, GGML_TYPE_IQ3_S},
    {M(TQ1_0) | M(TQ2_0) | M(Q2_0), EMBEDDING, 0, ALL, GGML_TYPE_Q4_K},

    {SMALLEST, VALUE, GQA_4, ALL, GGML_TYPE_Q4_K},
    {SMALLEST, VALUE, EXPERTS_4, ALL, GGML_TYPE_Q4_K},
    {M(IQ2_S) | M(IQ2_M), VALUE, 0, ALL, GGML_TYPE_IQ3_S},
    {SMALLEST, VALUE, 0, ALL, GGML_TYPE_Q2_K},
    {EVERY, VALUE, EXPERTS_8, ALL, GGML_TYPE_Q8_0},
    {M(Q4_K_M) | M(Q5_K_M), VALUE, 0, SPREAD, GGML_TYPE_Q6_K},
    {M(Q2_K) | M(Q3_K_S) | M(Q3_K_M) | M(IQ3_M) | M(Q4_K_S) | M(Q4_K_M), VALUE, SIZE_70B, ALL,
     GGML_TYPE_Q5_K},
    {M(Q2_K_S) | M(IQ3_XXS) | M(IQ3_XS) | M(IQ3_S), VALUE, SIZE_70B | GQA_4, ALL, GGML_TYPE_Q5_K},
    {M(Q2_K) | M(Q2_K_S) | M(IQ3_XXS) | M(IQ3_XS) | M(IQ3_S), VALUE, GQA_4, ALL, GGML_TYPE_Q4_K},
    {M(IQ4_XS) | M(IQ4_NL), VALUE, GQA_4, ALL, GGML_TYPE_Q5_K},
    {M(Q2_K), VALUE, 0, ALL, GGML_TYPE_Q3_K},
    {M(IQ3_XXS), VALUE, NO_IMATRIX, ALL, GGML_TYPE_IQ3_S},
    {M(IQ3_M), VALUE, 0, ALL, GGML_TYPE_Q4_K},
    {M(Q3_K_M), VALUE, 0, FIRST_2, GGML_TYPE_Q5_K},
    {M(Q3_K_M), VALUE, 0, ALL, GGML_TYPE_Q4_K},
    {M(Q3_K_L), VALUE, 0, ALL, GGML_TYPE_Q5_K},
    {M(Q4_K_S), VALUE, 0, FIRST_4, GGML_TYPE_Q5_K},

    {SMALLEST, KEY, EXPERTS_8, ALL, GGML_TYPE_Q4_K},
    {EVERY, KEY, EXPERTS_8, ALL, GGML_TYPE_Q8_0},
    {M(IQ3_XXS), KEY | QUERY, 0, ALL, GGML_TYPE_IQ2_S},
    {M(IQ3_XS), KEY | QUERY, 0, ALL, GGML_TYPE_IQ3_XXS},

    {SMALLEST, ATTENTION_OUT, EXPERTS_8, ALL, GGML_TYPE_Q5_K},
    {M(IQ1_S) | M(IQ1_M), ATTENTION_OUT, 0, ALL, GGML_TYPE_IQ2_XXS},
    {M(IQ2_S) | M(IQ2_M), ATTENTION_OUT, 0, ALL, GGML_TYPE_IQ3_S},
    {M(Q3_K_L), ATTENTION_OUT, FALCON, ALL, GGML_TYPE_Q4_K},
    {EVERY, ATTENTION_OUT, FALCON, ALL, OWN},
    {M(Q2_K) | M(IQ3_XXS) | M(IQ3_XS) | M(IQ3_S) | M(IQ3_M) | M(Q3_K_S) | M(Q3_K_M) | M(IQ4_XS) | M(IQ4_NL) |
         M(Q4_K_S) | M(Q4_K_M),
     ATTENTION_OUT, EXPERTS_8, ALL, GGML_TYPE_Q5_K},
    {EVERY, ATTENTION_OUT, EXPERTS_8, ALL, OWN},
    {M(Q2_K), ATTENTION_OUT, 0, ALL, GGML_TYPE_Q3_K},
    {M(IQ3_XXS), ATTENTION_OUT, 0, ALL, GGML_TYPE_IQ3_S},
    {M(IQ3_M) | M(Q3_K_M), ATTENTION_OUT, 0, ALL, GGML_TYPE_Q4_K},
    {M(Q3_K_L), ATTENTION_OUT, 0, ALL, GGML_TYPE_Q5_K},

    {M(IQ2_S) | M(IQ2_M), DOWN, 0, FIRST_8TH, GGML_TYPE_IQ3_S},
    {SMALLEST, DOWN, 0, FIRST_8TH, GGML_TYPE_Q2_K},
    {M(Q2_K), DOWN, 0, ALL, GGML_TYPE_Q3_K},
    {M(Q2_K_S), DOWN, 0, FIRST_8TH, GGML_TYPE_Q4_K},
    {M(IQ3_XXS), DOWN, NO_IMATRIX, FIRST_8TH, GGML_TYPE_Q4_K},
    {M(IQ3_XXS), DOWN, NO_IMATRIX, ALL, GGML_TYPE_Q3_K},
    {M(IQ3_M), DOWN, 0, FIRST_8TH, GGML_TYPE_Q4_K},
    {M(IQ3_M), DOWN, EXPERTS_8, SPREAD, GGML_TYPE_Q4_K},
    {M(Q3_K_M), DOWN, 0, FIRST_16TH, GGML_TYPE_Q5_K},
    {M(Q3_K_M), DOWN, NOT_FALCON, ALL, GGML_TYPE_Q4_K},
    {M(Q3_K_M), DOWN, 0, SPREAD, GGML_TYPE_Q4_K},
    {M(Q3_K_L), DOWN, FALCON, ALL, GGML_TYPE_Q4_K},
    {M(Q3_K_L), DOWN, 0, ALL, GGML_TYPE_Q5_K},
    {M(IQ4_XS) | M(IQ4_NL), DOWN, NO_IMATRIX, FIRST_8TH, GGML_TYPE_Q5_K},
    {M(Q4_K_S), DOWN, NOT_FALCON, FIRST_8TH, GGML_TYPE_Q5_K},
    {M(Q4_K_M), DOWN, 0, FIRST_16TH, GGML_TYPE_Q6_K},
    {M(Q4_K_M), DOWN, FALCON, SPREAD, GGML_TYPE_Q5_K},
    {M(Q4_K_M) | M(Q5_K_M), DOWN, 0, SPREAD, GGML_TYPE_Q6_K},
    {M(Q4_0), DOWN, IMATRIX, FIRST_8TH, GGML_TYPE_Q4_1},
    {M(Q5_0), DOWN, IMATRIX, FIRST_8TH, GGML_TYPE_Q5_1},

    {M(IQ3_XS), GATE | UP, 0, MIDDLE, GGML_TYPE_IQ3_XXS},
};

#define OWN_TYPE(name, type) [MIX_##name] = GGML_TYPE_##type,
static const enum ggml_type own_types[N_MIXES] = {MIX_LIST(OWN_TYPE)};
#undef OWN_TYPE

enum ggml_type mix_own_type(enum mix_id mix)
{
    return own_types[mix];
}

bool mix_reads_layers(enum mix_id mix)
{
    return !((SMALLEST | M(MXFP4_MOE)) >> mix & 1);
}

static bool among(enum layers layers, int64_t i, int64_t n)
{
    const int64_t eighth = n / 8, last = 7 * n / 8;
    switch (layers) {
    case ALL:
        return true;
    case FIRST_2:
        return i < 2;
    case FIRST_4:
        return i < 4;
    case FIRST_16TH:
        return i < n / 16;
    case FIRST_8TH:
        return i < eighth;
    case MIDDLE:
        return i >= eighth && i < last;
    case SPREAD:
        return i < eighth || i >= last || (i - eighth) % 3 == 2;
    }
    return false;
}

enum ggml_type mix_rule_type(enum mix_id mix, enum mix_role role, unsigned conditions, int64_t layer,
                             int64_t n_layers)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *rule = &rules[i];
        if ((rule->mixes >> mix & 1) && (rule->roles & (unsigned)role) &&
            (rule->conditions & conditions) == rule->conditions && among(rule->layers, layer, n_layers))
            return rule->type == OWN ? own_types[mix] : rule->type;
    }
    return own_types[mix];
}
