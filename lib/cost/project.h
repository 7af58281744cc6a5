/* project.h - projections of quantization errors on the gradients of chunks of tokens.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. For every candidate type j and chunk c: u[c][j] += sum over t in c of
 * g_t' D_j x_t, with D_j = dequant(quant_j(W)) - W. A block of rows of W is quantized to every type, and the
 * errors are multiplied with the chunk gradients G_c' X_c tile by tile as these are formed, so neither is
 * ever held for the whole matrix.
 */
#ifndef ALLOT_COST_PROJECT_H
#define ALLOT_COST_PROJECT_H

#include <stdatomic.h>

#include "cost/chunk.h"
#include "net/net.h"
#include "quant/quantize.h"

/* Memory that grows to what the largest call needs. */
struct buffer {
    void *data; /* on a cache line */
    size_t size;
};

/* What the projections of a run share: chunks, threads and buffers, of which only the size lasts from one
 * call to the next, and where the time went. */
struct projector {
    struct pool *pool;
    const struct chunk_kernel *kernel;
    int32_t chunk; /* tokens per chunk */
    int64_t n_chunks;
    /* Whose weights W are, where the pass runs on others in their place; NULL: those of the pass. */
    const struct gguf_model *source;
    /* How tensors will be rounded; NULL: as ggml does. */
    const struct quantize_rounding *rounding;
    struct buffer rounded;
    struct buffer inputs, errors, gradients, parts, scratch, runs, weights;
    double seconds_quantize, seconds_product;
};

void projector_init(struct projector *projector, struct pool *pool, int32_t chunk, int64_t n_chunks);
void projector_release(struct projector *projector);

/* Bytes that the buffers, the sums of the projections in hand and an embedding's lookups can grow to for the
 * model's tensors. */
int64_t projector_bytes(const struct projector *projector, const struct gguf_model *model, size_t n_types);

/* One tensor's candidates and sums. */
struct projection {
    const struct gguf_tensor *tensor;
    enum ggml_type *types; /* [n_types] */
    size_t n_types;
    float *weights;          /* importances (ne[2], ne[0]), or NULL */
    double *u;               /* (n_chunks, n_types) */
    atomic_bool *infeasible; /* [n_types] */
    atomic_bool *floored;    /* [n_types] */
    bool *seen;              /* [ne[2]]: matrices that tokens passed through */
};

/* Takes ownership of weights, also on failure. */
allot_status projection_new(struct projection **out, const struct gguf_tensor *tensor,
                            const enum ggml_type *types, size_t n_types, float *weights, int64_t n_chunks,
                            struct allot_error *err);
void projection_free(struct projection *p);
/* Adds a row range of a linear map. */
allot_status projection_add_map(struct projection *p, struct projector *projector, const struct net_map *map,
                                struct allot_error *err);

/* Adds the rows of an embedding that the tokens looked up. */
allot_status projection_add_lookup(struct projection *p, struct projector *projector,
                                   const struct gguf_model *model, const struct net_lookup *lookup,
                                   struct allot_error *err);

/* Bytes that lookups and projection_try_rows want of the errors' buffer for rows of n_in. */
int64_t projector_row_bytes(const struct projector *projector, int64_t n_in, size_t n_types);

/* For rows that no token passed through, of which the two above know nothing: types that cannot hold a row of
 * large values become infeasible. Fails on values that are not finite. */
allot_status projection_try_rows(struct projection *p, struct projector *projector,
                                 const struct gguf_model *model, struct allot_error *err);

/* What the two share. */

/* Bytes begin on a cache line and hold nothing in particular. */
allot_status buffer_reserve(struct buffer *buffer, size_t size, const char *what, struct allot_error *err);

/* errors (n_types, n_rows, ne[0]) = dequant(quant_j(w)) - w for rows of the tensor from `row`, all of one
 * matrix; zeros once type j is infeasible. Thread-safe. */
void projection_errors(struct projection *p, float *errors, const float *w, int64_t row, int64_t n_rows);

/* Which types rounding (NULL: as ggml does) changes: rounded [n_types]. */
allot_status projection_rounded(bool *rounded, const struct projection *p,
                                const struct quantize_rounding *rounding, struct allot_error *err);
/* errors (n_rows, ne[0]) of type j with that rounding, of the same rows; *done false: the type is infeasible.
 * bytes has room for the rows in any type. Thread-safe. */
allot_status projection_round(bool *done, const struct projection *p, size_t j,
                              const struct quantize_rounding *rounding, float *errors, void *bytes,
                              const float *w, int64_t row, int64_t n_rows, struct allot_error *err);

#endif
