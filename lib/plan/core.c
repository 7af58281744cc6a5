/* core.c - the exact part of the knapsack: Pareto fronts over an expanding core.
 * SPDX-License-Identifier: MIT
 *
 * A plan is the relaxation's split plan with some items deviating from it. The reduced cost of a deviation is
 * what it must add to the relaxation's bound; one above the gap between bound and incumbent cannot be part of
 * a better plan. Items are taken by rising least reduced cost. After each, the front holds the undominated
 * (bytes, cost) of all ways to decide the items so far, the others at their split: each state within the
 * budget is a plan and may become the incumbent, and each state's own bound, from the best exchange rates
 * among the items not yet taken, decides whether it is kept. All comparisons against the incumbent allow for
 * rounding, on the side of keeping. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "plan/problem.h"

enum {
    MAX_FRONT =
        1 << 16, /* a larger front is halved, worst bounds first, and the proof weakened accordingly */
    MAX_NODES = 1 << 22
};

struct state {
    int64_t delta;   /* bytes beyond the split plan's */
    double cost;     /* of the items decided so far */
    uint32_t node;   /* how it came to be */
    uint32_t option; /* of the item being decided */
};

struct front {
    struct state *list;
    size_t n, capacity;
};

/* A deviation from the split plan; node 0 is the split plan itself. */
struct node {
    uint32_t parent, item, option;
};

struct core_item {
    uint32_t item;
    double least_reduced; /* of its deviations */
};

/* What the items from some position of the order on can still do. */
struct rest {
    double split_cost, least_cost;
    double up;   /* most cost saved per byte added */
    double down; /* least cost added per byte saved; infinite if no item can shrink */
    int64_t min_delta, max_delta;
};

struct core {
    const struct plan_problem *problem;
    double rounding;
    double lower_bound; /* of all plans */
    struct core_item *order;
    size_t n;
    struct rest *rests; /* [n + 1] */

    struct front front, merged, spare;
    struct node *nodes;
    size_t n_nodes, node_capacity;

    double best_cost;
    int64_t best_delta;
    uint32_t best_node;
    bool improved;
    double dropped; /* least bound among states given up for lack of memory */
};

/* What choosing this option must add to the relaxation's bound; never overestimated. */
static double reduced_cost(const struct plan_problem *problem, const struct plan_class *class, size_t option)
{
    const struct plan_option *split = &class->options[class->split], *other = &class->options[option];
    double bytes = problem->lambda * (double)(other->bytes - split->bytes);

    return (other->cost - split->cost) + bytes - 4 * DBL_EPSILON * (other->cost + split->cost + fabs(bytes));
}

static double least_reduced_cost(const struct plan_problem *problem, const struct plan_class *class)
{
    double least = INFINITY;

    for (size_t j = 0; j < class->n; j++)
        if (j != class->split)
            least = fmin(least, reduced_cost(problem, class, j));
    return least;
}

/* Never underestimated. */
static double current_gap(const struct core *core)
{
    return core->best_cost - core->lower_bound + core->rounding * (core->best_cost + core->lower_bound);
}

static void find_lower_bound(struct core *core)
{
    const struct plan_problem *problem = core->problem;
    double split = 0, least = 0, unused = problem->lambda * (double)problem->slack;

    for (size_t i = 0; i < problem->n; i++) {
        const struct plan_class *class = &problem->classes[i];

        split += class->options[class->split].cost;
        least += class->options[class->n - 1].cost;
    }
    core->lower_bound = split - unused - core->rounding * (split + unused);
    core->lower_bound = fmax(core->lower_bound, least * (1 - core->rounding));
}

static int by_reduced_cost(const void *a, const void *b)
{
    const struct core_item *x = a, *y = b;

    if (x->least_reduced != y->least_reduced)
        return x->least_reduced < y->least_reduced ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* Adds an item to what the rest can do. */
static void extend_rest(struct rest *rest, const struct plan_class *class)
{
    const struct plan_option *split = &class->options[class->split];

    rest->split_cost += split->cost;
    rest->least_cost += class->options[class->n - 1].cost;
    rest->min_delta += class->options[0].bytes - split->bytes;
    rest->max_delta += class->options[class->n - 1].bytes - split->bytes;
    for (size_t j = 0; j < class->n; j++) {
        const struct plan_option *other = &class->options[j];
        double rate;

        if (j == class->split)
            continue;
        rate = (split->cost - other->cost) / (double)(other->bytes - split->bytes);
        if (j > class->split)
            rest->up = fmax(rest->up, rate);
        else
            rest->down = fmin(rest->down, rate);
    }
}

/* Chooses and orders the items whose deviations might matter; the others stay at their split. */
static allot_status build_core(struct core *core, double *fixed_cost, struct allot_error *err)
{
    const struct plan_problem *problem = core->problem;

    core->order = calloc(problem->n + 1, sizeof *core->order);
    if (!core->order)
        return allot_fail_memory(err, problem->n * sizeof *core->order, "a plan");
    for (size_t i = 0; i < problem->n; i++) {
        const struct plan_class *class = &problem->classes[i];
        double least = least_reduced_cost(problem, class);

        if (least <= current_gap(core))
            core->order[core->n++] = (struct core_item){(uint32_t)i, least};
        else
            *fixed_cost += class->options[class->split].cost;
    }
    qsort(core->order, core->n, sizeof *core->order, by_reduced_cost);
    core->rests = calloc(core->n + 1, sizeof *core->rests);
    if (!core->rests)
        return allot_fail_memory(err, core->n * sizeof *core->rests, "a plan");
    core->rests[core->n].down = INFINITY;
    for (size_t k = core->n; k-- > 0;) {
        core->rests[k] = core->rests[k + 1];
        extend_rest(&core->rests[k], &problem->classes[core->order[k].item]);
    }
    return ALLOT_OK;
}

/* No plan that continues the state costs less. */
static double state_bound(const struct core *core, const struct rest *rest, int64_t delta, double cost)
{
    int64_t left = core->problem->slack - delta;
    double split = cost + rest->split_cost, change, bound;

    if (left >= 0) {
        change = -rest->up * (double)(left < rest->max_delta ? left : rest->max_delta);
        bound = fmax(split + change, cost + rest->least_cost);
    } else {
        if (left < rest->min_delta)
            return INFINITY;
        change = rest->down * -(double)left;
        bound = split + change;
    }
    return bound - core->rounding * (split + fabs(change) + core->best_cost);
}

static bool reserve(struct front *front, size_t n, struct allot_error *err)
{
    struct state *list;
    size_t capacity = front->capacity ? front->capacity : 1024;

    while (capacity < n)
        capacity *= 2;
    if (capacity == front->capacity)
        return true;
    list = realloc(front->list, capacity * sizeof *list);
    if (!list) {
        allot_fail_memory(err, capacity * sizeof *list, "a plan's front");
        return false;
    }
    front->list = list;
    front->capacity = capacity;
    return true;
}

static bool before(const struct state *a, const struct state *b)
{
    return a->delta != b->delta ? a->delta < b->delta : a->cost <= b->cost;
}

/* merged := undominated states of merged and of the front with this option added. */
static bool merge_option(struct core *core, const struct rest *rest, const struct plan_class *class,
                         size_t option, struct allot_error *err)
{
    int64_t delta = class->options[option].bytes - class->options[class->split].bytes;
    struct front *out = &core->spare, swap;
    double last_cost = INFINITY;
    size_t a = 0, b = 0;

    if (!reserve(out, core->merged.n + core->front.n, err))
        return false;
    out->n = 0;
    while (a < core->merged.n || b < core->front.n) {
        struct state next;

        if (b < core->front.n) {
            next = core->front.list[b];
            next.delta += delta;
            next.cost += class->options[option].cost;
            next.option = (uint32_t)option;
        }
        if (b == core->front.n || (a < core->merged.n && before(&core->merged.list[a], &next)))
            next = core->merged.list[a++];
        else
            b++;
        if (next.cost < last_cost && state_bound(core, rest, next.delta, next.cost) <= core->best_cost) {
            last_cost = next.cost;
            out->list[out->n++] = next;
        }
    }
    swap = core->merged;
    core->merged = core->spare;
    core->spare = swap;
    return true;
}

/* Gives every state of the new front the node that remembers its deviation. */
static bool record_nodes(struct core *core, uint32_t item, size_t split, struct allot_error *err)
{
    size_t wanted = core->n_nodes + core->merged.n,
           capacity = core->node_capacity ? core->node_capacity : 1024;
    struct node *nodes = core->nodes;

    while (capacity < wanted)
        capacity *= 2;
    if (capacity != core->node_capacity) {
        nodes = realloc(core->nodes, capacity * sizeof *nodes);
        if (!nodes) {
            allot_fail_memory(err, capacity * sizeof *nodes, "a plan's states");
            return false;
        }
        core->nodes = nodes;
        core->node_capacity = capacity;
    }
    for (size_t s = 0; s < core->merged.n; s++) {
        struct state *state = &core->merged.list[s];

        if (state->option == split)
            continue;
        nodes[core->n_nodes] = (struct node){state->node, item, state->option};
        state->node = (uint32_t)core->n_nodes++;
    }
    return true;
}

/* The best state within the budget, the rest at its split. The front's costs fall, so it is the last one. */
static void update_best(struct core *core, const struct rest *rest)
{
    for (size_t s = core->merged.n; s-- > 0;) {
        const struct state *state = &core->merged.list[s];
        double cost = state->cost + rest->split_cost;

        if (state->delta > core->problem->slack)
            continue;
        if (cost < core->best_cost || (cost == core->best_cost && state->delta < core->best_delta)) {
            core->best_cost = cost;
            core->best_delta = state->delta;
            core->best_node = state->node;
            core->improved = true;
        }
        return;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Gives up the states of worst bound, so that the front shrinks to half its limit. */
static bool shrink_front(struct core *core, const struct rest *rest, struct allot_error *err)
{
    size_t n = core->front.n, kept = 0;
    double *bounds = malloc(2 * n * sizeof *bounds), *sorted, limit;

    if (!bounds) {
        allot_fail_memory(err, 2 * n * sizeof *bounds, "a plan's front");
        return false;
    }
    sorted = bounds + n;
    for (size_t s = 0; s < n; s++)
        sorted[s] = bounds[s] = state_bound(core, rest, core->front.list[s].delta, core->front.list[s].cost);
    qsort(sorted, n, sizeof *sorted, by_value);
    limit = sorted[MAX_FRONT / 2];
    for (size_t s = 0; s < n; s++) {
        if (bounds[s] < limit)
            core->front.list[kept++] = core->front.list[s];
        else
            core->dropped = fmin(core->dropped, bounds[s]);
    }
    core->front.n = kept;
    free(bounds);
    return true;
}

/* Decides the k-th item of the order. */
static bool expand(struct core *core, size_t k, struct allot_error *err)
{
    uint32_t item = core->order[k].item;
    const struct plan_class *class = &core->problem->classes[item];
    const struct rest *rest = &core->rests[k + 1];
    struct front swap;

    core->merged.n = 0;
    if (!merge_option(core, rest, class, class->split, err))
        return false;
    for (size_t j = 0; j < class->n; j++)
        if (j != class->split && reduced_cost(core->problem, class, j) <= current_gap(core) &&
            !merge_option(core, rest, class, j, err))
            return false;
    if (!record_nodes(core, item, class->split, err))
        return false;
    update_best(core, rest);
    swap = core->front;
    core->front = core->merged;
    core->merged = swap;
    return core->front.n <= MAX_FRONT || shrink_front(core, rest, err);
}

static bool run_core(struct core *core, double fixed_cost, struct allot_error *err)
{
    if (!reserve(&core->front, 1, err))
        return false;
    core->front.list[0] = (struct state){.cost = fixed_cost};
    core->front.n = 1;
    core->n_nodes = 1;
    for (size_t k = 0; k < core->n && core->front.n > 0; k++) {
        if (core->order[k].least_reduced > current_gap(core))
            break; /* the incumbent has become so good that all further items stay at their split */
        if (core->n_nodes > MAX_NODES) {
            for (size_t s = 0; s < core->front.n; s++)
                core->dropped =
                    fmin(core->dropped, state_bound(core, &core->rests[k], core->front.list[s].delta,
                                                    core->front.list[s].cost));
            break;
        }
        if (!expand(core, k, err))
            return false;
    }
    return true;
}

static void adopt_best(const struct core *core, struct plan_incumbent *incumbent)
{
    const struct plan_problem *problem = core->problem;

    if (!core->improved)
        return;
    for (size_t i = 0; i < problem->n; i++)
        incumbent->picked[i] = problem->classes[i].split;
    for (uint32_t node = core->best_node; node != 0; node = core->nodes[node].parent)
        incumbent->picked[core->nodes[node].item] = core->nodes[node].option;
    incumbent->cost = core->best_cost;
    incumbent->bytes = problem->capacity - problem->slack + core->best_delta;
}

allot_status plan_core_solve(const struct plan_problem *problem, struct plan_incumbent *incumbent,
                             struct plan_proof *proof, struct allot_error *err)
{
    struct core core = {.problem = problem, .dropped = INFINITY, .rounding = plan_rounding(problem->n)};
    double fixed_cost = 0, optimum;
    allot_status status;

    core.best_cost = incumbent->cost;
    core.best_delta = incumbent->bytes - (problem->capacity - problem->slack);
    find_lower_bound(&core);
    status = build_core(&core, &fixed_cost, err);
    if (status)
        goto cleanup;
    if (!run_core(&core, fixed_cost, err)) {
        status = err->status;
        goto cleanup;
    }
    adopt_best(&core, incumbent);
    optimum = core.best_cost * (1 - core.rounding);
    proof->exact = core.dropped >= optimum;
    proof->lower_bound = proof->exact ? optimum : fmax(core.lower_bound, core.dropped);
cleanup:
    free(core.order);
    free(core.rests);
    free(core.front.list);
    free(core.merged.list);
    free(core.spare.list);
    free(core.nodes);
    return status;
}
