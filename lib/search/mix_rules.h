/* mix_rules.h - the mixes of llama-quantize and their rules.  SPDX-License-Identifier: MIT
 *
 * Inside lib/search only; mix.h is for others. */
#ifndef ALLOT_SEARCH_MIX_RULES_H
#define ALLOT_SEARCH_MIX_RULES_H

#include "allot.h"
#include "ggml.h"

/* llama-quantize's name, and the type that tensors have where no rule says otherwise; COUNT: their own. */
#define MIX_LIST(ROW)     \
    ROW(Q1_0, Q1_0)       \
    ROW(Q2_0, Q2_0)       \
    ROW(TQ1_0, TQ1_0)     \
    ROW(TQ2_0, TQ2_0)     \
    ROW(IQ1_S, IQ1_S)     \
    ROW(IQ1_M, IQ1_M)     \
    ROW(IQ2_XXS, IQ2_XXS) \
    ROW(IQ2_XS, IQ2_XS)   \
    ROW(IQ2_S, IQ2_XS)    \
    ROW(IQ2_M, IQ2_S)     \
    ROW(Q2_K, Q2_K)       \
    ROW(Q2_K_S, Q2_K)     \
    ROW(IQ3_XXS, IQ3_XXS) \
    ROW(IQ3_XS, IQ3_S)    \
    ROW(IQ3_S, IQ3_S)     \
    ROW(IQ3_M, IQ3_S)     \
    ROW(Q3_K_S, Q3_K)     \
    ROW(Q3_K_M, Q3_K)     \
    ROW(Q3_K_L, Q3_K)     \
    ROW(IQ4_XS, IQ4_XS)   \
    ROW(IQ4_NL, IQ4_NL)   \
    ROW(MXFP4_MOE, MXFP4) \
    ROW(Q4_0, Q4_0)       \
    ROW(Q4_1, Q4_1)       \
    ROW(Q4_K_S, Q4_K)     \
    ROW(Q4_K_M, Q4_K)     \
    ROW(Q5_0, Q5_0)       \
    ROW(Q5_1, Q5_1)       \
    ROW(Q5_K_S, Q5_K)     \
    ROW(Q5_K_M, Q5_K)     \
    ROW(Q6_K, Q6_K)       \
    ROW(Q8_0, Q8_0)       \
    ROW(F16, F16)         \
    ROW(BF16, BF16)       \
    ROW(F32, F32)         \
    ROW(COPY, COUNT)

#define MIX_ID(name, type) MIX_##name,
enum mix_id { MIX_LIST(MIX_ID) N_MIXES };
#undef MIX_ID

/* GGML_TYPE_COUNT for COPY. */
enum ggml_type mix_own_type(enum mix_id mix);
/* Does llama-quantize read the layer of an expert's tensor from its name, whether it matters or not? */
bool mix_reads_layers(enum mix_id mix);

/* What a tensor does, by its name. Maps of queries, keys and values in one, and keys and values out of one
 * latent, count as values. */
enum mix_role {
    OUTPUT = 1, /* token embeddings too, where there is no other output */
    EMBEDDING = 2,
    VALUE = 4,
    KEY = 8,
    QUERY = 16,
    ATTENTION_OUT = 32,
    DOWN = 64,
    GATE = 128,
    UP = 256,
    OTHER = 512,
    FEED_FORWARD = DOWN | GATE | UP,
    ANY = 1023
};

/* What holds of model, importance matrix and tensor. */
enum mix_condition {
    GQA_4 = 1,     /* four or more query heads share those of keys and values */
    EXPERTS_4 = 2, /* four or more */
    EXPERTS_8 = 4, /* eight, no more and no less */
    SIZE_70B = 8,
    FALCON = 16,
    NOT_FALCON = 32,
    IMATRIX = 64,
    NO_IMATRIX = 128,
    UNEVEN = 256, /* the tensor's rows are no whole blocks of the mix's own type */
    STACKED = 512 /* the tensor is a stack of matrices, as those of experts are */
};

/* What a tensor of one role becomes, if its rows allow it. conditions: all that hold; layer and n_layers
 * as mix.c counts them. Not for F16, BF16, F32 and COPY, which have no exceptions. */
enum ggml_type mix_rule_type(enum mix_id mix, enum mix_role role, unsigned conditions, int64_t layer,
                             int64_t n_layers);

#endif
