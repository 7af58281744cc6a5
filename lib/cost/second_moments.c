/* second_moments.c - X'X of the inputs of linear maps, from one forward pass.  SPDX-License-Identifier: MIT
 */
#include "cost/second_moments.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/gemm.h"

enum {
    GROUP_TOKENS = 4096, /* that one call of a layer works on */
    STRIP = 128,         /* rows of X'X that are one item of work */
    HELD_OUT_EVERY = 4,  /* windows */
    SHARE = 4            /* of the limit, so much is left to the costs */
};

struct moment_input {
    const struct gguf_tensor *leader; /* the first of the maps; the others' calls are the same again */
    int64_t n, n_matrices;
    size_t at;                           /* of its sums, in floats: matrices, and of each the parts */
    int64_t (*n_tokens)[N_MOMENT_PARTS]; /* [n_matrices] */
    int64_t seen;                        /* tokens of one matrix, across the calls of the pass */
};

static size_t input_floats(const struct moment_input *in)
{
    return (size_t)in->n_matrices * N_MOMENT_PARTS * (size_t)in->n * (size_t)in->n;
}

static float *sum_of(const struct second_moments *m, const struct moment_input *in, int64_t matrix,
                     enum moment_part part)
{
    return (float *)m->sums.data + in->at +
           (size_t)(matrix * N_MOMENT_PARTS + part) * (size_t)(in->n * in->n);
}

/* ---- Which maps share an input ---------------------------------------------------------------------- */

static allot_status add_input(struct second_moments *m, const struct gguf_tensor *leader,
                              const struct gguf_tensor *const *tensors, size_t n, const bool *wanted,
                              struct allot_error *err)
{
    const struct gguf_tensor *all = m->net->model->tensors;
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any |= tensors[i] != NULL && wanted[tensors[i] - all];
    if (!any)
        return ALLOT_OK;
    struct moment_input *in = &m->inputs[m->n_inputs];
    *in = (struct moment_input){.leader = leader, .n = leader->ne[0], .n_matrices = leader->ne[2]};
    in->n_tokens = calloc((size_t)in->n_matrices, sizeof *in->n_tokens);
    if (in->n_tokens == NULL)
        return allot_fail_memory(err, (size_t)in->n_matrices * sizeof *in->n_tokens, "second moments");
    if (m->n_inputs > 0)
        in->at = in[-1].at + input_floats(&in[-1]);
    for (size_t i = 0; i < n; i++)
        if (tensors[i] != NULL)
            m->input_of[tensors[i] - all] = (int32_t)m->n_inputs;
    m->n_inputs++;
    return ALLOT_OK;
}

static allot_status list_inputs(struct second_moments *m, const bool *wanted, struct allot_error *err)
{
    static const enum net_slot shared[][4] = {
        {NET_ATTN_Q, NET_ATTN_K, NET_ATTN_V, NET_ATTN_QKV},
        {NET_ATTN_OUT, NET_ATTN_OUT, NET_ATTN_OUT, NET_ATTN_OUT},
        {NET_FFN_GATE, NET_FFN_UP, NET_FFN_UP, NET_FFN_UP},
        {NET_FFN_DOWN, NET_FFN_DOWN, NET_FFN_DOWN, NET_FFN_DOWN},
        {NET_EXPERTS_GATE, NET_EXPERTS_UP, NET_EXPERTS_UP, NET_EXPERTS_UP},
        {NET_EXPERTS_DOWN, NET_EXPERTS_DOWN, NET_EXPERTS_DOWN, NET_EXPERTS_DOWN},
        {NET_SHARED_GATE, NET_SHARED_UP, NET_SHARED_UP, NET_SHARED_UP},
        {NET_SHARED_DOWN, NET_SHARED_DOWN, NET_SHARED_DOWN, NET_SHARED_DOWN},
    };
    enum { N_SHARED = sizeof shared / sizeof *shared };
    const struct net *net = m->net;
    allot_status status = ALLOT_OK;
    m->inputs = calloc((size_t)net->n_layers * N_SHARED + 1, sizeof *m->inputs);
    m->input_of = malloc(((size_t)net->model->n_tensors + 1) * sizeof *m->input_of);
    if (m->inputs == NULL || m->input_of == NULL)
        return allot_fail_memory(err, (size_t)net->model->n_tensors * sizeof *m->inputs, "second moments");
    for (int64_t i = 0; i < net->model->n_tensors; i++)
        m->input_of[i] = -1;
    for (int64_t l = 0; l < net->n_layers; l++)
        for (size_t s = 0; s < N_SHARED && status == ALLOT_OK; s++) {
            const struct gguf_tensor *tensors[4], *leader = NULL;
            for (size_t i = 0; i < 4; i++) {
                tensors[i] = net->layers[l].tensors[shared[s][i]];
                leader = leader ? leader : tensors[i];
            }
            if (leader != NULL)
                status = add_input(m, leader, tensors, 4, wanted, err);
        }
    if (status == ALLOT_OK)
        status = add_input(m, net->output, &net->output, 1, wanted, err);
    return status;
}

/* ---- The pass --------------------------------------------------------------------------------------- */

struct collector {
    struct second_moments *moments;
    struct pool *pool;
    int64_t n_tokens; /* of the windows */
};

/* sum += x' x, by strips of rows. */
struct product {
    float *sum;
    const float *x; /* (n_tokens, n) */
    int64_t n_tokens, n;
};

static void add_strip(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct product *p = user;
    const int64_t first = item * STRIP, left = p->n - first;
    gemm_strided(true, false, (int)(left < STRIP ? left : STRIP), (int)p->n, (int)p->n_tokens, 1,
                 p->x + first, (int)p->n, p->x, (int)p->n, 1, p->sum + first * p->n, (int)p->n);
}

static void add_tokens(const struct collector *c, struct moment_input *in, int64_t matrix,
                       enum moment_part part, const float *x, int64_t n_tokens)
{
    struct product p = {sum_of(c->moments, in, matrix, part), x, n_tokens, in->n};
    in->n_tokens[matrix][part] += n_tokens;
    pool_run(c->pool, (in->n + STRIP - 1) / STRIP, add_strip, &p);
}

/* Calls come window by window; an expert's tokens, of which the windows are not told, call by call. */
static void take(const struct collector *c, struct moment_input *in, int64_t matrix, const float *x,
                 int64_t n_tokens)
{
    const int64_t n_ctx = c->moments->n_ctx, every = c->moments->held_out_every;
    if (in->n_matrices > 1) {
        const int64_t held_out = n_tokens / every;
        if (n_tokens > held_out)
            add_tokens(c, in, matrix, MOMENTS_SEEN, x, n_tokens - held_out);
        if (held_out > 0)
            add_tokens(c, in, matrix, MOMENTS_HELD_OUT, x + (n_tokens - held_out) * in->n, held_out);
        return;
    }
    for (int64_t t = 0; t < n_tokens; t += n_ctx) {
        const int64_t window = (in->seen + t) / n_ctx;
        const enum moment_part part = window % every == every - 1 ? MOMENTS_HELD_OUT : MOMENTS_SEEN;
        add_tokens(c, in, matrix, part, x + t * in->n, n_ctx);
    }
    in->seen += n_tokens;
}

static allot_status take_input(void *user, const struct net_input *input, struct allot_error *err)
{
    const struct collector *c = user;
    const int32_t i = c->moments->input_of[input->tensor - c->moments->net->model->tensors];
    (void)err;
    if (i >= 0 && c->moments->inputs[i].leader == input->tensor && input->n_tokens > 0)
        take(c, &c->moments->inputs[i], input->matrix, input->x, input->n_tokens);
    return ALLOT_OK;
}

/* The output matrix is no part of a forward pass: its inputs follow from the final states x. */
static allot_status take_output(const struct collector *c, const float *x, struct allot_error *err)
{
    const struct net *net = c->moments->net;
    const int32_t i = c->moments->input_of[net->output - net->model->tensors];
    const int64_t group = (GROUP_TOKENS + c->moments->n_ctx - 1) / c->moments->n_ctx * c->moments->n_ctx;
    allot_status status = ALLOT_OK;
    if (i < 0)
        return ALLOT_OK;
    float *normed = malloc(sizeof *normed * (size_t)(group * net->n_embd));
    if (normed == NULL)
        return allot_fail_memory(err, sizeof *normed * (size_t)(group * net->n_embd), "output states");
    for (int64_t t = 0; t < c->n_tokens && status == ALLOT_OK; t += group) {
        const int64_t n = c->n_tokens - t < group ? c->n_tokens - t : group;
        status = net_output_input(net, c->pool, x + t * net->n_embd, n, normed, err);
        if (status == ALLOT_OK)
            take(c, &c->moments->inputs[i], 0, normed, n);
    }
    free(normed);
    return status;
}

static bool report_moments(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)stage;
    const struct allot_progress *outer = user;
    return outer->report(outer->user, "second moments", done, total);
}

static allot_status pass_through(struct collector *c, const struct text_windows *windows,
                                 const struct memory_budget *memory, int64_t beside,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    struct second_moments *m = c->moments;
    const struct net_batch batch = {windows->ids, windows->n, windows->n_ctx};
    struct net_observer observer = {.user = c, .input = take_input};
    struct allot_progress renamed = {.report = report_moments, .user = (void *)(uintptr_t)progress};
    const bool reports = progress != NULL && progress->report != NULL;
    const int n_threads = pool_threads(c->pool);
    const struct moment_input *last = &m->inputs[m->n_inputs - 1];
    const size_t bytes = sizeof(float) * (last->at + input_floats(last));
    struct net_needs needs;
    struct net_placement place;
    struct net_tape tape = {0};
    struct spill x = {0};
    net_forward_needs(&needs, m->net, batch.n_seqs, batch.n_ctx, GROUP_TOKENS, n_threads);
    needs.fixed += memory_base(n_threads);
    allot_status status = net_place(&place, &needs, memory, "second moments", progress, err);
    const char *folder = NULL;
    if (memory && ((int64_t)bytes > place.left || (int64_t)bytes > memory->limit / SHARE ||
                   (int64_t)bytes > memory->limit - memory_base(n_threads) - beside))
        folder = memory->folder;
    if (status == ALLOT_OK && folder)
        allot_note(progress, "second moments of inputs, %zu MiB, go to a temporary file in %s", bytes >> 20,
                   folder);
    if (status == ALLOT_OK)
        status = spill_new(&m->sums, bytes, folder, "second moments", err);
    if (status == ALLOT_OK)
        status = net_tape_init(&tape, m->net, 0, &place, err);
    if (status == ALLOT_OK)
        status = spill_new(&x, (size_t)needs.states, place.states_folder, "the states of all windows", err);
    if (status == ALLOT_OK)
        status = net_forward(m->net, c->pool, &batch, x.data, &tape, GROUP_TOKENS, &observer,
                             reports ? &renamed : NULL, err);
    if (status == ALLOT_OK)
        status = take_output(c, x.data, err);
    spill_release(&x);
    net_tape_release(&tape);
    return status;
}

allot_status second_moments_collect(struct second_moments *out, const struct net *net, struct pool *pool,
                                    const struct text_windows *windows, const bool *wanted,
                                    const struct memory_budget *memory, int64_t beside,
                                    const struct allot_progress *progress, struct allot_error *err)
{
    *out = (struct second_moments){
        .net = net,
        .n_ctx = windows->n_ctx,
        .held_out_every = windows->n < HELD_OUT_EVERY ? windows->n : HELD_OUT_EVERY,
    };
    if (windows->n < 2)
        return allot_fail(
            err, ALLOT_ERR_ARGUMENT,
            "compensated rounding needs two windows of %d tokens at least, one of them to judge by",
            windows->n_ctx);
    struct collector c = {out, pool, windows->n * windows->n_ctx};
    allot_status status = gemm_init(err);
    if (status == ALLOT_OK)
        status = list_inputs(out, wanted, err);
    if (status == ALLOT_OK && out->n_inputs > 0)
        status = pass_through(&c, windows, memory, beside, progress, err);
    if (status != ALLOT_OK)
        second_moments_release(out);
    return status;
}

void second_moments_release(struct second_moments *m)
{
    for (size_t i = 0; i < m->n_inputs; i++)
        free(m->inputs[i].n_tokens);
    free(m->inputs);
    free(m->input_of);
    spill_release(&m->sums);
    *m = (struct second_moments){0};
}

const float *second_moments_of(const struct second_moments *m, int64_t tensor, int64_t matrix,
                               enum moment_part part, int64_t *n_tokens)
{
    const int32_t i = m->input_of[tensor];
    *n_tokens = i >= 0 ? m->inputs[i].n_tokens[matrix][part] : 0;
    return *n_tokens > 0 ? sum_of(m, &m->inputs[i], matrix, part) : NULL;
}

void second_moments_forget(const struct second_moments *m, int32_t i)
{
    if (i >= 0)
        spill_forget(&m->sums, sum_of(m, &m->inputs[i], 0, MOMENTS_SEEN),
                     sizeof(float) * input_floats(&m->inputs[i]));
}

int32_t second_moments_input(const struct second_moments *m, int64_t tensor)
{
    return m->input_of[tensor];
}
