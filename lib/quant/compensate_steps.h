/* compensate_steps.h - the steps of compensate.c that are no matrix products, and what they work on.
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/quant only. Rows lie side by side: a column of a panel is PANEL floats, one per row, and all
 * loops that matter run over them. compensate_loops.h, plain C, is compiled once for every processor
 * (compensate.c) and once per set of instructions (compensate_SET.c), with the same results. */
#ifndef ALLOT_QUANT_COMPENSATE_STEPS_H
#define ALLOT_QUANT_COMPENSATE_STEPS_H

#include "quant/compensate.h"
#include "quant/scalar.h"

/* SPAN columns share a matrix product with all others; of these, STEP are treated one after the other. Every
 * block of weights is within a span, every group within a step. */
enum { PANEL = COMPENSATE_ROWS, SPAN = 256, STEP = 32 };

/* The levels as numbers: integers from lowest to highest, or those of a table. */
struct compensate_grid {
    float lowest, highest;
    int n_steps; /* of a table; 0: integers */
    float middle[SCALAR_LEVELS], step[SCALAR_LEVELS];
};

struct compensate_grid compensate_grid_of(const struct scalar_type *type);

struct compensate_panel {
    const struct scalar_type *type;
    struct compensate_grid grid;
    int64_t n;
    const float *moment, *factor; /* (n,n) */
    float *weight, *level;        /* (n,PANEL) */
    float *error;                 /* (n,PANEL): what comes back minus the weight; while rounding, those errors
                                     in units of the factor's diagonal */
    float *scale, *least;         /* (n/group,PANEL): integers */
    float *d, *min;               /* (n/block,PANEL) */
    float *work;                  /* (SPAN,PANEL): see the steps */
    float *change;                /* (SPAN,PANEL): of the errors */
    float *product;               /* (SPAN,PANEL) */
};

enum compensate_factor { FACTOR_D, FACTOR_MIN };

struct compensate_steps {
    /* error = what comes back - weight */
    void (*find_errors)(struct compensate_panel *p);
    /* Rounds columns [first, first + STEP), whose weights, made up for the columns before, are x
     * (STEP,PANEL), and adds their parts of the objective to loss. Overwrites level and error. */
    void (*round)(struct compensate_panel *p, int64_t first, float *x, float *loss);
    /* Descends along these columns. g (STEP,PANEL): the errors times the moment; brought up to date within
     * the step. Updates level and error, overwrites change (STEP,PANEL). */
    void (*descend)(struct compensate_panel *p, int64_t first, float *g, float *change);
    /* After descend, with its g and change: each group's scale and least become those that serve its levels
     * best; where a block is one group, these are d and min themselves. Updates error and change. */
    void (*refit)(struct compensate_panel *p, int64_t first, float *g, float *change);
    /* Of a block of a SPAN: direction (SPAN,PANEL) = what its values change by when d, or min, rises by 1. */
    void (*direct)(const struct compensate_panel *p, int64_t first, enum compensate_factor which,
                   float *direction);
    /* d, or min, becomes what serves best. product: the direction times the block's moment; g: the errors
     * times the moment. Updates error and g. */
    void (*move)(struct compensate_panel *p, int64_t first, enum compensate_factor which,
                 const float *direction, const float *product, float *g);
    /* sums += the sums over n columns of a * b. */
    void (*add_products)(float *sums, const float *a, const float *b, int64_t n);
};

extern const struct compensate_steps compensate_steps_plain;
#if defined(__x86_64__)
extern const struct compensate_steps compensate_steps_avx2, compensate_steps_avx512;
#endif

#endif
