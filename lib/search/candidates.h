/* candidates.h - which combination earns the next build.  SPDX-License-Identifier: MIT
 *
 * The anchors are files that were measured before the search (plain mixes, rebuilt layouts, the exact file).
 * A search is a loop:
 *
 *     for (;;) {
 *         predictor = predict_fit(all rows measured so far);
 *         candidate_next(&candidate, options, &search, &found, err);   found == false: the search is over
 *         build and measure the candidate; append it to search.attempts, and store it
 *     }
 *
 * There is no other state: the next candidate is a function of the anchors and of the attempts so far, in
 * their order. A search that was killed goes on from stored attempts as if it had not been. The phases, each
 * for all anchors by size:
 *
 *  - plan: allot's own plan of single tensors at the anchor's size, which the caller makes; once;
 *  - dominance: no larger, and predicted below the best measured KL of files no larger than the anchor;
 *  - premium: larger by at most rules.premium, and predicted below the straight line from the best file at
 *    the anchor's size to the best at the next anchor's;
 *  - interior: between two anchors, and below that line;
 *  - fallback: only where none of plan, dominance and premium succeeded at an anchor that is a combination
 *    itself: one group changed, to a layout that alone costs less, no larger ("free lunch") or within the
 *    premium.
 *
 * A phase ends for an anchor with its first success, when it has had its attempts, or when nothing is left to
 * try. Combinations are not enumerated, there are exponentially many: tried is the optimum of the knapsack
 * over groups (plan.h) at the size that the phase allows and whatever differs from it in one group. */
#ifndef ALLOT_SEARCH_CANDIDATES_H
#define ALLOT_SEARCH_CANDIDATES_H

#include "plan/plan.h"
#include "search/anomalies.h"
#include "search/dominance.h"
#include "search/predict.h"

/* What can be combined: groups are items, and their choices are the layouts that pruning left, and those of
 * the anchors, with the bytes they take and what each costs alone. A combination is an array of [n_groups]
 * options, indexes into choices. */
struct candidate_space {
    const struct plan_item *groups;
    const int64_t *weights; /* [n_groups] > 0, for bits per weight */
    size_t n_groups;
    int64_t fixed_bytes; /* of the file without the groups */
};

enum candidate_phase {
    CANDIDATE_PLAN,
    CANDIDATE_DOMINANCE,
    CANDIDATE_PREMIUM,
    CANDIDATE_INTERIOR,
    CANDIDATE_FALLBACK,
    CANDIDATE_PHASES
};

struct candidate_rules {
    double premium;                    /* share of the anchor's bytes */
    size_t attempts[CANDIDATE_PHASES]; /* at each anchor; 0 leaves a phase out */
    double least_confidence;           /* of a prediction that may cost a build (but fallback) */
};
/* 1 %; one plan, 2 attempts at dominance, 1 at premium, 2 at interior, 3 at fallback; 0.1. */
extern const struct candidate_rules candidate_defaults;

struct candidate_attempt {
    enum candidate_phase phase;
    size_t anchor;
    struct measured file; /* kl NAN: could not be built or measured, which is an attempt too */
};

struct candidate_search {
    const struct candidate_space *space;
    const struct predictor *predictor;
    const struct measured *anchors; /* unique names, any order; an anchor of KL 0 only ends lines */
    size_t n_anchors;
    const struct candidate_attempt *attempts; /* in the order they were made */
    size_t n_attempts;
    const struct anomaly_rule *anomalies; /* these order twins */
    size_t n_anomalies;
    const struct candidate_rules *rules;
};

struct candidate {
    enum candidate_phase phase;
    size_t anchor;         /* of interior the smaller of the two */
    int64_t bytes;         /* of the file; of a plan the size that it may take */
    double kl, confidence; /* predicted, as it compares with measured KL (see candidates.c); plan: NAN,
                              whoever makes it can predict it */
    char reason[384];      /* why it is tried */
};

/* options: [n_groups], filled but for a plan. found false: nothing is left that earns a build. */
allot_status candidate_next(struct candidate *out, size_t *options, const struct candidate_search *search,
                            bool *found, struct allot_error *err);

/* Did attempt i succeed: is it, against all that was measured before it, better beyond the error than every
 * file no larger than its anchor, or, if itself larger, below the line to the next? */
bool candidate_succeeded(const struct candidate_search *search, size_t i);

/* "dominance" and so on, for reports and stored attempts. */
const char *candidate_phase_name(enum candidate_phase phase);

/* Bytes of a combination's file; terms: [n_groups], what predict.h wants of it. */
int64_t candidate_terms(struct predict_term *terms, const struct candidate_space *space,
                        const size_t *options);

#endif
