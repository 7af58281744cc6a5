/* dominance.c - which measured files survive, and what replaced each of the others.
 * SPDX-License-Identifier: MIT */
#include "search/dominance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mean.h"
#include "base/strbuf.h"

#define ERRORS_APART 2.0 /* standard errors beyond which a difference is one */

/* ---- Differences --------------------------------------------------------------------------- */

static bool paired(const struct measured *a, const struct measured *b)
{
    return a->windows != NULL && b->windows != NULL && a->n_windows == b->n_windows && a->n_windows > 1;
}

static double own_std_err(const struct measured *m)
{
    struct mean mean = {0};
    if (m->windows == NULL)
        return m->std_err;
    for (size_t w = 0; w < m->n_windows; w++)
        mean_add(&mean, m->windows[w]);
    return mean_std_err(&mean);
}

/* a - ((1 - t) from + t to) */
static struct difference mixed_difference(const struct measured *a, const struct measured *from,
                                          const struct measured *to, double t)
{
    struct difference d = {.kl = a->kl - ((1 - t) * from->kl + t * to->kl)};
    if (paired(a, from) && paired(a, to)) {
        struct mean mean = {0};
        for (size_t w = 0; w < a->n_windows; w++)
            mean_add(&mean, a->windows[w] - ((1 - t) * from->windows[w] + t * to->windows[w]));
        d.std_err = mean_std_err(&mean);
    } else {
        d.std_err = hypot(own_std_err(a), hypot((1 - t) * own_std_err(from), t * own_std_err(to)));
    }
    return d;
}

const char *const family_names[N_FAMILIES + 1] = {"exact", "plain", "learned", "hybrid", "plan", NULL};

struct difference measured_difference(const struct measured *a, const struct measured *b)
{
    return mixed_difference(a, b, b, 0);
}

static double share_of_line(const struct measured *from, const struct measured *to, int64_t bytes)
{
    return (double)(bytes - from->bytes) / (double)(to->bytes - from->bytes);
}

struct difference measured_over_line(const struct measured *a, const struct measured *from,
                                     const struct measured *to)
{
    return mixed_difference(a, from, to, share_of_line(from, to, a->bytes));
}

double measured_line(const struct measured *from, const struct measured *to, int64_t bytes)
{
    return from->kl + share_of_line(from, to, bytes) * (to->kl - from->kl);
}

static bool is_lower(struct difference d)
{
    return d.kl < -ERRORS_APART * d.std_err;
}

bool measured_better(const struct measured *a, const struct measured *b)
{
    return is_lower(measured_difference(a, b));
}

bool measured_below_line(const struct measured *a, const struct measured *from, const struct measured *to)
{
    return is_lower(measured_over_line(a, from, to));
}

bool measured_before(const struct measured *a, const struct measured *b)
{
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes;
    if (a->family != b->family)
        return a->family < b->family;
    if (a->kl != b->kl)
        return a->kl < b->kl;
    return strcmp(a->name, b->name) < 0;
}

/* ---- Dominance and ties -------------------------------------------------------------------- */

static void remove_one(struct verdict *v, enum removal removal, const struct measured *m,
                       const struct measured *by, size_t by_index)
{
    const struct difference d = measured_difference(by, m);
    char size[64] = "has its size", saved[32];

    if (by->bytes < m->bytes)
        snprintf(size, sizeof size, "is %s smaller", str_size(saved, m->bytes - by->bytes));
    else if (by->family < m->family)
        snprintf(size, sizeof size, "has its size and is plainer");
    *v = (struct verdict){.removal = removal, .by = by_index};
    if (removal == REMOVAL_DOMINATED)
        snprintf(v->line, sizeof v->line, "dominated: %.128s %s, and its KL is lower by %.3g +- %.2g",
                 by->name, size, -d.kl, d.std_err);
    else
        snprintf(v->line, sizeof v->line,
                 "tie: %.128s %s, and KL differs by no more than the error (%+.3g +- %.2g)", by->name, size,
                 d.kl, d.std_err);
}

/* Whatever the errors, a file that is larger and not better loses. */
static bool beats(const struct measured *a, const struct measured *b)
{
    return a->bytes <= b->bytes && ((a->bytes < b->bytes && a->kl <= b->kl) || measured_better(a, b));
}

static void remove_beaten(struct verdict *verdicts, const struct measured *const *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t best = i;
        for (size_t k = 0; k < n; k++) {
            if (k != i && beats(m[k], m[i]) &&
                (best == i || m[k]->kl < m[best]->kl ||
                 (m[k]->kl == m[best]->kl && measured_before(m[k], m[best]))))
                best = k;
        }
        if (best != i)
            remove_one(&verdicts[i], measured_better(m[best], m[i]) ? REMOVAL_DOMINATED : REMOVAL_TIED, m[i],
                       m[best], best);
    }
}

struct place {
    const struct measured *m;
    size_t index;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (measured_before(x->m, y->m))
        return -1;
    return measured_before(y->m, x->m) ? 1 : (x->index > y->index) - (x->index < y->index);
}

/* What is still there, in the order of ties; places: [n]. Their number. */
static size_t list_survivors(struct place *places, const struct verdict *verdicts,
                             const struct measured *const *m, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (verdicts[i].removal == REMOVAL_NONE)
            places[count++] = (struct place){m[i], i};
    qsort(places, count, sizeof *places, compare_places);
    return count;
}

/* Of those not beaten, none before in the order is better: what is not better itself ties. */
static void remove_tied(struct verdict *verdicts, struct place *places, size_t count)
{
    size_t kept = 0, k;
    for (size_t i = 0; i < count; i++) {
        for (k = 0; k < kept && measured_better(places[i].m, places[k].m); k++)
            ;
        if (k < kept)
            remove_one(&verdicts[places[i].index], REMOVAL_TIED, places[i].m, places[k].m, places[k].index);
        else
            places[kept++] = places[i];
    }
}

allot_status dominance_judge(struct verdict *verdicts, const struct measured *const *m, size_t n,
                             struct allot_error *err)
{
    struct place *places = malloc((n + 1) * sizeof *places);
    if (places == NULL)
        return allot_fail_memory(err, (n + 1) * sizeof *places, "survivors");
    for (size_t i = 0; i < n; i++)
        verdicts[i] = (struct verdict){.removal = REMOVAL_NONE};
    remove_beaten(verdicts, m, n);
    remove_tied(verdicts, places, list_survivors(places, verdicts, m, n));
    free(places);
    return ALLOT_OK;
}

/* ---- Spacing ------------------------------------------------------------------------------- */

/* Is the larger of neighbours i and i + 1 further below the line around them? */
static bool larger_is_better(const struct place *places, size_t count, size_t i)
{
    const struct measured *a = places[i].m, *b = places[i + 1].m;
    const struct measured *from = i > 0 ? places[i - 1].m : a, *to = i + 2 < count ? places[i + 2].m : b;
    return b->kl - measured_line(from, to, b->bytes) < a->kl - measured_line(from, to, a->bytes);
}

/* places: survivors by size, of which no two have the same. */
static void remove_crowded(struct verdict *verdicts, struct place *places, size_t count, double spacing)
{
    const double range = count > 1 ? (double)(places[count - 1].m->bytes - places[0].m->bytes) : 0;

    while (count > 1) {
        size_t pair = 0, loser, winner;
        struct verdict *v;
        int64_t gap = INT64_MAX;
        char apart[32], whole[32];

        for (size_t i = 0; i + 1 < count; i++)
            if (places[i + 1].m->bytes - places[i].m->bytes < gap) {
                pair = i;
                gap = places[i + 1].m->bytes - places[i].m->bytes;
            }
        if ((double)gap >= spacing * range)
            return;
        loser = larger_is_better(places, count, pair) ? pair : pair + 1;
        winner = 2 * pair + 1 - loser;
        v = &verdicts[places[loser].index];
        *v = (struct verdict){.removal = REMOVAL_CROWDED, .by = places[winner].index};
        snprintf(
            v->line, sizeof v->line,
            "spacing: %.128s is only %s %s (sizes range over %s), and for its size its KL %.4g is better "
            "than %.4g",
            places[winner].m->name, str_size(apart, gap), loser < winner ? "larger" : "smaller",
            str_size(whole, (int64_t)range), places[winner].m->kl, places[loser].m->kl);
        memmove(&places[loser], &places[loser + 1], (--count - loser) * sizeof *places);
    }
}

static allot_status check(const struct measured *m, size_t n, double spacing, struct allot_error *err)
{
    if (!(spacing >= 0 && spacing < 1))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "spacing %g is not a share from 0 to below 1", spacing);
    for (size_t i = 0; i < n; i++) {
        if (m[i].bytes < 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: its size is negative", m[i].name);
        if (m[i].windows != NULL && m[i].n_windows == 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: no window was measured", m[i].name);
        if (!isfinite(m[i].kl) || !isfinite(own_std_err(&m[i])) || own_std_err(&m[i]) < 0)
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: its KL is %g +- %g", m[i].name, m[i].kl,
                              own_std_err(&m[i]));
    }
    return ALLOT_OK;
}

static bool is_pareto(const struct measured *m, size_t n, size_t i)
{
    for (size_t k = 0; k < n; k++)
        if (m[k].bytes <= m[i].bytes && m[k].kl <= m[i].kl && (m[k].bytes < m[i].bytes || m[k].kl < m[i].kl))
            return false;
    return true;
}

allot_status survivors_find(struct verdict *verdicts, bool *pareto, const struct measured *m, size_t n,
                            double spacing, struct allot_error *err)
{
    const struct measured **list = calloc(n + 1, sizeof *list);
    struct place *places = malloc((n + 1) * sizeof *places);
    allot_status status = ALLOT_OK;

    if (list == NULL || places == NULL)
        status = allot_fail_memory(err, (n + 1) * sizeof *places, "survivors");
    if (status == ALLOT_OK)
        status = check(m, n, spacing, err);
    for (size_t i = 0; i < n && status == ALLOT_OK; i++)
        list[i] = &m[i];
    if (status == ALLOT_OK)
        status = dominance_judge(verdicts, list, n, err);
    if (status == ALLOT_OK) {
        remove_crowded(verdicts, places, list_survivors(places, verdicts, list, n), spacing);
        for (size_t i = 0; i < n && pareto != NULL; i++)
            pareto[i] = is_pareto(m, n, i);
    }
    free(places);
    free(list);
    return status;
}
