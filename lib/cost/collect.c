/* collect.c - the importance matrix from one streamed forward pass.  SPDX-License-Identifier: MIT */
#include "cost/collect.h"

#include <stdlib.h>

#include "base/error.h"
#include "cost/squares.h"

/* Tokens that one call of a layer works on: enough for full speed, few enough to stay small. */
enum { GROUP_TOKENS = 4096, COLUMNS_PER_ITEM = 64 };

struct collector {
    struct pool *pool;
    struct squares squares;
};

struct strip {
    const float *x;
    double *sums;
    int64_t n_tokens, n_in;
};

/* One strip of columns: the tokens are added in order, whatever the number of threads. */
static void add_squares(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct strip *s = user;
    int64_t first = item * COLUMNS_PER_ITEM, end = first + COLUMNS_PER_ITEM;
    if (end > s->n_in)
        end = s->n_in;
    for (int64_t t = 0; t < s->n_tokens; t++) {
        const float *x = s->x + t * s->n_in;
        for (int64_t i = first; i < end; i++)
            s->sums[i] += (double)x[i] * x[i];
    }
}

static allot_status collect_input(void *user, const struct net_input *input, struct allot_error *err)
{
    struct collector *c = user;
    int64_t index = input->tensor - c->squares.model->tensors, n_in = input->n_in;
    allot_status status = squares_of(&c->squares, index, err);
    if (status != ALLOT_OK)
        return status;
    struct strip s = {input->x, c->squares.sums[index] + input->matrix * n_in, input->n_tokens, n_in};
    pool_run(c->pool, (n_in + COLUMNS_PER_ITEM - 1) / COLUMNS_PER_ITEM, add_squares, &s);
    c->squares.counts[index][input->matrix] += input->n_tokens;
    return ALLOT_OK;
}

/* The pass reports its layers under "imatrix". */
static bool report_imatrix(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)stage;
    const struct allot_progress *outer = user;
    return outer->report(outer->user, "imatrix", done, total);
}

/* The forward pass, with the states of all windows where the budget allows. */
static allot_status pass_through(struct collector *c, const struct net *net,
                                 const struct text_windows *windows, const struct memory_budget *memory,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    struct net_observer observer = {.user = c, .input = collect_input};
    struct allot_progress renamed = {.report = report_imatrix, .user = (void *)(uintptr_t)progress};
    const bool reports = progress != NULL && progress->report != NULL;
    const int n_threads = pool_threads(c->pool);
    struct net_needs needs;
    struct net_placement place;
    struct net_tape tape = {0};
    struct spill x = {0};
    net_forward_needs(&needs, net, batch.n_seqs, batch.n_ctx, GROUP_TOKENS, n_threads);
    /* the sums, and the entries' floats */
    needs.fixed += squares_bytes(net->model) + squares_bytes(net->model) / 2 + memory_base(n_threads);
    allot_status status = net_place(&place, &needs, memory, "the importance matrix", progress, err);
    if (status == ALLOT_OK)
        status = net_tape_init(&tape, net, 0, &place, err);
    if (status == ALLOT_OK)
        status = spill_new(&x, (size_t)needs.states, place.states_folder, "the states of all windows", err);
    if (status == ALLOT_OK)
        status = net_forward(net, c->pool, &batch, x.data, &tape, GROUP_TOKENS, &observer,
                             reports ? &renamed : NULL, err);
    spill_release(&x);
    net_tape_release(&tape);
    return status;
}

allot_status imatrix_collect(struct imatrix *out, const struct net *net, struct pool *pool,
                             const struct text_windows *windows, const char *const *datasets,
                             size_t n_datasets, const struct memory_budget *memory,
                             const struct allot_progress *progress, struct allot_error *err)
{
    struct collector c = {.pool = pool};
    allot_status status = squares_init(&c.squares, net->model, err);
    if (status == ALLOT_OK)
        status = pass_through(&c, net, windows, memory, progress, err);
    if (status == ALLOT_OK)
        status = squares_imatrix(out, &c.squares, windows, datasets, n_datasets, err);
    squares_release(&c.squares);
    return status;
}
