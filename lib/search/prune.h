/* prune.h - which layouts of a group are worth trying in combinations, judged by each alone.
 * SPDX-License-Identifier: MIT
 *
 * A row is a file in which everything is exact but one group, which has one layout. What is pruned stays in
 * the list with its reason. The rules, in this order:
 *
 *  - hard damage: alone it costs more than hard_kl nats, or changes PPL by more than hard_ppl;
 *  - dominated, or a tie that the smaller or plainer wins (dominance.h), among the layouts of the group;
 *  - bad trade: over a larger layout of the group that stays it saves less than small_saving of the group's
 *    bytes, and has over kl_ratio times its KL or, beyond two standard errors, over ppl_ratio times its
 *    |PPL change|; unless KL is over and the |PPL change| below the other's by more than two standard errors
 *    (the other way round cannot be: being smaller, it would dominate the larger);
 *  - second chance: a bad trade for its PPL alone comes back if the layout of the same name stays, by its own
 *    right, in the coupled group (ffn_up_gate and ffn_down: what one lets through the other multiplies). */
#ifndef ALLOT_SEARCH_PRUNE_H
#define ALLOT_SEARCH_PRUNE_H

#include "search/dominance.h"

struct prune_row {
    size_t group;
    const char *layout; /* "as in Q4_K_M"; the same name in two groups is the same source or type */
    /* The isolated file; its name for messages. bytes: those of the group's tensors alone. */
    struct measured file;
    double ppl_change, ppl_std_err; /* ln of PPL over the exact model's */
};

#define PRUNE_ALONE SIZE_MAX
struct prune_groups {
    size_t n;
    const size_t *peer; /* [n] the group that this is coupled with, or PRUNE_ALONE */
};

struct prune_rules {
    double hard_kl, hard_ppl;
    double small_saving, kl_ratio, ppl_ratio;
};
/* 1 nat, PPL doubled; 4 %, 2.5 and 3.5 times. */
extern const struct prune_rules prune_defaults;

enum pruning {
    PRUNING_NONE,          /* stays */
    PRUNING_SECOND_CHANCE, /* stays; `by` is the peer's row */
    PRUNING_HARD_DAMAGE,   /* `by` is the row itself */
    PRUNING_DOMINATED,     /* `by` removed it, and so on */
    PRUNING_EQUAL_TRUTH,
    PRUNING_BAD_TRADE
};

struct pruned {
    enum pruning pruning;
    size_t by;      /* a row */
    char line[384]; /* the reason with its numbers, "" for PRUNING_NONE */
};

static inline bool prune_stays(const struct pruned *p)
{
    return p->pruning == PRUNING_NONE || p->pruning == PRUNING_SECOND_CHANCE;
}

/* out: [n]. Does not depend on the order of rows. The layout that is the group as it is (KL 0) is a row like
 * others where it is to be an option. */
allot_status prune_rows(struct pruned *out, const struct prune_row *rows, size_t n,
                        const struct prune_groups *groups, const struct prune_rules *rules,
                        struct allot_error *err);

#endif
