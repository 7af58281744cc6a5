/* replay.h - what networks that differ from one in a single tensor do at the output.
 *
 * SPDX-License-Identifier: MIT
 *
 * One pass over S sequences of T tokens keeps the input of every layer. From there a network with one tensor
 * changed is run from that tensor's layer on, several such variants together: each later layer's weights are
 * loaded once for all. The change of a tensor of the feed-forward half does not run the attention half again,
 * a change of the output matrix runs the output alone, one of the token embedding everything (and of a tied
 * one both of its roles change). */
#ifndef ALLOT_NET_REPLAY_H
#define ALLOT_NET_REPLAY_H

#include "net/net.h"

struct net_replay;

struct net_replay_options {
    int64_t max_variants; /* that one call will run; at least 1 */
    int64_t every;        /* outputs are compared at positions every - 1, 2 every - 1, ... of each sequence */
    const struct net_placement *place; /* what net_place said of the needs; NULL: all in memory */
};

/* Of all that follows; what the sources take, and memory_base, come on top. */
void net_replay_needs(struct net_needs *needs, const struct net *net, const struct net_batch *batch,
                      int64_t max_variants, int64_t every, int n_threads);

/* Runs the net itself. observer, unless NULL, sees the inputs of its maps. net, pool, batch (at least `every`
 * tokens a sequence) and place must live as long. Progress counts layers, stage "forward". */
allot_status net_replay_open(struct net_replay **out, const struct net *net, struct pool *pool,
                             const struct net_batch *batch, const struct net_replay_options *options,
                             const struct net_observer *observer, const struct allot_progress *progress,
                             struct allot_error *err);
void net_replay_close(struct net_replay *replay);

/* Layers that a change of the tensor runs; the output comes on top. */
int64_t net_replay_layers(const struct net *net, const struct gguf_tensor *tensor);

/* kl (n, S) receives, for each source, the mean of KL(p || p') over the compared positions of a sequence: p'
 * is the network whose weights of this tensor come from the source (of which `rows` is called, for this
 * tensor alone). Not finite where a state or a logit is not. A variant's result does not depend on the
 * others, nor on the place or the number of threads. n may be 0: the output is run all the same. Progress
 * counts layers and the output, stage "variants". */
allot_status net_replay_run(struct net_replay *replay, const struct gguf_tensor *tensor,
                            const struct net_source *sources, int64_t n, double *kl,
                            const struct allot_progress *progress, struct allot_error *err);

#endif
