/* search_candidates.c - combinations and plans, tried while one earns it, and anomalies, probed as they are
 * met.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "search.h"

#define ANOMALY_CONTEXTS 4 /* in which a swap is looked at: whole, alone, two pairs */

/* The options that stay, as candidates.h wants them: choice k of group g is option kept[g][k]. */
struct combining {
    struct plan_item groups[N_ROLES];
    struct plan_choice *choices[N_ROLES];
    size_t *kept[N_ROLES];
    int64_t weights[N_ROLES];
    struct candidate_space space;
    /* Sources that are files: anchors[i] is that of s->sources[of[i]]. */
    struct measured *anchors;
    size_t **options; /* [n_anchors] (n_groups), in choices */
    size_t *of;
    size_t n_anchors;
    struct predict_row *rows;   /* [n_anchors + attempts] */
    struct predict_term *terms; /* of the rows, (n_groups) each */
    size_t n_rows;
    size_t exact[N_ROLES];  /* the choice that leaves a group as it is */
    bool has_exact;         /* of all groups */
    struct measured *known; /* combinations; [n_known], behind them those that failed, up to n_tried */
    size_t *alone;          /* choices of those that are groups alone (n_groups each) */
    size_t n_known, n_tried;
    struct anomaly_rule *rules; /* of what is known */
    size_t n_rules;
};

static void combining_release(struct combining *c, const struct search *s)
{
    for (size_t g = 0; g < s->n_groups; g++) {
        free(c->choices[g]);
        free(c->kept[g]);
    }
    for (size_t i = 0; i < c->n_anchors; i++)
        free(c->options[i]);
    free(c->anchors);
    free(c->options);
    free(c->of);
    free(c->rows);
    free(c->terms);
    free(c->known);
    free(c->alone);
    free(c->rules);
}

static allot_status list_choices(struct combining *c, struct search *s, struct allot_error *err)
{
    for (size_t g = 0; g < s->n_groups; g++) {
        const struct group *group = &s->groups[g];
        size_t n = 0;
        c->choices[g] = calloc(group->n_options, sizeof *c->choices[g]);
        c->kept[g] = calloc(group->n_options, sizeof *c->kept[g]);
        if (!c->choices[g] || !c->kept[g])
            return allot_fail_memory(err, group->n_options * sizeof *c->choices[g], "choices");
        for (size_t k = 0; k < group->n_options; k++) {
            const struct build *alone = &group->options[k].alone;
            const double kl = build_kl(alone, s, s->args->evals.n).mean;
            if (!group->options[k].stays)
                continue;
            if (k == 0)
                c->exact[g] = n;
            c->kept[g][n] = k;
            c->choices[g][n++] =
                (struct plan_choice){(int)k, group_bytes(s, group, alone->types), kl > 0 ? kl : 0};
        }
        c->groups[g] = (struct plan_item){role_name(group->role), c->choices[g], n};
        c->weights[g] = group->n_weights;
    }
    c->has_exact = true;
    for (size_t g = 0; g < s->n_groups; g++)
        c->has_exact &= c->groups[g].n_choices > 0 && c->kept[g][c->exact[g]] == 0;
    c->space = (struct candidate_space){c->groups, c->weights, s->n_groups, 0};
    if (s->n_groups > 0)
        c->space.fixed_bytes = s->groups[0].options[0].alone.bytes;
    for (size_t g = 0; g < s->n_groups; g++)
        c->space.fixed_bytes -= group_bytes(s, &s->groups[g], s->groups[g].options[0].alone.types);
    return ALLOT_OK;
}

/* false: an option of the source is not there to be combined (it was not measured alone). */
static bool map_options(size_t *to, const struct combining *c, const struct search *s, const size_t *options)
{
    for (size_t g = 0; g < s->n_groups; g++) {
        size_t k = 0;
        while (k < c->groups[g].n_choices && c->kept[g][k] != options[g])
            k++;
        if (k == c->groups[g].n_choices)
            return false;
        to[g] = k;
    }
    return true;
}

static allot_status list_anchors(struct combining *c, struct search *s, struct allot_error *err)
{
    c->anchors = calloc(s->n_sources + 1, sizeof *c->anchors);
    c->options = calloc(s->n_sources + 1, sizeof *c->options);
    c->of = calloc(s->n_sources + 1, sizeof *c->of);
    if (!c->anchors || !c->options || !c->of)
        return allot_fail_memory(err, s->n_sources * sizeof *c->anchors, "anchors");
    for (size_t i = 0; i < s->n_sources; i++) {
        const struct build *b = &s->sources[i].build;
        if (!b->measured)
            continue;
        size_t *options = calloc(s->n_groups + 1, sizeof *options);
        if (!options)
            return allot_fail_memory(err, s->n_groups * sizeof *options, "anchors");
        c->options[c->n_anchors] = options;
        c->anchors[c->n_anchors] = build_measured(b, s);
        c->anchors[c->n_anchors].options = map_options(options, c, s, b->options) ? options : NULL;
        c->of[c->n_anchors++] = i;
    }
    return ALLOT_OK;
}

/* What measured combinations teach the predictor: anchors, then attempts. */
static allot_status list_rows(struct combining *c, const struct search *s, struct allot_error *err)
{
    const size_t most = c->n_anchors + s->n_attempts + 1;
    struct predict_row *rows = realloc(c->rows, most * sizeof *rows);
    if (rows != NULL)
        c->rows = rows;
    struct predict_term *terms = realloc(c->terms, most * (s->n_groups + 1) * sizeof *terms);
    if (terms != NULL)
        c->terms = terms;
    if (!rows || !terms)
        return allot_fail_memory(err, most * s->n_groups * sizeof *terms, "predictions");
    c->n_rows = 0;
    for (size_t i = 0; i < c->n_anchors + s->n_attempts; i++) {
        const struct measured *m = i < c->n_anchors ? &c->anchors[i] : &s->records[i - c->n_anchors].file;
        if (m->options == NULL || !isfinite(m->kl))
            continue;
        struct predict_term *own = c->terms + c->n_rows * s->n_groups;
        candidate_terms(own, &c->space, m->options);
        c->rows[c->n_rows++] = (struct predict_row){{own, s->n_groups}, m->kl};
    }
    return ALLOT_OK;
}

static void add_known(struct combining *c, const struct build *b, const struct search *s,
                      const size_t *choices)
{
    struct measured m = build_measured(b, s);
    m.options = choices;
    if (isfinite(m.kl)) {
        c->known[c->n_tried++] = c->known[c->n_known];
        c->known[c->n_known++] = m;
    } else {
        c->known[c->n_tried++] = m;
    }
}

/* All combinations that were measured: anchors, attempts, groups alone, probes; and the rules of their
 * anomalies. */
static allot_status list_known(struct combining *c, const struct search *s, struct allot_error *err)
{
    size_t most = c->n_anchors + s->n_attempts + s->n_probes + 1, n_alone = 0;
    for (size_t g = 0; g < s->n_groups; g++)
        most += c->groups[g].n_choices;
    free(c->known);
    free(c->alone);
    free(c->rules);
    c->rules = NULL;
    c->n_rules = c->n_known = c->n_tried = 0;
    c->known = calloc(most, sizeof *c->known);
    c->alone = calloc(most * (s->n_groups + 1), sizeof *c->alone);
    if (!c->known || !c->alone)
        return allot_fail_memory(err, most * (s->n_groups + 1) * sizeof *c->alone, "anomalies");
    for (size_t i = 0; i < c->n_anchors; i++)
        if (c->anchors[i].options)
            add_known(c, &s->sources[c->of[i]].build, s, c->anchors[i].options);
    for (size_t i = 0; i < s->n_attempts; i++)
        if (s->attempts[i].options)
            add_known(c, &s->attempts[i], s, s->attempts[i].options);
    for (size_t i = 0; i < s->n_probes; i++)
        add_known(c, &s->probes[i], s, s->probes[i].options);
    for (size_t g = 0; g < s->n_groups && c->has_exact; g++)
        for (size_t k = 0; k < c->groups[g].n_choices; k++) {
            size_t *choices = c->alone + n_alone++ * s->n_groups;
            if (k == c->exact[g])
                continue;
            memcpy(choices, c->exact, s->n_groups * sizeof *choices);
            choices[g] = k;
            add_known(c, &s->groups[g].options[c->kept[g][k]].alone, s, choices);
        }
    return anomaly_rules(&c->rules, &c->n_rules, c->known, c->n_known, s->n_groups, err);
}

/* ---- Attempts --------------------------------------------------------------------------------------- */

/* what: "hybrid" or "probe", the number'th of them. */
static allot_status combine(struct build *b, struct search *s, const struct combining *c,
                            const size_t *choices, const char *what, size_t number, struct allot_error *err)
{
    const struct gguf_model *model = s->job.model;
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    if (types == NULL)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *types, "types");
    search_own_types(s, types);
    for (size_t g = 0; g < s->n_groups; g++) {
        const struct group *group = &s->groups[g];
        for (size_t i = 0; i < group->n_tensors; i++)
            types[group->tensors[i]] = group->options[c->kept[g][choices[g]]].alone.types[group->tensors[i]];
    }
    allot_status status = build_init(b, s, FAMILY_HYBRID, types, err, "%s-%zu", what, number);
    free(types);
    if (status != ALLOT_OK)
        return status;
    b->options = calloc(s->n_groups + 1, sizeof *b->options);
    if (b->options == NULL)
        return allot_fail_memory(err, s->n_groups * sizeof *b->options, "options");
    memcpy(b->options, choices, s->n_groups * sizeof *choices);
    return ALLOT_OK;
}

struct planning {
    struct constraints constraints;
    struct knapsack knapsack;
};

static allot_status planning_init(struct planning *p, const struct search *s, struct allot_error *err)
{
    const struct calibrated_arguments *args = &s->args->calibrated;
    *p = (struct planning){0};
    allot_status status = constraints_parse(&p->constraints, args->types, &args->sized.constraints, err);
    if (status == ALLOT_OK)
        status = constraints_bind(&p->constraints, s->job.model, err);
    if (status == ALLOT_OK)
        status = knapsack_init(&p->knapsack, s->job.model, &s->costs, &p->constraints, err);
    return status;
}

static void planning_release(struct planning *p)
{
    knapsack_release(&p->knapsack);
    constraints_release(&p->constraints);
}

allot_status search_check_plans(const struct search *s, struct allot_error *err)
{
    struct planning planning;
    allot_status status = planning_init(&planning, s, err);
    planning_release(&planning);
    return status;
}

/* allot's own plan of the anchor's size. Its predicted KL is its costs', corrected by what those of the
 * anchor are off. */
static allot_status plan(struct build *b, struct search *s, const struct combining *c,
                         const struct candidate *candidate, struct allot_error *err)
{
    const struct source *anchor = &s->sources[c->of[candidate->anchor]];
    const struct rung rung = {.bytes = candidate->bytes};
    struct type_plan plan = {0};
    struct planning planning;
    allot_status status = planning_init(&planning, s, err);
    if (status == ALLOT_OK)
        status = type_plan_solve(&plan, &planning.knapsack, &s->args->calibrated.sized, &rung, &s->keys, err);
    if (status == ALLOT_OK) {
        search_keep_unusable(s, plan.types);
        status = build_init(b, s, FAMILY_PLAN, plan.types, err, "allot-%s", anchor->build.name);
    }
    if (status == ALLOT_OK) {
        const double own = build_cost(&anchor->build, s);
        b->predicted = build_cost(b, s);
        if (own > 0)
            b->predicted *= build_kl(&anchor->build, s, s->args->evals.n).mean / own;
    }
    type_plan_release(&plan);
    planning_release(&planning);
    return status;
}

static allot_status attempt(struct search *s, struct combining *c, const struct candidate *candidate,
                            const size_t *choices, struct allot_error *err)
{
    const size_t i = s->n_attempts;
    struct build *builds = realloc(s->attempts, (i + 1) * sizeof *builds);
    if (builds != NULL)
        s->attempts = builds;
    struct candidate_attempt *records = realloc(s->records, (i + 1) * sizeof *records);
    if (records != NULL)
        s->records = records;
    if (!builds || !records)
        return allot_fail_memory(err, (i + 1) * sizeof *builds, "candidates");
    struct build *b = &s->attempts[i];
    *b = (struct build){0};
    allot_status status = candidate->phase == CANDIDATE_PLAN
                              ? plan(b, s, c, candidate, err)
                              : combine(b, s, c, choices, "hybrid", i + 1, err);
    if (candidate->phase != CANDIDATE_PLAN) {
        b->predicted = candidate->kl;
        b->confidence = candidate->confidence;
    }
    if (status == ALLOT_ERR_INFEASIBLE) { /* an attempt that could not be built */
        const struct allot_error why = *err;
        const struct build *anchor = &s->sources[c->of[candidate->anchor]].build;
        status = build_init(b, s, FAMILY_PLAN, anchor->types, err, "allot-%s", anchor->name);
        snprintf(b->failure, sizeof b->failure, "%.255s", why.message);
    }
    if (status != ALLOT_OK) {
        build_release(b);
        return status;
    }
    snprintf(b->reason, sizeof b->reason, "%s: %.300s", candidate_phase_name(candidate->phase),
             candidate->reason);
    allot_note(s->progress, "search: %s, %s", b->name, b->reason);
    s->n_attempts++;
    const struct trial_step step = {"candidates", (int64_t)i, (int64_t)i + 1};
    if (b->failure[0] == '\0')
        status = build_measure(b, s, &step, err);
    if (s->over_budget) { /* it is the first of the next run */
        build_release(b);
        s->n_attempts--;
    }
    return status;
}

/* What candidate_next is to know of the attempts. */
static void refresh_records(struct search *s, const struct candidate *newest)
{
    for (size_t i = 0; i < s->n_attempts; i++)
        s->records[i].file = build_measured(&s->attempts[i], s);
    if (newest != NULL) {
        s->records[s->n_attempts - 1].phase = newest->phase;
        s->records[s->n_attempts - 1].anchor = newest->anchor;
    }
}

/* ---- Anomalies -------------------------------------------------------------------------------------- */

static size_t n_contexts(const struct combining *c, const struct swap *swap)
{
    for (size_t r = 0; r < c->n_rules; r++)
        if (memcmp(&c->rules[r].swap, swap, sizeof *swap) == 0)
            return c->rules[r].better + c->rules[r].worse + c->rules[r].tied;
    return 0;
}

/* The anomaly that is known in too few contexts, and the combination that adds one. */
static allot_status find_probe(struct anomaly *anomaly, size_t *choices, bool *found,
                               const struct combining *c, const struct search *s, struct allot_error *err)
{
    struct anomaly *list = NULL;
    size_t n = 0;
    *found = false;
    allot_status status =
        c->has_exact ? anomalies_find(&list, &n, c->known, c->n_known, s->n_groups, err) : ALLOT_OK;
    for (size_t i = 0; i < n && status == ALLOT_OK && !*found; i++) {
        *anomaly = list[i];
        *found = n_contexts(c, &list[i].swap) < ANOMALY_CONTEXTS &&
                 anomaly_probe(choices, &list[i], c->exact, c->known, c->n_tried, s->n_groups);
    }
    free(list);
    return status;
}

static allot_status probe(struct search *s, const struct combining *c, const struct anomaly *anomaly,
                          const size_t *choices, struct allot_error *err)
{
    const size_t i = s->n_probes;
    const struct swap *swap = &anomaly->swap;
    const struct group *group = &s->groups[swap->group];
    const struct trial_step step = {"anomalies", (int64_t)i, (int64_t)i + 1};
    struct build *builds = realloc(s->probes, (i + 1) * sizeof *builds);
    if (builds == NULL)
        return allot_fail_memory(err, (i + 1) * sizeof *builds, "probes");
    s->probes = builds;
    struct build *b = &builds[i];
    *b = (struct build){0};
    allot_status status = combine(b, s, c, choices, "probe", i + 1, err);
    if (status != ALLOT_OK) {
        build_release(b);
        return status;
    }
    allot_note(s->progress, "search: %s, as %s of %s measured better than that of %s by %.6f", b->name,
               role_name(group->role), group_option_name(&group->options[c->kept[swap->group][swap->lower]]),
               group_option_name(&group->options[c->kept[swap->group][swap->higher]]), -anomaly->gain.kl);
    status = build_measure(b, s, &step, err);
    if (s->over_budget || status != ALLOT_OK)
        build_release(b);
    else
        s->n_probes++;
    return status;
}

/* Probes whatever is an anomaly so far; the rules are then of all that is known. */
static allot_status probe_anomalies(struct search *s, struct combining *c, size_t *choices,
                                    struct allot_error *err)
{
    bool found = true;
    allot_status status = list_known(c, s, err);
    while (status == ALLOT_OK && found && !s->over_budget) {
        struct anomaly anomaly;
        status = find_probe(&anomaly, choices, &found, c, s, err);
        if (status == ALLOT_OK && found)
            status = probe(s, c, &anomaly, choices, err);
        if (status == ALLOT_OK && found)
            status = list_known(c, s, err);
    }
    return status;
}

/* ---- The loop --------------------------------------------------------------------------------------- */

static allot_status go_on(struct search *s, struct combining *c, size_t *choices, bool *found,
                          struct allot_error *err)
{
    struct candidate candidate;
    allot_status status = probe_anomalies(s, c, choices, err);
    if (status == ALLOT_OK)
        status = list_rows(c, s, err);
    const struct predictor predictor = predict_fit(c->rows, status == ALLOT_OK ? c->n_rows : 0);
    const struct candidate_search search = {
        .space = &c->space,
        .predictor = &predictor,
        .anchors = c->anchors,
        .n_anchors = c->n_anchors,
        .attempts = s->records,
        .n_attempts = s->n_attempts,
        .anomalies = c->rules,
        .n_anomalies = c->n_rules,
        .rules = &candidate_defaults,
    };
    *found = false;
    if (status == ALLOT_OK && !s->over_budget)
        status = candidate_next(&candidate, choices, &search, found, err);
    if (status != ALLOT_OK || !*found)
        return status;
    status = attempt(s, c, &candidate, choices, err);
    if (status == ALLOT_OK && !s->over_budget)
        refresh_records(s, &candidate);
    return status;
}

allot_status search_candidates(struct search *s, struct allot_error *err)
{
    struct combining c = {0};
    bool found = true;
    size_t *choices = calloc(s->n_groups + 1, sizeof *choices);
    allot_status status =
        choices ? ALLOT_OK : allot_fail_memory(err, s->n_groups * sizeof *choices, "choices");
    if (status == ALLOT_OK)
        status = list_choices(&c, s, err);
    if (status == ALLOT_OK)
        status = list_anchors(&c, s, err);
    while (status == ALLOT_OK && found && !s->over_budget)
        status = go_on(s, &c, choices, &found, err);
    /* Results name options, not choices. */
    for (size_t i = 0; i < s->n_attempts; i++)
        for (size_t g = 0; g < s->n_groups && s->attempts[i].options != NULL; g++)
            s->attempts[i].options[g] = c.kept[g][s->attempts[i].options[g]];
    for (size_t i = 0; i < c.n_rules; i++) {
        struct swap *swap = &c.rules[i].swap;
        swap->lower = c.kept[swap->group][swap->lower];
        swap->higher = c.kept[swap->group][swap->higher];
    }
    s->anomalies = c.rules;
    s->n_anomalies = c.n_rules;
    c.rules = NULL;
    combining_release(&c, s);
    free(choices);
    return status;
}
