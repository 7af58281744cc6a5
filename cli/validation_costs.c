/* validation_costs.c - the sets of costs that a validation judges.  SPDX-License-Identifier: MIT */
#include "validation.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant/quant.h"

enum { MAX_METHODS = 16, NAME_SIZE = 32 };

struct wanted {
    char names[MAX_METHODS][NAME_SIZE];
    size_t n, n_named; /* the rest are judged only because they are on record */
    bool must;         /* the user named them */
};

bool validation_method_known(const char *name)
{
    struct allot_error unused;
    const struct calibrated_arguments args = {.method = name, .chunk = 1, .sequence_length = 1};
    return calibration_check(&args, &unused) == ALLOT_OK;
}

allot_status validation_each_item(const char *list,
                                  allot_status (*each)(void *user, const char *item, struct allot_error *err),
                                  void *user, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    while (status == ALLOT_OK && list != NULL && *list) {
        char item[64];
        size_t n = strcspn(list, ",");
        if (n == 0 || n >= sizeof item)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "'%s' is no comma-separated list", list);
        memcpy(item, list, n);
        item[n] = '\0';
        list += n + (list[n] == ',');
        status = each(user, item, err);
    }
    return status;
}

bool validation_cost(double *cost, const struct cost_table *costs, const struct gguf_model *model,
                     int64_t tensor, enum ggml_type type)
{
    const struct tensor_costs *of = &costs->tensors[tensor];
    *cost = 0;
    if (type == model->tensors[tensor].type)
        return true;
    for (size_t c = 0; c < of->n; c++)
        if (of->choices[c].type == (int)type) {
            *cost = of->choices[c].cost;
            return true;
        }
    return false;
}

/* ---- Methods --------------------------------------------------------------------------------------- */

static allot_status want(void *user, const char *name, struct allot_error *err)
{
    struct wanted *wanted = user;
    for (size_t i = 0; i < wanted->n; i++)
        if (strcmp(wanted->names[i], name) == 0)
            return ALLOT_OK;
    if (wanted->n == MAX_METHODS || strlen(name) >= NAME_SIZE)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--methods: '%s' is one too many or too long", name);
    memcpy(wanted->names[wanted->n++], name, strlen(name) + 1);
    return ALLOT_OK;
}

/* Without --methods: the cheap ones, and all that are on record with this imatrix. */
static allot_status want_usual(struct wanted *wanted, const struct validation *v,
                               const struct archive_cost_set_info *sets, size_t n_sets,
                               struct allot_error *err)
{
    static const char *const usual[] = {"fisher", "weight"};
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && status == ALLOT_OK; i++)
        if (validation_method_known(usual[i]))
            status = want(wanted, usual[i], err);
    wanted->n_named = wanted->n;
    for (size_t i = 0; i < n_sets && status == ALLOT_OK; i++)
        if (strcmp(sets[i].imatrix_sha256, v->imatrix.present ? v->imatrix.data.sha256 : "") == 0)
            status = want(wanted, sets[i].method, err);
    return status;
}

/* ---- The imatrix ------------------------------------------------------------------------------------ */

/* That of the newest costs on record. */
static allot_status imatrix_on_record(struct validation *v, const struct allot_progress *progress,
                                      struct allot_error *err)
{
    struct cost_table newest;
    allot_status status = cost_table_newest(&newest, &v->job, NULL, err);
    if (status == ALLOT_OK)
        status = calibration_imatrix_of_set(&v->imatrix, &v->job, &newest.set, progress, err);
    cost_table_release(&newest);
    return status;
}

static allot_status imatrix_of_texts(struct validation *v, const struct allot_progress *progress,
                                     struct allot_error *err)
{
    struct calibrated_arguments args = v->args->calibrated;
    struct calibration c = {0};
    args.method = "fisher";
    allot_status status = calibration_open(&c, &v->job, v->pool, args.memory, BY_EITHER, err);
    if (status == ALLOT_OK)
        status = calibration_read(&c, &args, progress, err);
    if (status == ALLOT_OK)
        status = calibration_chosen_imatrix(&v->imatrix, &c, &args, progress, err);
    calibration_close(&c);
    return status;
}

static allot_status find_imatrix(struct validation *v, const struct allot_progress *progress,
                                 struct allot_error *err)
{
    const struct calibrated_arguments *args = &v->args->calibrated;
    if (args->no_imatrix)
        return ALLOT_OK;
    if (args->texts.n)
        return imatrix_of_texts(v, progress, err);
    if (args->imatrix)
        return job_imatrix_read(&v->imatrix, args->imatrix, v->job.model, progress, err);
    return imatrix_on_record(v, progress, err);
}

/* ---- Sets ------------------------------------------------------------------------------------------- */

/* Options that say which costs are meant: sets on record may be of others. */
static bool run_described(const struct calibrated_arguments *args)
{
    const struct string_list *given = &args->sized.common.given;
    const char *name;
    for (size_t i = 0; (name = calibration_run_option(i)) != NULL; i++)
        if (strcmp(name, "imatrix-chunks") != 0 && string_list_has(given, name))
            return true;
    return false;
}

static bool holds_types(const struct cost_table *costs, const struct type_set *wanted)
{
    bool all = costs->n_measured > 0;
    for (int type = 0; type < GGML_TYPE_COUNT && wanted->given; type++)
        all &= !wanted->has[type] || costs->types[type] || quant_type_find((enum ggml_type)type) == NULL;
    return all;
}

/* Takes the costs unless a set of the same method and text is there. */
static allot_status add_set(struct validation *v, struct cost_table *costs, struct allot_error *err)
{
    bool newest = true;
    for (size_t i = 0; i < v->n_sets; i++) {
        const struct archive_cost_set_info *other = &v->sets[i].costs.set;
        if (strcmp(other->method, costs->set.method) != 0)
            continue;
        newest = false;
        if (strcmp(other->text_sha256, costs->set.text_sha256) == 0) {
            cost_table_release(costs);
            return ALLOT_OK;
        }
    }
    struct judged_set *grown = realloc(v->sets, (v->n_sets + 1) * sizeof *grown);
    if (grown == NULL) {
        cost_table_release(costs);
        return allot_fail_memory(err, (v->n_sets + 1) * sizeof *grown, "sets of costs");
    }
    v->sets = grown;
    v->sets[v->n_sets++] = (struct judged_set){*costs, newest, EVAL_TEXT};
    return ALLOT_OK;
}

/* The sets of a method with the imatrix, newest first. */
static allot_status load_sets(struct validation *v, const char *method,
                              const struct archive_cost_set_info *sets, size_t n_sets,
                              struct allot_error *err)
{
    const char *imatrix = v->imatrix.present ? v->imatrix.data.sha256 : "";
    allot_status status = ALLOT_OK;
    for (size_t i = 0; i < n_sets && status == ALLOT_OK; i++) {
        struct cost_table costs;
        if (strcmp(sets[i].method, method) != 0 || strcmp(sets[i].imatrix_sha256, imatrix) != 0)
            continue;
        status = cost_table_load(&costs, &v->job, &sets[i], err);
        if (status == ALLOT_OK && holds_types(&costs, &v->allowed))
            status = add_set(v, &costs, err);
        else if (status == ALLOT_OK)
            cost_table_release(&costs);
    }
    return status;
}

/* 'allot plan' takes the newest costs, and judging others must not change which those are; but costs that are
 * no KL make way for the first that are. */
static allot_status keep_newest(struct validation *v, const struct archive_cost_set_info *computed,
                                struct allot_error *err)
{
    const struct archive_cost_set_info *before = &v->newest_before;
    if (before->id == 0 || before->id == computed->id ||
        (!cost_set_in_nats(before) && cost_set_in_nats(computed)))
        return ALLOT_OK;
    return archive_cost_set_touch(v->job.archive, before->id, before->n_tokens, err);
}

/* The set that 'allot plan' would take now, if any. */
static void remember_newest(struct validation *v)
{
    struct cost_table newest;
    struct allot_error none;
    if (cost_table_newest(&newest, &v->job, NULL, &none) == ALLOT_OK)
        v->newest_before = newest.set;
    cost_table_release(&newest);
}

static allot_status compute_set(struct validation *v, const char *method,
                                const struct allot_progress *progress, struct allot_error *err)
{
    struct calibrated_arguments args = v->args->calibrated;
    struct calibration c = {0};
    struct calibration_result result;
    struct cost_table costs;
    args.method = method;
    args.imatrix = NULL; /* it is read already */
    args.no_imatrix = true;
    allot_status status = calibration_open(&c, &v->job, v->pool, args.memory, calibration_method(&args), err);
    if (status == ALLOT_OK)
        status = calibration_read(&c, &args, progress, err);
    if (status == ALLOT_OK)
        status = calibration_costs(&result, &c, &args, &v->imatrix, progress, err);
    calibration_close(&c);
    if (status == ALLOT_OK) {
        status = keep_newest(v, &result.set, err);
    } else if (v->newest_before.id != 0) { /* an unfinished run has touched its set already */
        struct allot_error later;
        (void)archive_cost_set_touch(v->job.archive, v->newest_before.id, v->newest_before.n_tokens, &later);
    }
    if (status == ALLOT_OK)
        status = cost_table_load(&costs, &v->job, &result.set, err);
    return status == ALLOT_OK ? add_set(v, &costs, err) : status;
}

static allot_status no_costs(const struct validation *v, const char *method, struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_ARGUMENT,
                      "%s holds no finished costs of %s by '%s' with %s; with the calibration text (-f TEXT) "
                      "they are computed",
                      v->job.archive_path, v->job.model->path, method,
                      v->imatrix.present ? "this imatrix" : "no imatrix");
}

static allot_status take_method(struct validation *v, const struct wanted *wanted, size_t i,
                                const struct archive_cost_set_info *sets, size_t n_sets,
                                const struct allot_progress *progress, struct allot_error *err)
{
    const struct calibrated_arguments *args = &v->args->calibrated;
    const bool can_compute = args->texts.n && i < wanted->n_named;
    const size_t n_before = v->n_sets;
    allot_status status = ALLOT_OK;
    if (can_compute && run_described(args))
        status = compute_set(v, wanted->names[i], progress, err);
    if (status == ALLOT_OK)
        status = load_sets(v, wanted->names[i], sets, n_sets, err);
    if (status != ALLOT_OK || v->n_sets > n_before)
        return status;
    if (can_compute)
        return compute_set(v, wanted->names[i], progress, err);
    return wanted->must ? no_costs(v, wanted->names[i], err) : ALLOT_OK;
}

/* In the order of their names on the list; but the first is computed last, and so is the newest. */
static void order_sets(struct validation *v, const struct wanted *wanted)
{
    size_t n = 0;
    for (size_t i = 0; i < wanted->n; i++)
        for (size_t k = n; k < v->n_sets; k++)
            if (strcmp(v->sets[k].costs.set.method, wanted->names[i]) == 0) {
                struct judged_set found = v->sets[k];
                memmove(&v->sets[n + 1], &v->sets[n], (k - n) * sizeof found);
                v->sets[n++] = found;
            }
}

/* Of the newest set of each method that is KL: the sequences it is of, if the archive has them. */
static allot_status find_text(struct validation *v, struct judged_set *set, struct allot_error *err)
{
    const struct archive_cost_set_info *info = &set->costs.set;
    struct text_windows windows;
    bool own;
    if (!set->newest || !cost_set_in_nats(info))
        return ALLOT_OK;
    for (size_t t = EVAL_TEXT + 1; t < v->n_texts; t++)
        if (strcmp(v->windows[t].sha256, info->text_sha256) == 0)
            set->text = t;
    if (set->text != EVAL_TEXT || v->n_texts == MAX_TEXTS)
        return ALLOT_OK;
    allot_status status = seen_text_get(&windows, &own, v->job.archive, info->text_sha256, err);
    if (status == ALLOT_OK && windows.n > 0) {
        set->text = v->n_texts;
        v->windows[v->n_texts++] = windows;
    }
    return status;
}

allot_status validation_costs(struct validation *v, const struct allot_progress *progress,
                              struct allot_error *err)
{
    struct wanted wanted = {.must = v->args->methods != NULL};
    struct archive_cost_set_info *sets = NULL;
    size_t n_sets = 0;
    allot_status status = type_set_parse(&v->allowed, v->args->calibrated.types, err);
    remember_newest(v);
    if (status == ALLOT_OK)
        status = find_imatrix(v, progress, err);
    if (status == ALLOT_OK)
        status = cost_sets(&sets, &n_sets, &v->job, err);
    if (status == ALLOT_OK && wanted.must) {
        status = validation_each_item(v->args->methods, want, &wanted, err);
        wanted.n_named = wanted.n;
    } else if (status == ALLOT_OK) {
        status = want_usual(&wanted, v, sets, n_sets, err);
    }
    for (size_t i = wanted.n; i-- > 0 && status == ALLOT_OK;)
        status = take_method(v, &wanted, i, sets, n_sets, progress, err);
    free(sets);
    if (status == ALLOT_OK && v->n_sets == 0)
        status = no_costs(v, wanted.names[0], err);
    order_sets(v, &wanted);
    for (size_t s = 0; s < v->n_sets && status == ALLOT_OK; s++)
        status = find_text(v, &v->sets[s], err);
    return status;
}
