/* source.c - the weights of a network.  SPDX-License-Identifier: MIT */
#include "net/source.h"

#include "gguf/convert.h"

allot_status net_rows(const struct net *net, const struct gguf_tensor *tensor, int64_t first, int64_t n_rows,
                      float *dst, struct pool *pool, struct allot_error *err)
{
    if (net_replaces(net, tensor))
        return net->source->rows(net->source->user, tensor, first, n_rows, dst, pool, err);
    return gguf_tensor_to_f32(net->model, tensor, first, n_rows, dst, pool, err);
}
