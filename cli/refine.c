/* refine.c - plans improved around themselves.  SPDX-License-Identifier: MIT */
#include "refine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mean.h"
#include "base/rng.h"
#include "cost/relinearize.h"
#include "refine_record.h"

enum {
    LEAST_SEQUENCES = 8, /* held out, and for the slope */
    TAUGHT_SHARE = 3,    /* sequences for the slope, of as many of the costs: noise in it is what misleads */
    SHUFFLE_SEED = 1
};

/* Bold to careful. */
static const double dampings[DAMPINGS] = {1, 2, 4};

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

/* Of the texts' other sequences a part is held out, the others tell the slope. */
static allot_status deal_sequences(struct refine *r, struct allot_error *err)
{
    const struct text_windows *seen = &r->c->sequences;
    const int64_t n_shares = seen->n > 2 * LEAST_SEQUENCES ? seen->n : 2 * LEAST_SEQUENCES;
    const int64_t n_wanted = seen->n + (1 + TAUGHT_SHARE) * n_shares;
    struct text_windows all = {0};
    allot_status status = calibration_more_sequences(&all, r->c, r->args, n_wanted, err);
    if (status != ALLOT_OK)
        return status;
    const int64_t n = take_unseen(&all, seen), n_out = n / (1 + TAUGHT_SHARE);
    if (n_out < LEAST_SEQUENCES)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT,
                            "--refine: the texts have %" PRId64 " sequences of %" PRId32
                            " tokens beside those of the costs, %d are needed; give more text or fewer "
                            "--sequences",
                            n, seen->n_ctx, (1 + TAUGHT_SHARE) * LEAST_SEQUENCES);
    r->n_taught = n - n_out;
    if (status == ALLOT_OK)
        status = copy_windows(&r->held_out, all.ids, n_out, NULL, 0, seen->n_ctx, err);
    if (status == ALLOT_OK)
        status = copy_windows(&r->windows, all.ids + n_out * seen->n_ctx, r->n_taught, seen->ids, seen->n,
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

static const struct type_change *find_change(const struct tensor_changes *changes, enum ggml_type type)
{
    for (size_t j = 0; j < changes->n; j++)
        if (changes->list[j].type == type)
            return &changes->list[j];
    return NULL;
}

/* A change must be worth more than it is uncertain. False: not known of all of the item's tensors. */
static bool price_change(double *cost, const struct tensor_changes *changes, const struct knapsack_item *item,
                         enum ggml_type type, double damping)
{
    *cost = 0;
    for (size_t t = 0; t < item->n_tensors; t++) {
        const struct type_change *change = find_change(&changes[item->tensors[t]], type);
        if (!change)
            return false;
        *cost += change->slope + damping * change->curve + change->std_err;
    }
    return true;
}

/* What is not known loses against all that is. */
static void set_costs(struct refine *r, const struct tensor_changes *changes, double damping)
{
    for (size_t i = 0; i < r->knapsack->n; i++) {
        const struct knapsack_item *item = &r->knapsack->items[i];
        double cost, largest = 0;
        for (size_t j = 0; j < item->n_choices; j++)
            if (price_change(&cost, changes, item, item->choices[j].type, damping))
                largest = fmax(largest, cost);
        for (size_t j = 0; j < item->n_choices; j++)
            item->choices[j].cost =
                price_change(&cost, changes, item, item->choices[j].type, damping) ? cost : largest + 1;
    }
}

static double predict(const struct type_plan *next, const struct tensor_changes *changes, int64_t n_tensors)
{
    double sum = 0;
    for (int64_t i = 0; i < n_tensors; i++) {
        const struct type_change *change = find_change(&changes[i], next->types[i]);
        sum += change ? change->slope + change->curve : 0;
    }
    return sum;
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

static allot_status find_kl(struct refine *r, const enum ggml_type *types, struct allot_error *err)
{
    const struct model_job *job = r->c->job;
    struct record_key key;
    bool found = false;
    allot_status status = record_key(&key, job, r->imatrix, &r->held_out, types, NULL, err);
    if (status == ALLOT_OK)
        status = record_kl_get(&found, r->kl, r->held_out.n, job, &key, err);
    if (status != ALLOT_OK || found)
        return status;
    status = planned_divergence(r->kl, &r->c->net, types, r->c->pool, &r->held_out, r->imatrix, &r->c->memory,
                                r->progress, err);
    return status == ALLOT_OK ? record_kl_put(r->kl, r->held_out.n, job, &key, err) : status;
}

static allot_status find_changes(struct tensor_changes *changes, struct refine *r, const enum ggml_type *now,
                                 struct allot_error *err)
{
    const struct model_job *job = r->c->job;
    const struct relinearize_options options = {.chunk = (int32_t)r->args->chunk,
                                                .seed = (uint64_t)r->args->seed,
                                                .n_taught = r->n_taught,
                                                .types = r->types,
                                                .n_types = r->n_types,
                                                .memory = &r->c->memory};
    struct record_key key;
    bool found = false;
    allot_status status = record_key(&key, job, r->imatrix, &r->windows, now, &options, err);
    if (status == ALLOT_OK)
        status = record_changes_get(&found, changes, job, &key, err);
    if (status != ALLOT_OK || found)
        return status;
    status = relinearize_run(changes, &r->c->net, now, r->c->pool, &r->windows, r->imatrix, &options,
                             r->progress, err);
    return status == ALLOT_OK ? record_changes_put(changes, job, &key, err) : status;
}

/* Fills in what a plan measures on the held-out sequences. */
static allot_status measure(struct refine_try *try, struct refine *r, const struct type_plan *plan,
                            bool first, struct allot_error *err)
{
    struct mean kl = {0}, gain = {0};
    allot_status status = find_kl(r, plan->types, err);
    if (status != ALLOT_OK)
        return status;
    for (int64_t s = 0; s < r->held_out.n; s++) {
        if (first)
            r->first_kl[s] = r->kl[s];
        mean_add(&kl, r->kl[s]);
        mean_add(&gain, r->first_kl[s] - r->kl[s]);
    }
    try->price = plan->answer.ms_price > 0 ? plan->answer.ms_price * plan->answer.ms : 0;
    try->kl = kl.mean;
    try->std_err = mean_std_err(&kl);
    try->gain = gain.mean;
    try->gain_std_err = mean_std_err(&gain);
    return ALLOT_OK;
}

static int64_t count_changed(const enum ggml_type *a, const enum ggml_type *b, int64_t n_tensors)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_tensors; i++)
        n += a[i] != b[i];
    return n;
}

/* The answer's cost is the sum of the costs again, and no longer the least. */
static void price_again(struct type_plan *plan)
{
    knapsack_add_up(&plan->answer, plan->knapsack);
    plan->answer.result.exact = false;
}

/* One try: the knapsack for the changes from `plan`. Replaces *best if it measures better. */
static allot_status try_damping(struct refinement *out, struct type_plan *best, const enum ggml_type *from,
                                struct refine *r, const struct tensor_changes *changes, double damping,
                                struct allot_error *err)
{
    const int64_t n_tensors = r->knapsack->model->n_tensors;
    const double lower_bound = best->answer.result.lower_bound;
    struct refine_try *try = &out->tries[out->n];
    struct type_plan next = {0};
    set_costs(r, changes, damping);
    allot_status status = type_plan_solve(&next, r->knapsack, &r->args->sized, r->rung, r->keys, err);
    move_costs(r, true);
    if (status != ALLOT_OK)
        return status;
    try->damping = damping;
    try->n_changed = count_changed(from, next.types, n_tensors);
    try->predicted = predict(&next, changes, n_tensors);
    if (try->n_changed > 0)
        status = measure(try, r, &next, false, err);
    const struct refine_try *least = &out->tries[out->best];
    if (status == ALLOT_OK && try->n_changed > 0 && try->kl + try->price < least->kl + least->price) {
        next.speed = best->speed;
        next.unpriced.cost = best->unpriced.cost;
        next.unpriced.ms = best->unpriced.ms;
        type_plan_release(best);
        *best = next;
        price_again(best);
        best->answer.result.lower_bound = fmin(lower_bound, best->answer.objective);
        out->best = out->n;
    } else {
        type_plan_release(&next);
    }
    out->n += status == ALLOT_OK && try->n_changed > 0;
    return status;
}

static allot_status run_round(struct refinement *out, struct type_plan *best, struct refine *r, int64_t round,
                              struct allot_error *err)
{
    const size_t n_tensors = (size_t)r->knapsack->model->n_tensors;
    struct tensor_changes *changes = calloc(n_tensors + 1, sizeof *changes);
    enum ggml_type *from = malloc((n_tensors + 1) * sizeof *from);
    allot_status status =
        changes && from ? ALLOT_OK : allot_fail_memory(err, n_tensors * sizeof *changes, "a plan");
    if (status == ALLOT_OK) {
        memcpy(from, best->types, n_tensors * sizeof *from);
        status = find_changes(changes, r, from, err);
    }
    for (size_t i = 0; i < DAMPINGS && status == ALLOT_OK; i++) {
        out->tries[out->n].round = round;
        status = try_damping(out, best, from, r, changes, dampings[i], err);
    }
    if (changes)
        tensor_changes_free(changes, (int64_t)n_tensors);
    free(changes);
    free(from);
    return status;
}

static allot_status run_rounds(struct refinement *out, struct type_plan *plan, struct refine *r,
                               int64_t n_rounds, struct allot_error *err)
{
    allot_status status = measure(&out->tries[out->n++], r, plan, true, err);
    for (int64_t round = 1; round <= n_rounds && status == ALLOT_OK; round++) {
        const size_t best = out->best;
        status = run_round(out, plan, r, round, err);
        if (out->best == best)
            break;
    }
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
    out->n_taught = r.n_taught;
    r.kl = malloc(sizeof *r.kl * (size_t)(r.held_out.n + 1));
    r.first_kl = malloc(sizeof *r.first_kl * (size_t)(r.held_out.n + 1));
    r.costs = malloc(sizeof *r.costs * n_costs);
    if (status == ALLOT_OK && (!r.kl || !r.first_kl || !r.costs))
        status = allot_fail_memory(err, sizeof *r.costs * n_costs, "a plan");
    if (status == ALLOT_OK) {
        move_costs(&r, false);
        status = run_rounds(out, plan, &r, n_rounds, err);
    }
    if (status == ALLOT_ERR_INTERRUPTED)
        status =
            allot_fail(err, status,
                       "interrupted; what the rounds of --refine found is kept in %s, and the same command "
                       "goes on from there",
                       c->job->archive_path);
    text_windows_release(&r.windows);
    text_windows_release(&r.held_out);
    free(r.kl);
    free(r.first_kl);
    free(r.costs);
    return status;
}

/* ---- Reports ------------------------------------------------------------------------------------------- */

void refinement_print(const struct refinement *refinement)
{
    const double first = refinement->tries[0].kl;
    printf("refined:       KL on %" PRId64 " held-out calibration sequences; slopes from %" PRId64
           " others\n",
           refinement->n_held_out, refinement->n_taught);
    printf("  by costs: %.6f ± %.6f%s\n", first, refinement->tries[0].std_err,
           refinement->best == 0 ? "  <- kept" : "");
    for (size_t i = 1; i < refinement->n; i++) {
        const struct refine_try *try = &refinement->tries[i];
        printf("  round %" PRId64 ", damping %2.0f: %.6f ± %.6f, %+.2f ± %.2f %%; %" PRId64
               " tensors changed%s\n",
               try->round, try->damping, try->kl, try->std_err, -100 * try->gain / first,
               100 * try->gain_std_err / first, try->n_changed, i == refinement->best ? "  <- kept" : "");
    }
}

json_t *refinement_json(const struct refinement *refinement)
{
    json_t *tries = json_array();
    for (size_t i = 0; i < refinement->n; i++) {
        const struct refine_try *try = &refinement->tries[i];
        json_t *object = json_object();
        json_put(object, "round", json_integer(try->round));
        json_put(object, "damping", json_number(try->damping));
        json_put(object, "kl", json_number(try->kl));
        json_put(object, "price", json_number(try->price));
        json_put(object, "se", json_number(try->std_err));
        json_put(object, "gain", json_number(try->gain));
        json_put(object, "gain_se", json_number(try->gain_std_err));
        json_put(object, "predicted_change", json_number(try->predicted));
        json_put(object, "changed", json_integer(try->n_changed));
        json_put(object, "kept", json_boolean(i == refinement->best));
        json_array_append_new(tries, object);
    }
    return tries;
}
