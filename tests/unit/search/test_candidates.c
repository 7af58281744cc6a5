/* test_candidates.c - searches in worlds of known truth: every candidate against the rules of its phase, by
 * enumeration; killed and continued; anchors in any order.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "search/candidates.h"

enum { N_GROUPS = 4, N_OPTIONS = 6, N_COMBINATIONS = 1296, N_WINDOWS = 8, N_ANCHORS = 7, MAX_FILES = 80 };

static uint64_t seed; /* printed by main, ALLOT_TEST_SEED repeats it */
static struct allot_error err;

/* A file of the world, with its windows. */
struct built {
    double windows[N_WINDOWS];
    size_t options[N_GROUPS];
    char name[16];
};

struct world {
    uint64_t key;
    bool good_plans, good_evidence;
    struct plan_choice choices[N_GROUPS][N_OPTIONS];
    struct plan_item groups[N_GROUPS];
    int64_t weights[N_GROUPS];
    struct candidate_space space;
    struct measured anchors[N_ANCHORS];
    struct built built[MAX_FILES];
    size_t n_built;
    struct candidate_attempt attempts[MAX_FILES];
    size_t n_attempts;
};

static const double bits[N_OPTIONS] = {2.6, 3.4, 4.5, 4.52, 6.6, 8.5};
static const char *const group_names[N_GROUPS] = {"embeddings", "attn_kv", "ffn_up_gate", "ffn_down"};

static double add_costs(const struct world *w, const size_t *options)
{
    double sum = 0;
    for (size_t g = 0; g < N_GROUPS; g++)
        sum += w->choices[g][options[g]].cost;
    return sum;
}

/* The true KL: costs interact a little, and each combination has its own luck. */
static double true_kl(const struct world *w, const size_t *options)
{
    double sum = add_costs(w, options), luck = 0;
    uint64_t id = 0;
    if (!w->good_evidence) { /* costs say nothing: KL goes by size alone */
        sum = 0;
        for (size_t g = 0; g < N_GROUPS; g++)
            sum += exp2(-2 * bits[options[g]]);
    }
    for (size_t g = 0; g < N_GROUPS; g++)
        id = id * N_OPTIONS + options[g];
    luck = rng_normal(w->key + 77, id);
    return 1.3 * sum * (1 + 0.3 * sum) * exp(0.04 * luck);
}

static struct measured build(struct world *w, double kl, int64_t bytes, const size_t *options,
                             enum family family)
{
    struct built *b = &w->built[w->n_built++];
    double mean = 0;
    assert_true(w->n_built <= MAX_FILES);
    snprintf(b->name, sizeof b->name, "file-%zu", w->n_built);
    for (size_t i = 0; i < N_WINDOWS; i++) {
        b->windows[i] = kl * (0.5 + rng_uniform(w->key, i) + 0.02 * rng_normal(w->key + w->n_built, i));
        mean += b->windows[i] / N_WINDOWS;
    }
    if (options != NULL)
        memcpy(b->options, options, sizeof b->options);
    return (struct measured){b->name,    family,    bytes, mean,
                             b->windows, N_WINDOWS, 0,     options ? b->options : NULL};
}

/* Anchors: five plain ones, one that is no combination, the exact file. */
static void make(struct world *w, uint64_t key, bool good_plans, bool good_evidence)
{
    struct predict_term terms[N_GROUPS];
    *w = (struct world){.key = key, .good_plans = good_plans, .good_evidence = good_evidence};
    for (size_t g = 0; g < N_GROUPS; g++) {
        const double sensitivity = exp(1.2 * rng_normal(key, 20 + g));
        w->weights[g] = (int64_t)(100000 * (1 + rng_u64(key, 10 + g) % 9));
        for (size_t o = 0; o < N_OPTIONS; o++)
            w->choices[g][o] = (struct plan_choice){(int)o, (int64_t)((double)w->weights[g] * bits[o] / 8),
                                                    sensitivity * exp2(-2 * bits[o]) *
                                                        exp(0.3 * rng_normal(key, 100 + 10 * g + o))};
        w->groups[g] = (struct plan_item){group_names[g], w->choices[g], N_OPTIONS};
    }
    w->space = (struct candidate_space){w->groups, w->weights, N_GROUPS, 5000};
    for (size_t a = 0; a < 5; a++) {
        size_t options[N_GROUPS] = {a, a, a, a};
        options[rng_u64(key, 300 + a) % N_GROUPS] += rng_u64(key, 310 + a) % 2;
        w->anchors[a] =
            build(w, true_kl(w, options), candidate_terms(terms, &w->space, options), options, FAMILY_PLAIN);
    }
    w->anchors[5] = build(w, w->anchors[2].kl * 0.7, (w->anchors[2].bytes + w->anchors[3].bytes) / 2, NULL,
                          FAMILY_LEARNED);
    w->anchors[6] = build(w, 0, 10 * w->anchors[4].bytes, NULL, FAMILY_EXACT);
}

/* Fits all measured combinations, as a search would. */
static struct predictor fit(const struct world *w)
{
    static struct predict_term terms[MAX_FILES][N_GROUPS];
    struct predict_row rows[MAX_FILES];
    size_t n = 0;
    for (size_t i = 0; i < N_ANCHORS + w->n_attempts; i++) {
        const struct measured *m = i < N_ANCHORS ? &w->anchors[i] : &w->attempts[i - N_ANCHORS].file;
        if (m->options == NULL)
            continue;
        candidate_terms(terms[n], &w->space, m->options);
        rows[n] = (struct predict_row){{terms[n], N_GROUPS}, m->kl};
        n++;
    }
    return predict_fit(rows, n);
}

static struct candidate_search make_search(const struct world *w, const struct predictor *p,
                                           const struct candidate_rules *rules)
{
    return (struct candidate_search){.space = &w->space,
                                     .predictor = p,
                                     .anchors = w->anchors,
                                     .n_anchors = N_ANCHORS,
                                     .attempts = w->attempts,
                                     .n_attempts = w->n_attempts,
                                     .rules = rules};
}

/* ---- The rules once more ------------------------------------------------------------------- */

static const struct measured *file_at(const struct world *w, size_t i)
{
    return i < N_ANCHORS ? &w->anchors[i] : &w->attempts[i - N_ANCHORS].file;
}

static const struct measured *best_of(const struct world *w, int64_t bytes, size_t n_attempts)
{
    const struct measured *best = NULL;
    for (size_t i = 0; i < N_ANCHORS + n_attempts; i++)
        if (file_at(w, i)->bytes <= bytes && !isnan(file_at(w, i)->kl) &&
            (best == NULL || file_at(w, i)->kl < best->kl))
            best = file_at(w, i);
    return best;
}

static int64_t next_size(const struct world *w, size_t anchor)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < N_ANCHORS; i++)
        if (w->anchors[i].bytes > w->anchors[anchor].bytes && w->anchors[i].bytes < next)
            next = w->anchors[i].bytes;
    return next;
}

/* Mean of c - ((1 - t) a + t b) below two standard errors. */
static bool below(const struct measured *c, const struct measured *a, const struct measured *b, double t)
{
    double d[N_WINDOWS], mean = 0, squares = 0;
    for (size_t i = 0; i < N_WINDOWS; i++) {
        d[i] = c->windows[i] - (1 - t) * a->windows[i] - t * b->windows[i];
        mean += d[i] / N_WINDOWS;
    }
    for (size_t i = 0; i < N_WINDOWS; i++)
        squares += (d[i] - mean) * (d[i] - mean);
    return mean < -2 * sqrt(squares / (N_WINDOWS - 1) / N_WINDOWS);
}

static bool succeeded(const struct world *w, size_t i)
{
    const struct candidate_attempt *a = &w->attempts[i];
    const struct measured *best = best_of(w, w->anchors[a->anchor].bytes, i);
    const struct measured *next = best_of(w, next_size(w, a->anchor), i);
    if (isnan(a->file.kl))
        return false;
    if (a->file.bytes <= w->anchors[a->anchor].bytes)
        return below(&a->file, best, best, 0);
    return next != best && a->file.bytes < next->bytes &&
           below(&a->file, best, next,
                 (double)(a->file.bytes - best->bytes) / (double)(next->bytes - best->bytes));
}

/* The attempts that a phase has had, and whether it is over. */
static size_t count(const struct world *w, size_t anchor, enum candidate_phase phase, bool *success)
{
    size_t n = 0;
    *success = false;
    for (size_t i = 0; i < w->n_attempts; i++)
        if (w->attempts[i].phase == phase && w->attempts[i].anchor == anchor) {
            n++;
            *success = *success || succeeded(w, i);
        }
    return n;
}

static bool is_new(const struct world *w, const size_t *options)
{
    for (size_t i = 0; i < N_ANCHORS + w->n_attempts; i++)
        if (file_at(w, i)->options &&
            memcmp(file_at(w, i)->options, options, N_GROUPS * sizeof *options) == 0)
            return false;
    return true;
}

/* The least additive cost of all combinations up to a size; NAN if that is an anchor's. */
static double enumerate(const struct world *w, int64_t most)
{
    struct predict_term terms[N_GROUPS];
    double least = INFINITY;
    for (size_t c = 0; c < N_COMBINATIONS; c++) {
        const size_t options[N_GROUPS] = {c % 6, c / 6 % 6, c / 36 % 6, c / 216};
        if (candidate_terms(terms, &w->space, options) <= most)
            least = fmin(least, add_costs(w, options));
    }
    for (size_t a = 0; a < 5; a++)
        if (add_costs(w, w->anchors[a].options) == least)
            return NAN;
    return least;
}

static void check_candidate(const struct world *w, const struct candidate_rules *rules,
                            const struct candidate *c, const size_t *options, size_t *seen)
{
    const struct measured *anchor = &w->anchors[c->anchor];
    const struct measured *best = best_of(w, anchor->bytes, w->n_attempts);
    const struct measured *next = best_of(w, next_size(w, c->anchor), w->n_attempts);
    const double premium = 1.01 * (double)anchor->bytes;
    const struct predictor p = fit(w);
    struct predict_term terms[N_GROUPS];
    bool success, other;

    seen[c->phase]++;
    assert_true(anchor->kl > 0);
    assert_true(count(w, c->anchor, c->phase, &success) < rules->attempts[c->phase]);
    assert_false(success);
    assert_non_null(strstr(c->reason, anchor->name));
    if (c->phase == CANDIDATE_PLAN) {
        assert_true(c->bytes == anchor->bytes && isnan(c->kl));
        return;
    }
    assert_true(is_new(w, options));
    assert_int_equal(c->bytes, candidate_terms(terms, &w->space, options));
    if (p.b == 0) { /* additive: as far off as the anchor's own prediction is, if it has one */
        double off = anchor->options ? anchor->kl / (p.a * add_costs(w, anchor->options)) : 1;
        assert_true(fabs(c->kl / (p.a * add_costs(w, options) * off) - 1) < 1e-9);
    }
    if (c->phase != CANDIDATE_FALLBACK) {
        assert_true(c->confidence >= rules->least_confidence);
        assert_true(c->bytes <= anchor->bytes ? c->kl < best->kl
                                              : c->kl < measured_line(best, next, c->bytes));
    }
    if (c->phase == CANDIDATE_DOMINANCE) {
        assert_true(c->bytes <= anchor->bytes);
        /* The first is the best there is. */
        if (count(w, c->anchor, c->phase, &success) == 0 && w->n_attempts == 0)
            assert_false(add_costs(w, options) > enumerate(w, anchor->bytes) * (1 + 1e-12));
    } else if (c->phase == CANDIDATE_PREMIUM) {
        assert_true(c->bytes > anchor->bytes && (double)c->bytes <= premium);
    } else if (c->phase == CANDIDATE_INTERIOR) {
        assert_true(c->bytes > anchor->bytes && c->bytes < next->bytes);
    } else {
        size_t differences = 0;
        for (size_t g = 0; g < N_GROUPS; g++)
            differences += options[g] != anchor->options[g];
        assert_true(differences == 1 && add_costs(w, options) < add_costs(w, anchor->options));
        assert_true((double)c->bytes <= premium);
        for (enum candidate_phase k = CANDIDATE_PLAN; k <= CANDIDATE_PREMIUM; k++) {
            count(w, c->anchor, k, &other);
            assert_false(other);
        }
    }
}

/* ---- Searches ------------------------------------------------------------------------------ */

/* Measures a candidate. Some cannot be built. */
static void attempt(struct world *w, const struct candidate *c, const size_t *options)
{
    const bool is_plan = c->phase == CANDIDATE_PLAN;
    const double kl = is_plan ? w->anchors[c->anchor].kl * (w->good_plans ? 0.6 : 1.1) : true_kl(w, options);
    struct candidate_attempt *a = &w->attempts[w->n_attempts];
    *a = (struct candidate_attempt){
        c->phase, c->anchor,
        build(w, kl, c->bytes - is_plan, is_plan ? NULL : options, is_plan ? FAMILY_PLAN : FAMILY_HYBRID)};
    if (rng_u64(w->key, 5000 + w->n_attempts) % 10 == 0)
        a->file.kl = NAN;
    w->n_attempts++;
}

/* The same next candidate whatever the order of the anchors, which attempts know by index. */
static void check_shuffled(const struct world *w, const struct candidate_search *search, bool found,
                           const struct candidate *c, const size_t *options)
{
    struct measured anchors[N_ANCHORS];
    struct candidate_attempt attempts[MAX_FILES];
    struct candidate_search shuffled = *search;
    struct candidate other;
    size_t other_options[N_GROUPS], at[N_ANCHORS]; /* anchor i stands at at[i] */
    bool other_found;

    for (size_t i = 0; i < N_ANCHORS; i++)
        at[i] = (i * 3 + w->key % N_ANCHORS) % N_ANCHORS;
    for (size_t i = 0; i < N_ANCHORS; i++)
        anchors[at[i]] = w->anchors[i];
    memcpy(attempts, w->attempts, w->n_attempts * sizeof *attempts);
    for (size_t i = 0; i < w->n_attempts; i++)
        attempts[i].anchor = at[attempts[i].anchor];
    shuffled.anchors = anchors;
    shuffled.attempts = attempts;
    assert_int_equal(candidate_next(&other, other_options, &shuffled, &other_found, &err), ALLOT_OK);
    assert_int_equal(other_found, found);
    if (!found)
        return;
    assert_true(other.phase == c->phase && other.anchor == at[c->anchor] && other.bytes == c->bytes);
    assert_string_equal(other.reason, c->reason);
    if (c->phase != CANDIDATE_PLAN)
        assert_memory_equal(other_options, options, sizeof other_options);
}

static void run(struct world *w, const struct candidate_rules *rules, size_t *seen)
{
    for (;;) {
        const struct predictor p = fit(w);
        const struct candidate_search search = make_search(w, &p, rules);
        struct candidate c;
        size_t options[N_GROUPS];
        bool found;

        if (candidate_next(&c, options, &search, &found, &err) != ALLOT_OK)
            fail_msg("%s", err.message);
        for (size_t i = 0; i < w->n_attempts; i++)
            assert_int_equal(candidate_succeeded(&search, i), succeeded(w, i));
        check_shuffled(w, &search, found, &c, options);
        if (!found)
            return;
        check_candidate(w, rules, &c, options, seen);
        attempt(w, &c, options);
    }
}

/* A search from the first n attempts of another makes the same ones after them. */
static void check_resumed(const struct world *w, const struct candidate_rules *rules)
{
    static struct world again;
    size_t seen[CANDIDATE_PHASES] = {0};
    for (size_t n = 0; n <= w->n_attempts; n += 4) {
        make(&again, w->key, w->good_plans, w->good_evidence);
        for (size_t i = 0; i < n; i++) { /* as if read from the archive */
            again.attempts[i] = w->attempts[i];
            again.built[again.n_built++] = w->built[N_ANCHORS + i];
            again.n_attempts++;
        }
        run(&again, rules, seen);
        assert_int_equal(again.n_attempts, w->n_attempts);
        for (size_t i = n; i < w->n_attempts; i++) {
            assert_int_equal(again.attempts[i].phase, w->attempts[i].phase);
            assert_int_equal(again.attempts[i].anchor, w->attempts[i].anchor);
            assert_int_equal(again.attempts[i].file.bytes, w->attempts[i].file.bytes);
            assert_string_equal(again.attempts[i].file.name, w->attempts[i].file.name);
            if (w->attempts[i].file.options != NULL)
                assert_memory_equal(again.attempts[i].file.options, w->attempts[i].file.options,
                                    N_GROUPS * sizeof(size_t));
        }
    }
}

/* Everything measured is judged; with good plans every plain anchor that has one built is beaten. */
static void check_survivors(const struct world *w)
{
    struct measured all[MAX_FILES];
    struct verdict v[MAX_FILES];
    size_t n = 0;
    for (size_t i = 0; i < N_ANCHORS + w->n_attempts; i++)
        if (!isnan(file_at(w, i)->kl))
            all[n++] = *file_at(w, i);
    assert_int_equal(survivors_find(v, NULL, all, n, SURVIVORS_SPACING, &err), ALLOT_OK);
    for (size_t i = 0; i < w->n_attempts; i++)
        if (w->attempts[i].phase == CANDIDATE_PLAN && !isnan(w->attempts[i].file.kl) && w->good_plans)
            for (size_t k = 0; k < n; k++)
                if (strcmp(all[k].name, w->anchors[w->attempts[i].anchor].name) == 0)
                    assert_int_not_equal(v[k].removal, REMOVAL_NONE);
}

static void test_searches(void **state)
{
    static struct world w;
    size_t seen[CANDIDATE_PHASES] = {0}, successes = 0;
    (void)state;
    for (uint64_t t = 0; t < 80; t++) {
        make(&w, seed + t, t % 2 == 0, t % 4 < 3);
        run(&w, &candidate_defaults, seen);
        for (size_t i = 0; i < w.n_attempts; i++)
            successes += succeeded(&w, i) && w.attempts[i].phase != CANDIDATE_PLAN;
        check_survivors(&w);
        if (t % 8 == 0)
            check_resumed(&w, &candidate_defaults);
    }
    for (size_t p = 0; p < CANDIDATE_FALLBACK; p++)
        if (seen[p] < 5)
            fail_msg("phase %s was met %zu times only", candidate_phase_name((enum candidate_phase)p),
                     seen[p]);
    assert_true(successes > 80);
}

/* Hybrids alone, from the first candidate on: the optimum by enumeration (check_candidate). */
static void test_first_is_optimal(void **state)
{
    const struct candidate_rules rules = {.premium = 0.01, .attempts = {0, 1, 0, 0, 0}};
    static struct world w;
    size_t seen[CANDIDATE_PHASES] = {0};
    (void)state;
    for (uint64_t t = 0; t < 100; t++) {
        make(&w, seed + 1000 + t, false, true);
        run(&w, &rules, seen);
    }
    assert_true(seen[CANDIDATE_DOMINANCE] > 100);
    assert_int_equal(seen[CANDIDATE_PLAN] + seen[CANDIDATE_PREMIUM] + seen[CANDIDATE_INTERIOR] +
                         seen[CANDIDATE_FALLBACK],
                     0);
}

/* Where plans fail and nothing else may be tried, every anchor that is a combination has its few attempts. */
static void test_fallback(void **state)
{
    const struct candidate_rules rules = {.premium = 0.01, .attempts = {1, 0, 0, 0, 3}};
    static struct world w;
    size_t seen[CANDIDATE_PHASES] = {0};
    (void)state;
    for (uint64_t t = 0; t < 60; t++) {
        make(&w, seed + 2000 + t, false, t % 2 == 0);
        run(&w, &rules, seen);
        for (size_t i = 0; i < w.n_attempts; i++)
            assert_int_not_equal(w.attempts[i].phase == CANDIDATE_FALLBACK && w.attempts[i].anchor >= 5, 1);
    }
    assert_true(seen[CANDIDATE_FALLBACK] > 60);
    for (uint64_t t = 0; t < 60; t++) { /* where they succeed, none */
        make(&w, seed + 2000 + t, true, true);
        seen[CANDIDATE_FALLBACK] = 0;
        run(&w, &rules, seen);
        for (size_t i = 0; i < w.n_attempts; i++)
            if (w.attempts[i].phase == CANDIDATE_FALLBACK)
                for (size_t k = 0; k < i; k++)
                    assert_false(w.attempts[k].anchor == w.attempts[i].anchor && succeeded(&w, k));
    }
}

/* Two groups, three options each; one anchor. The knapsack's optimum at its size is its twin, or the other
 * way round by a rule. */
static void test_twins_by_rule(void **state)
{
    const struct plan_choice choices[] = {{0, 30, 0.30}, {1, 50, 0.10}, {2, 60, 0.05}};
    const struct plan_item groups[] = {{"attn_q", choices, 3}, {"ffn_down", choices, 3}};
    const int64_t weights[] = {80, 80};
    const struct candidate_space space = {groups, weights, 2, 0};
    const struct measured anchor = {.name = "plain", .bytes = 120, .kl = 0.5, .std_err = 0.01};
    const struct predictor p = predict_fit(NULL, 0);
    struct anomaly_rule rule = {.swap = {1, 1, 2}, .verdict = ANOMALY_BENEFICIAL};
    struct candidate_rules rules = {.attempts = {0, 1, 0, 0, 0}};
    struct candidate_search search = {
        .space = &space, .predictor = &p, .anchors = &anchor, .n_anchors = 1, .rules = &rules};
    struct candidate c;
    size_t options[2];
    bool found;

    (void)state;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_OK);
    assert_true(found && options[0] == 2 && options[1] == 2 && c.bytes == 120);
    assert_string_equal(c.reason,
                        "no larger than plain (by 0 B), KL predicted at 0.1 (confidence 0.14) where plain "
                        "measures 0.5");
    search.anomalies = &rule;
    search.n_anomalies = 1;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_OK);
    assert_true(found && options[0] == 2 && options[1] == 1 && c.bytes == 110);
    rule.verdict = ANOMALY_NOTHING;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_OK);
    assert_true(found && options[1] == 2);
    rules.least_confidence = 0.15; /* is above 1 / 7 */
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_OK);
    assert_false(found);
}

/* One attempt at the smaller of two anchors, of KL 0.4 and 0.2, sizes 1000 and 2000. */
static void test_success(void **state)
{
    static const struct {
        int64_t bytes;
        double kl;
        bool success;
    } cases[] = {
        {1000, 0.30, true}, {900, 0.39, true},    {900, 0.399, false}, /* 2 standard errors: 0.0028 */
        {1500, 0.29, true}, {1500, 0.299, false}, {1500, 0.31, false},
        {1999, 0.19, true}, {2000, 0.10, false},  {2100, 0.10, false}, /* this is another anchor's */
        {1000, NAN, false},
    };
    const struct measured anchors[] = {{.name = "a", .bytes = 1000, .kl = 0.4, .std_err = 0.001},
                                       {.name = "b", .bytes = 2000, .kl = 0.2, .std_err = 0.001}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct candidate_attempt attempt = {
            .file = {.name = "c", .bytes = cases[i].bytes, .kl = cases[i].kl, .std_err = 0.001}};
        const struct candidate_search search = {
            .anchors = anchors, .n_anchors = 2, .attempts = &attempt, .n_attempts = 1};
        if (candidate_succeeded(&search, 0) != cases[i].success)
            fail_msg("%lld bytes, KL %g", (long long)cases[i].bytes, cases[i].kl);
    }
}

static void test_refusals(void **state)
{
    static struct world w;
    const struct predictor p = predict_fit(NULL, 0);
    struct candidate_search search;
    struct candidate c;
    size_t options[N_GROUPS], none[N_GROUPS] = {0, 0, N_OPTIONS, 0};
    bool found;

    (void)state;
    make(&w, seed, true, true);
    search = make_search(&w, &p, &candidate_defaults);
    w.attempts[0] = (struct candidate_attempt){.phase = CANDIDATE_PLAN, .anchor = N_ANCHORS};
    search.n_attempts = 1;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_ARGUMENT);
    w.attempts[0] = (struct candidate_attempt){.phase = CANDIDATE_PHASES};
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_ARGUMENT);
    w.attempts[0] = (struct candidate_attempt){.file.options = none};
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_ARGUMENT);
    search.n_attempts = 0;
    w.anchors[1].kl = NAN;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_NUMERIC);
    make(&w, seed, true, true);
    w.choices[1][1].cost = NAN; /* an option without evidence must not be offered */
    search = make_search(&w, &p, &(struct candidate_rules){.attempts = {0, 1, 0, 0, 0}});
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_NUMERIC);
    make(&w, seed, true, true);
    w.weights[0] = 0;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_ERR_ARGUMENT);
    search.n_anchors = 0;
    w.weights[0] = 1;
    assert_int_equal(candidate_next(&c, options, &search, &found, &err), ALLOT_OK);
    assert_false(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_searches), cmocka_unit_test(test_first_is_optimal),
        cmocka_unit_test(test_fallback), cmocka_unit_test(test_twins_by_rule),
        cmocka_unit_test(test_success),  cmocka_unit_test(test_refusals)};
    const char *given = getenv("ALLOT_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (ALLOT_TEST_SEED repeats it)\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
