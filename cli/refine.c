/* refine.c - plans improved around themselves.  SPDX-License-Identifier: MIT */
#include "refine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "cost/relinearize.h"

enum {
    LEAST_SEQUENCES = 8, /* held out, and for the slope */
    SHUFFLE_SEED = 1
};

struct refine {
    struct knapsack *knapsack;
    struct calibration *c;
    const struct calibrated_arguments *args;
    const struct rung *rung;
    const struct provenance *keys;
    const struct imatrix *imatrix;
    struct text_windows windows; /* for the rounds: those for the slope, then those of the costs */
    struct text_windows held_out;
    int64_t n_taught;
    enum ggml_type types[GGML_TYPE_COUNT]; /* that some choice has */
    size_t n_types;
    double *kl, *first_kl; /* [held_out.n]: of the plan in hand, of the first */
    double *costs;         /* the knapsack's own */
    const struct allot_progress *progress;
};

/* ---- Sequences -------------------------------------------------------------------------------------------
 */

static bool is_among(const struct text_windows *windows, const int32_t *ids)
{
    for (int64_t i = 0; i < windows->n; i++)
        if (memcmp(windows->ids + i * windows->n_ctx, ids, sizeof *ids * (size_t)windows->n_ctx) == 0)
            return true;
    return false;
}

/* Moves the windows that the costs have not seen to the front, in an order of their own; returns how many. */
static int64_t take_unseen(struct text_windows *all, const struct text_windows *seen)
{
    const int64_t n_ctx = all->n_ctx;
    int64_t n = 0;
    for (int64_t i = 0; i < all->n; i++)
        if (!is_among(seen, all->ids + i * n_ctx))
            memmove(all->ids + n++ * n_ctx, all->ids + i * n_ctx, sizeof *all->ids * (size_t)n_ctx);
    for (int64_t i = n - 1; i > 0; i--) {
        int32_t *a = all->ids + i * n_ctx,
                *b = all->ids + (int64_t)(rng_u64(SHUFFLE_SEED, (uint64_t)i) % (uint64_t)(i + 1)) * n_ctx;
        for (int64_t t = 0; t < n_ctx; t++) {
            const int32_t id = a[t];
            a[t] = b[t];
            b[t] = id;
        }
    }
    return n;
}

static allot_status copy_windows(struct text_windows *to, const int32_t *first, int64_t n_first,
                                 const int32_t *second, int64_t n_second, int32_t n_ctx,
                                 struct allot_error *err)
{
    const size_t bytes = sizeof *to->ids * (size_t)n_ctx;
    *to = (struct text_windows){.n = n_first + n_second, .n_ctx = n_ctx};
    to->ids = malloc(bytes * (size_t)to->n + 1);
    if (!to->ids)
        return allot_fail_memory(err, bytes * (size_t)to->n, "sequences");
    memcpy(to->ids, first, bytes * (size_t)n_first);
    if (n_second)
        memcpy(to->ids + n_first * n_ctx, second, bytes * (size_t)n_second);
    return ALLOT_OK;
}

/* Of the texts' other sequences half are held out, half tell the slope, of each at most as many as the costs
 * had. */
static allot_status deal_sequences(struct refine *r, struct allot_error *err)
{
    const struct text_windows *seen = &r->c->sequences;
    struct text_windows all = {0};
    allot_status status = calibration_more_sequences(&all, r->c, r->args, 4 * seen->n, err);
    if (status != ALLOT_OK)
        return status;
    const int64_t n = take_unseen(&all, seen), n_each = n / 2 < seen->n ? n / 2 : seen->n;
    if (n_each < LEAST_SEQUENCES)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT,
                            "--refine: the texts have %" PRId64 " sequences of %" PRId32
                            " tokens beside those of the costs, %d are needed; give more text or fewer "
                            "--sequences",
                            n, seen->n_ctx, 2 * LEAST_SEQUENCES);
    r->n_taught = n_each;
    if (status == ALLOT_OK)
        status = copy_windows(&r->held_out, all.ids, n_each, NULL, 0, seen->n_ctx, err);
    if (status == ALLOT_OK)
        status = copy_windows(&r->windows, all.ids + n_each * seen->n_ctx, n_each, seen->ids, seen->n,
                              seen->n_ctx, err);
    text_windows_release(&all);
    return status;
}

/* ---- One round -------------------------------------------------------------------------------------------
 */

static void list_types(struct refine *r)
{
    bool has[GGML_TYPE_COUNT] = {false};
    for (size_t i = 0; i < r->knapsack->n; i++)
        for (size_t j = 0; j < r->knapsack->items[i].n_choices; j++)
            if (r->knapsack->items[i].choices[j].bar == CHOICE_OPEN)
                has[r->knapsack->items[i].choices[j].type] = true;
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        if (has[type])
            r->types[r->n_types++] = (enum ggml_type)type;
}

/* What the tensor's type costs, its error on top: a change must be worth more than it is uncertain. */
static bool change_to(double *cost, const struct tensor_changes *changes, enum ggml_type type)
{
    for (size_t j = 0; j < changes->n; j++)
        if (changes->list[j].type == type) {
            *cost += changes->list[j].change + changes->list[j].std_err;
            return true;
        }
    return false;
}

static void set_costs(struct refine *r, const struct tensor_changes *changes)
{
    for (size_t i = 0; i < r->knapsack->n; i++) {
        struct knapsack_item *item = &r->knapsack->items[i];
        for (size_t j = 0; j < item->n_choices; j++) {
            double cost = 0;
            bool all = true;
            for (size_t t = 0; t < item->n_tensors; t++)
                all = change_to(&cost, &changes[item->tensors[t]], item->choices[j].type) && all;
            if (all)
                item->choices[j].cost = cost;
        }
    }
}

/* Between the knapsack and a list, item by item. */
static void move_costs(const struct refine *r, bool restore)
{
    double *cost = r->costs;
    for (size_t i = 0; i < r->knapsack->n; i++)
        for (size_t j = 0; j < r->knapsack->items[i].n_choices; j++, cost++) {
            if (restore)
                r->knapsack->items[i].choices[j].cost = *cost;
            else
                *cost = r->knapsack->items[i].choices[j].cost;
        }
}

static allot_status solve_again(struct type_plan *next, struct refine *r, const struct type_plan *plan,
                                struct allot_error *err)
{
    const struct calibration *c = r->c;
    const int64_t n_tensors = r->knapsack->model->n_tensors;
    const struct relinearize_options options = {.chunk = (int32_t)r->args->chunk,
                                                .seed = (uint64_t)r->args->seed,
                                                .n_taught = r->n_taught,
                                                .types = r->types,
                                                .n_types = r->n_types,
                                                .memory = &c->memory};
    struct tensor_changes *changes = calloc((size_t)n_tensors + 1, sizeof *changes);
    if (!changes)
        return allot_fail_memory(err, (size_t)n_tensors * sizeof *changes, "a plan");
    allot_status status = relinearize_run(changes, &c->net, plan->types, c->pool, &r->windows, r->imatrix,
                                          &options, r->progress, err);
    if (status == ALLOT_OK) {
        set_costs(r, changes);
        status = type_plan_solve(next, r->knapsack, &r->args->sized, r->rung, r->keys, err);
        move_costs(r, true);
        tensor_changes_free(changes, n_tensors);
    }
    free(changes);
    return status;
}

/* Fills in what the round's plan measures on the held-out sequences. */
static allot_status measure_round(struct refine_round *round, struct refine *r, const struct type_plan *plan,
                                  bool first, struct allot_error *err)
{
    double sum = 0, squares = 0, gain = 0, gain_squares = 0, n = (double)r->held_out.n;
    allot_status status = planned_divergence(r->kl, &r->c->net, plan->types, r->c->pool, &r->held_out,
                                             r->imatrix, &r->c->memory, r->progress, err);
    if (status != ALLOT_OK)
        return status;
    for (int64_t s = 0; s < r->held_out.n; s++) {
        if (first)
            r->first_kl[s] = r->kl[s];
        const double better = r->first_kl[s] - r->kl[s];
        sum += r->kl[s];
        squares += r->kl[s] * r->kl[s];
        gain += better;
        gain_squares += better * better;
    }
    round->kl = sum / n;
    round->std_err = sqrt(fmax(0, squares / n - round->kl * round->kl) / (n - 1));
    round->gain = gain / n;
    round->gain_std_err = sqrt(fmax(0, gain_squares / n - round->gain * round->gain) / (n - 1));
    return ALLOT_OK;
}

static int64_t count_changed(const struct type_plan *a, const struct type_plan *b, int64_t n_tensors)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_tensors; i++)
        n += a->types[i] != b->types[i];
    return n;
}

/* The answer's cost is the sum of the costs again, and no longer the least. */
static void price_again(struct type_plan *plan)
{
    double cost = 0;
    for (size_t i = 0; i < plan->knapsack->n; i++)
        cost += plan->knapsack->items[i].choices[plan->answer.chosen[i]].cost;
    plan->answer.result.cost = cost;
    plan->answer.result.exact = false;
}

static allot_status run_rounds(struct refinement *out, struct type_plan *plan, struct refine *r,
                               int64_t n_rounds, struct allot_error *err)
{
    const int64_t n_tensors = r->knapsack->model->n_tensors;
    const double lower_bound = plan->answer.result.lower_bound;
    struct type_plan now = {0}, next = {0}; /* where the rounds stand, unless that is `plan`, the best */
    allot_status status = measure_round(&out->rounds[out->n++], r, plan, true, err);
    while (status == ALLOT_OK && (int64_t)out->n <= n_rounds) {
        const struct type_plan *from = now.types ? &now : plan;
        struct refine_round *round = &out->rounds[out->n];
        status = solve_again(&next, r, from, err);
        if (status != ALLOT_OK)
            break;
        round->n_changed = count_changed(from, &next, n_tensors);
        if (round->n_changed == 0)
            break;
        status = measure_round(round, r, &next, false, err);
        type_plan_release(&now);
        if (status == ALLOT_OK && round->kl < out->rounds[out->best].kl) {
            type_plan_release(plan);
            *plan = next;
            price_again(plan);
            plan->answer.result.lower_bound = fmin(lower_bound, plan->answer.result.cost);
            out->best = out->n;
        } else {
            now = next;
        }
        memset(&next, 0, sizeof next);
        out->n++;
    }
    type_plan_release(&now);
    type_plan_release(&next);
    return status;
}

allot_status refine_plan(struct refinement *out, struct type_plan *plan, struct knapsack *knapsack,
                         struct calibration *c, const struct calibrated_arguments *args,
                         const struct rung *rung, const struct provenance *keys,
                         const struct imatrix *imatrix, int64_t n_rounds,
                         const struct allot_progress *progress, struct allot_error *err)
{
    struct refine r = {.knapsack = knapsack,
                       .c = c,
                       .args = args,
                       .rung = rung,
                       .keys = keys,
                       .imatrix = imatrix,
                       .progress = progress};
    size_t n_costs = 1;
    memset(out, 0, sizeof *out);
    list_types(&r);
    for (size_t i = 0; i < knapsack->n; i++)
        n_costs += knapsack->items[i].n_choices;
    allot_status status = deal_sequences(&r, err);
    out->n_held_out = r.held_out.n;
    r.kl = malloc(sizeof *r.kl * (size_t)(r.held_out.n + 1));
    r.first_kl = malloc(sizeof *r.first_kl * (size_t)(r.held_out.n + 1));
    r.costs = malloc(sizeof *r.costs * n_costs);
    if (status == ALLOT_OK && (!r.kl || !r.first_kl || !r.costs))
        status = allot_fail_memory(err, sizeof *r.costs * n_costs, "a plan");
    if (status == ALLOT_OK) {
        move_costs(&r, false);
        status = run_rounds(out, plan, &r, n_rounds, err);
    }
    text_windows_release(&r.windows);
    text_windows_release(&r.held_out);
    free(r.kl);
    free(r.first_kl);
    free(r.costs);
    return status;
}

/* ---- Reports
 * ----------------------------------------------------------------------------------------------- */

void refinement_print(const struct refinement *refinement)
{
    printf("refined:       KL on %" PRId64 " held-out calibration sequences, round by round\n",
           refinement->n_held_out);
    for (size_t i = 0; i < refinement->n; i++) {
        const struct refine_round *round = &refinement->rounds[i];
        printf("  %2zu: %.6f ± %.6f", i, round->kl, round->std_err);
        if (i > 0)
            printf(", %+.2f ± %.2f %%, %" PRId64 " tensors changed",
                   -100 * round->gain / refinement->rounds[0].kl,
                   100 * round->gain_std_err / refinement->rounds[0].kl, round->n_changed);
        printf("%s\n", i == refinement->best ? "  <- taken" : "");
    }
}

json_t *refinement_json(const struct refinement *refinement)
{
    json_t *rounds = json_array();
    for (size_t i = 0; i < refinement->n; i++) {
        const struct refine_round *round = &refinement->rounds[i];
        json_array_append_new(rounds,
                              json_pack("{s:o,s:o,s:o,s:o,s:I,s:b}", "kl", json_number(round->kl), "se",
                                        json_number(round->std_err), "gain", json_number(round->gain),
                                        "gain_se", json_number(round->gain_std_err), "changed",
                                        (json_int_t)round->n_changed, "taken", i == refinement->best));
    }
    return rounds;
}
