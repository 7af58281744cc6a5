/* arch.h - the architectures that the network knows, one description each.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. A layer is one program (layer.h) whose parts an architecture has or has not; the
 * descriptions say which, and read the hyperparameters that are the architecture's own. To add one: a row in
 * arch.c, and a function if it has keys that no other has.
 */
#ifndef ALLOT_NET_ARCH_H
#define ALLOT_NET_ARCH_H

#include "net/net.h"

enum arch_feature {
    ARCH_ROPE_NEOX = 1 << 0,       /* rotary pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    ARCH_ROPE_PARTIAL = 1 << 1,    /* n_rot may be below the head's width */
    ARCH_ROPE_FREQS = 1 << 2,      /* rope_freqs, and rope_factors_long/short under longrope */
    ARCH_ROPE_LONG_SHORT = 1 << 3, /* rope_factors_long/short */
    ARCH_QK_NORM = 1 << 4,         /* norms of each head of q and k */
    ARCH_QK_NORM_WIDE = 1 << 5,    /* norms of q and k over all heads */
    ARCH_POST_NORMS = 1 << 6,      /* norms of what attention and feed-forward part add */
    ARCH_FUSED_GATE = 1 << 7,      /* ffn_up holds the gate's rows, then its own */
    ARCH_GELU = 1 << 8,            /* gated by GELU instead of SiLU */
    ARCH_BIASES = 1 << 9,          /* optional biases of attn_output and of the feed-forward maps */
    ARCH_OUTPUT_BIAS = 1 << 10,    /* optional bias of the output */
    ARCH_OUTPUT_TIED = 1 << 11,    /* the token embedding is the output, always */
    ARCH_OUTPUT_OWN = 1 << 12,     /* output.weight must be there */
    ARCH_Q_IS_EMBD = 1 << 13,      /* heads times their width must be the embedding's width */
    ARCH_EXPERTS = 1 << 14,        /* a mixture of experts where expert_count is above 0 */
    ARCH_ALL_EXPERTS = 1 << 15,    /* ... which it must be */
    ARCH_EXPERT_WIDTH = 1 << 16,   /* an expert's width is expert_feed_forward_length */
    ARCH_RENORMALISE = 1 << 17,    /* weights of the chosen experts are made to sum to 1 */
    ARCH_SHARED_GATED = 1 << 18,   /* a shared expert, scaled by the sigmoid of its own router */
    ARCH_PLAIN_QKV = 1 << 20,      /* three maps without biases, never a fused one */
    ARCH_SHARED = 1 << 19          /* a shared expert where expert_shared_feed_forward_length is above 0 */
};

struct net_arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    unsigned features;
    /* Reads what is the architecture's own (NULL: nothing), last: the layers are there, with a plain rotary
     * embedding and no window; ropes, attn_scale and the multipliers hold values that it may replace. Tensors
     * are not known yet. */
    allot_status (*read)(struct net *net, struct allot_error *err);
};

/* NULL if there is none of this name. */
const struct net_arch *net_arch_find(const char *name);
/* "llama, qwen2, ..." */
void net_arch_names(char list[static 256]);

static inline bool has(const struct net *net, enum arch_feature feature)
{
    return (net->arch->features & (unsigned)feature) != 0;
}

/* ---- Metadata under ARCH.suffix (hparams.c) ------------------------------------------------------ */

/* "ARCH.suffix" */
const char *arch_key(const struct net *net, const char *suffix, char key[static 128]);
/* An unsigned 32-bit number in [1, limit]; fallback < 0: it must be there. */
allot_status read_count(const struct net *net, const char *suffix, int64_t limit, int64_t fallback,
                        int64_t *value, struct allot_error *err);
/* A finite float32 number >= 0; fallback < 0: it must be there. */
allot_status read_real(const struct net *net, const char *suffix, double fallback, double *value,
                       struct allot_error *err);
/* Architecture and hyperparameters, the layers' settings included; allocates net->layers. */
allot_status read_hyperparameters(struct net *net, struct allot_error *err);

#endif
