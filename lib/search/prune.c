/* prune.c - which layouts of a group are worth trying in combinations, judged by each alone.
 * SPDX-License-Identifier: MIT */
#include "search/prune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const struct prune_rules prune_defaults = {
    .hard_kl = 1, .hard_ppl = 0.69314718055994531, .small_saving = 0.04, .kl_ratio = 2.5, .ppl_ratio = 3.5};

struct job {
    struct pruned *out;
    const struct prune_row *rows;
    size_t n;
    const struct prune_groups *groups;
    const struct prune_rules *rules;
    /* The rows of one group that are left, in the order of ties, and their verdicts: [n] each. */
    size_t *members;
    const struct measured **files;
    struct verdict *verdicts;
    bool *kl_alone; /* [n] a bad trade that passes on KL */
};

static void mark_hard_damage(struct job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        const struct prune_row *row = &job->rows[i];
        const bool by_kl = row->file.kl > job->rules->hard_kl;
        struct pruned *p = &job->out[i];

        *p = (struct pruned){.pruning = PRUNING_NONE};
        if (!by_kl && !(fabs(row->ppl_change) > job->rules->hard_ppl))
            continue;
        p->pruning = PRUNING_HARD_DAMAGE;
        p->by = i;
        snprintf(p->line, sizeof p->line, "hard damage: alone it %s %.3g, more than %.3g",
                 by_kl ? "costs KL" : "changes ln PPL by", by_kl ? row->file.kl : row->ppl_change,
                 by_kl ? job->rules->hard_kl : job->rules->hard_ppl);
    }
}

/* Rows of the group that still stay. */
static size_t list_members(struct job *job, size_t group)
{
    size_t count = 0;
    for (size_t i = 0; i < job->n; i++)
        if (job->rows[i].group == group && job->out[i].pruning == PRUNING_NONE)
            job->members[count++] = i;
    return count;
}

static allot_status remove_dominated(struct job *job, size_t group, struct allot_error *err)
{
    const size_t count = list_members(job, group);
    allot_status status;

    for (size_t k = 0; k < count; k++)
        job->files[k] = &job->rows[job->members[k]].file;
    status = dominance_judge(job->verdicts, job->files, count, err);
    for (size_t k = 0; k < count && status == ALLOT_OK; k++) {
        const struct verdict *v = &job->verdicts[k];
        struct pruned *p = &job->out[job->members[k]];
        if (v->removal == REMOVAL_NONE)
            continue;
        p->pruning = v->removal == REMOVAL_DOMINATED ? PRUNING_DOMINATED : PRUNING_EQUAL_TRUTH;
        p->by = job->members[v->by];
        memcpy(p->line, v->line, sizeof p->line);
    }
    return status;
}

struct trade {
    bool bad, over_kl;
};

/* The smaller row against a larger one that stays: bad trade as prune.h has it. */
static struct trade judge_trade(const struct prune_row *row, const struct prune_row *anchor,
                                const struct prune_rules *rules)
{
    const double saved = (double)(anchor->file.bytes - row->file.bytes);
    const double ppl = fabs(row->ppl_change), anchor_ppl = fabs(anchor->ppl_change);
    const bool over_kl = row->file.kl > rules->kl_ratio * anchor->file.kl;
    const bool over_ppl = ppl - rules->ppl_ratio * anchor_ppl >
                          2 * hypot(row->ppl_std_err, rules->ppl_ratio * anchor->ppl_std_err);
    const bool better_ppl = anchor_ppl - ppl > 2 * hypot(row->ppl_std_err, anchor->ppl_std_err);

    if (!(saved < rules->small_saving * (double)anchor->file.bytes))
        return (struct trade){0};
    /* What is over in PPL is not clearly better in KL: being smaller, it would have removed the anchor. */
    return (struct trade){.bad = over_ppl || (over_kl && !better_ppl), .over_kl = over_kl};
}

/* From the largest down, so that anchors stay. */
static void remove_bad_trades(struct job *job, size_t group)
{
    const size_t count = list_members(job, group);

    for (size_t k = 1; k < count; k++) /* few: by insertion, largest first */
        for (size_t i = k;
             i > 0 && measured_before(&job->rows[job->members[i - 1]].file, &job->rows[job->members[i]].file);
             i--) {
            size_t swap = job->members[i];
            job->members[i] = job->members[i - 1];
            job->members[i - 1] = swap;
        }
    for (size_t k = 1; k < count; k++) {
        const struct prune_row *row = &job->rows[job->members[k]];
        struct pruned *p = &job->out[job->members[k]];

        for (size_t a = 0; a < k; a++) {
            const struct prune_row *anchor = &job->rows[job->members[a]];
            const struct trade trade = judge_trade(row, anchor, job->rules);

            if (job->out[job->members[a]].pruning != PRUNING_NONE || !trade.bad)
                continue;
            job->kl_alone[job->members[k]] =
                !trade.over_kl && (p->pruning == PRUNING_NONE || job->kl_alone[job->members[k]]);
            p->pruning = PRUNING_BAD_TRADE;
            p->by = job->members[a];
            snprintf(p->line, sizeof p->line,
                     "bad trade: %.1f %% smaller than %.128s for %s %.3g instead of %.3g",
                     100 * (double)(anchor->file.bytes - row->file.bytes) / (double)anchor->file.bytes,
                     anchor->file.name, trade.over_kl ? "KL" : "a change of ln PPL of",
                     trade.over_kl ? row->file.kl : row->ppl_change,
                     trade.over_kl ? anchor->file.kl : anchor->ppl_change);
        }
    }
}

/* The peer's row of the same layout that stays by its own right, or n. */
static size_t find_peer(const struct job *job, const struct prune_row *row)
{
    const size_t peer = job->groups->peer[row->group];
    for (size_t i = 0; i < job->n; i++)
        if (job->rows[i].group == peer && job->out[i].pruning == PRUNING_NONE &&
            strcmp(job->rows[i].layout, row->layout) == 0)
            return i;
    return job->n;
}

static void give_second_chances(struct job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        const size_t peer = job->kl_alone[i] ? find_peer(job, &job->rows[i]) : job->n;
        struct pruned *p = &job->out[i];

        if (peer == job->n)
            continue;
        *p = (struct pruned){.pruning = PRUNING_SECOND_CHANCE, .by = peer};
        snprintf(p->line, sizeof p->line,
                 "second chance: its KL passes, and %.128s stays in the group that it is coupled with",
                 job->rows[peer].file.name);
    }
}

static allot_status check(const struct prune_row *rows, size_t n, const struct prune_groups *groups,
                          struct allot_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].group >= groups->n)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: there is no group %zu", rows[i].file.name,
                              rows[i].group);
        if (!isfinite(rows[i].file.kl) || !isfinite(rows[i].ppl_change) || !isfinite(rows[i].ppl_std_err))
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: KL %g, change of ln PPL %g +- %g",
                              rows[i].file.name, rows[i].file.kl, rows[i].ppl_change, rows[i].ppl_std_err);
    }
    return ALLOT_OK;
}

allot_status prune_rows(struct pruned *out, const struct prune_row *rows, size_t n,
                        const struct prune_groups *groups, const struct prune_rules *rules,
                        struct allot_error *err)
{
    struct job job = {.out = out,
                      .rows = rows,
                      .n = n,
                      .groups = groups,
                      .rules = rules,
                      .members = malloc((n + 1) * sizeof *job.members),
                      .files = malloc((n + 1) * sizeof *job.files),
                      .verdicts = malloc((n + 1) * sizeof *job.verdicts),
                      .kl_alone = calloc(n + 1, sizeof *job.kl_alone)};
    allot_status status = check(rows, n, groups, err);

    if (job.members == NULL || job.files == NULL || job.verdicts == NULL || job.kl_alone == NULL)
        status = allot_fail_memory(err, (n + 1) * sizeof *job.verdicts, "pruning");
    if (status == ALLOT_OK) {
        mark_hard_damage(&job);
        for (size_t g = 0; g < groups->n && status == ALLOT_OK; g++) {
            status = remove_dominated(&job, g, err);
            if (status == ALLOT_OK)
                remove_bad_trades(&job, g);
        }
        if (status == ALLOT_OK)
            give_second_chances(&job);
    }
    free(job.members);
    free(job.files);
    free(job.verdicts);
    free(job.kl_alone);
    return status;
}
