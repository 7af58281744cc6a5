/* interactions.c - a solved plan improved by the interactions of its errors.  SPDX-License-Identifier: MIT */
#include "interactions.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant/quant.h"

/* The knapsack's open choices, and what the archive has of them. */
struct samples {
    const struct knapsack *knapsack;
    struct plan_item *items;
    struct plan_choice *choices; /* storage */
    size_t *from;                /* [choices] their places among the knapsack item's */
    float **values;              /* [items] (n_choices, n), or NULL */
    size_t n;                    /* samples; 0: none seen yet */
    size_t *chosen;              /* [items] */
    double scale;
    int64_t n_tokens;
    struct allot_error *err;
    allot_status status;
};

static allot_status list_open(struct samples *s, const struct type_plan *plan, struct allot_error *err)
{
    const struct knapsack *k = s->knapsack;
    size_t n_choices = 1, at = 0;
    for (size_t i = 0; i < k->n; i++)
        n_choices += k->items[i].n_choices;
    s->items = calloc(k->n + 1, sizeof *s->items);
    s->choices = calloc(n_choices, sizeof *s->choices);
    s->from = calloc(n_choices, sizeof *s->from);
    s->values = calloc(k->n + 1, sizeof *s->values);
    s->chosen = calloc(k->n + 1, sizeof *s->chosen);
    if (!s->items || !s->choices || !s->from || !s->values || !s->chosen)
        return allot_fail_memory(err, n_choices * sizeof *s->choices, "interactions");
    for (size_t i = 0; i < k->n; i++) {
        const struct knapsack_item *item = &k->items[i];
        struct plan_choice *choices = &s->choices[at];
        size_t n = 0;
        for (size_t j = 0; j < item->n_choices; j++) {
            const struct knapsack_choice *choice = &item->choices[j];
            if (choice->bar != CHOICE_OPEN)
                continue;
            if (j == plan->answer.chosen[i])
                s->chosen[i] = n;
            s->from[at + n] = j;
            choices[n++] = (struct plan_choice){(int)choice->type, choice->bytes, choice->cost};
        }
        s->items[i] = (struct plan_item){item->name, choices, n};
        at += n;
    }
    return ALLOT_OK;
}

/* ---- Values of the archive ----------------------------------------------------------------------------- */

static allot_status add_row(struct samples *s, size_t i, const struct plan_choice *choice,
                            const struct archive_cost *row)
{
    const struct plan_item *item = &s->items[i];
    if (s->n == 0) {
        s->n = row->n_u;
        s->scale = sqrt((double)row->n_u / (2.0 * (double)s->n_tokens)); /* u^2 / 2C, C tokens a chunk */
    }
    if (row->n_u != s->n)
        return allot_fail(s->err, ALLOT_ERR_FORMAT, "the costs of %s have other samples than the rest",
                          item->name);
    if (s->values[i] == NULL)
        s->values[i] = calloc(item->n_choices * s->n + 1, sizeof *s->values[i]);
    if (s->values[i] == NULL)
        return allot_fail_memory(s->err, item->n_choices * s->n * sizeof *s->values[i], "interactions");
    float *values = s->values[i] + (size_t)(choice - item->choices) * s->n;
    for (size_t c = 0; c < s->n; c++)
        values[c] += (float)(s->scale * (double)row->u[c]);
    return ALLOT_OK;
}

static bool take_row(void *user, const char *tensor_name, const struct archive_cost *row)
{
    struct samples *s = user;
    const struct gguf_model *model = s->knapsack->model;
    const struct gguf_tensor *tensor = gguf_model_tensor(model, tensor_name);
    const struct quant_type *type = quant_type_by_name(row->type);
    const size_t i = tensor ? s->knapsack->item_of[tensor - model->tensors] : SIZE_MAX;
    if (i == SIZE_MAX || !type || !row->feasible || row->n_u == 0)
        return false;
    for (size_t j = 0; j < s->items[i].n_choices && s->status == ALLOT_OK; j++)
        if (s->items[i].choices[j].type == (int)type->type)
            s->status = add_row(s, i, &s->items[i].choices[j], row);
    return s->status != ALLOT_OK;
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

static allot_status improve(struct plan_interaction *out, struct samples *s, struct type_plan *plan,
                            const struct provenance *keys, struct allot_error *err)
{
    const struct plan_samples samples = {(const float *const *)s->values, s->n};
    int64_t bytes_most = plan->budget ? plan->budget - plan->answer.result.bytes : 0;
    for (size_t i = 0; i < s->knapsack->n; i++)
        bytes_most += s->items[i].choices[s->chosen[i]].bytes;
    allot_status status = plan_interact(out, s->items, s->knapsack->n, &samples, bytes_most, s->chosen, err);
    if (status != ALLOT_OK || out->n_changed == 0)
        return status;
    for (size_t i = 0; i < s->knapsack->n; i++)
        plan->answer.chosen[i] = s->from[s->items[i].choices - s->choices + (ptrdiff_t)s->chosen[i]];
    return type_plan_choose(plan, keys, err);
}

allot_status interactions_check(const struct sized_arguments *args, struct allot_error *err)
{
    if (!args->constraints.interactions)
        return ALLOT_OK;
    if (args->speed.weight > 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--speed and --interactions exclude each other");
    if (args->constraints.budgets.n > 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--interactions and --budget exclude each other");
    return ALLOT_OK;
}

allot_status interactions_improve(struct plan_interaction *out, struct type_plan *plan, struct model_job *job,
                                  const struct archive_cost_set_info *set, const struct provenance *keys,
                                  struct allot_error *err)
{
    struct samples s = {.knapsack = plan->knapsack, .n_tokens = set->n_tokens, .err = err};
    allot_status status = ALLOT_OK;
    if (strcmp(set->method, "fisher") != 0)
        status =
            allot_fail(err, ALLOT_ERR_ARGUMENT,
                       "--interactions: costs by %s do not tell of them, those by fisher do", set->method);
    if (status == ALLOT_OK)
        status = list_open(&s, plan, err);
    if (status == ALLOT_OK)
        status = archive_cost_each(job->archive, set->id, true, take_row, &s, err);
    if (status == ALLOT_OK)
        status = s.status;
    if (status == ALLOT_OK)
        status = improve(out, &s, plan, keys, err);
    for (size_t i = 0; s.values != NULL && i < plan->knapsack->n; i++)
        free(s.values[i]);
    free(s.values);
    free(s.items);
    free(s.choices);
    free(s.from);
    free(s.chosen);
    return status;
}

void interactions_print(const struct plan_interaction *found)
{
    if (found->weight > 0)
        printf("interactions:  %zu tensors changed; on samples not searched that saves %.3g ± %.1g nats per "
               "token "
               "(pairs weighted by %g)\n",
               found->n_changed, found->gain, found->std_err, found->weight);
    else
        printf("interactions:  none that pay on samples not searched (%+.1g ± %.1g nats per token); the plan "
               "stays\n",
               -found->gain, found->std_err);
    printf("  with them the plan's costs add up to %.6g nats per token\n", found->cost);
}

json_t *interactions_json(const struct plan_interaction *found)
{
    json_t *object = json_object();
    json_put(object, "weight", json_number(found->weight));
    json_put(object, "gain", json_number(found->gain));
    json_put(object, "gain_se", json_number(found->std_err));
    json_put(object, "changed", json_integer((json_int_t)found->n_changed));
    json_put(object, "cost", json_number(found->cost));
    return object;
}
