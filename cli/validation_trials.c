/* validation_trials.c - what a validation measures: types in the model's place, each measurement kept as it
 * is made. SPDX-License-Identifier: MIT */
#include "validation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mean.h"
#include "cost/trial.h"
#include "describe.h"
#include "ggml-cpu.h"
#include "quant/quant.h"
#include "tried.h"

/* ---- Which types ------------------------------------------------------------------------------------ */

/* Is the type wanted, and do the newest sets of all methods tell of the tensor in it? */
static bool all_tell(const struct validation *v, int64_t tensor, enum ggml_type type)
{
    double cost;
    bool all = !v->allowed.given || v->allowed.has[type] || type == v->job.model->tensors[tensor].type;
    for (size_t s = 0; s < v->n_sets; s++)
        all &= !v->sets[s].newest || validation_cost(&cost, &v->sets[s].costs, v->job.model, tensor, type);
    return all;
}

/* The preferred type or its fallback; else the one of most bits. The tensor's own if there is no other. */
static enum ggml_type high_type(const struct validation *v, int64_t tensor)
{
    const struct gguf_tensor *t = &v->job.model->tensors[tensor];
    const enum ggml_type preferred = quant_type_fallback(GGML_TYPE_Q8_0, t->ne[0]);
    size_t n;
    const struct quant_type *types = quant_types(&n);
    if (all_tell(v, tensor, preferred))
        return preferred;
    while (n-- > 0)
        if (types[n].type != t->type && all_tell(v, tensor, types[n].type))
            return types[n].type;
    return t->type;
}

/* Q2_K; else the candidate of fewest bits that needs no importances that there are not (those have no cost).
 */
static enum ggml_type low_type(const struct validation *v, int64_t tensor)
{
    size_t n;
    const struct quant_type *types = quant_types(&n);
    if (all_tell(v, tensor, GGML_TYPE_Q2_K))
        return GGML_TYPE_Q2_K;
    for (size_t i = 0; i < n; i++)
        if (types[i].default_candidate && all_tell(v, tensor, types[i].type))
            return types[i].type;
    return v->job.model->tensors[tensor].type;
}

/* The new assignment's types are those of `from`, or the model's own (NULL). */
static struct assignment *add_assignment(struct validation *v, const enum ggml_type *from,
                                         struct allot_error *err)
{
    const struct gguf_model *model = v->job.model;
    const size_t n = (size_t)model->n_tensors + 1;
    struct assignment *grown = realloc(v->assignments, (v->n_assignments + 1) * sizeof *grown), *a;
    if (grown == NULL) {
        allot_fail_memory(err, (v->n_assignments + 1) * sizeof *grown, "trials");
        return NULL;
    }
    v->assignments = grown;
    a = &grown[v->n_assignments++];
    *a = (struct assignment){.types = calloc(n, sizeof *a->types)};
    if (a->types == NULL) {
        allot_fail_memory(err, n * sizeof *a->types, "trials");
        return NULL;
    }
    for (int64_t i = 0; i < model->n_tensors; i++)
        a->types[i] = from ? from[i] : model->tensors[i].type;
    return a;
}

static allot_status list_degraded(struct validation *v, const struct trial *trial, struct allot_error *err)
{
    const struct gguf_model *model = v->job.model;
    struct assignment *high = add_assignment(v, NULL, err);
    v->degraded = calloc((size_t)model->n_tensors + 1, sizeof *v->degraded);
    if (high == NULL)
        return err->status;
    if (v->degraded == NULL)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *v->degraded, "tensors");
    snprintf(high->label, sizeof high->label, "all tensors in %s", type_label(GGML_TYPE_Q8_0));
    for (int64_t i = 0; i < model->n_tensors; i++) {
        if (!gguf_tensor_quantizable(&model->tensors[i]) || !trial_usable(trial, i))
            continue;
        struct degraded d = {i, low_type(v, i), high_type(v, i)};
        high->types[i] = d.high;
        if (type_bits(d.low) < type_bits(d.high))
            v->degraded[v->n_degraded++] = d;
    }
    for (size_t k = 0; k < v->n_degraded; k++) {
        const struct degraded *d = &v->degraded[k];
        struct assignment *a = add_assignment(v, v->assignments[0].types, err);
        if (a == NULL)
            return err->status;
        a->types[d->tensor] = d->low;
        snprintf(a->label, sizeof a->label, "%.100s in %s", model->tensors[d->tensor].name,
                 type_label(d->low));
    }
    return ALLOT_OK;
}

/* ---- Plans ------------------------------------------------------------------------------------------ */

struct size_list {
    struct validation_size *items;
    size_t n;
    bool bpw;
};

static allot_status add_size(void *user, const char *item, struct allot_error *err)
{
    struct size_list *list = user;
    struct validation_size *grown = realloc(list->items, (list->n + 1) * sizeof *grown), *size;
    char *end;
    if (grown == NULL)
        return allot_fail_memory(err, (list->n + 1) * sizeof *grown, "sizes");
    list->items = grown;
    size = &grown[list->n++];
    *size = (struct validation_size){.bpw = list->bpw ? strtod(item, &end) : 0};
    snprintf(size->rung.text, sizeof size->rung.text, "%.31s", item);
    if (list->bpw && (*end || !(size->bpw > 0) || size->bpw > 64))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--bpw: '%s' is not a number of bits per weight", item);
    if (!list->bpw && (!str_parse_size(item, &size->rung.bytes) || size->rung.bytes == 0))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--size: '%s' is not a size (such as 6GB or 5.5GiB)",
                          item);
    return ALLOT_OK;
}

allot_status validation_sizes(struct validation_size **out, size_t *n, const struct validate_arguments *args,
                              struct allot_error *err)
{
    struct size_list list = {.bpw = args->sizes == NULL};
    allot_status status = validation_each_item(list.bpw ? args->bpw : args->sizes, add_size, &list, err);
    if (status != ALLOT_OK) {
        free(list.items);
        return status;
    }
    *out = list.items;
    *n = list.n;
    return ALLOT_OK;
}

/* The plan as far as it can be tried: tensors that cannot get another type keep theirs, at no cost. A plan
 * that quantizes nothing says nothing about costs and is left out. */
static allot_status add_planned(struct validation *v, size_t set, const struct type_plan *plan,
                                const struct trial *trial, struct allot_error *err)
{
    const struct gguf_model *model = v->job.model;
    double predicted = 0, cost;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (trial_usable(trial, i) && validation_cost(&cost, &v->sets[set].costs, model, i, plan->types[i]))
            predicted += cost;
    if (predicted <= 0)
        return ALLOT_OK;
    struct assignment *a = add_assignment(v, plan->types, err);
    if (a == NULL)
        return err->status;
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (!trial_usable(trial, i))
            a->types[i] = model->tensors[i].type;
    const double bits = bits_per_weight(plan->data_bytes, model_parameters(model));
    snprintf(a->label, sizeof a->label, "the plan of %s at %.3g bits per weight",
             v->sets[set].costs.set.method, bits);
    v->planned[v->n_planned++] = (struct planned_trial){
        .set = set,
        .bits_per_weight = bits,
        .file_bytes = plan->file_bytes,
        .predicted = predicted,
        .assignment = v->n_assignments - 1,
    };
    return ALLOT_OK;
}

/* Bits per weight of the smallest plan, with room for a few choices. */
static double least_bpw(const struct validation *v, size_t set)
{
    const struct type_set *allowed = &v->allowed;
    const struct gguf_model *model = v->job.model;
    int64_t sum = 0;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct tensor_costs *costs = &v->sets[set].costs.tensors[i];
        int64_t least = gguf_padded(model->tensors[i].n_bytes);
        for (size_t c = 0; c < costs->n; c++)
            if (costs->choices[c].bytes < least && (!allowed->given || allowed->has[costs->choices[c].type]))
                least = costs->choices[c].bytes;
        sum += least;
    }
    return 1.02 * bits_per_weight(sum, model_parameters(model));
}

/* Plans for one size by one set; none where the set cannot reach it, which is told. */
static allot_status list_plan(struct validation *v, size_t set, const struct validation_size *size,
                              const struct trial *trial, const struct allot_progress *progress,
                              struct allot_error *err)
{
    struct provenance keys;
    struct type_plan plan = {0};
    struct constraints constraints = {0};
    struct knapsack knapsack = {0};
    struct sized_arguments sized = v->args->calibrated.sized;
    sized.bpw = size->bpw;
    sized.sizes = size->bpw > 0 ? NULL : v->args->sizes;
    provenance_fill(&keys, &v->imatrix, v->imatrix.path ? v->imatrix.path : "imatrix.gguf", v->job.sha256);
    allot_status status = constraints_parse(&constraints, v->args->calibrated.types, &sized.constraints, err);
    if (status == ALLOT_OK)
        status = constraints_bind(&constraints, v->job.model, err);
    if (status == ALLOT_OK)
        status = knapsack_init(&knapsack, v->job.model, &v->sets[set].costs, &constraints, err);
    if (status == ALLOT_OK)
        status = type_plan_solve(&plan, &knapsack, &sized, &size->rung, &keys, err);
    if (status == ALLOT_OK)
        status = add_planned(v, set, &plan, trial, err);
    else if (status == ALLOT_ERR_INFEASIBLE)
        allot_note(progress, "no plan by %s: %s", v->sets[set].costs.set.method, err->message);
    type_plan_release(&plan);
    knapsack_release(&knapsack);
    constraints_release(&constraints);
    return status == ALLOT_ERR_INFEASIBLE ? ALLOT_OK : status;
}

/* Of the sizes that nobody asked for, those below the smallest plan become that one. */
static allot_status list_plans(struct validation *v, const struct trial *trial,
                               const struct allot_progress *progress, struct allot_error *err)
{
    const struct string_list *given = &v->args->calibrated.sized.common.given;
    const bool asked = string_list_has(given, "bpw") || v->args->sizes;
    struct validation_size *sizes = NULL;
    size_t n = 0;
    allot_status status = validation_sizes(&sizes, &n, v->args, err);
    v->planned = calloc(n * v->n_sets + 1, sizeof *v->planned);
    if (status == ALLOT_OK && v->planned == NULL)
        status = allot_fail_memory(err, n * v->n_sets * sizeof *v->planned, "plans");
    for (size_t s = 0; s < v->n_sets && status == ALLOT_OK; s++) {
        const double least = asked ? 0 : least_bpw(v, s);
        double last = 0;
        for (size_t i = 0; i < n && status == ALLOT_OK; i++) {
            struct validation_size size = sizes[i];
            size.bpw = size.bpw < least ? least : size.bpw;
            if (asked || size.bpw != last)
                status = list_plan(v, s, &size, trial, progress, err);
            last = size.bpw;
        }
    }
    free(sizes);
    return status;
}

/* ---- Rounding ----------------------------------------------------------------------------------------- */

enum ggml_type validation_kernel(enum ggml_type type)
{
    return ggml_get_type_traits_cpu(type)->vec_dot_type;
}

/* The tensor's type of most bits with this kernel; else the one of assignment 0. */
static enum ggml_type finest_type(const struct validation *v, int64_t tensor, enum ggml_type kernel)
{
    const enum ggml_type high = v->assignments[0].types[tensor], own = v->job.model->tensors[tensor].type;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    while (high != own && n-- > 0)
        if (types[n].type != own && ggml_is_quantized(types[n].type) &&
            validation_kernel(types[n].type) == kernel && all_tell(v, tensor, types[n].type))
            return types[n].type;
    return high;
}

static allot_status add_rounding(struct validation *v, enum ggml_type kernel, struct allot_error *err)
{
    struct rounding *r = &v->roundings[v->n_roundings];
    *r = (struct rounding){kernel, GGML_TYPE_Q8_0, 0};
    for (size_t k = 0; k < v->n_roundings; k++)
        if (v->roundings[k].kernel == kernel)
            return ALLOT_OK;
    if (v->n_roundings > 0) {
        struct assignment *a = add_assignment(v, v->assignments[0].types, err);
        if (a == NULL)
            return err->status;
        r->assignment = v->n_assignments - 1;
        for (int64_t i = 0; i < v->job.model->n_tensors; i++) {
            a->types[i] = finest_type(v, i, kernel);
            if (validation_kernel(a->types[i]) == kernel && a->types[i] != v->job.model->tensors[i].type)
                r->finest = a->types[i];
        }
        snprintf(a->label, sizeof a->label, "all tensors in %s", type_label(r->finest));
    }
    v->n_roundings++;
    return ALLOT_OK;
}

/* Of all kernels that the plans use. */
static allot_status list_roundings(struct validation *v, struct allot_error *err)
{
    allot_status status = add_rounding(v, validation_kernel(GGML_TYPE_Q8_0), err);
    for (size_t p = 0; p < v->n_planned; p++)
        for (int64_t i = 0; i < v->job.model->n_tensors && status == ALLOT_OK; i++) {
            const enum ggml_type type = v->assignments[v->planned[p].assignment].types[i];
            if (type != v->job.model->tensors[i].type && ggml_is_quantized(type))
                status = add_rounding(v, validation_kernel(type), err);
        }
    return status;
}

/* ---- Measurements ------------------------------------------------------------------------------------- */

static struct tried tried_with(const struct validation *v, size_t text)
{
    return (struct tried){&v->job, &v->imatrix, &v->windows[text]};
}

/* Takes what is on record. */
static allot_status recall(struct validation *v, size_t text, struct assignment *a, struct allot_error *err)
{
    const struct tried with = tried_with(v, text);
    if (a->on[text].kl == NULL)
        a->on[text].kl = calloc((size_t)v->windows[text].n + 1, sizeof *a->on[text].kl);
    if (a->on[text].kl == NULL)
        return allot_fail_memory(err, (size_t)v->windows[text].n * sizeof *a->on[text].kl, "trials");
    return tried_recall(&a->on[text].measured, a->on[text].kl, NULL, &with, a->types, err);
}

/* Is the assignment to be measured on the text? On that of costs: their plans, and what floors need. */
static bool wanted_on(const struct validation *v, size_t text, size_t assignment)
{
    bool wanted = text == EVAL_TEXT;
    for (size_t p = 0; p < v->n_planned; p++)
        wanted |= v->planned[p].assignment == assignment && v->sets[v->planned[p].set].text == text;
    for (size_t k = 0; k < v->n_roundings; k++)
        wanted |= v->roundings[k].assignment == assignment;
    return wanted;
}

static void say_time(const struct validation *v, size_t text, size_t n_lacking, double seconds,
                     const struct allot_progress *progress)
{
    char time[32];
    str_duration(time, seconds * (double)n_lacking);
    if (text == EVAL_TEXT)
        allot_note(progress,
                   "validate: %zu tensors in turn and %zu plans, %zu measurements of them on record; for the "
                   "others a forward pass of %.3g s each: %s",
                   v->n_degraded, v->n_planned, v->n_resumed, seconds, time);
    else
        allot_note(progress,
                   "validate: plans on the text that their costs are of: %zu forward passes of %.3g s: %s",
                   n_lacking, seconds, time);
}

/* Those of assignments first .. first + n - 1 that are wanted. */
static allot_status run_stage(struct validation *v, struct trial *trial, size_t text, const char *stage,
                              size_t first, size_t n, const struct allot_progress *progress,
                              struct allot_error *err)
{
    const struct tried with = tried_with(v, text);
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < n && status == ALLOT_OK; i++) {
        struct assignment *a = &v->assignments[first + i];
        const struct trial_step step = {stage, (int64_t)i, (int64_t)n};
        if (!wanted_on(v, text, first + i) || a->on[text].measured)
            continue;
        status = recall(v, text, a, err); /* two plans may be the same */
        if (status != ALLOT_OK || a->on[text].measured)
            continue;
        status = tried_measure(a->on[text].kl, NULL, &with, trial, a->types, a->label, &step, progress, err);
        if (status == ALLOT_ERR_NUMERIC) {
            const struct allot_error cause = *err;
            return allot_fail(err, status, "%s: %s", a->label, cause.message);
        }
        a->on[text].measured = status == ALLOT_OK;
    }
    return status;
}

/* What the archive has of a text; *n_lacking: what it has not. */
static allot_status recall_all(struct validation *v, size_t text, size_t *n_lacking, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    *n_lacking = 0;
    for (size_t i = 0; i < v->n_assignments && status == ALLOT_OK; i++) {
        struct assignment *a = &v->assignments[i];
        if (!wanted_on(v, text, i))
            continue;
        status = recall(v, text, a, err);
        v->n_measurements++;
        v->n_resumed += a->on[text].measured;
        *n_lacking += !a->on[text].measured;
    }
    return status;
}

static allot_status run_trials(struct validation *v, struct trial *trial, size_t text, size_t n_lacking,
                               const struct allot_progress *progress, struct allot_error *err)
{
    const size_t n_first = 1 + v->n_degraded;
    double seconds;
    allot_status status = trial_begin(trial, &seconds, err);
    if (status == ALLOT_OK)
        say_time(v, text, n_lacking, seconds, progress);
    if (status == ALLOT_OK)
        status = run_stage(v, trial, text, "one tensor in a low type", 0, n_first, progress, err);
    if (status == ALLOT_OK)
        status = run_stage(v, trial, text, text == EVAL_TEXT ? "plans" : "plans on their costs' text",
                           n_first, v->n_assignments - n_first, progress, err);
    return status;
}

static allot_status open_trial(struct trial **trial, struct validation *v, size_t text,
                               const struct allot_progress *progress, struct allot_error *err)
{
    allot_status status = allot_report(progress, err, "load", 0, 1);
    if (status == ALLOT_OK)
        status = trial_open(trial, v->job.model, v->pool, &v->windows[text],
                            v->imatrix.present ? &v->imatrix.data : NULL, &v->memory, err);
    return status;
}

/* Plans on the text that their costs are of. */
static allot_status measure_seen(struct validation *v, const struct allot_progress *progress,
                                 struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    for (size_t text = EVAL_TEXT + 1; text < v->n_texts && v->n_planned > 0 && status == ALLOT_OK; text++) {
        struct trial *trial = NULL;
        size_t n_lacking;
        status = recall_all(v, text, &n_lacking, err);
        if (status != ALLOT_OK || n_lacking == 0)
            continue;
        status = open_trial(&trial, v, text, progress, err);
        if (status == ALLOT_OK)
            status = run_trials(v, trial, text, n_lacking, progress, err);
        trial_close(trial);
    }
    return status;
}

allot_status validation_measure(struct validation *v, const struct allot_progress *progress,
                                struct allot_error *err)
{
    struct trial *trial = NULL;
    size_t n_lacking = 0;
    allot_status status = open_trial(&trial, v, EVAL_TEXT, progress, err);
    if (status == ALLOT_OK)
        status = list_degraded(v, trial, err);
    if (status == ALLOT_OK)
        status = list_plans(v, trial, progress, err);
    if (status == ALLOT_OK)
        status = list_roundings(v, err);
    if (status == ALLOT_OK)
        status = recall_all(v, EVAL_TEXT, &n_lacking, err);
    if (status == ALLOT_OK && n_lacking > 0)
        status = run_trials(v, trial, EVAL_TEXT, n_lacking, progress, err);
    trial_close(trial);
    return status == ALLOT_OK ? measure_seen(v, progress, err) : status;
}

/* ---- Means over windows ------------------------------------------------------------------------------ */

static struct measure_mean mean_of(const double *kl, const double *less, int64_t n)
{
    struct mean mean = {0};
    for (int64_t w = 0; w < n; w++)
        mean_add(&mean, kl[w] - (less ? less[w] : 0));
    return (struct measure_mean){mean.mean, n > 1 ? mean_std_err(&mean) : NAN};
}

struct measure_mean validation_kl(const struct validation *v, size_t text, size_t assignment)
{
    return mean_of(v->assignments[assignment].on[text].kl, NULL, v->windows[text].n);
}

struct measure_mean validation_change(const struct validation *v, size_t assignment)
{
    return mean_of(v->assignments[assignment].on[EVAL_TEXT].kl, v->assignments[0].on[EVAL_TEXT].kl,
                   v->windows[EVAL_TEXT].n);
}
