/* validation_report.c - a validation as text or JSON.  SPDX-License-Identifier: MIT */
#include "validation_report.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "describe.h"

struct findings {
    const struct validation *v;
    struct ranking *rankings;
    struct agreement *agreements;
    size_t n_rankings, n_agreements;
};

static const struct archive_cost_set_info *info(const struct validation *v, size_t set)
{
    return &v->sets[set].costs.set;
}

/* ---- Text ------------------------------------------------------------------------------------------------
 */

/* ggml's name in upper case, as types of weights are written. */
static const char *upper_name(char name[static 16], enum ggml_type type)
{
    snprintf(name, 16, "%s", ggml_type_name(type));
    for (char *c = name; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    return name;
}

/* "-" for what there is not. */
static void number_cell(struct table *t, const char *format, double value)
{
    char text[64];
    snprintf(text, sizeof text, isfinite(value) ? format : "-", value);
    table_cell(t, "%s", text);
}

static void range_cell(struct table *t, double first, double third)
{
    if (isfinite(first) && isfinite(third))
        table_cell(t, "%.2f .. %.2f", first, third);
    else
        table_cell(t, "-");
}

static allot_status print_sets(const struct validation *v, struct allot_error *err)
{
    static const char *const headings[] = {"<costs", ">tokens", "<text", "<of", "<parameters"};
    struct table t;
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t s = 0; s < v->n_sets; s++) {
        table_cell(&t, "%s", info(v, s)->method);
        table_cell(&t, "%" PRId64, info(v, s)->n_tokens);
        table_cell(&t, "%.8s", info(v, s)->text_sha256);
        table_cell(&t, "%s", info(v, s)->updated);
        table_cell(&t, "%s", info(v, s)->params);
    }
    return table_print(&t, err);
}

static allot_status print_rankings(const struct findings *f, struct allot_error *err)
{
    static const char *const headings[] = {
        "<costs", ">tensors", ">clear", ">Spearman", ">measured/predicted", ">quartiles"};
    const struct measure_mean high = validation_kl(f->v, EVAL_TEXT, 0);
    struct table t;
    printf("\nOne tensor at a time in a low type, the others in %s (KL %.6f): change of KL\n",
           type_label(GGML_TYPE_Q8_0), high.mean);
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < f->n_rankings; i++) {
        const struct ranking *r = &f->rankings[i];
        table_cell(&t, "%s", info(f->v, r->set)->method);
        table_cell(&t, "%zu", r->n);
        table_cell(&t, "%zu", r->n_clear);
        number_cell(&t, "%.4f", r->rank);
        number_cell(&t, "%.3f", r->median);
        range_cell(&t, r->first, r->third);
    }
    return table_print(&t, err);
}

static allot_status print_agreements(const struct findings *f, struct allot_error *err)
{
    static const char *const headings[] = {"<costs", "<against",  "<types", "<sequences",
                                           ">pairs", ">Spearman", ">ratio", ">quartiles"};
    struct table t;
    if (f->n_agreements == 0)
        return ALLOT_OK;
    printf("\nCosts of the same tensor and type\n");
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < f->n_agreements; i++) {
        const struct agreement *a = &f->agreements[i];
        table_cell(&t, "%s", info(f->v, a->set)->method);
        table_cell(&t, "%s", info(f->v, a->reference)->method);
        table_cell(&t, "%s", a->types);
        if (a->n_shared > 0)
            table_cell(&t, "the same %" PRId64, a->n_shared);
        else
            table_cell(&t, "-");
        table_cell(&t, "%zu", a->n);
        number_cell(&t, "%.4f", a->rank);
        number_cell(&t, "%.3f", a->median);
        range_cell(&t, a->first, a->third);
    }
    return table_print(&t, err);
}

static allot_status print_roundings(const struct validation *v, struct allot_error *err)
{
    static const char *const headings[] = {"<costs", "<activations", "<types", ">predicted KL",
                                           ">measured KL"};
    struct table t;
    char kernel[16];
    printf("\nAll tensors in a fine type: what the kernels add by rounding activations\n");
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t s = 0; s < v->n_sets; s++)
        for (size_t k = 0; k < v->n_roundings; k++) {
            const struct rounding *r = &v->roundings[k];
            table_cell(&t, "%s", info(v, s)->method);
            table_cell(&t, "%s", upper_name(kernel, r->kernel));
            table_cell(&t, "%s", type_label(r->finest));
            number_cell(&t, "%.6f", validation_predicted(v, s, r->assignment));
            number_cell(&t, "%.6f", validation_kl(v, EVAL_TEXT, r->assignment).mean);
        }
    return table_print(&t, err);
}

static allot_status print_plans(const struct validation *v, struct allot_error *err)
{
    static const char *const headings[] = {"<costs",
                                           "<text",
                                           ">bits",
                                           ">file",
                                           ">predicted KL",
                                           ">measured KL",
                                           ">measured/predicted",
                                           ">floor",
                                           ">with the floor",
                                           ">on the costs' text"};
    struct table t;
    if (v->n_planned == 0)
        return ALLOT_OK;
    printf("\nPlans (the floor is what their kernels' rounding of activations adds)\n");
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < v->n_planned; i++) {
        const struct planned_trial *plan = &v->planned[i];
        const struct measure_mean kl = validation_kl(v, EVAL_TEXT, plan->assignment);
        char size[32];
        table_cell(&t, "%s", info(v, plan->set)->method);
        table_cell(&t, "%.8s", info(v, plan->set)->text_sha256);
        table_cell(&t, "%.2f", plan->bits_per_weight);
        table_cell(&t, "%s", str_size(size, plan->file_bytes));
        number_cell(&t, "%.6f", cost_set_in_nats(info(v, plan->set)) ? plan->predicted : (double)NAN);
        table_cell(&t, isfinite(kl.se) ? "%.6f ± %.6f" : "%.6f", kl.mean, kl.se);
        number_cell(&t, "%.3f", validation_ratio(v, EVAL_TEXT, plan, false));
        number_cell(&t, "%.6f",
                    cost_set_in_nats(info(v, plan->set)) ? validation_floor(v, EVAL_TEXT, plan)
                                                         : (double)NAN);
        number_cell(&t, "%.3f", validation_ratio(v, EVAL_TEXT, plan, true));
        number_cell(&t, "%.3f",
                    validation_has_seen(v, plan) ? validation_ratio(v, v->sets[plan->set].text, plan, true)
                                                 : (double)NAN);
    }
    return table_print(&t, err);
}

static allot_status print_verdicts(const struct findings *f, struct allot_error *err)
{
    struct strbuf sb = {0};
    for (size_t i = 0; i < f->n_rankings; i++) {
        strbuf_addf(&sb, "\n");
        options_wrap(&sb, f->rankings[i].sentence, 0, 2);
    }
    allot_status status = strbuf_check(&sb, err);
    if (status == ALLOT_OK)
        fputs(sb.data, stdout);
    strbuf_release(&sb);
    return status;
}

static allot_status print_text(const struct findings *f, struct allot_error *err)
{
    const struct validation *v = f->v;
    printf("%s on %" PRId64 " windows of %d tokens; KL in nats per token\n\n", v->job.model->path,
           v->windows[EVAL_TEXT].n, v->windows[EVAL_TEXT].n_ctx);
    allot_status status = print_sets(v, err);
    if (status == ALLOT_OK)
        status = print_rankings(f, err);
    if (status == ALLOT_OK)
        status = print_agreements(f, err);
    if (status == ALLOT_OK)
        status = print_roundings(v, err);
    if (status == ALLOT_OK)
        status = print_plans(v, err);
    return status == ALLOT_OK ? print_verdicts(f, err) : status;
}

/* ---- JSON ------------------------------------------------------------------------------------------------
 */

static json_t *quartiles_json(double first, double median, double third)
{
    return json_pack("[o,o,o]", json_number(first), json_number(median), json_number(third));
}

static json_t *mean_json(struct measure_mean value)
{
    return json_mean(value.mean, value.se);
}

static json_t *roundings_json(const struct validation *v, size_t set)
{
    json_t *array = json_array();
    for (size_t k = 0; k < v->n_roundings; k++) {
        const struct rounding *r = &v->roundings[k];
        json_t *entry = json_object();
        char kernel[16];
        json_put(entry, "activations", json_text(upper_name(kernel, r->kernel)));
        json_put(entry, "type", json_text(type_label(r->finest)));
        json_put(entry, "kl", mean_json(validation_kl(v, EVAL_TEXT, r->assignment)));
        json_put(entry, "predicted", json_number(validation_predicted(v, set, r->assignment)));
        json_array_append_new(array, entry);
    }
    return array;
}

static json_t *sets_json(const struct validation *v)
{
    json_t *array = json_array();
    for (size_t s = 0; s < v->n_sets; s++) {
        json_t *set = json_object();
        json_put(set, "method", json_text(info(v, s)->method));
        json_put(set, "params", json_text(info(v, s)->params));
        json_put(set, "text_sha256", json_text(info(v, s)->text_sha256));
        json_put(set, "tokens", json_integer(info(v, s)->n_tokens));
        json_put(set, "version", json_text(info(v, s)->version));
        json_put(set, "updated", json_text(info(v, s)->updated));
        json_put(set, "newest_of_method", json_boolean(v->sets[s].newest));
        json_put(set, "roundings", roundings_json(v, s));
        json_array_append_new(array, set);
    }
    return array;
}

/* Every tensor: types, the measured change and each method's. */
static json_t *tensors_json(const struct validation *v)
{
    json_t *object = json_object();
    for (size_t k = 0; k < v->n_degraded; k++) {
        const struct degraded *d = &v->degraded[k];
        json_t *tensor = json_object(), *predicted = json_object();
        for (size_t s = 0; s < v->n_sets; s++) {
            double low, high;
            if (v->sets[s].newest &&
                validation_cost(&low, &v->sets[s].costs, v->job.model, d->tensor, d->low) &&
                validation_cost(&high, &v->sets[s].costs, v->job.model, d->tensor, d->high))
                json_put(predicted, info(v, s)->method, json_number(low - high));
        }
        json_put(tensor, "low", json_text(type_label(d->low)));
        json_put(tensor, "high", json_text(type_label(d->high)));
        json_put(tensor, "kl", mean_json(validation_kl(v, EVAL_TEXT, 1 + k)));
        json_put(tensor, "change", mean_json(validation_change(v, 1 + k)));
        json_put(tensor, "predicted", predicted);
        json_put(object, v->job.model->tensors[d->tensor].name, tensor);
    }
    return object;
}

static json_t *rankings_json(const struct findings *f)
{
    json_t *array = json_array();
    for (size_t i = 0; i < f->n_rankings; i++) {
        const struct ranking *r = &f->rankings[i];
        json_t *entry = json_object();
        json_put(entry, "method", json_text(info(f->v, r->set)->method));
        json_put(entry, "tensors", json_integer((json_int_t)r->n));
        json_put(entry, "clear", json_integer((json_int_t)r->n_clear));
        json_put(entry, "spearman", json_number(r->rank));
        json_put(entry, "ratio_quartiles", quartiles_json(r->first, r->median, r->third));
        json_put(entry, "least_plan_ratio", json_number(r->least_ratio));
        json_put(entry, "most_plan_ratio", json_number(r->most_ratio));
        json_put(entry, "least_plan_ratio_on_costs_text", json_number(r->least_seen));
        json_put(entry, "most_plan_ratio_on_costs_text", json_number(r->most_seen));
        json_put(entry, "trusted", json_boolean(r->trusted));
        json_put(entry, "verdict", json_text(r->sentence));
        json_array_append_new(array, entry);
    }
    return array;
}

static json_t *agreements_json(const struct findings *f)
{
    json_t *array = json_array();
    for (size_t i = 0; i < f->n_agreements; i++) {
        const struct agreement *a = &f->agreements[i];
        json_t *entry = json_object();
        json_put(entry, "method", json_text(info(f->v, a->set)->method));
        json_put(entry, "reference", json_text(info(f->v, a->reference)->method));
        json_put(entry, "types", json_text(a->types));
        json_put(entry, "shared_sequences", json_integer(a->n_shared));
        json_put(entry, "pairs", json_integer((json_int_t)a->n));
        json_put(entry, "spearman", json_number(a->rank));
        json_put(entry, "ratio_quartiles", quartiles_json(a->first, a->median, a->third));
        json_array_append_new(array, entry);
    }
    return array;
}

static json_t *seen_json(const struct validation *v, const struct planned_trial *plan)
{
    const size_t text = v->sets[plan->set].text;
    json_t *object = json_object();
    if (!validation_has_seen(v, plan))
        return object;
    json_put(object, "windows", json_integer(v->windows[text].n));
    json_put(object, "kl", mean_json(validation_kl(v, text, plan->assignment)));
    json_put(object, "floor", json_number(validation_floor(v, text, plan)));
    json_put(object, "ratio", json_number(validation_ratio(v, text, plan, false)));
    json_put(object, "ratio_with_floor", json_number(validation_ratio(v, text, plan, true)));
    return object;
}

static json_t *plans_json(const struct validation *v)
{
    json_t *array = json_array();
    for (size_t i = 0; i < v->n_planned; i++) {
        const struct planned_trial *plan = &v->planned[i];
        const struct assignment *a = &v->assignments[plan->assignment];
        json_t *entry = json_object(), *types = json_object();
        for (int64_t k = 0; k < v->job.model->n_tensors; k++)
            if (gguf_tensor_quantizable(&v->job.model->tensors[k]))
                json_put(types, v->job.model->tensors[k].name, json_text(type_label(a->types[k])));
        json_put(entry, "method", json_text(info(v, plan->set)->method));
        json_put(entry, "text_sha256", json_text(info(v, plan->set)->text_sha256));
        json_put(entry, "bits_per_weight", json_number(plan->bits_per_weight));
        json_put(entry, "file_bytes", json_integer(plan->file_bytes));
        const bool in_nats = cost_set_in_nats(info(v, plan->set));
        json_put(entry, "predicted", json_number(in_nats ? plan->predicted : (double)NAN));
        json_put(entry, "kl", mean_json(validation_kl(v, EVAL_TEXT, plan->assignment)));
        json_put(entry, "floor", json_number(in_nats ? validation_floor(v, EVAL_TEXT, plan) : (double)NAN));
        json_put(entry, "ratio", json_number(validation_ratio(v, EVAL_TEXT, plan, false)));
        json_put(entry, "ratio_with_floor", json_number(validation_ratio(v, EVAL_TEXT, plan, true)));
        json_put(entry, "on_costs_text", seen_json(v, plan));
        json_put(entry, "types", types);
        json_array_append_new(array, entry);
    }
    return array;
}

static allot_status print_json(const struct findings *f, struct allot_error *err)
{
    const struct validation *v = f->v;
    json_t *document = json_object();
    const struct seen_overlap *overlap = &f->v->overlap;
    json_put(document, "overlap", overlap->known ? json_number(overlap->share) : json_null());
    json_put(document, "model", json_text(v->job.model->path));
    json_put(document, "archive", json_text(v->job.archive_path));
    json_put(document, "imatrix_sha256", json_text(v->imatrix.present ? v->imatrix.data.sha256 : ""));
    json_put(document, "eval_sha256", json_text(v->windows[EVAL_TEXT].sha256));
    json_put(document, "windows", json_integer(v->windows[EVAL_TEXT].n));
    json_put(document, "ctx", json_integer(v->windows[EVAL_TEXT].n_ctx));
    json_put(document, "measurements", json_integer((json_int_t)v->n_measurements));
    json_put(document, "resumed", json_integer((json_int_t)v->n_resumed));
    json_put(document, "costs", sets_json(v));
    json_put(document, "high_kl", mean_json(validation_kl(v, EVAL_TEXT, 0)));
    json_put(document, "methods", rankings_json(f));
    json_put(document, "agreement", agreements_json(f));
    json_put(document, "plans", plans_json(v));
    json_put(document, "tensors", tensors_json(v));
    return json_print(document, err);
}

allot_status validation_print(const struct validation *v, struct allot_error *err)
{
    struct findings f = {.v = v,
                         .rankings = calloc(v->n_sets + 1, sizeof *f.rankings),
                         .agreements = calloc(3 * v->n_sets + 1, sizeof *f.agreements)};
    allot_status status =
        f.rankings && f.agreements
            ? validation_judge(f.rankings, &f.n_rankings, f.agreements, &f.n_agreements, v, err)
            : allot_fail_memory(err, v->n_sets * sizeof *f.rankings, "findings");
    if (status == ALLOT_OK)
        status = v->args->calibrated.sized.common.json ? print_json(&f, err) : print_text(&f, err);
    free(f.rankings);
    free(f.agreements);
    return status;
}
