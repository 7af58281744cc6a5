/* front.c - the Pareto front of the items under one limit, as far as it can matter.
 * SPDX-License-Identifier: MIT
 *
 * Nemhauser and Ullmann's merging again, but for all capacities at once: what the limit's items leave to the
 * others is decided later. A state is pruned when its reduced cost exceeds the gap, when it cannot come below
 * the limit any more, or when another takes no more bytes and costs no more. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "plan/problem.h"

enum { MAX_POINTS = 1 << 13, MAX_FRONT_NODES = 1 << 21 };

struct state {
    int64_t bytes; /* of all classes, those not yet decided at their split */
    double cost;   /* of the classes decided so far, and of those that never will be */
    double reduced;
    uint32_t node, option;
};

struct states {
    struct state *list;
    size_t n, capacity;
};

struct order {
    uint32_t item;
    double least_reduced;
};

struct build {
    const struct plan_problem *problem;
    struct plan_front *front;
    struct states now, merged, spare;
    struct order *order;
    bool *decided;   /* [problem->n]: in the order */
    size_t n;        /* classes in the order: with a deviation within the gap */
    int64_t *shrink; /* [n + 1]: bytes that the classes from there on can still save, <= 0 */
    double gap;
};

/* Never overestimated. */
static double reduced_cost(const struct plan_problem *problem, const struct plan_class *class, size_t option)
{
    const struct plan_option *split = &class->options[class->split], *other = &class->options[option];
    double bytes = problem->lambda * (double)(other->bytes - split->bytes);
    double reduced =
        (other->cost - split->cost) + bytes - 4 * DBL_EPSILON * (other->cost + split->cost + fabs(bytes));

    return fmax(reduced, 0);
}

static int by_least_reduced(const void *a, const void *b)
{
    const struct order *x = a, *y = b;

    if (x->least_reduced != y->least_reduced)
        return x->least_reduced < y->least_reduced ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

static allot_status order_classes(struct build *b, struct allot_error *err)
{
    const struct plan_problem *problem = b->problem;

    b->order = calloc(problem->n + 1, sizeof *b->order);
    b->shrink = calloc(problem->n + 1, sizeof *b->shrink);
    b->decided = calloc(problem->n + 1, sizeof *b->decided);
    if (!b->order || !b->shrink || !b->decided)
        return allot_fail_memory(err, problem->n * sizeof *b->order, "a plan's front");
    for (size_t i = 0; i < problem->n; i++) {
        const struct plan_class *class = &problem->classes[i];
        double least = INFINITY;

        for (size_t j = 0; j < class->n; j++)
            if (j != class->split)
                least = fmin(least, reduced_cost(problem, class, j));
        b->decided[i] = least <= b->gap;
        if (b->decided[i])
            b->order[b->n++] = (struct order){(uint32_t)i, least};
    }
    qsort(b->order, b->n, sizeof *b->order, by_least_reduced);
    for (size_t k = b->n; k-- > 0;) {
        const struct plan_class *class = &problem->classes[b->order[k].item];

        b->shrink[k] = b->shrink[k + 1] + class->options[0].bytes - class->options[class->split].bytes;
    }
    return ALLOT_OK;
}

static allot_status reserve(struct states *states, size_t n, struct allot_error *err)
{
    size_t capacity = states->capacity ? states->capacity : 256;
    struct state *list;

    while (capacity < n)
        capacity *= 2;
    if (capacity == states->capacity)
        return ALLOT_OK;
    list = realloc(states->list, capacity * sizeof *list);
    if (!list)
        return allot_fail_memory(err, capacity * sizeof *list, "a plan's front");
    states->list = list;
    states->capacity = capacity;
    return ALLOT_OK;
}

/* merged := undominated states of merged and of the states so far with this option. */
static allot_status merge_option(struct build *b, size_t position, size_t option, struct allot_error *err)
{
    const struct plan_class *class = &b->problem->classes[b->order[position].item];
    const struct plan_option *split = &class->options[class->split], *other = &class->options[option];
    double reduced = option == class->split ? 0 : reduced_cost(b->problem, class, option);
    double last_cost = INFINITY;
    struct states swap;
    size_t m = 0, s = 0;

    if (reserve(&b->spare, b->merged.n + b->now.n, err))
        return err->status;
    b->spare.n = 0;
    while (m < b->merged.n || s < b->now.n) {
        struct state next = {0};

        if (s < b->now.n) {
            next = b->now.list[s];
            next.bytes += other->bytes - split->bytes;
            next.cost += other->cost;
            next.reduced += reduced;
            next.option = (uint32_t)option;
        }
        if (s == b->now.n || (m < b->merged.n && (b->merged.list[m].bytes < next.bytes ||
                                                  (b->merged.list[m].bytes == next.bytes &&
                                                   b->merged.list[m].cost <= next.cost))))
            next = b->merged.list[m++];
        else
            s++;
        if (next.cost >= last_cost || next.reduced > b->gap ||
            next.bytes + b->shrink[position + 1] > b->problem->capacity)
            continue;
        last_cost = next.cost;
        b->spare.list[b->spare.n++] = next;
    }
    swap = b->merged;
    b->merged = b->spare;
    b->spare = swap;
    return ALLOT_OK;
}

static allot_status record_nodes(struct build *b, size_t position, struct allot_error *err)
{
    struct plan_front *front = b->front;
    const struct plan_class *class = &b->problem->classes[b->order[position].item];
    size_t capacity = front->node_capacity ? front->node_capacity : 256;

    while (capacity < front->n_nodes + b->merged.n)
        capacity *= 2;
    if (capacity != front->node_capacity) {
        struct plan_node *nodes = realloc(front->nodes, capacity * sizeof *nodes);

        if (!nodes)
            return allot_fail_memory(err, capacity * sizeof *nodes, "a plan's front");
        front->nodes = nodes;
        front->node_capacity = capacity;
    }
    for (size_t s = 0; s < b->merged.n; s++) {
        struct state *state = &b->merged.list[s];

        if (state->option == class->split)
            continue;
        front->nodes[front->n_nodes] =
            (struct plan_node){state->node, b->order[position].item, state->option};
        state->node = (uint32_t)front->n_nodes++;
    }
    return ALLOT_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Gives up the states of largest reduced cost, so that half of the limit is left. */
static allot_status halve(struct build *b, struct allot_error *err)
{
    size_t n = b->now.n, kept = 0, ties = MAX_POINTS / 2;
    double *sorted = malloc(n * sizeof *sorted), limit;

    if (!sorted)
        return allot_fail_memory(err, n * sizeof *sorted, "a plan's front");
    for (size_t s = 0; s < n; s++)
        sorted[s] = b->now.list[s].reduced;
    qsort(sorted, n, sizeof *sorted, by_value);
    limit = sorted[MAX_POINTS / 2];
    for (size_t s = 0; s < n && sorted[s] < limit; s++)
        ties--;
    free(sorted);
    for (size_t s = 0; s < n; s++) {
        const struct state *state = &b->now.list[s];

        if (state->reduced < limit || (state->reduced == limit && ties > 0)) {
            ties -= state->reduced == limit;
            b->now.list[kept++] = *state;
        } else {
            b->front->dropped = fmin(b->front->dropped, state->reduced);
        }
    }
    b->now.n = kept;
    return ALLOT_OK;
}

static allot_status decide(struct build *b, size_t position, struct allot_error *err)
{
    const struct plan_class *class = &b->problem->classes[b->order[position].item];
    struct states swap;

    b->merged.n = 0;
    for (size_t j = 0; j < class->n; j++)
        if (merge_option(b, position, j, err))
            return err->status;
    if (record_nodes(b, position, err))
        return err->status;
    swap = b->now;
    b->now = b->merged;
    b->merged = swap;
    return b->now.n > MAX_POINTS ? halve(b, err) : ALLOT_OK;
}

/* The state that all decisions start from: every class at its split. */
static struct state first_state(const struct build *b)
{
    struct state first = {0};

    for (size_t i = 0; i < b->problem->n; i++) {
        const struct plan_class *class = &b->problem->classes[i];

        first.bytes += class->options[class->split].bytes;
        if (!b->decided[i])
            first.cost += class->options[class->split].cost;
    }
    return first;
}

/* Class by class. Once there are too many nodes the rest stays at its split, which gives up all plans in
 * which one of them deviates. */
static allot_status decide_all(struct build *b, struct allot_error *err)
{
    double rest = 0;

    if (reserve(&b->now, 1, err))
        return err->status;
    b->now.list[b->now.n++] = first_state(b);
    b->front->n_nodes = 1;
    for (size_t k = 0; k < b->n; k++) {
        const struct plan_class *class = &b->problem->classes[b->order[k].item];

        if (b->front->n_nodes > MAX_FRONT_NODES) {
            b->front->dropped = fmin(b->front->dropped, b->order[k].least_reduced);
            rest += class->options[class->split].cost;
        } else if (decide(b, k, err)) {
            return err->status;
        }
    }
    for (size_t s = 0; s < b->now.n; s++)
        b->now.list[s].cost += rest;
    return ALLOT_OK;
}

allot_status plan_front_init(struct plan_front *front, const struct plan_problem *problem, double gap,
                             struct allot_error *err)
{
    struct build b = {.problem = problem, .front = front, .gap = gap};
    allot_status status;

    *front = (struct plan_front){.dropped = INFINITY};
    status = order_classes(&b, err);
    if (status == ALLOT_OK)
        status = decide_all(&b, err);
    if (status == ALLOT_OK) {
        front->points = calloc(b.now.n + 1, sizeof *front->points);
        if (!front->points)
            status = allot_fail_memory(err, b.now.n * sizeof *front->points, "a plan's front");
    }
    for (size_t s = 0; status == ALLOT_OK && s < b.now.n; s++)
        if (b.now.list[s].bytes <= problem->capacity)
            front->points[front->n++] =
                (struct plan_point){b.now.list[s].bytes, b.now.list[s].cost, b.now.list[s].node};
    if (status)
        plan_front_release(front);
    free(b.now.list);
    free(b.merged.list);
    free(b.spare.list);
    free(b.order);
    free(b.shrink);
    free(b.decided);
    return status;
}

void plan_front_pick(const struct plan_front *front, const struct plan_problem *problem,
                     const struct plan_point *point, size_t *picked)
{
    for (size_t i = 0; i < problem->n; i++)
        picked[i] = problem->classes[i].split;
    for (uint32_t node = point->node; node != 0; node = front->nodes[node].parent)
        picked[front->nodes[node].item] = front->nodes[node].option;
}

void plan_front_release(struct plan_front *front)
{
    free(front->points);
    free(front->nodes);
    *front = (struct plan_front){0};
}
