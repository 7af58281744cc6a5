/* pass.h - the steps of a forward pass.  SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. */
#ifndef ALLOT_NET_PASS_H
#define ALLOT_NET_PASS_H

#include "net/layer.h"

/* Is every token a row of the embedding? */
allot_status pass_check(const struct net *net, const struct net_batch *batch, struct allot_error *err);

/* x (n, n_embd): the input of the first layer. */
allot_status pass_embed(const struct net *net, struct pool *pool, const struct net_batch *batch, float *x,
                        struct allot_error *err);

/* Runs the sequences through one layer, as many at a time as the call's work has room for; y may be x. Sets
 * n_seqs and n of the call. */
allot_status pass_layer(struct layer_call *c, const struct net_batch *batch, float *y, const float *x,
                        struct allot_error *err);

#endif
