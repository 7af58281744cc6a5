/* dominance.h - which measured files survive, and what replaced each of the others.
 * SPDX-License-Identifier: MIT
 *
 * Only real numbers count here: sizes of files that were built, and KL that was measured on windows which all
 * of them share. Two files' KL differ if their difference is above two of its standard errors; it is paired
 * by window, so that what a window costs all files alike drops out. Otherwise they tie.
 *
 *     survivors_find       the whole judgement: dominance, ties, spacing
 *     measured_better,     the same test for whoever has a file and wants to know whether it succeeded
 *     measured_below_line  (candidates.h), or is strange (anomalies.h) */
#ifndef ALLOT_SEARCH_DOMINANCE_H
#define ALLOT_SEARCH_DOMINANCE_H

#include "allot.h"

/* Where a file's types come from, plainest first. */
enum family { FAMILY_EXACT, FAMILY_PLAIN, FAMILY_LEARNED, FAMILY_HYBRID, FAMILY_PLAN, N_FAMILIES };
/* "exact", "plain" and so on, as documents have them; NULL behind the last. */
extern const char *const family_names[N_FAMILIES + 1];

struct measured {
    const char *name; /* unique among those compared */
    enum family family;
    int64_t bytes; /* of the file */
    double kl;     /* mean, nats per token */
    /* KL of each window, (n_windows), the same windows for all; NULL: only kl's std_err is known. */
    const double *windows;
    size_t n_windows;
    double std_err;
    /* The option of each group (candidates.h), or NULL for a file that is no combination of options. */
    const size_t *options;
};

struct difference {
    double kl, std_err;
};

/* a's KL less b's. Errors are paired where both have the same two or more windows, else independent. */
struct difference measured_difference(const struct measured *a, const struct measured *b);
/* a's KL less that of the straight line from `from` to `to` in the (size, KL) plane, at a's size. Their sizes
 * differ. A line is a mean of two files, and paired by window like one. */
struct difference measured_over_line(const struct measured *a, const struct measured *from,
                                     const struct measured *to);
/* The line's KL at a size. */
double measured_line(const struct measured *from, const struct measured *to, int64_t bytes);

/* Lower KL, by more than two standard errors of the difference. */
bool measured_better(const struct measured *a, const struct measured *b);
bool measured_below_line(const struct measured *a, const struct measured *from, const struct measured *to);

/* The order of files that tie: smaller, then plainer, then lower KL, then by name. Total for unique names. */
bool measured_before(const struct measured *a, const struct measured *b);

enum removal {
    REMOVAL_NONE,      /* it stays */
    REMOVAL_DOMINATED, /* `by` is no larger and its KL is lower */
    REMOVAL_TIED,      /* `by` comes before it, and neither KL is lower beyond the error */
    REMOVAL_CROWDED    /* `by` has almost its size, and the better KL for it */
};

struct verdict {
    enum removal removal;
    size_t by;      /* index of what replaced it, itself a survivor or removed by another: by leads to one */
    char line[384]; /* the reason with its numbers, "" for a survivor */
};

/* Dominance and ties alone. A file is removed
 *  - if any other is no larger and its KL lower beyond the error (dominated), or smaller and its KL no higher
 *    at all (a tie that the smaller wins); `by` is the lowest of these and not removed so itself;
 *  - then, smallest first, if it ties with a file already kept.
 * So no file that stays is dominated by any measured file, and the order of m does not matter. verdicts: [n],
 * m: [n] pointers. */
allot_status dominance_judge(struct verdict *verdicts, const struct measured *const *m, size_t n,
                             struct allot_error *err);

/* Closer than this share of the range of surviving sizes, two files serve one purpose. The exact file would
 * stretch that range and is better left out. */
#define SURVIVORS_SPACING 0.02

/* Dominance, then spacing: of the closest pair of survivors the better stays, until all are at least
 * `spacing` (0 <= spacing < 1) of the range apart. Better is lower relative to the straight line between the
 * survivors before and behind the pair (at an end, the pair's own). Dominance again would find nothing:
 * removing files makes none of the others worse. pareto[i] (may be NULL): no measured file is smaller with no
 * higher KL or no larger with lower KL, errors aside. Refuses sizes below 0 and KL or errors that are not
 * finite. */
allot_status survivors_find(struct verdict *verdicts, bool *pareto, const struct measured *m, size_t n,
                            double spacing, struct allot_error *err);

#endif
