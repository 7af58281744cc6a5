/* second_moments.h - X'X of the inputs of linear maps, from one forward pass.  SPDX-License-Identifier: MIT
 *
 * What an error E (rows, n) of a map's weights does to its outputs is E X' over the tokens, and its mean
 * square is the trace of E M E' with M = X'X / tokens. Maps with the same input share M: queries, keys and
 * values; gate and up; and the experts' likewise, each with the tokens that took it.
 *
 * The windows are two parts: one to choose codes by, and every fourth window (of fewer windows the last),
 * held out, to judge them by. */
#ifndef ALLOT_COST_SECOND_MOMENTS_H
#define ALLOT_COST_SECOND_MOMENTS_H

#include "net/net.h"
#include "text/text.h"

enum moment_part { MOMENTS_SEEN, MOMENTS_HELD_OUT, N_MOMENT_PARTS };

struct moment_input; /* of one or several maps */

struct second_moments {
    const struct net *net;
    int64_t n_ctx, held_out_every; /* tokens of a window; windows */
    int32_t *input_of;             /* [n_tensors]: which of the inputs enters the tensor's map; -1: none */
    struct moment_input *inputs;
    size_t n_inputs;
    struct spill sums;
};

/* X'X of the inputs of the tensors wanted [n_tensors] that are matrices of the layers or the output matrix (a
 * token embedding that is the output matrix too counts as that). They go to a temporary file unless memory
 * has room for them and what the pass takes, and later for them and `beside` bytes. progress counts layers
 * ("second moments"). The net is used until the release. */
allot_status second_moments_collect(struct second_moments *out, const struct net *net, struct pool *pool,
                                    const struct text_windows *windows, const bool *wanted,
                                    const struct memory_budget *memory, int64_t beside,
                                    const struct allot_progress *progress, struct allot_error *err);
void second_moments_release(struct second_moments *moments);

/* X'X (ne[0], ne[0]), symmetric but for rounding, and the tokens that it sums, of one matrix of the tensor;
 * NULL if there is none. */
const float *second_moments_of(const struct second_moments *moments, int64_t tensor, int64_t matrix,
                               enum moment_part part, int64_t *n_tokens);
/* The same for two tensors with the same input, -1 for those with none. */
int32_t second_moments_input(const struct second_moments *moments, int64_t tensor);
/* The sums of this input are not wanted for a while; -1: of none. */
void second_moments_forget(const struct second_moments *moments, int32_t input);

#endif
