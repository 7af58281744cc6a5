/* anomalies.h - twins of which the lower precision measured better.  SPDX-License-Identifier: MIT
 *
 * Lower precision is expected to be no better. Twins are two measured combinations with the same option in
 * every group but one; when the smaller has the lower KL, beyond the error, that is an anomaly. It is probed
 * in other contexts (alone, in pairs, whole), and what all of its twins say together is a rule. A rule holds
 * for the model, importance matrix and texts that it was measured with, which whoever stores it stores too,
 * and does no more than order twins. */
#ifndef ALLOT_SEARCH_ANOMALIES_H
#define ALLOT_SEARCH_ANOMALIES_H

#include "search/dominance.h"

/* A change of one group: from option `higher` to option `lower`, which makes the file smaller. */
struct swap {
    size_t group, lower, higher;
};

struct anomaly {
    struct swap swap;
    size_t with_lower, with_higher; /* the measured twins */
    struct difference gain;         /* KL of the lower less that of the higher, below 0 */
};

/* All anomalies among measured files that have options ([n_groups] each), in the order of m. The list is the
 * caller's to free. */
allot_status anomalies_find(struct anomaly **list, size_t *count, const struct measured *m, size_t n,
                            size_t n_groups, struct allot_error *err);

enum anomaly_verdict {
    ANOMALY_UNPROBED,   /* seen in one context only */
    ANOMALY_BENEFICIAL, /* better in two contexts or more, worse in none */
    ANOMALY_HARMFUL,    /* worse in more contexts than better */
    ANOMALY_NOTHING     /* neither: it was chance, or depends on the context */
};

/* "beneficial", "harmful", "nothing there", "seen once". */
const char *anomaly_verdict_name(enum anomaly_verdict verdict);

struct anomaly_rule {
    struct swap swap;
    enum anomaly_verdict verdict;
    size_t better, worse, tied; /* contexts in which the lower was so */
};

/* One rule for each swap that is an anomaly somewhere, over all of its measured twins. The list is the
 * caller's to free. */
allot_status anomaly_rules(struct anomaly_rule **list, size_t *count, const struct measured *m, size_t n,
                           size_t n_groups, struct allot_error *err);

/* Which combination to measure next for an anomaly: options [n_groups] is filled with the first of these that
 * m lacks: the lower option alone (exact[g], the option that leaves group g as it is, everywhere else), the
 * higher alone, then either beside one other group as the anomaly has it, group by group. The whole is the
 * anomaly itself. False: all are measured. */
bool anomaly_probe(size_t *options, const struct anomaly *anomaly, const size_t *exact,
                   const struct measured *m, size_t n, size_t n_groups);

/* Below 0: by a rule combination a is to be tried before its twin b; above 0: after; 0: no rule is about
 * them. */
int anomaly_order(const struct anomaly_rule *rules, size_t n_rules, const size_t *a, const size_t *b,
                  size_t n_groups);

#endif
