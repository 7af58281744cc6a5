/* explain.c - why a tensor has the type that a plan gave it.  SPDX-License-Identifier: MIT */
#include "explain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"

static const char *tensor_name(const void *user, size_t i)
{
    const struct gguf_model *model = user;
    return (int64_t)i < model->n_tensors ? model->tensors[i].name : NULL;
}

allot_status explain_check(const struct gguf_model *model, const char *name, struct allot_error *err)
{
    const struct gguf_tensor *tensor = gguf_model_tensor(model, name);
    if (!tensor) {
        const char *near = nearest_word(name, tensor_name, model);
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--explain: %s has no tensor '%s'%s%s%s", model->path,
                          name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (!gguf_tensor_quantizable(tensor))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--explain: llama-quantize never changes tensor %s; it keeps %s", name,
                          type_label(tensor->type));
    return ALLOT_OK;
}

/* One tensor's item in one plan. */
struct explained {
    const struct knapsack_item *item;
    const struct knapsack_choice *chosen;
    double lambda;
};

static struct explained explained_of(const struct type_plan *plan, const char *name)
{
    const struct knapsack *k = plan->knapsack;
    const size_t i = k->item_of[gguf_model_tensor(k->model, name) - k->model->tensors];
    return (struct explained){&k->items[i], &k->items[i].choices[plan->answer.chosen[i]],
                              knapsack_lambda(&plan->answer, &k->items[i])};
}

/* What taking it instead of the chosen one would add to cost + lambda * bytes. */
static double relative_cost(const struct explained *e, const struct knapsack_choice *choice)
{
    return (choice->cost - e->chosen->cost) + e->lambda * (double)(choice->bytes - e->chosen->bytes);
}

/* Another open choice takes no more bytes and costs no more. */
static bool dominated(const struct explained *e, const struct knapsack_choice *choice)
{
    for (size_t c = 0; c < e->item->n_choices; c++) {
        const struct knapsack_choice *other = &e->item->choices[c];
        if (other != choice && other->bar == CHOICE_OPEN && other->bytes <= choice->bytes &&
            other->cost <= choice->cost && (other->bytes < choice->bytes || other->cost < choice->cost))
            return true;
    }
    return false;
}

static const char *verdict(const struct explained *e, const struct knapsack_choice *choice)
{
    static const char *const bars[] = {
        [CHOICE_UNLISTED] = "not allowed",
        [CHOICE_BELOW_MIN] = "below --min",
        [CHOICE_ABOVE_MAX] = "above --max",
        [CHOICE_NOT_PINNED] = "not the pinned type",
    };
    if (choice == e->chosen)
        return "chosen";
    if (choice->bar != CHOICE_OPEN)
        return bars[choice->bar];
    if (dominated(e, choice))
        return "dominated";
    if (relative_cost(e, choice) <= 0) /* the marginal price would take it, but bytes come in whole types */
        return choice->bytes > e->chosen->bytes ? "does not fit" : "leaves bytes unused";
    return choice->bytes > e->chosen->bytes ? "not worth its bytes" : "saves too little";
}

static void print_head(const struct explained *e, const struct knapsack *k, const char *name)
{
    const struct gguf_model *model = k->model;
    const struct gguf_tensor *tensor = gguf_model_tensor(model, name);
    printf("\n%s (%" PRId64 " rows of %" PRId64 ")", name, tensor->n_rows, tensor->ne[0]);
    if (e->item->n_tensors > 1)
        printf(", tied with %zu others: bytes and costs of all", e->item->n_tensors - 1);
    if (e->lambda > 0)
        printf(": at the margin 1 MB is worth %.4g %s\n", 1e6 * e->lambda,
               k->in_nats ? "nats per token" : "of relative error");
    else
        printf(": there are bytes to spare\n");
}

allot_status explain_print(const struct type_plan *plan, const char *name, struct allot_error *err)
{
    static const char *const headings[] = {"<type",       ">bytes",         ">bits",   ">cost",
                                           ">std. error", ">at the margin", "<verdict"};
    const struct explained e = explained_of(plan, name);
    struct table t;
    print_head(&e, plan->knapsack, name);
    table_init(&t, headings, 7);
    for (size_t c = 0; c < e.item->n_choices; c++) {
        const struct knapsack_choice *choice = &e.item->choices[c];
        table_cell(&t, "%s", type_label(choice->type));
        table_cell(&t, "%" PRId64, choice->bytes);
        table_cell(&t, "%.4g", type_bits(choice->type));
        if (choice->known) {
            table_cell(&t, "%.4g", choice->cost);
            table_cell(&t, "%.2g", choice->std_err);
        } else {
            table_cell(&t, "unknown");
            table_cell(&t, "-");
        }
        if (choice->known && e.chosen->known)
            table_cell(&t, "%+.3g", relative_cost(&e, choice));
        else
            table_cell(&t, "-");
        table_cell(&t, "%s", verdict(&e, choice));
    }
    return table_print(&t, err);
}

json_t *explain_json(const struct type_plan *plan, const char *name)
{
    const struct explained e = explained_of(plan, name);
    const struct gguf_model *model = plan->knapsack->model;
    json_t *object = json_object(), *list = json_array(), *tensors = json_array();
    for (size_t t = 0; t < e.item->n_tensors; t++)
        json_array_append_new(tensors, json_text(model->tensors[e.item->tensors[t]].name));
    for (size_t c = 0; c < e.item->n_choices; c++) {
        const struct knapsack_choice *choice = &e.item->choices[c];
        json_t *entry = json_object();
        json_put(entry, "type", json_text(type_label(choice->type)));
        json_put(entry, "bytes", json_integer(choice->bytes));
        json_put(entry, "bits_per_weight", json_number(type_bits(choice->type)));
        json_put(entry, "cost", choice->known ? json_number(choice->cost) : json_null());
        json_put(entry, "std_err", choice->known ? json_number(choice->std_err) : json_null());
        json_put(entry, "at_the_margin",
                 choice->known && e.chosen->known ? json_number(relative_cost(&e, choice)) : json_null());
        json_put(entry, "verdict", json_text(verdict(&e, choice)));
        json_array_append_new(list, entry);
    }
    json_put(object, "tensor", json_text(name));
    json_put(object, "tensors", tensors);
    json_put(object, "nats_per_megabyte",
             plan->knapsack->in_nats ? json_number(1e6 * e.lambda) : json_null());
    json_put(object, "choices", list);
    return object;
}
