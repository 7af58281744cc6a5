/* plan.c - the multiple-choice knapsack: checks, relaxation, first plan.
 * SPDX-License-Identifier: MIT */
#include "plan/plan.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "plan/problem.h"

/* One step along the lower convex hull of a class. */
struct step {
    double slope; /* cost saved per byte added, > 0 */
    uint32_t item;
    uint32_t from, to; /* options */
};

struct steps {
    struct step *list;
    size_t n;
};

double plan_rounding(size_t n)
{
    return 4.0 * ((double)n + 8.0) * DBL_EPSILON;
}

allot_status plan_check_items(const struct plan_item *items, size_t n_items, int64_t fixed_bytes,
                              struct allot_error *err)
{
    int64_t total = fixed_bytes;

    if (fixed_bytes < 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "a plan's fixed bytes are negative");
    if (n_items >= UINT32_MAX)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "a plan of %zu tensors is too large", n_items);
    for (size_t i = 0; i < n_items; i++) {
        int64_t largest = 0;

        if (items[i].n_choices < 1 || items[i].n_choices >= UINT32_MAX)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor %s has no type to choose from", items[i].name);
        for (size_t j = 0; j < items[i].n_choices; j++) {
            const struct plan_choice *choice = &items[i].choices[j];

            if (choice->bytes < 0)
                return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor %s: a size is negative", items[i].name);
            if (!isfinite(choice->cost) || choice->cost < 0)
                return allot_fail(err, ALLOT_ERR_NUMERIC, "tensor %s: a cost is %g", items[i].name,
                                  choice->cost);
            if (choice->bytes > largest)
                largest = choice->bytes;
        }
        if (__builtin_add_overflow(total, largest, &total))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "tensor %s: sizes are beyond all bounds",
                              items[i].name);
    }
    return ALLOT_OK;
}

static int by_bytes_then_cost(const void *a, const void *b)
{
    const struct plan_option *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Sorts the choices of one item and keeps those that cost less than every smaller one. */
static void fill_class(struct plan_class *class, const struct plan_item *item)
{
    size_t n = 0;

    for (size_t j = 0; j < item->n_choices; j++)
        class->options[j] = (struct plan_option){item->choices[j].bytes, item->choices[j].cost, j};
    qsort(class->options, item->n_choices, sizeof *class->options, by_bytes_then_cost);
    for (size_t j = 0; j < item->n_choices; j++)
        if (n == 0 || class->options[j].cost < class->options[n - 1].cost)
            class->options[n++] = class->options[j];
    class->n = n;
}

allot_status plan_problem_init(struct plan_problem *problem, const struct plan_item *items, size_t n_items,
                               struct allot_error *err)
{
    struct plan_option *next;
    size_t n_options = 0;

    *problem = (struct plan_problem){0};
    for (size_t i = 0; i < n_items; i++)
        n_options += items[i].n_choices;
    problem->n = n_items;
    problem->classes = calloc(n_items + 1, sizeof *problem->classes);
    problem->storage = calloc(n_options + 1, sizeof *problem->storage);
    if (!problem->classes || !problem->storage)
        return allot_fail_memory(err, n_options * sizeof *problem->storage, "a plan");
    next = problem->storage;
    for (size_t i = 0; i < n_items; i++) {
        problem->classes[i].options = next;
        fill_class(&problem->classes[i], &items[i]);
        next += items[i].n_choices;
    }
    return ALLOT_OK;
}

void plan_problem_release(struct plan_problem *problem)
{
    free(problem->storage);
    free(problem->classes);
    *problem = (struct plan_problem){0};
}

static double slope_between(const struct plan_option *small, const struct plan_option *large)
{
    return (small->cost - large->cost) / (double)(large->bytes - small->bytes);
}

/* Appends the hull's steps. Slopes fall strictly along the hull, as computed, so that sorting all steps by
 * slope keeps each item's in order. */
static void add_hull(struct steps *steps, const struct plan_class *class, uint32_t item)
{
    size_t first = steps->n;

    for (uint32_t j = 1; j < class->n; j++) {
        struct step step = {.item = item, .from = 0, .to = j};

        while (steps->n > first) {
            const struct step *last = &steps->list[steps->n - 1];

            step.from = last->to;
            step.slope = slope_between(&class->options[step.from], &class->options[j]);
            if (step.slope < last->slope)
                break;
            step.from = last->from;
            steps->n--;
        }
        step.slope = slope_between(&class->options[step.from], &class->options[j]);
        steps->list[steps->n++] = step;
    }
}

static int by_falling_slope(const void *a, const void *b)
{
    const struct step *x = a, *y = b;

    if (x->slope != y->slope)
        return x->slope > y->slope ? -1 : 1;
    if (x->item != y->item)
        return x->item < y->item ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static allot_status build_steps(struct steps *steps, const struct plan_problem *problem,
                                struct allot_error *err)
{
    size_t n_options = 0;

    for (size_t i = 0; i < problem->n; i++)
        n_options += problem->classes[i].n;
    steps->list = calloc(n_options + 1, sizeof *steps->list);
    if (!steps->list)
        return allot_fail_memory(err, n_options * sizeof *steps->list, "a plan");
    for (size_t i = 0; i < problem->n; i++)
        add_hull(steps, &problem->classes[i], (uint32_t)i);
    qsort(steps->list, steps->n, sizeof *steps->list, by_falling_slope);
    return ALLOT_OK;
}

/* Takes steps, best first, until one does not fit: the relaxation's split. Later steps that fit give the
 * first plan. Returns with incumbent->picked and bytes set. */
static void split_and_fill(struct plan_problem *problem, const struct steps *steps,
                           struct plan_incumbent *incumbent)
{
    int64_t left = problem->capacity;
    bool broken = false;

    for (size_t i = 0; i < problem->n; i++) {
        left -= problem->classes[i].options[0].bytes;
        incumbent->picked[i] = 0;
    }
    problem->slack = left;
    for (size_t s = 0; s < steps->n; s++) {
        const struct step *step = &steps->list[s];
        struct plan_class *class = &problem->classes[step->item];
        int64_t more = class->options[step->to].bytes - class->options[step->from].bytes;

        if (incumbent->picked[step->item] != step->from || more > left) {
            if (!broken)
                problem->lambda = step->slope;
            broken = true;
            continue;
        }
        left -= more;
        incumbent->picked[step->item] = step->to;
        if (!broken) {
            class->split = step->to;
            problem->slack = left;
        }
    }
    incumbent->bytes = problem->capacity - left;
}

/* While some single item can improve within the bytes left, improves the one that gains most. */
static void improve_singly(const struct plan_problem *problem, struct plan_incumbent *incumbent)
{
    for (;;) {
        int64_t left = problem->capacity - incumbent->bytes;
        size_t item = problem->n, option = 0;
        double gain = 0;

        for (size_t i = 0; i < problem->n; i++) {
            const struct plan_class *class = &problem->classes[i];
            const struct plan_option *now = &class->options[incumbent->picked[i]];

            for (size_t j = incumbent->picked[i] + 1; j < class->n; j++) {
                if (class->options[j].bytes - now->bytes > left)
                    break;
                if (now->cost - class->options[j].cost > gain) {
                    gain = now->cost - class->options[j].cost;
                    item = i;
                    option = j;
                }
            }
        }
        if (item == problem->n)
            return;
        incumbent->bytes += problem->classes[item].options[option].bytes -
                            problem->classes[item].options[incumbent->picked[item]].bytes;
        incumbent->picked[item] = option;
    }
}

allot_status plan_infeasible(const char *limit, int64_t smallest, int64_t budget, struct allot_error *err)
{
    char want[32], have[32];

    if (limit)
        return allot_fail(err, ALLOT_ERR_INFEASIBLE, "%s: the least possible is %s (%" PRId64 " bytes)",
                          limit, str_size(want, smallest), smallest);
    return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                      "no plan fits %s (%" PRId64 " bytes): the smallest possible file is %s (%" PRId64
                      " bytes)",
                      str_size(have, budget), budget, str_size(want, smallest), smallest);
}

static allot_status solve(struct plan_problem *problem, struct plan_incumbent *incumbent, struct steps *steps,
                          struct plan_proof *proof, struct allot_error *err)
{
    allot_status status = build_steps(steps, problem, err);

    if (status)
        return status;
    incumbent->picked = calloc(problem->n + 1, sizeof *incumbent->picked);
    if (!incumbent->picked)
        return allot_fail_memory(err, problem->n * sizeof *incumbent->picked, "a plan");
    split_and_fill(problem, steps, incumbent);
    improve_singly(problem, incumbent);
    incumbent->cost = 0;
    for (size_t i = 0; i < problem->n; i++)
        incumbent->cost += problem->classes[i].options[incumbent->picked[i]].cost;
    return plan_core_solve(problem, incumbent, proof, err);
}

static void fill_result(const struct plan_problem *problem, const struct plan_incumbent *incumbent,
                        const struct plan_proof *proof, int64_t fixed_bytes, size_t *chosen,
                        struct plan_result *result)
{
    struct plan_result r = {.bytes = fixed_bytes, .exact = proof->exact, .lambda = problem->lambda};

    for (size_t i = 0; i < problem->n; i++) {
        const struct plan_option *option = &problem->classes[i].options[incumbent->picked[i]];

        chosen[i] = option->index;
        r.bytes += option->bytes;
        r.cost += option->cost;
    }
    r.lower_bound = fmax(0, fmin(proof->lower_bound, r.cost));
    *result = r;
}

allot_status plan_solve(const struct plan_item *items, size_t n_items, int64_t fixed_bytes, int64_t budget,
                        size_t *chosen, struct plan_result *result, struct allot_error *err)
{
    struct plan_problem problem = {0};
    struct plan_incumbent incumbent = {0};
    struct plan_proof proof = {0};
    struct steps steps = {0};
    int64_t smallest = fixed_bytes;
    allot_status status = plan_check_items(items, n_items, fixed_bytes, err);

    if (status)
        return status;
    status = plan_problem_init(&problem, items, n_items, err);
    if (status)
        goto cleanup;
    for (size_t i = 0; i < n_items; i++)
        smallest += problem.classes[i].options[0].bytes;
    if (smallest > budget) {
        status = plan_infeasible(NULL, smallest, budget, err);
        goto cleanup;
    }
    problem.capacity = budget - fixed_bytes;
    status = solve(&problem, &incumbent, &steps, &proof, err);
    if (status == ALLOT_OK)
        fill_result(&problem, &incumbent, &proof, fixed_bytes, chosen, result);
cleanup:
    free(incumbent.picked);
    free(steps.list);
    plan_problem_release(&problem);
    return status;
}
