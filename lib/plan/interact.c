/* interact.c - a plan improved by what its choices do to each other.  SPDX-License-Identifier: MIT */
#include "plan/interact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const double weights[] = {0.125, 0.25, 0.5, 1};
enum { N_WEIGHTS = sizeof weights / sizeof *weights, MAX_MOVES = 2000 };

/* A change of one item. */
struct change {
    size_t item, choice;
    int64_t bytes;
    double cost; /* pairs with all other items included */
    double norm; /* root of the mean square of what it adds to the samples */
};

struct search {
    const struct plan_item *items;
    size_t n_items;
    const struct plan_samples *samples;
    size_t first, end; /* the samples to believe */
    double weight;
    int64_t bytes_left;
    size_t *chosen;
    double *sums; /* [samples->n] of the chosen values */
    struct change *changes;
    size_t n_changes;
};

static const float *values_of(const struct plan_samples *samples, size_t item, size_t choice)
{
    return samples->values[item] == NULL ? NULL : samples->values[item] + choice * samples->n;
}

static double value(const float *values, size_t s)
{
    return values == NULL ? 0 : (double)values[s];
}

static void add_values(double *sums, const struct plan_samples *samples, size_t item, size_t choice,
                       double sign)
{
    const float *values = values_of(samples, item, choice);
    for (size_t s = 0; s < samples->n && values != NULL; s++)
        sums[s] += sign * (double)values[s];
}

static void sum_plan(double *sums, const struct plan_samples *samples, const size_t *chosen, size_t n_items)
{
    memset(sums, 0, samples->n * sizeof *sums);
    for (size_t i = 0; i < n_items; i++)
        add_values(sums, samples, i, chosen[i], 1);
}

/* ---- Search ----------------------------------------------------------------------------------------------
 */

/* The change's own cost, and its pairs with what all other items add up to. */
static void weigh_change(struct change *c, const struct search *search)
{
    const struct plan_item *item = &search->items[c->item];
    const size_t now = search->chosen[c->item];
    const float *old = values_of(search->samples, c->item, now),
                *new = values_of(search->samples, c->item, c->choice);
    double pairs = 0, squares = 0, n = (double)(search->end - search->first);
    for (size_t s = search->first; s < search->end; s++) {
        double step = value(new, s) - value(old, s);
        pairs += (search->sums[s] - value(old, s)) * step;
        squares += step * step;
    }
    c->bytes = item->choices[c->choice].bytes - item->choices[now].bytes;
    c->cost = item->choices[c->choice].cost - item->choices[now].cost + search->weight * 2 * pairs / n;
    c->norm = sqrt(squares / n);
}

static void list_changes(struct search *search)
{
    search->n_changes = 0;
    for (size_t i = 0; i < search->n_items; i++)
        for (size_t j = 0; j < search->items[i].n_choices; j++) {
            if (j == search->chosen[i])
                continue;
            struct change *c = &search->changes[search->n_changes++];
            *c = (struct change){.item = i, .choice = j};
            weigh_change(c, search);
        }
}

static int by_cost(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    if (x->item != y->item)
        return x->item < y->item ? -1 : 1;
    return (x->choice > y->choice) - (x->choice < y->choice);
}

/* What the pair of two changes adds. */
static double cross(const struct search *search, const struct change *a, const struct change *b)
{
    const struct plan_samples *samples = search->samples;
    const float *old_a = values_of(samples, a->item, search->chosen[a->item]),
                *new_a = values_of(samples, a->item, a->choice),
                *old_b = values_of(samples, b->item, search->chosen[b->item]),
                *new_b = values_of(samples, b->item, b->choice);
    double sum = 0;
    for (size_t s = search->first; s < search->end; s++)
        sum += (value(new_a, s) - value(old_a, s)) * (value(new_b, s) - value(old_b, s));
    return search->weight * 2 * sum / (double)(search->end - search->first);
}

static void apply(struct search *search, const struct change *c)
{
    add_values(search->sums, search->samples, c->item, search->chosen[c->item], -1);
    add_values(search->sums, search->samples, c->item, c->choice, 1);
    search->bytes_left -= c->bytes;
    search->chosen[c->item] = c->choice;
}

/* The best single change or exchange; false if none lowers the cost by more than `least`. By Cauchy and
 * Schwarz a pair adds no less than -2 weight times the norms' product, which rules most exchanges out. */
static bool improve(struct search *search, double least)
{
    const struct change *best[2] = {NULL, NULL};
    double gain = least;
    list_changes(search);
    qsort(search->changes, search->n_changes, sizeof *search->changes, by_cost);
    double top = 0;
    for (size_t a = 0; a < search->n_changes; a++)
        top = fmax(top, search->changes[a].norm);
    for (size_t a = 0; a < search->n_changes; a++) {
        const struct change *one = &search->changes[a];
        if (one->bytes <= search->bytes_left && -one->cost > gain) {
            gain = -one->cost;
            best[0] = one;
            best[1] = NULL;
        }
        for (size_t b = a + 1; b < search->n_changes; b++) {
            const struct change *two = &search->changes[b];
            double sum = one->cost + two->cost;
            if (-sum + 2 * search->weight * one->norm * top <= gain)
                break; /* costs rise from here on */
            if (two->item == one->item || one->bytes + two->bytes > search->bytes_left ||
                -sum + 2 * search->weight * one->norm * two->norm <= gain)
                continue;
            sum += cross(search, one, two);
            if (-sum > gain) {
                gain = -sum;
                best[0] = one;
                best[1] = two;
            }
        }
    }
    for (int k = 0; k < 2 && best[k] != NULL; k++)
        apply(search, best[k]);
    return best[0] != NULL;
}

static void run_search(struct search *search, size_t first, size_t end, double weight, int64_t bytes_left,
                       double least)
{
    search->first = first;
    search->end = end;
    search->weight = weight;
    search->bytes_left = bytes_left;
    sum_plan(search->sums, search->samples, search->chosen, search->n_items);
    for (int moves = 0; moves < MAX_MOVES && improve(search, least); moves++)
        ;
}

/* ---- Judging ---------------------------------------------------------------------------------------------
 */

/* What the samples not searched say: sums of cost saved, and of its square. */
struct verdict {
    double sum, squares, n;
};

static void judge(struct verdict *v, const struct search *search, const double *before, size_t first,
                  size_t end)
{
    for (size_t s = first; s < end; s++) {
        double saved = before[s] * before[s] - search->sums[s] * search->sums[s];
        v->sum += saved;
        v->squares += saved * saved;
        v->n++;
    }
}

/* Tries all weights on both halves; returns the best whose gain is above its error, or 0 (then gain is the
 * largest of all). */
static double choose_weight(struct plan_interaction *out, struct search *search, const size_t *chosen,
                            const double *before, int64_t bytes_left, double least)
{
    const size_t n = search->samples->n, half = n / 2;
    double best = 0;
    for (size_t w = 0; w < N_WEIGHTS; w++) {
        struct verdict v = {0};
        for (int side = 0; side < 2; side++) {
            memcpy(search->chosen, chosen, search->n_items * sizeof *chosen);
            run_search(search, side ? half : 0, side ? n : half, weights[w], bytes_left, least);
            judge(&v, search, before, side ? 0 : half, side ? half : n);
        }
        double mean = v.sum / v.n, variance = fmax(0, v.squares / v.n - mean * mean) / (v.n - 1);
        const bool pays = mean > sqrt(variance);
        if (w == 0 || pays > (best > 0) || (pays == (best > 0) && mean > out->gain)) {
            out->gain = mean;
            out->std_err = sqrt(variance);
            best = pays ? weights[w] : 0;
        }
    }
    return best;
}

allot_status plan_interact(struct plan_interaction *out, const struct plan_item *items, size_t n_items,
                           const struct plan_samples *samples, int64_t bytes_most, size_t *chosen,
                           struct allot_error *err)
{
    size_t n_changes = 1;
    int64_t bytes_left = bytes_most;
    double cost = 0;
    *out = (struct plan_interaction){0};
    if (samples->n < 4)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "interactions need the samples of two chunks of tokens, the costs have %zu",
                          samples->n);
    for (size_t i = 0; i < n_items; i++) {
        n_changes += items[i].n_choices;
        bytes_left -= items[i].choices[chosen[i]].bytes;
        cost += items[i].choices[chosen[i]].cost;
    }
    struct search search = {.items = items, .n_items = n_items, .samples = samples};
    double *before = malloc(samples->n * sizeof *before);
    search.sums = malloc(samples->n * sizeof *search.sums);
    search.chosen = malloc((n_items + 1) * sizeof *search.chosen);
    search.changes = malloc(n_changes * sizeof *search.changes);
    allot_status status = ALLOT_OK;
    if (!before || !search.sums || !search.chosen || !search.changes) {
        status = allot_fail_memory(err, n_changes * sizeof *search.changes, "interactions");
    } else {
        const double least = 1e-9 * cost;
        sum_plan(before, samples, chosen, n_items);
        out->weight = choose_weight(out, &search, chosen, before, bytes_left, least);
        memcpy(search.chosen, chosen, n_items * sizeof *chosen);
        if (out->weight > 0)
            run_search(&search, 0, samples->n, out->weight, bytes_left, least);
        for (size_t i = 0; i < n_items; i++)
            out->n_changed += search.chosen[i] != chosen[i];
        memcpy(chosen, search.chosen, n_items * sizeof *chosen);
        sum_plan(search.sums, samples, chosen, n_items);
        for (size_t s = 0; s < samples->n; s++)
            out->cost += search.sums[s] * search.sums[s] / (double)samples->n;
    }
    free(before);
    free(search.sums);
    free(search.chosen);
    free(search.changes);
    return status;
}
