/* knapsack.c - the choices of a model's tensors as a problem to solve.  SPDX-License-Identifier: MIT */
#include "knapsack.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"
#include "quant/quant.h"
#include "type_plan.h"

const char *decision_name(enum tensor_decision decision)
{
    static const char *const names[] = {"none", "chosen", "pinned", "fallback", "tied"};
    return names[decision];
}

void knapsack_release(struct knapsack *k)
{
    free(k->items);
    free(k->item_of);
    free(k->decisions);
    free(k->tensors);
    free(k->choices);
    free(k->limit_fixed);
    memset(k, 0, sizeof *k);
}

/* ---- Which tensors are one item ---------------------------------------------------------------- */

static allot_status reserve(struct knapsack *k, struct allot_error *err)
{
    const size_t n = (size_t)k->model->n_tensors + 1;
    k->items = calloc(n, sizeof *k->items);
    k->item_of = calloc(n, sizeof *k->item_of);
    k->decisions = calloc(n, sizeof *k->decisions);
    k->tensors = calloc(n, sizeof *k->tensors);
    k->choices = calloc(n * (GGML_TYPE_COUNT + 1), sizeof *k->choices);
    k->limit_fixed = calloc(k->constraints->budgets.n + 1, sizeof *k->limit_fixed);
    if (!k->items || !k->item_of || !k->decisions || !k->tensors || !k->choices || !k->limit_fixed)
        return allot_fail_memory(err, n * GGML_TYPE_COUNT * sizeof *k->choices, "the plan");
    return ALLOT_OK;
}

static void group_tensors(struct knapsack *k)
{
    const int32_t *tied = k->constraints->tied;
    const struct constraint_list *budgets = &k->constraints->budgets;
    int64_t *storage = k->tensors;
    for (int64_t i = 0; i < k->model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &k->model->tensors[i];
        const bool joins = tied[i] >= 0 && tied[i] != i;
        k->item_of[i] = SIZE_MAX;
        if (!gguf_tensor_quantizable(tensor)) {
            if (budgets->of[i] >= 0)
                k->limit_fixed[budgets->of[i]] += gguf_padded(tensor->n_bytes);
            continue;
        }
        k->item_of[i] = joins ? k->item_of[tied[i]] : k->n++;
        k->items[k->item_of[i]].n_tensors++;
        k->decisions[i] = DECISION_CHOSEN;
        k->source_bytes += gguf_padded(tensor->n_bytes);
    }
    for (size_t j = 0; j < k->n; j++) {
        k->items[j].tensors = storage;
        k->items[j].choices = &k->choices[j * (GGML_TYPE_COUNT + 1)];
        storage += k->items[j].n_tensors;
        k->items[j].n_tensors = 0;
    }
    for (int64_t i = 0; i < k->model->n_tensors; i++) {
        if (k->item_of[i] == SIZE_MAX)
            continue;
        struct knapsack_item *item = &k->items[k->item_of[i]];
        item->tensors[item->n_tensors++] = i;
        item->name = k->model->tensors[item->tensors[0]].name;
    }
}

/* The budget that all tensors of the item count for. */
static allot_status find_limit(const struct knapsack *k, struct knapsack_item *item, struct allot_error *err)
{
    char label[200];
    const struct constraint_list *budgets = &k->constraints->budgets;
    const int32_t first = budgets->of[item->tensors[0]];
    for (size_t t = 1; t < item->n_tensors; t++) {
        const int32_t other = budgets->of[item->tensors[t]];
        if (other != first)
            return allot_fail(err, ALLOT_ERR_ARGUMENT,
                              "%s holds only some of the tied tensors: not both %s and %s",
                              constraint_label(label, &budgets->rules[first >= 0 ? first : other]),
                              item->name, k->model->tensors[item->tensors[t]].name);
    }
    item->limit = first < 0 ? PLAN_UNLIMITED : (size_t)first;
    return ALLOT_OK;
}

/* ---- What they may become ---------------------------------------------------------------------- */

/* The choices of one tensor or item by type; absent ones have bytes < 0. */
struct by_type {
    struct knapsack_choice list[GGML_TYPE_COUNT];
};

static void add_choice(struct by_type *to, const struct gguf_tensor *tensor, enum ggml_type type, double cost,
                       double std_err, bool known)
{
    const int64_t bytes = (int64_t)ggml_row_size(type, tensor->ne[0]) * tensor->n_rows;
    to->list[type] = (struct knapsack_choice){
        .type = type, .bytes = gguf_padded(bytes), .cost = cost, .std_err = std_err, .known = known};
}

/* A pinned type that was not measured. F32 holds what any source holds, so it costs nothing. */
static allot_status add_pinned(struct by_type *to, const struct gguf_tensor *tensor, enum ggml_type type,
                               const struct cost_table *costs, const struct tensor_costs *measured,
                               const char *label, struct allot_error *err)
{
    if (measured->infeasible[type])
        return allot_fail(err, ALLOT_ERR_INFEASIBLE, "%s: %s of tensor %s would hold NaN or Inf", label,
                          type_label(type), tensor->name);
    if (!quant_type_fits(type, tensor->ne[0]))
        return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                          "%s: rows of %" PRId64 " of the tied tensor %s do not fit %s", label, tensor->ne[0],
                          tensor->name, type_label(type));
    if (!costs->set.imatrix_sha256[0] && quant_type_needs_imatrix(type, tensor->name))
        return allot_fail(
            err, ALLOT_ERR_INFEASIBLE,
            "%s: tensor %s can become %s only with an importance matrix, and the costs are without", label,
            tensor->name, type_label(type));
    add_choice(to, tensor, type, 0, 0, type == GGML_TYPE_F32);
    return ALLOT_OK;
}

static void bar_types(struct by_type *choices, const struct constraints *c, int64_t tensor,
                      const enum ggml_type *pin)
{
    const struct constraint_rule *min = constraint_rule_of(&c->mins, tensor),
                                 *max = constraint_rule_of(&c->maxs, tensor);
    const bool pinned_itself = constraint_rule_of(&c->pins, tensor) != NULL; /* or tied to one that is */
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        struct knapsack_choice *choice = &choices->list[t];
        if (choice->bytes < 0)
            continue;
        if (pin && (pinned_itself || choice->type != *pin))
            choice->bar = choice->type == *pin ? CHOICE_OPEN : CHOICE_NOT_PINNED;
        else if (min && type_bits(choice->type) < type_bits(min->type))
            choice->bar = CHOICE_BELOW_MIN;
        else if (max && type_bits(choice->type) > type_bits(max->type))
            choice->bar = CHOICE_ABOVE_MAX;
    }
}

/* The costs on record, the source type at no cost, and the type that its item is pinned to. */
static allot_status tensor_choices(struct by_type *out, const struct knapsack *k, int64_t index,
                                   const struct cost_table *costs, const enum ggml_type *pin,
                                   const char *label, struct allot_error *err)
{
    const struct gguf_tensor *tensor = &k->model->tensors[index];
    const struct tensor_costs *measured = &costs->tensors[index];
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        out->list[t].bytes = -1;
    for (size_t c = 0; c < measured->n; c++)
        add_choice(out, tensor, (enum ggml_type)measured->choices[c].type, measured->choices[c].cost,
                   measured->std_err[c], true);
    add_choice(out, tensor, tensor->type, 0, 0, true);
    if (pin && out->list[*pin].bytes < 0 &&
        add_pinned(out, tensor, *pin, costs, measured, label, err) != ALLOT_OK)
        return err->status;
    bar_types(out, k->constraints, index, pin);
    return ALLOT_OK;
}

/* The type that pins of the item's tensors say, if any do. */
static allot_status find_pin(struct knapsack *k, const struct knapsack_item *item, const enum ggml_type **pin,
                             enum ggml_type *type, char label[static 200], struct allot_error *err)
{
    const char *by = NULL;
    *pin = NULL;
    for (size_t t = 0; t < item->n_tensors; t++) {
        const int64_t tensor = item->tensors[t];
        enum ggml_type wanted;
        bool fallback;
        if (!constraint_pinned(k->constraints, k->model, tensor, &wanted, &fallback))
            continue;
        k->decisions[tensor] = fallback ? DECISION_FALLBACK : DECISION_PINNED;
        if (*pin && wanted != *type)
            return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                              "tied tensors are pinned to two types: %s to %s, %s to %s", by,
                              type_label(*type), k->model->tensors[tensor].name, type_label(wanted));
        *type = wanted;
        *pin = type;
        by = k->model->tensors[tensor].name;
        constraint_label(label, constraint_rule_of(&k->constraints->pins, tensor));
    }
    for (size_t t = 0; *pin && t < item->n_tensors; t++)
        if (k->decisions[item->tensors[t]] == DECISION_CHOSEN)
            k->decisions[item->tensors[t]] = DECISION_TIED;
    return ALLOT_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const struct knapsack_choice *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return (int)x->type - (int)y->type;
}

/* Types that all tensors of the item can take. */
static void add_tensor(struct by_type *sum, const struct by_type *one)
{
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        struct knapsack_choice *to = &sum->list[t];
        const struct knapsack_choice *from = &one->list[t];
        if (to->bytes < 0 || from->bytes < 0) {
            to->bytes = -1;
            continue;
        }
        to->bytes += from->bytes;
        to->cost += from->cost;
        to->std_err += from->std_err;
        to->known &= from->known;
        to->bar = from->bar > to->bar ? from->bar : to->bar;
    }
}

/* Of a list of types the source's own is one only if named, or if nothing on the list suits. */
static void apply_list(struct knapsack_item *item, const struct type_set *allowed,
                       const struct gguf_model *model)
{
    const enum ggml_type source = model->tensors[item->tensors[0]].type;
    bool any = false;
    for (size_t c = 0; c < item->n_choices; c++)
        any |= allowed->has[item->choices[c].type];
    for (size_t c = 0; allowed->given && c < item->n_choices; c++) {
        struct knapsack_choice *choice = &item->choices[c];
        if (choice->bar != CHOICE_NOT_PINNED && !allowed->has[choice->type] &&
            (any || choice->type != source))
            choice->bar = CHOICE_UNLISTED;
    }
}

/* ---- What cannot be ---------------------------------------------------------------------------- */

/* The choice barred only by a floor or ceiling whose bits are nearest to what these leave. */
static const struct knapsack_choice *nearest_choice(const struct knapsack_item *item)
{
    const struct knapsack_choice *best = NULL;
    for (size_t c = 0; c < item->n_choices; c++) {
        const struct knapsack_choice *choice = &item->choices[c];
        if (choice->bar == CHOICE_BELOW_MIN) /* rising: the last is the largest */
            best = choice;
        else if (choice->bar == CHOICE_ABOVE_MAX && !best)
            return choice;
    }
    return best;
}

static allot_status check_open(const struct knapsack *k, const struct knapsack_item *item,
                               struct allot_error *err)
{
    const struct constraint_rule *min = NULL, *max = NULL;
    char low[200] = "", high[200] = "";
    for (size_t c = 0; c < item->n_choices; c++)
        if (item->choices[c].bar == CHOICE_OPEN)
            return ALLOT_OK;
    for (size_t t = 0; t < item->n_tensors; t++) {
        min = min ? min : constraint_rule_of(&k->constraints->mins, item->tensors[t]);
        max = max ? max : constraint_rule_of(&k->constraints->maxs, item->tensors[t]);
    }
    if (min)
        constraint_label(low, min);
    if (max)
        constraint_label(high, max);
    if (min && max && type_bits(min->type) > type_bits(max->type))
        return allot_fail(err, ALLOT_ERR_INFEASIBLE, "tensor %s: %s is above %s", item->name, low, high);
    const struct knapsack_choice *near = nearest_choice(item);
    if (near)
        return allot_fail(
            err, ALLOT_ERR_INFEASIBLE,
            "tensor %s: %s%s%s leave%s none of its types; the nearest is %s (%.3g bits per weight)",
            item->name, low, min && max ? " and " : "", high, min && max ? "" : "s", type_label(near->type),
            type_bits(near->type));
    return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                      "the %zu tensors tied to %s have no type in common%s; --tie needs one that suits all",
                      item->n_tensors, item->name, k->constraints->allowed.given ? " that is allowed" : "");
}

/* Types that the caller wants but the costs do not tell of; a source's own type costs nothing. */
static allot_status check_measured(const struct knapsack *k, const struct cost_table *costs,
                                   struct allot_error *err)
{
    bool known[GGML_TYPE_COUNT];
    struct strbuf missing = {0};
    size_t n;
    const struct quant_type *types = quant_types(&n);
    memcpy(known, costs->types, sizeof known);
    for (int64_t i = 0; i < k->model->n_tensors; i++)
        known[k->model->tensors[i].type] = true;
    for (size_t i = 0; i < n; i++)
        if (k->constraints->named.has[types[i].type] && k->constraints->allowed.has[types[i].type] &&
            !known[types[i].type])
            strbuf_addf(&missing, "%s%s", missing.len ? "," : "", types[i].name);
    allot_status status = strbuf_check(&missing, err);
    if (status == ALLOT_OK && missing.len)
        status =
            allot_fail(err, ALLOT_ERR_ARGUMENT,
                       "the costs of %s do not tell of %s; the same 'allot cost' command with --types %s "
                       "measures what is missing",
                       costs->set.updated, missing.data, missing.data);
    strbuf_release(&missing);
    return status;
}

/* ---- Making it --------------------------------------------------------------------------------- */

static allot_status fill_item(struct knapsack *k, struct knapsack_item *item, const struct cost_table *costs,
                              struct allot_error *err)
{
    struct by_type sum = {0}, one = {0};
    const enum ggml_type *pin;
    enum ggml_type type;
    char label[200];
    allot_status status = find_limit(k, item, err);
    if (status == ALLOT_OK)
        status = find_pin(k, item, &pin, &type, label, err);
    for (size_t t = 0; status == ALLOT_OK && t < item->n_tensors; t++) {
        memset(&one, 0, sizeof one);
        status = tensor_choices(&one, k, item->tensors[t], costs, pin, label, err);
        if (t == 0)
            sum = one;
        else
            add_tensor(&sum, &one);
    }
    if (status != ALLOT_OK)
        return status;
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (sum.list[t].bytes >= 0)
            item->choices[item->n_choices++] = sum.list[t];
    qsort(item->choices, item->n_choices, sizeof *item->choices, by_bytes);
    if (!pin)
        apply_list(item, &k->constraints->allowed, k->model);
    return check_open(k, item, err);
}

allot_status knapsack_init(struct knapsack *k, const struct gguf_model *model, const struct cost_table *costs,
                           const struct constraints *constraints, struct allot_error *err)
{
    *k = (struct knapsack){
        .model = model, .constraints = constraints, .in_nats = cost_set_in_nats(&costs->set)};
    allot_status status = check_measured(k, costs, err);
    if (status == ALLOT_OK)
        status = reserve(k, err);
    if (status == ALLOT_OK)
        group_tensors(k);
    for (size_t i = 0; status == ALLOT_OK && i < k->n; i++)
        status = fill_item(k, &k->items[i], costs, err);
    if (status != ALLOT_OK)
        knapsack_release(k);
    return status;
}
