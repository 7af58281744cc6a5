/* head.h - the output norm and the output matrix.  SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. The vocabulary is walked in blocks, so that memory holds logits of one block
 * for all tokens, never the whole matrix. */
#ifndef ALLOT_NET_HEAD_H
#define ALLOT_NET_HEAD_H

#include "net/net.h"

enum {
    HEAD_BLOCK = 2048,   /* rows of the output matrix */
    HEAD_GROUP = 4096,   /* tokens whose labels are drawn together */
    HEAD_COMPARED = 1024 /* tokens that net_divergence compares together */
};

/* Buffers for walking the vocabulary with the normed states of n tokens. */
struct head {
    const struct net *net;
    struct pool *pool;
    int64_t n, block;    /* rows per block: HEAD_BLOCK or the whole vocabulary */
    float *norm_weight;  /* [n_embd] */
    float *inv_rms;      /* [n] */
    float *w;            /* (block, n_embd) */
    struct spill tokens; /* holds the three that follow */
    float *xn;           /* (n, n_embd) */
    float *dxn;          /* (n, n_embd): gradient of xn, or what the caller likes */
    float *logits;       /* (n, block) */
    float *bias;         /* [n_vocab], or NULL */
};
/* xn: those of the final states x. folder: as in head_backward. */
allot_status head_init(struct head *h, const struct net *net, struct pool *pool, const float *x, int64_t n,
                       const char *folder, struct allot_error *err);
void head_release(struct head *h);
/* xn (n, n_embd) of x (n, n_embd), n at most the head's. */
void head_norm(struct head *h, float *xn, const float *x, int64_t n);
/* Rows [first, first + n_rows) of the output matrix of a net, the head's own or a copy of it, into h->w. */
allot_status head_load_rows(struct head *h, const struct net *net, int64_t first, int64_t n_rows,
                            struct allot_error *err);
/* Logits (n, rows) of xn (n, n_embd) from the rows in h->w, which begin with row `first`. */
void head_logits(const struct head *h, float *logits, const float *xn, int64_t n, int64_t first,
                 int64_t rows);

/* dx (n, n_embd) receives the gradient of the final states. Calls observer->map by blocks, vector for
 * the norm, and done for the output matrix unless it is the token embedding too. folder: where what grows
 * with the tokens goes as a file; NULL: memory. */
allot_status head_backward(const struct net *net, struct pool *pool, float *dx, const float *x, int64_t n,
                           const struct net_targets *targets, const struct net_observer *observer,
                           const char *folder, struct allot_error *err);

/* Bytes that head_backward takes for n tokens, and those that it or net_targets_draw takes besides. */
int64_t head_token_bytes(const struct net *net, int64_t n);
int64_t head_fixed_bytes(const struct net *net, int64_t n);
/* Bytes that net_divergence takes. */
int64_t head_divergence_bytes(const struct net *net, int64_t n, int64_t n_others);

#endif
