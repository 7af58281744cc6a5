/* candidates.c - which combination earns the next build.  SPDX-License-Identifier: MIT
 *
 * A prediction is off by much the same factor for combinations of much the same size (rounded activations,
 * other text), and it is compared with measured KL. So where the anchor is a combination, what its own
 * prediction is off by corrects those beside it: expected = predicted x measured anchor / predicted anchor.
 */
#include "search/candidates.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "base/strbuf.h"

#define INTERIOR_SIZES 3 /* equal steps between two anchors */

const struct candidate_rules candidate_defaults = {
    .premium = 0.01, .attempts = {1, 2, 1, 2, 3}, .least_confidence = 0.1};

const char *candidate_phase_name(enum candidate_phase phase)
{
    static const char *const names[] = {"plan", "dominance", "premium", "interior", "fallback"};
    return names[phase];
}

int64_t candidate_terms(struct predict_term *terms, const struct candidate_space *space,
                        const size_t *options)
{
    int64_t bytes = space->fixed_bytes;
    for (size_t g = 0; g < space->n_groups; g++) {
        const struct plan_choice *choice = &space->groups[g].choices[options[g]];
        terms[g] = (struct predict_term){choice->cost, 8 * (double)choice->bytes / (double)space->weights[g]};
        bytes += choice->bytes;
    }
    return bytes;
}

/* ---- What was measured around an anchor ---------------------------------------------------- */

/* Lowest KL of files up to a size, of anchors and the first n_attempts attempts; NULL if there is none. */
static const struct measured *best_within(const struct candidate_search *search, int64_t bytes,
                                          size_t n_attempts)
{
    const struct measured *best = NULL;
    for (size_t i = 0; i < search->n_anchors + n_attempts; i++) {
        const struct measured *m =
            i < search->n_anchors ? &search->anchors[i] : &search->attempts[i - search->n_anchors].file;
        if (m->bytes <= bytes && isfinite(m->kl) &&
            (best == NULL || m->kl < best->kl || (m->kl == best->kl && measured_before(m, best))))
            best = m;
    }
    return best;
}

struct place {
    const struct measured *anchor;
    const struct measured *best; /* of files no larger than the anchor */
    const struct measured *next; /* the end of the line from `best`, larger than the anchor; may be NULL */
    const struct measured *neighbor; /* the next larger anchor, for messages; may be NULL */
};

static struct place find_place(const struct candidate_search *search, size_t anchor, size_t n_attempts)
{
    struct place p = {.anchor = &search->anchors[anchor]};
    for (size_t i = 0; i < search->n_anchors; i++)
        if (search->anchors[i].bytes > p.anchor->bytes &&
            (p.neighbor == NULL || measured_before(&search->anchors[i], p.neighbor)))
            p.neighbor = &search->anchors[i];
    p.best = best_within(search, p.anchor->bytes, n_attempts);
    if (p.neighbor != NULL)
        p.next = best_within(search, p.neighbor->bytes, n_attempts);
    if (p.next == p.best) /* nothing up to the next anchor's size is better */
        p.next = NULL;
    return p;
}

bool candidate_succeeded(const struct candidate_search *search, size_t i)
{
    const struct candidate_attempt *attempt = &search->attempts[i];
    const struct place p = find_place(search, attempt->anchor, i);

    if (!isfinite(attempt->file.kl))
        return false;
    if (attempt->file.bytes <= p.anchor->bytes)
        return measured_better(&attempt->file, p.best);
    return p.next != NULL && attempt->file.bytes < p.next->bytes &&
           measured_below_line(&attempt->file, p.best, p.next);
}

struct record {
    size_t attempts;
    bool succeeded;
};

static struct record look_up(const struct candidate_search *search, size_t anchor, enum candidate_phase phase)
{
    struct record r = {0};
    for (size_t i = 0; i < search->n_attempts; i++)
        if (search->attempts[i].phase == phase && search->attempts[i].anchor == anchor) {
            r.attempts++;
            r.succeeded = r.succeeded || candidate_succeeded(search, i);
        }
    return r;
}

static bool is_open(const struct candidate_search *search, size_t anchor, enum candidate_phase phase)
{
    const struct record own = look_up(search, anchor, phase);

    if (search->anchors[anchor].kl <= 0 || own.succeeded || own.attempts >= search->rules->attempts[phase])
        return false;
    return phase != CANDIDATE_FALLBACK ||
           (search->anchors[anchor].options != NULL && !look_up(search, anchor, CANDIDATE_PLAN).succeeded &&
            !look_up(search, anchor, CANDIDATE_DOMINANCE).succeeded &&
            !look_up(search, anchor, CANDIDATE_PREMIUM).succeeded);
}

/* ---- What could be tried ------------------------------------------------------------------- */

struct pool {
    const struct candidate_space *space;
    size_t n;
    size_t *options;                  /* (n, n_groups) */
    struct predict_term *terms;       /* (n, n_groups) */
    struct combination *combinations; /* (n), of terms */
    struct prediction *predictions;   /* (n) */
    int64_t *bytes;                   /* (n) */
};

static allot_status pool_init(struct pool *pool, const struct candidate_space *space, struct allot_error *err)
{
    size_t around = 1, most;
    for (size_t g = 0; g < space->n_groups; g++)
        around += space->groups[g].n_choices;
    most = 1 + INTERIOR_SIZES * around;
    *pool = (struct pool){.space = space,
                          .options = calloc(most * space->n_groups, sizeof *pool->options),
                          .terms = calloc(most * space->n_groups, sizeof *pool->terms),
                          .combinations = calloc(most, sizeof *pool->combinations),
                          .predictions = calloc(most, sizeof *pool->predictions),
                          .bytes = calloc(most, sizeof *pool->bytes)};
    if (pool->options == NULL || pool->terms == NULL || pool->combinations == NULL ||
        pool->predictions == NULL || pool->bytes == NULL)
        return allot_fail_memory(err, most * space->n_groups * sizeof *pool->terms, "candidates");
    return ALLOT_OK;
}

static void pool_release(struct pool *pool)
{
    free(pool->options);
    free(pool->terms);
    free(pool->combinations);
    free(pool->predictions);
    free(pool->bytes);
}

static size_t *pool_options(const struct pool *pool, size_t i)
{
    return pool->options + i * pool->space->n_groups;
}

static void pool_add(struct pool *pool, const size_t *options)
{
    struct predict_term *terms = pool->terms + pool->n * pool->space->n_groups;
    memmove(pool_options(pool, pool->n), options, pool->space->n_groups * sizeof *options);
    pool->bytes[pool->n] = candidate_terms(terms, pool->space, options);
    pool->combinations[pool->n++] = (struct combination){terms, pool->space->n_groups};
}

/* A combination and all that differ from it in one group. */
static void pool_add_around(struct pool *pool, const size_t *options)
{
    const size_t center = pool->n;
    pool_add(pool, options);
    for (size_t g = 0; g < pool->space->n_groups; g++)
        for (size_t o = 0; o < pool->space->groups[g].n_choices; o++) {
            size_t *next = pool_options(pool, pool->n);
            if (o == pool_options(pool, center)[g])
                continue;
            memcpy(next, pool_options(pool, center), pool->space->n_groups * sizeof *next);
            next[g] = o;
            pool_add(pool, next);
        }
}

/* The optimum of a size and what is around it; nothing where even the smallest options are larger. chosen:
 * [n_groups]. */
static allot_status pool_add_size(struct pool *pool, int64_t bytes, size_t *chosen, struct allot_error *err)
{
    const struct candidate_space *space = pool->space;
    struct plan_result result;
    struct allot_error why;
    allot_status status =
        plan_solve(space->groups, space->n_groups, space->fixed_bytes, bytes, chosen, &result, &why);
    if (status == ALLOT_OK)
        pool_add_around(pool, chosen);
    else if (status != ALLOT_ERR_INFEASIBLE)
        return allot_fail(err, status, "%s", why.message);
    return ALLOT_OK;
}

/* Sizes that a phase may try: above `over`, up to `most`. */
struct range {
    int64_t over, most;
};

static struct range phase_range(const struct candidate_search *search, const struct place *p,
                                enum candidate_phase phase)
{
    const int64_t bytes = p->anchor->bytes;
    const int64_t premium = bytes + (int64_t)(search->rules->premium * (double)bytes);
    const int64_t below_next = p->next == NULL ? bytes : p->next->bytes - 1;

    switch (phase) {
    case CANDIDATE_DOMINANCE:
        return (struct range){-1, bytes};
    case CANDIDATE_PREMIUM:
        return (struct range){bytes, least(premium, below_next)};
    case CANDIDATE_INTERIOR:
        return (struct range){bytes, below_next};
    default: /* fallback */
        return (struct range){-1, least(premium, below_next)};
    }
}

/* The anchor itself first where it is a combination. chosen: [n_groups]. */
static allot_status pool_fill(struct pool *pool, const struct place *p, struct range range,
                              enum candidate_phase phase, size_t *chosen, struct allot_error *err)
{
    const int64_t steps = phase == CANDIDATE_INTERIOR ? INTERIOR_SIZES : 1;
    allot_status status = ALLOT_OK;

    pool->n = 0;
    if (phase == CANDIDATE_FALLBACK) {
        pool_add_around(pool, p->anchor->options);
        return ALLOT_OK;
    }
    if (p->anchor->options != NULL)
        pool_add(pool, p->anchor->options);
    if (phase != CANDIDATE_INTERIOR)
        return pool_add_size(pool, range.most, chosen, err);
    for (int64_t k = 1; k <= steps && status == ALLOT_OK; k++)
        status = pool_add_size(pool, range.over + (range.most - range.over) / (steps + 1) * k, chosen, err);
    return status;
}

/* ---- Which of them ------------------------------------------------------------------------- */

static bool was_tried(const struct candidate_search *search, const size_t *options)
{
    const size_t size = search->space->n_groups * sizeof *options;
    for (size_t i = 0; i < search->n_anchors; i++)
        if (search->anchors[i].options != NULL && memcmp(search->anchors[i].options, options, size) == 0)
            return true;
    for (size_t i = 0; i < search->n_attempts; i++)
        if (search->attempts[i].file.options != NULL &&
            memcmp(search->attempts[i].file.options, options, size) == 0)
            return true;
    return false;
}

struct rating {
    bool earns;        /* a build */
    double kl, target; /* expected, and what was measured or the line has */
    double share;      /* kl / target: less is better */
};

static struct rating rate(const struct candidate_search *search, const struct pool *pool, size_t i,
                          const struct place *p, struct range range, enum candidate_phase phase)
{
    const bool larger = pool->bytes[i] > p->anchor->bytes;
    const struct prediction *own = &pool->predictions[i], *first = &pool->predictions[0];
    const double factor = p->anchor->options != NULL && first->kl > 0 ? p->anchor->kl / first->kl : 1;
    struct rating r = {.kl = own->kl * factor};

    if (pool->bytes[i] <= range.over || pool->bytes[i] > range.most ||
        was_tried(search, pool_options(pool, i)))
        return r;
    if (larger)
        r.target = measured_line(p->best, p->next, pool->bytes[i]);
    else
        r.target = phase == CANDIDATE_FALLBACK ? p->anchor->kl : p->best->kl;
    r.share = r.kl / r.target;
    if (phase == CANDIDATE_FALLBACK)
        r.earns = own->additive < first->additive;
    else
        r.earns = r.kl < r.target && own->confidence >= search->rules->least_confidence;
    return r;
}

/* Is pool's i to be tried rather than k? */
static bool goes_first(const struct pool *pool, size_t i, const struct rating *rating_i, size_t k,
                       const struct rating *rating_k)
{
    if (rating_i->share != rating_k->share)
        return rating_i->share < rating_k->share;
    if (pool->bytes[i] != pool->bytes[k])
        return pool->bytes[i] < pool->bytes[k];
    for (size_t g = 0; g < pool->space->n_groups; g++)
        if (pool_options(pool, i)[g] != pool_options(pool, k)[g])
            return pool_options(pool, i)[g] < pool_options(pool, k)[g];
    return false;
}

/* pool->n if nothing earns a build. */
static size_t choose(const struct candidate_search *search, const struct pool *pool, const struct place *p,
                     struct range range, enum candidate_phase phase, struct rating *chosen)
{
    size_t best = pool->n;
    for (size_t i = 0; i < pool->n; i++) {
        const struct rating r = rate(search, pool, i, p, range, phase);
        if (r.earns && (best == pool->n || goes_first(pool, i, &r, best, chosen))) {
            best = i;
            *chosen = r;
        }
    }
    for (size_t i = 0; i < pool->n && best < pool->n; i++) { /* its twins, in the order of the rules */
        const struct rating r = rate(search, pool, i, p, range, phase);
        if (r.earns && anomaly_order(search->anomalies, search->n_anomalies, pool_options(pool, i),
                                     pool_options(pool, best), pool->space->n_groups) < 0) {
            best = i;
            *chosen = r;
        }
    }
    return best;
}

/* ---- Saying why ---------------------------------------------------------------------------- */

static void explain_plan(struct candidate *out, const struct measured *anchor)
{
    char size[32];
    snprintf(out->reason, sizeof out->reason, "plan of single tensors at the size of %.128s (%s, KL %.4g)",
             anchor->name, str_size(size, anchor->bytes), anchor->kl);
}

static void explain(struct candidate *out, const struct pool *pool, size_t chosen, const struct place *p,
                    double target)
{
    const int64_t more = out->bytes - p->anchor->bytes;
    char size[32], prediction[96];

    str_size(size, more < 0 ? -more : more);
    snprintf(prediction, sizeof prediction, "KL predicted at %.4g (confidence %.2f)", out->kl,
             out->confidence);
    if (out->phase == CANDIDATE_FALLBACK) {
        size_t g = 0;
        while (pool_options(pool, chosen)[g] == p->anchor->options[g])
            g++;
        snprintf(out->reason, sizeof out->reason,
                 "%.128s with another layout of %.64s, which alone costs %.3g instead of %.3g, %s %s",
                 p->anchor->name, pool->space->groups[g].name,
                 pool->space->groups[g].choices[pool_options(pool, chosen)[g]].cost,
                 pool->space->groups[g].choices[p->anchor->options[g]].cost, size,
                 more > 0 ? "larger" : "smaller");
    } else if (out->phase == CANDIDATE_DOMINANCE) {
        snprintf(out->reason, sizeof out->reason,
                 "no larger than %.128s (by %s), %s where %.64s measures %.4g", p->anchor->name, size,
                 prediction, p->best->name, target);
    } else {
        snprintf(out->reason, sizeof out->reason,
                 "%s larger than %.100s, %s where the line to %.64s has %.4g", size, p->anchor->name,
                 prediction, p->next->name, target);
    }
}

/* ---- The search ---------------------------------------------------------------------------- */

static bool options_fit(const struct candidate_space *space, const size_t *options)
{
    for (size_t g = 0; g < space->n_groups && options != NULL; g++)
        if (options[g] >= space->groups[g].n_choices)
            return false;
    return true;
}

static allot_status check(const struct candidate_search *search, struct allot_error *err)
{
    for (size_t g = 0; g < search->space->n_groups; g++)
        if (search->space->weights[g] <= 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "group %s has no weights",
                              search->space->groups[g].name);
    for (size_t i = 0; i < search->n_anchors; i++) {
        if (!isfinite(search->anchors[i].kl) || search->anchors[i].bytes < 0)
            return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: %" PRId64 " bytes, KL %g", search->anchors[i].name,
                              search->anchors[i].bytes, search->anchors[i].kl);
        if (!options_fit(search->space, search->anchors[i].options))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: there is no such option",
                              search->anchors[i].name);
    }
    for (size_t i = 0; i < search->n_attempts; i++) {
        const struct candidate_attempt *attempt = &search->attempts[i];
        if (attempt->anchor >= search->n_anchors || (unsigned)attempt->phase >= CANDIDATE_PHASES ||
            !options_fit(search->space, attempt->file.options))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "attempt %zu is none of this search", i);
    }
    return ALLOT_OK;
}

static allot_status try_phase(struct candidate *out, size_t *options, const struct candidate_search *search,
                              struct pool *pool, size_t anchor, enum candidate_phase phase, bool *found,
                              struct allot_error *err)
{
    const struct place p = find_place(search, anchor, search->n_attempts);
    const struct range range = phase_range(search, &p, phase);
    struct rating rating = {0};
    allot_status status;
    size_t chosen;

    *out = (struct candidate){phase, anchor, p.anchor->bytes, NAN, NAN, ""};
    if (phase == CANDIDATE_PLAN) {
        explain_plan(out, p.anchor);
        *found = true;
        return ALLOT_OK;
    }
    if (search->space->n_groups == 0 || range.most <= range.over)
        return ALLOT_OK;
    status = pool_fill(pool, &p, range, phase, options, err);
    if (status == ALLOT_OK)
        status = predict_all(pool->predictions, search->predictor, pool->combinations, pool->n, err);
    if (status != ALLOT_OK)
        return status;
    chosen = choose(search, pool, &p, range, phase, &rating);
    if (chosen == pool->n)
        return ALLOT_OK;
    memcpy(options, pool_options(pool, chosen), pool->space->n_groups * sizeof *options);
    out->bytes = pool->bytes[chosen];
    out->kl = rating.kl;
    out->confidence = pool->predictions[chosen].confidence;
    explain(out, pool, chosen, &p, rating.target);
    *found = true;
    return ALLOT_OK;
}

/* The anchor behind `last` (SIZE_MAX: the first) in the order of measured_before; n_anchors behind the end.
 */
static size_t next_by_size(const struct candidate_search *search, size_t last)
{
    const struct measured *m = search->anchors;
    size_t next = search->n_anchors;
    for (size_t i = 0; i < search->n_anchors; i++)
        if ((last == SIZE_MAX || measured_before(&m[last], &m[i])) &&
            (next == search->n_anchors || measured_before(&m[i], &m[next])))
            next = i;
    return next;
}

allot_status candidate_next(struct candidate *out, size_t *options, const struct candidate_search *search,
                            bool *found, struct allot_error *err)
{
    struct pool pool = {0};
    allot_status status = check(search, err);

    *found = false;
    if (status == ALLOT_OK)
        status = pool_init(&pool, search->space, err);
    for (enum candidate_phase phase = 0; phase < CANDIDATE_PHASES; phase++) {
        size_t anchor = next_by_size(search, SIZE_MAX);
        while (status == ALLOT_OK && !*found && anchor < search->n_anchors) {
            if (is_open(search, anchor, phase))
                status = try_phase(out, options, search, &pool, anchor, phase, found, err);
            anchor = next_by_size(search, anchor);
        }
    }
    pool_release(&pool);
    return status;
}
