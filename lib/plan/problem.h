/* problem.h - a knapsack made ready to solve.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_PLAN_PROBLEM_H
#define ALLOT_PLAN_PROBLEM_H

#include "plan/plan.h"

struct plan_option {
    int64_t bytes;
    double cost;
    size_t index; /* into the caller's choices */
};

/* Options of one item that no other of its options dominates: bytes rise, costs fall. */
struct plan_class {
    struct plan_option *options;
    size_t n;
    size_t split; /* the option the relaxation takes: least cost + lambda * bytes */
};

struct plan_problem {
    struct plan_class *classes;
    size_t n;
    int64_t capacity;            /* bytes for all options together */
    double lambda;               /* critical multiplier, cost per byte */
    int64_t slack;               /* capacity minus the bytes of the split options, >= 0 */
    struct plan_option *storage; /* of all classes */
};

/* Best known plan: picked[i] indexes classes[i].options. */
struct plan_incumbent {
    size_t *picked;
    int64_t bytes;
    double cost;
};

struct plan_proof {
    double lower_bound; /* of the cost of every plan within capacity */
    bool exact;
};

/* Relative rounding error, generously, of a sum of n non-negative terms and a handful of operations on it. */
double plan_rounding(size_t n);

/* Classes of the items; release with plan_problem_release, also after a failure. */
allot_status plan_problem_init(struct plan_problem *problem, const struct plan_item *items, size_t n_items,
                               struct allot_error *err);
void plan_problem_release(struct plan_problem *problem);

/* Refuses items that plan.h does not allow, and sums beyond all bounds. */
allot_status plan_check_items(const struct plan_item *items, size_t n_items, int64_t fixed_bytes,
                              struct allot_error *err);
/* ALLOT_ERR_INFEASIBLE; limit NULL: of the whole file. */
allot_status plan_infeasible(const char *limit, int64_t smallest, int64_t budget, struct allot_error *err);

/* Improves the incumbent to the optimum, or as far as the memory limit lets it. */
allot_status plan_core_solve(const struct plan_problem *problem, struct plan_incumbent *incumbent,
                             struct plan_proof *proof, struct allot_error *err);

/* A state of a limit's Pareto front: what its items take and cost together, one way or another. */
struct plan_point {
    int64_t bytes;
    double cost;
    uint32_t node;
};

struct plan_front {
    struct plan_point *points; /* bytes rise, costs fall */
    size_t n;
    struct plan_node *nodes;
    size_t n_nodes, node_capacity;
    double dropped; /* least reduced cost among states given up for lack of memory; infinite: none */
};

/* A decision that differs from the split plan's; node 0 is the split plan itself. */
struct plan_node {
    uint32_t parent, item, option;
};

/* The front of all decisions on the problem's classes (their split minimal for problem->lambda) within its
 * capacity whose reduced cost, what they add to sum(cost + lambda * bytes), is at most `gap`. */
allot_status plan_front_init(struct plan_front *front, const struct plan_problem *problem, double gap,
                             struct allot_error *err);
/* picked[i]: the option of class i in a point of the front. */
void plan_front_pick(const struct plan_front *front, const struct plan_problem *problem,
                     const struct plan_point *point, size_t *picked);
void plan_front_release(struct plan_front *front);

#endif
