/* limits.c - the knapsack with limits on groups of items, beside the budget of all.
 * SPDX-License-Identifier: MIT
 *
 * 1. The whole is solved without limits. A limit that the solution exceeds binds: its items become a problem
 * of their own under it, and the others are solved again with what they leave. That leaves the others more,
 * so a limit that once bound still does, and after one round per limit at most nothing is exceeded.
 * 2. Lagrange multipliers, lambda of the budget and mu = max(0, own lambda - lambda) of the limits that bind,
 *    give a lower bound: sum over items of min(cost + (lambda + mu) * bytes) - lambda * budget - sum mu *
 * limit.
 * 3. What lies between is closed by the fronts of front.c: a limit's items become one item whose choices are
 *    the points of its front, and plan_solve shares out the budget. That is exact unless a front outgrew its
 *    bounds, since points that the fronts left out add more than the gap to that lower bound. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "plan/problem.h"

/* A problem of some of the items. */
struct part {
    struct plan_item *items;
    size_t *index; /* of the part's items among all */
    size_t *chosen;
    size_t n;
};

struct limited {
    const struct plan_item *items;
    size_t n;
    const struct plan_limits *limits;
    int64_t capacity; /* budget without the fixed bytes */
    size_t *chosen;   /* the best plan so far, its cost below */
    double cost;
    double lagrangian;         /* the bound that reduced costs add to */
    double bound;              /* the best there is */
    bool *binds;               /* [limits->n] */
    struct plan_result *own;   /* [limits->n], of those that bind */
    struct plan_result shared; /* of the items under no limit that binds */
    struct part part;
};

static bool in_part(const struct limited *l, size_t item, size_t limit)
{
    size_t of = l->limits->of[item];

    if (limit != PLAN_UNLIMITED)
        return of == limit;
    return of == PLAN_UNLIMITED || !l->binds[of];
}

/* The items of a limit, or (PLAN_UNLIMITED) those under no limit that binds. */
static void gather(struct limited *l, size_t limit)
{
    struct part *part = &l->part;

    part->n = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!in_part(l, i, limit))
            continue;
        part->items[part->n] = l->items[i];
        part->index[part->n++] = i;
    }
}

static allot_status solve_part(struct limited *l, size_t limit, int64_t capacity, struct plan_result *result,
                               struct allot_error *err)
{
    struct part *part = &l->part;
    allot_status status;

    gather(l, limit);
    status = plan_solve(part->items, part->n, 0, capacity, part->chosen, result, err);
    for (size_t k = 0; status == ALLOT_OK && k < part->n; k++)
        l->chosen[part->index[k]] = part->chosen[k];
    return status;
}

static int64_t least_bytes(const struct plan_item *item)
{
    int64_t least = item->choices[0].bytes;

    for (size_t j = 1; j < item->n_choices; j++)
        if (item->choices[j].bytes < least)
            least = item->choices[j].bytes;
    return least;
}

static allot_status check_feasible(const struct limited *l, int64_t fixed_bytes, int64_t budget,
                                   struct allot_error *err)
{
    int64_t total = fixed_bytes;

    for (size_t g = 0; g < l->limits->n; g++) {
        int64_t least = 0;

        for (size_t i = 0; i < l->n; i++)
            if (l->limits->of[i] == g)
                least += least_bytes(&l->items[i]);
        if (least > l->limits->list[g].bytes)
            return plan_infeasible(l->limits->list[g].name, least, l->limits->list[g].bytes, err);
    }
    for (size_t i = 0; i < l->n; i++)
        total += least_bytes(&l->items[i]);
    return total > budget ? plan_infeasible(NULL, total, budget, err) : ALLOT_OK;
}

static int64_t chosen_bytes(const struct limited *l, size_t limit)
{
    int64_t bytes = 0;

    for (size_t i = 0; i < l->n; i++)
        if (l->limits->of[i] == limit)
            bytes += l->items[i].choices[l->chosen[i]].bytes;
    return bytes;
}

static double chosen_cost(const struct limited *l, const size_t *chosen)
{
    double cost = 0;

    for (size_t i = 0; i < l->n; i++)
        cost += l->items[i].choices[chosen[i]].cost;
    return cost;
}

/* Step 1. */
static allot_status solve_by_parts(struct limited *l, struct allot_error *err)
{
    int64_t left = l->capacity;

    for (;;) {
        bool changed = false;
        allot_status status = solve_part(l, PLAN_UNLIMITED, left, &l->shared, err);

        for (size_t g = 0; status == ALLOT_OK && g < l->limits->n; g++) {
            if (l->binds[g] || chosen_bytes(l, g) <= l->limits->list[g].bytes)
                continue;
            l->binds[g] = changed = true;
            status = solve_part(l, g, l->limits->list[g].bytes, &l->own[g], err);
            left -= l->own[g].bytes;
        }
        if (status || !changed)
            return status;
    }
}

/* What a byte is worth to the items of a limit. */
static double limit_lambda(const struct limited *l, size_t limit)
{
    if (limit == PLAN_UNLIMITED || !l->binds[limit])
        return l->shared.lambda;
    return fmax(l->shared.lambda, l->own[limit].lambda);
}

/* The choice of least cost + lambda * bytes, of these that of least bytes. */
static size_t cheapest(const struct plan_item *item, double lambda)
{
    const struct plan_choice *best = &item->choices[0];

    for (size_t j = 1; j < item->n_choices; j++) {
        const struct plan_choice *other = &item->choices[j];
        double more = other->cost - best->cost + lambda * (double)(other->bytes - best->bytes);

        if (more < 0 || (more == 0 && other->bytes < best->bytes))
            best = other;
    }
    return (size_t)(best - item->choices);
}

/* How far another choice might lie below the cheapest, for all that rounding hides: 0 or less. */
static double hidden_by_rounding(const struct plan_item *item, size_t best, double lambda)
{
    double hidden = 0;

    for (size_t j = 0; j < item->n_choices; j++) {
        double costs = item->choices[j].cost - item->choices[best].cost;
        double bytes = lambda * (double)(item->choices[j].bytes - item->choices[best].bytes);
        double error = 4 * DBL_EPSILON * (item->choices[j].cost + item->choices[best].cost + fabs(bytes));

        hidden = fmin(hidden, costs + bytes - error);
    }
    return hidden;
}

/* Step 2: in terms of bytes that the cheapest choices leave over, which are whole numbers, so that nothing
 * large cancels; rounded down. */
static double lagrangian_bound(const struct limited *l)
{
    int64_t left = l->capacity;
    double cost = 0, hidden = 0, unused, size, mu;

    for (size_t i = 0; i < l->n; i++) {
        double lambda = limit_lambda(l, l->limits->of[i]);
        size_t best = cheapest(&l->items[i], lambda);

        cost += l->items[i].choices[best].cost;
        left -= l->items[i].choices[best].bytes;
        hidden += hidden_by_rounding(&l->items[i], best, lambda);
    }
    unused = l->shared.lambda * (double)left;
    size = cost + fabs(unused);
    for (size_t g = 0; g < l->limits->n; g++) {
        mu = limit_lambda(l, g) - l->shared.lambda;
        if (mu <= 0)
            continue;
        left = l->limits->list[g].bytes;
        for (size_t i = 0; i < l->n; i++)
            if (l->limits->of[i] == g)
                left -= l->items[i].choices[cheapest(&l->items[i], limit_lambda(l, g))].bytes;
        unused += mu * (double)left;
        size += fabs(mu * (double)left);
    }
    return cost - unused + hidden - plan_rounding(l->n) * size;
}

/* The limits alone, without the budget: no plan costs less than the parts do if each takes what it wants. */
static double bound_of_parts(const struct limited *l)
{
    double bound = 0;

    for (size_t g = 0; g < l->limits->n; g++)
        if (l->binds[g])
            bound += l->own[g].lower_bound;
    for (size_t i = 0; i < l->n; i++)
        if (in_part(l, i, PLAN_UNLIMITED))
            bound += l->items[i].choices[cheapest(&l->items[i], 0)].cost;
    return bound * (1 - plan_rounding(l->n));
}

/* ---- Step 3 -------------------------------------------------------------------------------------- */

/* The items of one limit as one. */
struct merged {
    struct plan_problem problem;
    struct plan_front front;
    struct plan_choice *choices;
    size_t *index; /* of the classes among all items */
};

static void release_merged(struct merged *m, size_t n)
{
    for (size_t g = 0; m && g < n; g++) {
        plan_problem_release(&m[g].problem);
        plan_front_release(&m[g].front);
        free(m[g].choices);
        free(m[g].index);
    }
    free(m);
}

static allot_status merge_limit(struct merged *m, struct limited *l, size_t g, double gap,
                                struct allot_error *err)
{
    struct plan_problem *problem = &m->problem;
    allot_status status;

    gather(l, g);
    status = plan_problem_init(problem, l->part.items, l->part.n, err);
    if (status)
        return status;
    problem->lambda = limit_lambda(l, g);
    problem->capacity = l->limits->list[g].bytes;
    m->index = calloc(problem->n + 1, sizeof *m->index);
    if (!m->index)
        return allot_fail_memory(err, problem->n * sizeof *m->index, "a plan's front");
    for (size_t k = 0; k < problem->n; k++) {
        size_t split = cheapest(&l->part.items[k], problem->lambda);

        m->index[k] = l->part.index[k];
        for (size_t j = 0; j < problem->classes[k].n; j++)
            if (problem->classes[k].options[j].index == split)
                problem->classes[k].split = j;
    }
    status = plan_front_init(&m->front, problem, gap, err);
    if (status)
        return status;
    m->choices = calloc(m->front.n + 1, sizeof *m->choices);
    if (!m->choices)
        return allot_fail_memory(err, m->front.n * sizeof *m->choices, "a plan's front");
    for (size_t p = 0; p < m->front.n; p++)
        m->choices[p] = (struct plan_choice){(int)p, m->front.points[p].bytes, m->front.points[p].cost};
    return ALLOT_OK;
}

/* chosen := what the plan over merged items says of all. picked has room for all items. */
static void unmerge(const struct limited *l, const struct merged *m, const size_t *shared_chosen,
                    size_t *picked, size_t *chosen)
{
    size_t n_limits = l->limits->n, k = n_limits;

    for (size_t g = 0; g < n_limits; g++) {
        const struct plan_problem *problem = &m[g].problem;

        plan_front_pick(&m[g].front, problem, &m[g].front.points[shared_chosen[g]], picked);
        for (size_t c = 0; c < problem->n; c++)
            chosen[m[g].index[c]] = problem->classes[c].options[picked[c]].index;
    }
    for (size_t i = 0; i < l->n; i++)
        if (l->limits->of[i] == PLAN_UNLIMITED)
            chosen[i] = shared_chosen[k++];
}

/* One item per limit, then the items without. */
static allot_status solve_merged(struct limited *l, const struct merged *m, struct plan_result *result,
                                 struct allot_error *err)
{
    size_t n = l->limits->n, room = l->limits->n + l->n + 1;
    struct plan_item *items = calloc(room, sizeof *items);
    size_t *chosen = calloc(3 * room, sizeof *chosen), *picked = chosen ? chosen + room : NULL,
           *all = chosen ? picked + room : NULL;
    double dropped = INFINITY, cost;
    allot_status status = ALLOT_OK;

    if (!items || !chosen) {
        status = allot_fail_memory(err, room * sizeof *items, "a plan");
        goto cleanup;
    }
    for (size_t g = 0; g < n; g++) {
        items[g] = (struct plan_item){l->limits->list[g].name, m[g].choices, m[g].front.n};
        dropped = fmin(dropped, m[g].front.dropped);
    }
    for (size_t i = 0; i < l->n; i++)
        if (l->limits->of[i] == PLAN_UNLIMITED)
            items[n++] = l->items[i];
    status = plan_solve(items, n, 0, l->capacity, chosen, result, err);
    if (status ==
        ALLOT_ERR_INFEASIBLE) { /* only what the fronts gave up would fit: the plan by parts stands */
        result->lower_bound = l->bound;
        status = ALLOT_OK;
        goto cleanup;
    }
    if (status)
        goto cleanup;
    unmerge(l, m, chosen, picked, all);
    cost = chosen_cost(l, all);
    if (cost < l->cost) {
        l->cost = cost;
        for (size_t i = 0; i < l->n; i++)
            l->chosen[i] = all[i];
    }
    result->lower_bound = fmin(result->lower_bound, l->lagrangian + dropped);
cleanup:
    free(items);
    free(chosen);
    return status;
}

static allot_status close_gap(struct limited *l, struct allot_error *err)
{
    size_t n = l->limits->n;
    double gap = l->cost - l->lagrangian;
    struct merged *m = calloc(n + 1, sizeof *m);
    struct plan_result result = {.lower_bound = l->bound};
    allot_status status = m ? ALLOT_OK : allot_fail_memory(err, n * sizeof *m, "a plan's fronts");
    bool empty = false;

    /* What lies beyond the gap cannot be better; rounding on the side of keeping. */
    gap += plan_rounding(l->n) * (l->cost + fabs(l->lagrangian));
    for (size_t g = 0; status == ALLOT_OK && g < n; g++) {
        status = merge_limit(&m[g], l, g, gap, err);
        empty |= m[g].front.n == 0;
    }
    if (status == ALLOT_OK && !empty)
        status = solve_merged(l, m, &result, err);
    if (status == ALLOT_OK)
        l->bound = fmax(l->bound, result.lower_bound);
    release_merged(m, n);
    return status;
}

/* ---- All together -------------------------------------------------------------------------------- */

static allot_status reserve(struct limited *l, struct allot_error *err)
{
    size_t n = l->n + 1;

    l->binds = calloc(l->limits->n + 1, sizeof *l->binds);
    l->own = calloc(l->limits->n + 1, sizeof *l->own);
    l->part.items = calloc(n, sizeof *l->part.items);
    l->part.index = calloc(n, sizeof *l->part.index);
    l->part.chosen = calloc(n, sizeof *l->part.chosen);
    if (!l->binds || !l->own || !l->part.items || !l->part.index || !l->part.chosen)
        return allot_fail_memory(err, n * sizeof *l->part.items, "a plan");
    return ALLOT_OK;
}

static void release(struct limited *l)
{
    free(l->binds);
    free(l->own);
    free(l->part.items);
    free(l->part.index);
    free(l->part.chosen);
}

static bool proven(const struct limited *l)
{
    return l->bound >= l->cost * (1 - 4 * plan_rounding(l->n));
}

static void fill_result(const struct limited *l, int64_t fixed_bytes, struct plan_result *result,
                        double *lambdas)
{
    *result = (struct plan_result){.bytes = fixed_bytes,
                                   .cost = l->cost,
                                   .exact = proven(l),
                                   .lambda = l->shared.lambda,
                                   .lower_bound = fmax(0, fmin(l->bound, l->cost))};
    for (size_t i = 0; i < l->n; i++)
        result->bytes += l->items[i].choices[l->chosen[i]].bytes;
    for (size_t g = 0; lambdas && g < l->limits->n; g++)
        lambdas[g] = limit_lambda(l, g);
}

allot_status plan_solve_limited(const struct plan_item *items, size_t n_items,
                                const struct plan_limits *limits, int64_t fixed_bytes, int64_t budget,
                                size_t *chosen, struct plan_result *result, double *lambdas,
                                struct allot_error *err)
{
    struct limited l = {.items = items, .n = n_items, .limits = limits, .chosen = chosen};
    bool any = false;
    allot_status status = plan_check_items(items, n_items, fixed_bytes, err);

    if (status == ALLOT_OK)
        status = check_feasible(&l, fixed_bytes, budget, err);
    if (status == ALLOT_OK)
        status = reserve(&l, err);
    if (status)
        goto cleanup;
    l.capacity = budget - fixed_bytes;
    status = solve_by_parts(&l, err);
    if (status)
        goto cleanup;
    for (size_t g = 0; g < limits->n; g++)
        any |= l.binds[g];
    l.cost = chosen_cost(&l, chosen);
    l.lagrangian = lagrangian_bound(&l);
    l.bound = any ? fmax(l.lagrangian, bound_of_parts(&l)) : l.shared.lower_bound;
    if (any && !proven(&l))
        status = close_gap(&l, err);
    if (status == ALLOT_OK)
        fill_result(&l, fixed_bytes, result, lambdas);
cleanup:
    release(&l);
    return status;
}
