/* head.h - the output norm and the output matrix.  SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. The vocabulary is walked in blocks, so that memory holds logits of one block
 * for all tokens, never the whole matrix. */
#ifndef ALLOT_NET_HEAD_H
#define ALLOT_NET_HEAD_H

#include "net/net.h"

enum {
    HEAD_BLOCK = 2048, /* rows of the output matrix */
    HEAD_GROUP = 4096  /* tokens whose labels are drawn together */
};

/* dx (n, n_embd) receives the gradient of the final states. Calls observer->map by blocks, vector for
 * the norm, and done for the output matrix unless it is the token embedding too. folder: where what grows
 * with the tokens goes as a file; NULL: memory. */
allot_status head_backward(const struct net *net, struct pool *pool, float *dx, const float *x, int64_t n,
                           const struct net_targets *targets, const struct net_observer *observer,
                           const char *folder, struct allot_error *err);

/* Bytes that head_backward takes for n tokens, and those that it or net_targets_draw takes besides. */
int64_t head_token_bytes(const struct net *net, int64_t n);
int64_t head_fixed_bytes(const struct net *net, int64_t n);

#endif
