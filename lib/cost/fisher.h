/* fisher.h - the cost of every (tensor, type) at the model's output, from one backward pass.
 *
 * SPDX-License-Identifier: MIT
 *
 * To second order the mean KL divergence of a changed model is 1/2 d' F d, F the Fisher information of
 * the next-token distribution. Labels y_t are drawn from the model itself at every position of S
 * sequences of T tokens; with G the gradient of sum_t log p(y_t) at the output of a linear map and X
 * its input, a weight error D moves the sum by u = < G' X, D >. It is taken over chunks of C consecutive
 * tokens, u_c = sum over t in c of g_t' D x_t, and over wide ones w of four such chunks, and
 *
 *     cost = 1/(4 S T) (sum over c of u_c^2 + sum over w of (sum over c in w of u_c)^2)   [nats per token],
 *
 * between the less noise of short chunks and the less bias of long ones (chunk_kl.h).
 *
 * A stack of experts' matrices is one tensor: its u_c sums over the experts, each with the tokens that took
 * it; experts that no token took count as the mean of the others, and a note names them.
 * A token embedding's u_c sums g_t . D[token_t]; the mean over calibration tokens is an unbiased
 * estimate for text of the same kind, so rows never seen need no term of their own. A tied embedding
 * adds both roles before squaring. The u_c are kept in the archive: they give the standard error,
 * and the mean of u_c(A) u_c(B) / C is the interaction of two errors.
 */
#ifndef ALLOT_COST_FISHER_H
#define ALLOT_COST_FISHER_H

#include "archive/archive.h"
#include "cost/imatrix.h"
#include "net/net.h"
#include "text/text.h"

struct fisher_options {
    int32_t chunk;               /* C: tokens; divides T */
    uint64_t seed;               /* of the labels */
    const enum ggml_type *types; /* candidates, legal ones are used for each tensor */
    size_t n_types;
    const struct memory_budget *memory; /* NULL: no limit; results do not depend on it */
    /* How candidates are rounded, and what names that in the costs' key; NULL: as ggml does. */
    const struct quantize_rounding *rounding;
    const char *rounding_name;
};

#define FISHER_DEFAULT_CHUNK 32
#define FISHER_DEFAULT_SEQUENCES 64
#define FISHER_DEFAULT_SEQUENCE_LENGTH 128
#define FISHER_DEFAULT_SEED 1

/* What the costs of a set depend on: "chunk=32+128 seed=1", with " rounding=NAME" if it is not ggml's;
 * windows and imatrix are keyed apart. */
#define FISHER_PARAMS 160
void fisher_params(char params[static FISHER_PARAMS], const struct fisher_options *options);

/* The mean KL divergence per token of n sequences of n_tokens each, and its standard error, from the sums
 * that an archive keeps of all sequences of a set: n_u of them, those of sequence i at i * (n_u / of).
 * `which` has the sequences' numbers, below `of`, which divides n_u. */
double fisher_cost_of(double *std_err, const float *u, size_t n_u, const int64_t *which, int64_t n,
                      int64_t of, int64_t n_tokens);

struct fisher_result {
    int64_t n_tensors;                        /* quantizable tensors of the model */
    int64_t n_unsuited;                       /* of them, those that no candidate suits */
    int64_t n_resumed;                        /* and those found complete in the archive */
    double seconds_forward, seconds_backward; /* backward includes costs */
    double seconds_quantize, seconds_product; /* within backward */
    struct net_placement place;               /* of the passes' blocks; zeros if nothing was lacking */
};

/* Computes what the set still lacks and stores it tensor by tensor; interrupted, the next call
 * goes on and ends with the same numbers. The types are finished in the set only at the end. imatrix may be
 * NULL. windows->n_ctx is T. Results do not depend on the number of threads. */
allot_status fisher_run(struct fisher_result *result, const struct net *net, struct pool *pool,
                        const struct text_windows *windows, const struct imatrix *imatrix,
                        const struct fisher_options *options, struct archive *archive, int64_t set_id,
                        const struct allot_progress *progress, struct allot_error *err);

#endif
