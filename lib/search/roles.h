/* roles.h - which part of a model a tensor is: attention's queries, a feed-forward's way down, an expert.
 * SPDX-License-Identifier: MIT
 *
 * Groups are what layouts are compared and exchanged by. They follow from a tensor's name and its model's
 * architecture, by the table in roles.c: rows of the architecture first, then those of all, then patterns for
 * names that no row spells out. A matrix that nothing claims is ROLE_UNCLAIMED, for the caller to report. */
#ifndef ALLOT_SEARCH_ROLES_H
#define ALLOT_SEARCH_ROLES_H

#include "gguf/model.h"

enum role {
    ROLE_EMBEDDINGS,
    ROLE_LM_HEAD,
    ROLE_ATTN_Q,
    ROLE_ATTN_KV,
    ROLE_ATTN_QKV, /* one matrix for all three */
    ROLE_ATTN_OUTPUT,
    ROLE_INDEXER, /* sparse attention's choice of tokens */
    ROLE_FFN_UP_GATE,
    ROLE_FFN_DOWN,
    ROLE_MOE_EXPERTS,
    ROLE_MOE_SHARED, /* what every token takes besides its experts */
    ROLE_MOE_ROUTER,
    ROLE_SSM,       /* state space models, linear attention, recurrences, short convolutions */
    ROLE_PER_LAYER, /* a layer's own inputs, and what mixes streams between layers */
    ROLE_MTP,       /* layers that predict further tokens, whole */
    ROLE_VISION,
    ROLE_OTHER, /* norms, biases and other small things, which are hardly ever quantized */
    ROLE_UNCLAIMED,
    N_ROLES
};

/* "attn_kv". */
const char *role_name(enum role role);
/* N_ROLES if there is none of the name. */
enum role role_by_name(const char *name);

/* The group of a single tensor. architecture: general.architecture; NULL: not known. */
enum role role_of(const char *architecture, const char *tensor_name);

/* N of "blk.N.", else -1. */
int role_layer(const char *tensor_name);
/* The tensor's name within its layer: "blk.3.attn_q.weight" -> "attn_q.weight"; others as they are. */
const char *role_stem(const char *tensor_name);

/* The groups of a model's n tensors. Besides what single names tell: a layer that holds tensors "nextn." is
 * ROLE_MTP altogether. A layer's tensors stand together, as in struct gguf_model. */
void roles_of(enum role *roles, const char *architecture, const char *const *names, size_t n);

/* How many layers a model has without those of ROLE_MTP: one more than the highest number. */
int roles_depth(const enum role *roles, const char *const *names, size_t n);

#endif
