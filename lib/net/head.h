/* head.h - the output norm and the output matrix.  SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. The vocabulary is walked in blocks, so that memory holds logits of one block
 * for all tokens, never the whole matrix. */
#ifndef ALLOT_NET_HEAD_H
#define ALLOT_NET_HEAD_H

#include "net/net.h"

enum { HEAD_BLOCK = 2048 };

/* dx (n, n_embd) receives the gradient of the final states. Calls observer->map by blocks, vector for
 * the norm, and done for the output matrix unless it is the token embedding too. */
allot_status head_backward(const struct net *net, struct pool *pool, float *dx, const float *x, int64_t n,
                           const struct net_targets *targets, const struct net_observer *observer,
                           struct allot_error *err);

/* Bytes of head_backward's own buffers. */
int64_t head_bytes(const struct net *net, int64_t n);

#endif
