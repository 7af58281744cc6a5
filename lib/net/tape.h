/* tape.h - what a forward pass leaves for the backward pass, and where the passes' blocks are: in memory, or,
 * as far as a limit does not allow that, in a temporary file.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_NET_TAPE_H
#define ALLOT_NET_TAPE_H

#include "base/memory.h"
#include "base/spill.h"

struct net;
struct layer_acts;

/* Bytes that a job takes at its peak, by where they may be. */
struct net_needs {
    int64_t fixed;       /* in memory only: the weights of a layer, a block of the output matrix */
    int64_t states;      /* of all layers or all tokens, walked in order: the first to go to a file */
    int64_t activations; /* inside a layer or the head, and what passes between them, with gradients */
};

/* net_forward with a tape of states, net_targets_draw and net_backward; what observers take, and
 * memory_base, come on top. */
void net_backward_needs(struct net_needs *needs, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                        int n_threads);

/* net_forward without states, x (n, n_embd) as what may go to a file first. */
void net_forward_needs(struct net_needs *needs, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                       int64_t group_tokens, int n_threads);

/* Where they go. A folder is for spill_new: NULL is memory. */
struct net_placement {
    const char *states_folder, *activations_folder;
    int64_t own, file; /* bytes in memory at the peak, and in the file */
    int64_t left;      /* bytes of the limit that nothing needs */
};

/* As much in memory as the budget allows (NULL: no limit), in three steps: all; all but the states; what must
 * be. A remark says what goes to a file. Fails (ALLOT_ERR_MEMORY) if even the last is too much, with the
 * least limit that would do. `what` is the job, as the message calls it. */
allot_status net_place(struct net_placement *place, const struct net_needs *needs,
                       const struct memory_budget *budget, const char *what,
                       const struct allot_progress *progress, struct allot_error *err);

struct net_tape {
    struct net_placement place; /* what is kept counted */
    struct spill states;        /* (n_layers, n, n_embd): the inputs of the layers; data NULL: not kept */
    /* What is inside the last n_kept layers, as many as what is left of the limit has room for; the way back
     * makes that of the others anew. */
    struct layer_acts *kept;
    int64_t n_kept, n_layers;
};

/* place: what net_place said; NULL: all in memory. n_tokens 0: no states are kept. Results do not depend on
 * the place. The budget's folder must live as long as the tape. */
allot_status net_tape_init(struct net_tape *tape, const struct net *net, int64_t n_tokens,
                           const struct net_placement *place, struct allot_error *err);
void net_tape_release(struct net_tape *tape);

#endif
