/* plan.h - the multiple-choice knapsack: one type per tensor, least cost, within a byte budget.
 * SPDX-License-Identifier: MIT
 *
 * Knows numbers only. Exact: Lagrangian bound and its greedy solution first; then every choice whose
 * reduced cost exceeds the gap is removed (it cannot be in a better solution), and what is left is
 * solved by merging Pareto fronts (Nemhauser and Ullmann 1969) pruned by the same bound. If the
 * fronts outgrow a limit, the best solution found is returned with a proven bound on its gap. */
#ifndef ALLOT_PLAN_PLAN_H
#define ALLOT_PLAN_PLAN_H

#include "allot.h"

struct plan_choice {
    int type;      /* the caller's label (enum ggml_type) */
    int64_t bytes; /* in the file, padding included */
    double cost;   /* nats per token, >= 0 and finite */
};

struct plan_item {
    const char *name;
    const struct plan_choice *choices; /* n_choices >= 1, any order */
    size_t n_choices;
};

struct plan_result {
    int64_t bytes;      /* fixed_bytes + chosen bytes: the size of the file, <= budget */
    double cost;        /* sum of chosen costs, summed in item order */
    double lower_bound; /* no plan within the budget costs less */
    bool exact;         /* cost is the optimum (ties aside) */
    double
        lambda; /* cost that one more byte would save at the margin, by the relaxation; 0: bytes to spare */
};

/* A limit on the bytes that some of the items take together, beside the budget of all. */
struct plan_limit {
    const char *name; /* for messages */
    int64_t bytes;
};

#define PLAN_UNLIMITED SIZE_MAX
struct plan_limits {
    const struct plan_limit *list;
    size_t n;
    const size_t *of; /* of[i]: item i's limit, or PLAN_UNLIMITED; so limits share no items */
};

/* Chooses for every item: chosen[i] indexes items[i].choices. Among equal costs the smaller file
 * wins. Deterministic. Errors: ALLOT_ERR_INFEASIBLE when even the smallest types exceed the budget
 * (the message gives the smallest possible size). */
allot_status plan_solve(const struct plan_item *items, size_t n_items, int64_t fixed_bytes, int64_t budget,
                        size_t *chosen, struct plan_result *result, struct allot_error *err);

/* Likewise with limits. Where one binds, its items are an own problem under the limit, and the rest shares
 * what they leave: the relaxation's optimum, since limits share no items. Multipliers of both kinds bound the
 * gap; while there is one, each limit's Pareto front within the gap becomes a single item (front.c) and the
 * budget is shared out exactly. lambdas[l] (NULL: not wanted): what a byte is worth under limit l,
 * result->lambda or more. A limit that even the smallest types exceed is ALLOT_ERR_INFEASIBLE and named. */
allot_status plan_solve_limited(const struct plan_item *items, size_t n_items,
                                const struct plan_limits *limits, int64_t fixed_bytes, int64_t budget,
                                size_t *chosen, struct plan_result *result, double *lambdas,
                                struct allot_error *err);

#endif
