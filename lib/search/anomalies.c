/* anomalies.c - twins of which the lower precision measured better.  SPDX-License-Identifier: MIT */
#include "search/anomalies.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* The only group in which a and b differ; n_groups if there is none or several. */
static size_t only_difference(const size_t *a, const size_t *b, size_t n_groups)
{
    size_t group = n_groups;
    for (size_t g = 0; g < n_groups; g++) {
        if (a[g] == b[g])
            continue;
        if (group != n_groups)
            return n_groups;
        group = g;
    }
    return group;
}

/* Are these twins, the first being the smaller? */
static bool get_swap(struct swap *swap, const struct measured *lower, const struct measured *higher,
                     size_t n_groups)
{
    size_t group = n_groups;
    if (lower->options != NULL && higher->options != NULL && lower->bytes < higher->bytes)
        group = only_difference(lower->options, higher->options, n_groups);
    if (group == n_groups)
        return false;
    *swap = (struct swap){group, lower->options[group], higher->options[group]};
    return true;
}

static bool same_swap(const struct swap *a, const struct swap *b)
{
    return a->group == b->group && a->lower == b->lower && a->higher == b->higher;
}

allot_status anomalies_find(struct anomaly **list, size_t *count, const struct measured *m, size_t n,
                            size_t n_groups, struct allot_error *err)
{
    struct anomaly *found = NULL;
    size_t n_found = 0, capacity = 0;
    struct swap swap;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            if (!get_swap(&swap, &m[i], &m[k], n_groups) || !measured_better(&m[i], &m[k]))
                continue;
            if (n_found == capacity) {
                struct anomaly *grown;
                capacity = 2 * capacity + 8;
                grown = realloc(found, capacity * sizeof *found);
                if (grown == NULL) {
                    free(found);
                    return allot_fail_memory(err, capacity * sizeof *found, "anomalies");
                }
                found = grown;
            }
            found[n_found++] = (struct anomaly){swap, i, k, measured_difference(&m[i], &m[k])};
        }
    *list = found;
    *count = n_found;
    return ALLOT_OK;
}

static enum anomaly_verdict judge(const struct anomaly_rule *rule)
{
    if (rule->better + rule->worse + rule->tied < 2)
        return ANOMALY_UNPROBED;
    if (rule->better >= 2 && rule->worse == 0)
        return ANOMALY_BENEFICIAL;
    return rule->worse > rule->better ? ANOMALY_HARMFUL : ANOMALY_NOTHING;
}

const char *anomaly_verdict_name(enum anomaly_verdict verdict)
{
    static const char *const names[] = {"seen once", "beneficial", "harmful", "nothing there"};
    return names[verdict];
}

/* Asks all twins of the rule's swap. */
static void count_contexts(struct anomaly_rule *rule, const struct measured *m, size_t n, size_t n_groups)
{
    struct swap swap;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            if (!get_swap(&swap, &m[i], &m[k], n_groups) || !same_swap(&swap, &rule->swap))
                continue;
            if (measured_better(&m[i], &m[k]))
                rule->better++;
            else if (measured_better(&m[k], &m[i]))
                rule->worse++;
            else
                rule->tied++;
        }
    rule->verdict = judge(rule);
}

allot_status anomaly_rules(struct anomaly_rule **list, size_t *count, const struct measured *m, size_t n,
                           size_t n_groups, struct allot_error *err)
{
    struct anomaly *anomalies = NULL;
    struct anomaly_rule *rules;
    size_t n_anomalies = 0, n_rules = 0, r;
    allot_status status = anomalies_find(&anomalies, &n_anomalies, m, n, n_groups, err);

    if (status != ALLOT_OK)
        return status;
    rules = calloc(n_anomalies + 1, sizeof *rules);
    if (rules == NULL) {
        free(anomalies);
        return allot_fail_memory(err, (n_anomalies + 1) * sizeof *rules, "anomalies");
    }
    for (size_t i = 0; i < n_anomalies; i++) {
        for (r = 0; r < n_rules && !same_swap(&rules[r].swap, &anomalies[i].swap); r++)
            ;
        if (r < n_rules)
            continue;
        rules[n_rules].swap = anomalies[i].swap;
        count_contexts(&rules[n_rules++], m, n, n_groups);
    }
    free(anomalies);
    *list = rules;
    *count = n_rules;
    return ALLOT_OK;
}

static bool is_measured(const size_t *options, const struct measured *m, size_t n, size_t n_groups)
{
    for (size_t i = 0; i < n; i++)
        if (m[i].options != NULL && memcmp(m[i].options, options, n_groups * sizeof *options) == 0)
            return true;
    return false;
}

bool anomaly_probe(size_t *options, const struct anomaly *anomaly, const size_t *exact,
                   const struct measured *m, size_t n, size_t n_groups)
{
    const struct swap *swap = &anomaly->swap;
    const size_t *context = m[anomaly->with_lower].options;

    /* beside == swap->group: alone, and first */
    for (size_t step = 0; step <= n_groups; step++) {
        const size_t beside = step == 0 ? swap->group : step - 1;
        if (step > 0 && (beside == swap->group || context[beside] == exact[beside]))
            continue;
        for (int high = 0; high < 2; high++) {
            memcpy(options, exact, n_groups * sizeof *options);
            options[beside] = context[beside];
            options[swap->group] = high ? swap->higher : swap->lower;
            if (!is_measured(options, m, n, n_groups))
                return true;
        }
    }
    return false;
}

int anomaly_order(const struct anomaly_rule *rules, size_t n_rules, const size_t *a, const size_t *b,
                  size_t n_groups)
{
    const size_t group = only_difference(a, b, n_groups);
    for (size_t r = 0; r < n_rules && group < n_groups; r++) {
        const struct swap *swap = &rules[r].swap;
        const bool a_lower = a[group] == swap->lower && b[group] == swap->higher;
        const bool b_lower = b[group] == swap->lower && a[group] == swap->higher;
        if (swap->group != group || !(a_lower || b_lower))
            continue;
        if (rules[r].verdict == ANOMALY_BENEFICIAL)
            return a_lower ? -1 : 1;
        if (rules[r].verdict == ANOMALY_HARMFUL)
            return a_lower ? 1 : -1;
    }
    return 0;
}
