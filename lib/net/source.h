/* source.h - the weights of a network: the model's, or the caller's.  SPDX-License-Identifier: MIT
 *
 * Inside lib/net only. Everything that reads weights reads them here. */
#ifndef ALLOT_NET_SOURCE_H
#define ALLOT_NET_SOURCE_H

#include "net/net.h"

/* Has the net's source rows of its own for the tensor? */
static inline bool net_replaces(const struct net *net, const struct gguf_tensor *tensor)
{
    return net->source != NULL && net->source->replaces(net->source->user, tensor);
}

/* Rows [first, first + n_rows) of a tensor to dst (n_rows, ne[0]), shared out over the pool (NULL: this
 * thread alone): as gguf_tensor_to_f32 gives them, or the net's source. */
allot_status net_rows(const struct net *net, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                      float *dst, struct pool *pool, struct allot_error *err);

#endif
