/* project.h - projections of quantization errors on the gradients of chunks of tokens.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. For every candidate type j and chunk c: u[c][j] += sum over t in c of
 * g_t' D_j x_t, with D_j = dequant(quant_j(W)) - W. A block of rows of W is quantized to every type
 * while its chunk gradients G_c' X_c are formed, so neither is ever held for the whole matrix.
 */
#ifndef ALLOT_COST_PROJECT_H
#define ALLOT_COST_PROJECT_H

#include "net/net.h"

/* One tensor's candidates and sums. */
struct projection {
    const struct gguf_tensor *tensor;
    enum ggml_type *types; /* [n_types] */
    size_t n_types;
    float *weights; /* importances (ne[0]), or NULL */
    int32_t chunk;  /* tokens per chunk */
    int64_t n_chunks;
    double *u;        /* (n_chunks, n_types) */
    bool *infeasible; /* [n_types] */
    bool *floored;    /* [n_types] */
};

/* Where the time went, summed over threads. */
struct projection_times {
    double quantize, product;
};

/* Takes ownership of weights, also on failure. */
allot_status projection_new(struct projection **out, const struct gguf_tensor *tensor,
                            const enum ggml_type *types, size_t n_types, float *weights, int32_t chunk,
                            int64_t n_chunks, struct allot_error *err);
void projection_free(struct projection *p);
/* Bytes that a projection and the adding to it take at most. */
int64_t projection_bytes(const struct gguf_tensor *tensor, size_t n_types, int64_t n_chunks, int32_t chunk,
                         int n_threads);

/* Adds a row range of a linear map. */
allot_status projection_add_map(struct projection *p, struct pool *pool, const struct net_map *map,
                                struct projection_times *times, struct allot_error *err);

/* Adds the rows of an embedding that the tokens looked up. */
allot_status projection_add_lookup(struct projection *p, struct pool *pool, const struct gguf_model *model,
                                   const struct net_lookup *lookup, struct projection_times *times,
                                   struct allot_error *err);

#endif
