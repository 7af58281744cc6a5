/* knapsack_solve.c - a knapsack and a budget to one choice per item.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"
#include "knapsack.h"
#include "quant/quant.h"

/* ---- What cannot be ---------------------------------------------------------------------------- */

/* The smallest of the item's open choices; of all that are not unlisted, if pins and floors are to be left
 * out. */
static const struct knapsack_choice *smallest(const struct knapsack_item *item, bool without_rules)
{
    const struct knapsack_choice *best = NULL;
    for (size_t c = 0; c < item->n_choices; c++) {
        const struct knapsack_choice *choice = &item->choices[c];
        if (choice->bar != CHOICE_OPEN && (!without_rules || choice->bar == CHOICE_UNLISTED))
            continue;
        if (!best || choice->bytes < best->bytes)
            best = choice;
    }
    return best;
}

/* "Q2_K, Q4_0 and Q8_0" */
static void add_types(struct strbuf *sb, const bool *has)
{
    size_t n, n_has = 0, shown = 0;
    const struct quant_type *types = quant_types(&n);
    for (size_t i = 0; i < n; i++)
        n_has += has[types[i].type];
    for (size_t i = 0; i < n; i++) {
        if (!has[types[i].type])
            continue;
        strbuf_addf(sb, "%s%s", shown == 0 ? "" : shown + 1 == n_has ? " and " : ", ", types[i].name);
        shown++;
    }
}

static allot_status check_limit(const struct knapsack *k, size_t limit, struct allot_error *err)
{
    const struct constraint_rule *rule = &k->constraints->budgets.rules[limit];
    bool has[GGML_TYPE_COUNT] = {false};
    struct strbuf types = {0};
    char label[200], size[32];
    int64_t bytes = k->limit_fixed[limit];
    for (size_t i = 0; i < k->n; i++) {
        if (k->items[i].limit != limit)
            continue;
        const struct knapsack_choice *least = smallest(&k->items[i], false);
        bytes += least->bytes;
        has[least->type] = true;
    }
    if (bytes <= rule->bytes)
        return ALLOT_OK;
    add_types(&types, has);
    allot_status status = strbuf_check(&types, err);
    if (status == ALLOT_OK)
        status =
            allot_fail(err, ALLOT_ERR_INFEASIBLE, "%s: the least possible is %s (%" PRId64 " bytes), with %s",
                       constraint_label(label, rule), str_size(size, bytes), bytes,
                       types.data ? types.data : "types of their own");
    strbuf_release(&types);
    return status;
}

/* Where pins and floors make the file larger than it must be, the line names them. */
static allot_status check_budget(const struct knapsack *k, int64_t fixed_bytes, int64_t budget,
                                 struct allot_error *err)
{
    const struct constraints *c = k->constraints;
    char want[32], have[32], less[32];
    int64_t least = fixed_bytes, without = fixed_bytes;
    for (size_t i = 0; i < k->n; i++) {
        least += smallest(&k->items[i], false)->bytes;
        without += smallest(&k->items[i], true)->bytes;
    }
    if (least <= budget)
        return ALLOT_OK;
    if (without < least)
        return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                          "no plan fits %s (%" PRId64 " bytes): with %s%s%s the smallest possible file is %s "
                          "(%" PRId64 " bytes), without %s (%" PRId64 " bytes)",
                          str_size(have, budget), budget, c->pins.n ? "--pin" : "",
                          c->pins.n && c->mins.n ? " and " : "", c->mins.n ? "--min" : "",
                          str_size(want, least), least, str_size(less, without), without);
    return allot_fail(err, ALLOT_ERR_INFEASIBLE,
                      "no plan fits %s (%" PRId64 " bytes): the smallest possible file is %s (%" PRId64
                      " bytes)",
                      str_size(have, budget), budget, str_size(want, least), least);
}

/* ---- Solving ------------------------------------------------------------------------------------ */

/* The open choices as lib/plan wants them: costs of an item shifted so that none is negative. */
struct problem {
    struct plan_item *items;
    struct plan_choice *choices;
    size_t *open; /* of each of choices: which of the item's it is */
    size_t *limit_of;
    struct plan_limit *limits;
    double shift; /* of all items together, 0 or less */
};

static void problem_release(struct problem *p)
{
    free(p->items);
    free(p->choices);
    free(p->open);
    free(p->limit_of);
    free(p->limits);
}

static void fill_problem(struct problem *p, const struct knapsack *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++) {
        const struct knapsack_item *item = &k->items[i];
        const size_t first = n;
        double shift = 0;
        for (size_t c = 0; c < item->n_choices; c++)
            if (item->choices[c].bar == CHOICE_OPEN)
                shift = fmin(shift, item->choices[c].cost);
        for (size_t c = 0; c < item->n_choices; c++) {
            const struct knapsack_choice *choice = &item->choices[c];
            if (choice->bar != CHOICE_OPEN)
                continue;
            p->open[n] = c;
            p->choices[n++] = (struct plan_choice){(int)choice->type, choice->bytes, choice->cost - shift};
        }
        p->items[i] = (struct plan_item){item->name, &p->choices[first], n - first};
        p->limit_of[i] = item->limit;
        p->shift += shift;
    }
    for (size_t l = 0; l < k->constraints->budgets.n; l++)
        p->limits[l] = (struct plan_limit){k->constraints->budgets.rules[l].text,
                                           k->constraints->budgets.rules[l].bytes - k->limit_fixed[l]};
}

static allot_status problem_init(struct problem *p, const struct knapsack *k, struct allot_error *err)
{
    size_t n = 1;
    for (size_t i = 0; i < k->n; i++)
        n += k->items[i].n_choices;
    p->items = calloc(k->n + 1, sizeof *p->items);
    p->choices = calloc(n, sizeof *p->choices);
    p->open = calloc(n, sizeof *p->open);
    p->limit_of = calloc(k->n + 1, sizeof *p->limit_of);
    p->limits = calloc(k->constraints->budgets.n + 1, sizeof *p->limits);
    if (!p->items || !p->choices || !p->open || !p->limit_of || !p->limits)
        return allot_fail_memory(err, n * sizeof *p->choices, "the plan");
    fill_problem(p, k);
    return ALLOT_OK;
}

static allot_status answer_init(struct knapsack_answer *answer, const struct knapsack *k,
                                struct allot_error *err)
{
    const size_t n_limits = k->constraints->budgets.n + 1;
    memset(answer, 0, sizeof *answer);
    answer->chosen = calloc(k->n + 1, sizeof *answer->chosen);
    answer->lambdas = calloc(n_limits, sizeof *answer->lambdas);
    answer->used = calloc(n_limits, sizeof *answer->used);
    if (!answer->chosen || !answer->lambdas || !answer->used)
        return allot_fail_memory(err, k->n * sizeof *answer->chosen, "the plan");
    return ALLOT_OK;
}

void knapsack_answer_release(struct knapsack_answer *answer)
{
    free(answer->chosen);
    free(answer->lambdas);
    free(answer->used);
    memset(answer, 0, sizeof *answer);
}

/* From choices of the problem to those of the knapsack, and what follows from them. */
static void translate(struct knapsack_answer *answer, const struct knapsack *k, const struct problem *p)
{
    double cost = 0;
    for (size_t l = 0; l < k->constraints->budgets.n; l++)
        answer->used[l] = k->limit_fixed[l];
    for (size_t i = 0; i < k->n; i++) {
        const struct knapsack_item *item = &k->items[i];
        const size_t first = (size_t)(p->items[i].choices - p->choices);
        answer->chosen[i] = p->open[first + answer->chosen[i]];
        const struct knapsack_choice *choice = &item->choices[answer->chosen[i]];
        cost += choice->cost;
        answer->n_unknown += choice->known ? 0 : item->n_tensors;
        if (item->limit != PLAN_UNLIMITED)
            answer->used[item->limit] += choice->bytes;
    }
    answer->result.cost = cost;
    answer->result.lower_bound = fmin(answer->result.lower_bound + p->shift, cost);
}

allot_status knapsack_solve(struct knapsack_answer *answer, const struct knapsack *k, int64_t fixed_bytes,
                            int64_t budget, struct allot_error *err)
{
    struct problem p = {0};
    allot_status status = answer_init(answer, k, err);
    for (size_t l = 0; status == ALLOT_OK && l < k->constraints->budgets.n; l++)
        status = check_limit(k, l, err);
    if (status == ALLOT_OK)
        status = check_budget(k, fixed_bytes, budget, err);
    if (status == ALLOT_OK)
        status = problem_init(&p, k, err);
    if (status != ALLOT_OK)
        goto cleanup;
    const struct plan_limits limits = {p.limits, k->constraints->budgets.n, p.limit_of};
    if (limits.n)
        status = plan_solve_limited(p.items, k->n, &limits, fixed_bytes, budget, answer->chosen,
                                    &answer->result, answer->lambdas, err);
    else
        status = plan_solve(p.items, k->n, fixed_bytes, budget, answer->chosen, &answer->result, err);
    if (status == ALLOT_OK)
        translate(answer, k, &p);
cleanup:
    problem_release(&p);
    if (status != ALLOT_OK)
        knapsack_answer_release(answer);
    return status;
}

double knapsack_lambda(const struct knapsack_answer *answer, const struct knapsack_item *item)
{
    return item->limit == PLAN_UNLIMITED ? answer->result.lambda : answer->lambdas[item->limit];
}
