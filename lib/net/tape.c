/* tape.c - where the blocks of the passes are, and how large.  SPDX-License-Identifier: MIT */
#include "net/tape.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/num.h"
#include "base/strbuf.h"
#include "net/head.h"
#include "net/layer.h"

static int64_t floats(int64_t n)
{
    return (int64_t)sizeof(float) * n;
}

void net_forward_needs(struct net_needs *needs, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                       int64_t group_tokens, int n_threads)
{
    const int64_t group = net_group_seqs(n_seqs, n_ctx, group_tokens);
    *needs = (struct net_needs){
        .fixed = layer_weights_bytes(net),
        .states = floats(n_seqs * n_ctx * net->n_embd),
        .activations = floats(layer_work_floats(net, group, n_ctx, false, n_threads) +
                              layer_acts_floats(net, group * n_ctx)),
    };
}

void net_backward_needs(struct net_needs *needs, const struct net *net, int64_t n_seqs, int64_t n_ctx,
                        int n_threads)
{
    const int64_t n = n_seqs * n_ctx, x = floats(n * net->n_embd);
    const int64_t layer =
        floats(layer_work_floats(net, n_seqs, n_ctx, true, n_threads) + layer_acts_floats(net, n));
    *needs = (struct net_needs){
        .fixed = most(layer_weights_bytes(net), head_fixed_bytes(net, n)),
        .states = net->n_layers * x,
        /* the final states, and their gradient once the way back begins; the way forward needs less */
        .activations = 2 * x + most(layer, head_token_bytes(net, n)),
    };
}

allot_status net_place(struct net_placement *place, const struct net_needs *needs,
                       const struct memory_budget *budget, const char *what,
                       const struct allot_progress *progress, struct allot_error *err)
{
    const int64_t limit = budget ? budget->limit : INT64_MAX, mib = 1 << 20;
    const int64_t spilled[] = {0, needs->states, needs->states + needs->activations};
    char own[32], file[32];
    for (int step = 0; step < 3; step++) {
        *place =
            (struct net_placement){.own = needs->fixed + spilled[2] - spilled[step], .file = spilled[step]};
        place->left = limit - place->own;
        if (place->left < 0)
            continue;
        if (step > 0) {
            place->states_folder = budget->folder;
            place->activations_folder = step > 1 ? budget->folder : NULL;
            allot_note(progress, "%s: %s in memory, %s in a temporary file in %s", what,
                       str_size(own, place->own), str_size(file, place->file), budget->folder);
        }
        return ALLOT_OK;
    }
    return allot_fail(err, ALLOT_ERR_MEMORY,
                      "%s: at least %" PRId64 "MiB of memory are needed, and the limit is %" PRId64
                      "MiB (--mem; by default 60 %% of what there is)",
                      what, (needs->fixed + mib - 1) / mib, limit / mib);
}

allot_status net_tape_init(struct net_tape *tape, const struct net *net, int64_t n_tokens,
                           const struct net_placement *place, struct allot_error *err)
{
    *tape = (struct net_tape){.place = {.left = INT64_MAX}};
    if (place)
        tape->place = *place;
    if (n_tokens == 0)
        return ALLOT_OK;
    const int64_t acts = floats(layer_acts_floats(net, n_tokens));
    tape->n_layers = net->n_layers;
    tape->n_kept = tape->place.left / acts;
    if (tape->n_kept > net->n_layers)
        tape->n_kept = net->n_layers;
    tape->place.own += tape->n_kept * acts;
    tape->place.left -= tape->n_kept * acts;
    allot_status status = ALLOT_OK;
    tape->kept = calloc((size_t)tape->n_kept + 1, sizeof *tape->kept);
    if (tape->kept == NULL)
        status = allot_fail_memory(err, (size_t)tape->n_kept * sizeof *tape->kept, "activations");
    if (status == ALLOT_OK)
        status = spill_new(&tape->states, (size_t)floats(net->n_layers * n_tokens * net->n_embd),
                           tape->place.states_folder, "the states of all layers", err);
    if (status != ALLOT_OK)
        net_tape_release(tape);
    return status;
}

void net_tape_release(struct net_tape *tape)
{
    for (int64_t i = 0; i < tape->n_kept && tape->kept != NULL; i++)
        layer_acts_release(&tape->kept[i]);
    free(tape->kept);
    spill_release(&tape->states);
    *tape = (struct net_tape){0};
}
