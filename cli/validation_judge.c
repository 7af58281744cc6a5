/* validation_judge.c - what a validation's measurements say about the costs.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "measure/rank.h"
#include "quant/quant.h"
#include "validation.h"

double validation_predicted(const struct validation *v, size_t set, size_t assignment)
{
    const struct gguf_model *model = v->job.model;
    double predicted = cost_set_in_nats(&v->sets[set].costs.set) ? 0 : NAN, cost;
    for (int64_t i = 0; i < model->n_tensors; i++)
        predicted +=
            validation_cost(&cost, &v->sets[set].costs, model, i, v->assignments[assignment].types[i]) ? cost
                                                                                                       : NAN;
    return predicted;
}

/* What a kernel's rounding adds on a text if it serves all weights. */
static double kernel_floor(const struct validation *v, size_t text, size_t set, enum ggml_type kernel)
{
    for (size_t k = 0; k < v->n_roundings; k++)
        if (v->roundings[k].kernel == kernel) {
            const size_t assignment = v->roundings[k].assignment;
            const double above =
                validation_kl(v, text, assignment).mean - validation_predicted(v, set, assignment);
            return above > 0 ? above : 0;
        }
    return 0;
}

double validation_floor(const struct validation *v, size_t text, const struct planned_trial *plan)
{
    const struct gguf_model *model = v->job.model;
    const enum ggml_type *types = v->assignments[plan->assignment].types;
    double floors[GGML_TYPE_COUNT], sum = 0, n_weights = 0;
    for (int kernel = 0; kernel < GGML_TYPE_COUNT; kernel++)
        floors[kernel] = kernel_floor(v, text, plan->set, (enum ggml_type)kernel);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const double n = (double)model->tensors[i].n_elements;
        if (!gguf_tensor_quantizable(&model->tensors[i]))
            continue;
        n_weights += n;
        if (types[i] != model->tensors[i].type)
            sum += n * floors[validation_kernel(types[i])];
    }
    return n_weights > 0 ? sum / n_weights : 0;
}

double validation_ratio(const struct validation *v, size_t text, const struct planned_trial *plan,
                        bool with_floor)
{
    if (!cost_set_in_nats(&v->sets[plan->set].costs.set))
        return NAN;
    return validation_kl(v, text, plan->assignment).mean /
           (plan->predicted + (with_floor ? validation_floor(v, text, plan) : 0));
}

bool validation_has_seen(const struct validation *v, const struct planned_trial *plan)
{
    return v->sets[plan->set].text != EVAL_TEXT;
}

/* ---- One tensor at a time ----------------------------------------------------------------------------- */

static allot_status rank_tensors(struct ranking *r, const struct validation *v, struct allot_error *err)
{
    const struct cost_table *costs = &v->sets[r->set].costs;
    const size_t room = v->n_degraded + 1;
    double *measured = calloc(room, sizeof *measured), *predicted = calloc(room, sizeof *predicted),
           *ratios = calloc(room, sizeof *ratios);
    size_t n_ratios = 0;
    allot_status status = measured && predicted && ratios
                              ? ALLOT_OK
                              : allot_fail_memory(err, room * sizeof *measured, "changes of KL");
    for (size_t k = 0; k < v->n_degraded && status == ALLOT_OK; k++) {
        const struct degraded *d = &v->degraded[k];
        const struct measure_mean change = validation_change(v, 1 + k);
        double low = 0, high = 0;
        validation_cost(&low, costs, v->job.model, d->tensor, d->low);
        validation_cost(&high, costs, v->job.model, d->tensor, d->high);
        measured[k] = change.mean;
        predicted[k] = low - high;
        r->n_clear += change.mean > 2 * change.se; /* no error, with one window: not clear */
        if (measured[k] > 0 && predicted[k] > 0 && cost_set_in_nats(&costs->set))
            ratios[n_ratios++] = measured[k] / predicted[k];
    }
    if (status == ALLOT_OK)
        status = rank_correlation(&r->rank, measured, predicted, v->n_degraded, err);
    if (status == ALLOT_OK) {
        const struct rank_quartiles q = rank_quartiles(ratios, n_ratios);
        r->n = v->n_degraded;
        r->first = q.first;
        r->median = q.median;
        r->third = q.third;
    }
    free(measured);
    free(predicted);
    free(ratios);
    return status;
}

/* ---- Plans --------------------------------------------------------------------------------------------- */

/* Widens least .. most to hold the ratio. */
static void widen(double *least, double *most, double ratio)
{
    *least = isnan(*least) || ratio < *least ? ratio : *least;
    *most = isnan(*most) || ratio > *most ? ratio : *most;
}

static void bound_ratios(struct ranking *r, const struct validation *v)
{
    double farthest = 0;
    r->least_ratio = r->most_ratio = r->least_seen = r->most_seen = r->farthest_bits = r->farthest_se = NAN;
    for (size_t i = 0; i < v->n_planned; i++) {
        const struct planned_trial *plan = &v->planned[i];
        const double ratio = validation_ratio(v, EVAL_TEXT, plan, true);
        if (plan->set != r->set || isnan(ratio))
            continue;
        const size_t text = v->sets[plan->set].text; /* the one that decides */
        const double decides = validation_ratio(v, text, plan, true), off = fabs(log(decides));
        widen(&r->least_ratio, &r->most_ratio, ratio);
        if (text != EVAL_TEXT)
            widen(&r->least_seen, &r->most_seen, decides);
        if (isnan(r->farthest_bits) || off > farthest) {
            const struct measure_mean kl = validation_kl(v, text, plan->assignment);
            farthest = off;
            r->farthest_bits = plan->bits_per_weight;
            r->farthest_se = decides * kl.se / kl.mean;
        }
    }
}

/* ---- The verdict ----------------------------------------------------------------------------------------
 */

static void say(struct ranking *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct ranking *r, const char *format, ...)
{
    const size_t n = strlen(r->sentence);
    va_list args;
    va_start(args, format);
    vsnprintf(r->sentence + n, sizeof r->sentence - n, format, args);
    va_end(args);
}

/* A way to costs that are nearer to the truth, if there is one. */
static void advise(struct ranking *r, const struct validation *v)
{
    const char *method = v->sets[r->set].costs.set.method;
    if (!cost_set_in_nats(&v->sets[r->set].costs.set)) {
        say(r, "; 'allot cost' with --method fisher or exact looks at the output");
        return;
    }
    say(r, "; calibrate with more --sequences, of text like the evaluation's");
    if (strcmp(method, "exact") != 0 && validation_method_known("exact"))
        say(r, ", or with --method exact");
    else if (strcmp(method, "probe") != 0 && strcmp(method, "exact") != 0)
        say(r, ", or with --method probe");
}

static bool within(double least, double most)
{
    return least >= LEAST_RATIO && most <= MOST_RATIO;
}

/* Of the text's own: predictions hold for the text that the costs are of, so what is off is the text. */
static void say_text(struct ranking *r)
{
    if (isnan(r->least_seen) || within(r->least_ratio, r->most_ratio))
        return;
    say(r,
        "; that is on the sequences that the costs are of, on the evaluation's text it is %.2f to %.2f times "
        "the "
        "predicted: calibrate with text like it if its KL is what you want predicted",
        r->least_ratio, r->most_ratio);
}

static void say_plans(struct ranking *r)
{
    const bool seen = !isnan(r->least_seen);
    const double least = seen ? r->least_seen : r->least_ratio, most = seen ? r->most_seen : r->most_ratio,
                 ratio = fabs(log(least)) > fabs(log(most)) ? least : most;
    if (isnan(ratio)) {
        say(r,
            "the order can be trusted (rank correlation %.3f), but there is no predicted KL to compare with "
            "measured",
            r->rank);
        return;
    }
    r->trusted = within(least, most);
    if (r->trusted) {
        say(r,
            "the plans can be trusted: rank correlation %.3f, and measured KL is %.2f to %.2f times the "
            "predicted with the floor",
            r->rank, least, most);
        say_text(r);
        return;
    }
    say(r,
        "tensors are ranked well (%.3f), so the plans are sound as to where bits go, but not the KL that "
        "they predict: measured%s it is %.2f times that at %.3g bits per weight (trusted: %.2f to %.2f); "
        "judge files by 'allot measure'; 'allot quantize --refine' improves plans from where they stand",
        r->rank, seen ? " on their costs' own text" : "", ratio, r->farthest_bits, LEAST_RATIO, MOST_RATIO);
    const double beyond = ratio > 1 ? ratio - MOST_RATIO : LEAST_RATIO - ratio;
    if (beyond < 2 * r->farthest_se)
        say(r, "; but the standard error of %.2f is %.2f, so more %s may tell otherwise", ratio,
            r->farthest_se, seen ? "--sequences" : "--windows");
}

static void judge(struct ranking *r, const struct validation *v)
{
    say(r, "%s: ", v->sets[r->set].costs.set.method);
    if (r->n < LEAST_TENSORS || isnan(r->rank))
        say(r, "too few tensors to judge (%zu)", r->n);
    else if ((double)r->n_clear < LEAST_CLEAR * (double)r->n)
        say(r,
            "cannot be judged: only %zu of %zu measured changes are above two standard errors; give more "
            "--windows",
            r->n_clear, r->n);
    else if (r->rank < LEAST_RANK) {
        say(r,
            "the plans are not to be trusted: rank correlation %.3f is below %.1f, some bits go to the wrong "
            "tensors",
            r->rank, LEAST_RANK);
        advise(r, v);
    } else {
        say_plans(r);
    }
}

/* ---- Methods beside each other ---------------------------------------------------------------------------
 */

enum type_class { ALL_TYPES, LOW_TYPES, HIGH_TYPES, N_CLASSES };
static const char *const class_names[N_CLASSES] = {"all", "below 3 bits", "3 bits and more"};

static bool in_class(enum ggml_type type, enum type_class of)
{
    const double bits = type_bits(type);
    return of == ALL_TYPES || (of == LOW_TYPES) == (bits < LOW_BITS);
}

/* costs, others: of a->set and a->reference, (n_tensors, GGML_TYPE_COUNT), NAN where there is none. */
static allot_status compare_costs(struct agreement *a, const struct validation *v, const double *costs,
                                  const double *others, enum type_class of, struct allot_error *err)
{
    const size_t room = (size_t)v->job.model->n_tensors * GGML_TYPE_COUNT + 1;
    double *x = malloc(room * sizeof *x), *y = malloc(room * sizeof *y);
    allot_status status = x && y ? ALLOT_OK : allot_fail_memory(err, room * sizeof *x, "pairs");
    a->types = class_names[of];
    for (size_t i = 0; i + 1 < room && status == ALLOT_OK; i++)
        if (costs[i] > 0 && others[i] > 0 && in_class((enum ggml_type)(i % GGML_TYPE_COUNT), of)) {
            x[a->n] = costs[i];
            y[a->n++] = others[i];
        }
    if (status == ALLOT_OK)
        status = rank_correlation(&a->rank, x, y, a->n, err);
    for (size_t i = 0; i < a->n && status == ALLOT_OK; i++)
        x[i] /= y[i];
    if (status == ALLOT_OK) {
        const bool same_unit = cost_set_in_nats(&v->sets[a->set].costs.set) ==
                               cost_set_in_nats(&v->sets[a->reference].costs.set);
        const struct rank_quartiles q = rank_quartiles(x, same_unit ? a->n : 0);
        a->first = q.first;
        a->median = q.median;
        a->third = q.third;
    }
    free(x);
    free(y);
    return status;
}

/* One entry a class. */
static allot_status compare_sets(struct agreement *agreements, size_t *n_agreements,
                                 const struct validation *v, size_t set, size_t reference,
                                 struct allot_error *err)
{
    const size_t n = (size_t)v->job.model->n_tensors * GGML_TYPE_COUNT + 1;
    double *costs = malloc(n * sizeof *costs), *others = malloc(n * sizeof *others);
    int64_t n_shared = 0, unused;
    allot_status status = costs && others ? ALLOT_OK : allot_fail_memory(err, n * sizeof *costs, "pairs");
    if (status == ALLOT_OK)
        status = validation_shared_costs(costs, &n_shared, v, set, reference, err);
    if (status == ALLOT_OK)
        status = validation_shared_costs(others, &unused, v, reference, reference, err);
    for (int of = 0; of < N_CLASSES && status == ALLOT_OK; of++) {
        struct agreement *a = &agreements[(*n_agreements)++];
        *a = (struct agreement){.set = set, .reference = reference, .n_shared = n_shared};
        status = compare_costs(a, v, costs, others, (enum type_class)of, err);
    }
    free(costs);
    free(others);
    return status;
}

/* The newest set of the method that assumes least. */
static size_t find_reference(const struct validation *v)
{
    static const char *const by_trust[] = {"exact", "probe", "fisher"};
    for (size_t m = 0; m < sizeof by_trust / sizeof *by_trust; m++)
        for (size_t s = 0; s < v->n_sets; s++)
            if (v->sets[s].newest && strcmp(v->sets[s].costs.set.method, by_trust[m]) == 0)
                return s;
    return 0;
}

allot_status validation_judge(struct ranking *rankings, size_t *n_rankings, struct agreement *agreements,
                              size_t *n_agreements, const struct validation *v, struct allot_error *err)
{
    const size_t reference = find_reference(v);
    allot_status status = ALLOT_OK;
    *n_rankings = *n_agreements = 0;
    for (size_t s = 0; s < v->n_sets && status == ALLOT_OK; s++) {
        if (!v->sets[s].newest)
            continue;
        struct ranking *r = &rankings[(*n_rankings)++];
        *r = (struct ranking){.set = s};
        status = rank_tensors(r, v, err);
        bound_ratios(r, v);
        judge(r, v);
        if (s != reference && status == ALLOT_OK)
            status = compare_sets(agreements, n_agreements, v, s, reference, err);
    }
    return status;
}
