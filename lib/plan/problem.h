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

/* Improves the incumbent to the optimum, or as far as the memory limit lets it. */
allot_status plan_core_solve(const struct plan_problem *problem, struct plan_incumbent *incumbent,
                             struct plan_proof *proof, struct allot_error *err);

#endif
