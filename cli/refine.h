/* refine.h - plans improved around themselves (--refine).  SPDX-License-Identifier: MIT
 *
 * A plan by costs takes errors of tensors as independent of each other and small. Each round asks instead
 * what every change costs from where the best plan so far stands (cost/relinearize.h), all its errors in
 * place, and solves the same knapsack for slope + damping * curve + standard error, with several dampings:
 * the less, the bolder. The plan with the least KL on sequences that neither costs nor rounds have seen, and
 * the price of its time if there is one, is kept; that may be the first. A round that finds none better is
 * the last. What a pass found is kept in the archive (refine_record.h): interrupted, a run repeats at
 * most one. */
#ifndef ALLOT_CLI_REFINE_H
#define ALLOT_CLI_REFINE_H

#include "calibration.h"
#include "type_plan.h"

enum { MAX_ROUNDS = 32, DAMPINGS = 3, MAX_TRIES = 1 + MAX_ROUNDS * DAMPINGS };

/* A plan that was measured. */
struct refine_try {
    int64_t round; /* 0: the plan by costs */
    double damping;
    int64_t n_changed;         /* tensors whose type differs from the plan it came from */
    double predicted;          /* change of KL from that plan */
    double price;              /* of its decode time, nats per token; 0: time has none */
    double kl, std_err;        /* on the held-out sequences, nats per token */
    double gain, gain_std_err; /* KL of the first plan minus this one's, paired by sequence */
};

struct refinement {
    struct refine_try tries[MAX_TRIES]; /* the first is the plan by costs */
    size_t n, best;
    int64_t n_held_out, n_taught; /* sequences: to measure by, and to take slopes from */
};

/* Improves a solved plan in place; args, rung and keys are those it was solved with. c is open and read. The
 * knapsack's costs are as they were when it returns. */
allot_status refine_plan(struct refinement *out, struct type_plan *plan, struct knapsack *knapsack,
                         struct calibration *c, const struct calibrated_arguments *args,
                         const struct rung *rung, const struct provenance *keys,
                         const struct imatrix *imatrix, int64_t n_rounds,
                         const struct allot_progress *progress, struct allot_error *err);

void refinement_print(const struct refinement *refinement);
json_t *refinement_json(const struct refinement *refinement);

#endif
