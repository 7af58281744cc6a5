/* plan_report.c - what a plan says of itself.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "describe.h"
#include "quant/quant.h"
#include "type_plan.h"

/* How far below the plan's objective an optimum might lie, as a fraction of it. */
static double gap_fraction(const struct type_plan *plan)
{
    const struct knapsack_answer *answer = &plan->answer;
    return answer->result.exact || answer->objective <= 0
               ? 0
               : (answer->objective - answer->result.lower_bound) / answer->objective;
}

static void print_speed(const struct type_plan *plan)
{
    const struct knapsack_answer *answer = &plan->answer;
    if (!plan->knapsack->speed_source)
        return;
    printf("decode:        %.4g ms per token for the weights (speeds: %s)\n", answer->ms,
           plan->knapsack->speed_source);
    if (plan->speed > 0)
        printf("unpriced:      %.4g ms per token and KL %.6g would be without --speed\n", plan->unpriced.ms,
               plan->unpriced.cost);
}

static void print_cost(double cost, bool in_nats)
{
    if (in_nats)
        printf("predicted KL:  %.6g nats per token\n", cost);
    else
        printf("estimate:      %.6g, the sum of the tensors' relative errors (no KL: --method weight)\n",
               cost);
}

static void print_given(const struct type_plan *plan)
{
    print_cost(plan->predicted.cost, plan->predicted.in_nats);
    if (plan->predicted.n_unknown)
        printf("remark:        the costs do not tell of the types of %zu tensors; the prediction leaves them "
               "out\n",
               plan->predicted.n_unknown);
}

static void print_prediction(const struct type_plan *plan)
{
    const struct plan_result *result = &plan->answer.result;
    print_cost(result->cost, plan->knapsack->in_nats);
    if (plan->answer.n_unknown)
        printf("remark:        the costs do not tell of the types that %zu tensors are pinned to; the "
               "prediction "
               "leaves them out\n",
               plan->answer.n_unknown);
    print_speed(plan);
    const char *what = plan->speed > 0 ? " with --speed's price on time" : "";
    if (result->exact)
        printf("optimality:    exact; no plan within the %s costs less%s\n",
               plan->budget ? "size" : "budgets", what);
    else
        printf("optimality:    within %.3g%% of the least cost%s\n", 100 * gap_fraction(plan), what);
}

/* How many tensors were decided so. */
static size_t count_decisions(const struct type_plan *plan, enum tensor_decision decision)
{
    size_t n = 0;
    for (int64_t i = 0; i < plan->knapsack->model->n_tensors; i++)
        n += plan->knapsack->decisions[i] == decision;
    return n;
}

/* Of these, how many are none that --types and --compat allow, because nothing allowed suits them. */
static size_t count_unlisted(const struct type_plan *plan)
{
    const struct type_set *allowed = &plan->knapsack->constraints->allowed;
    size_t n = 0;
    for (int64_t i = 0; allowed->given && i < plan->knapsack->model->n_tensors; i++)
        n += plan->knapsack->decisions[i] == DECISION_CHOSEN && !allowed->has[plan->types[i]];
    return n;
}

static size_t count_ties(const struct knapsack *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        n += k->items[i].n_tensors > 1;
    return n;
}

static void print_constraints(const struct type_plan *plan)
{
    const struct constraints *c = plan->knapsack->constraints;
    const size_t fallbacks = count_decisions(plan, DECISION_FALLBACK),
                 tied = count_decisions(plan, DECISION_TIED), unlisted = count_unlisted(plan);
    char asked[32], used[32], label[200];
    for (size_t l = 0; l < c->budgets.n; l++)
        printf("budget:        %s of %s for %s\n", str_size(used, plan->answer.used[l]),
               str_size(asked, c->budgets.rules[l].bytes), constraint_label(label, &c->budgets.rules[l]));
    if (c->pins.n) {
        const size_t pinned = count_decisions(plan, DECISION_PINNED) + fallbacks;
        printf("pinned:        %zu of %zu tensors", pinned,
               pinned + tied + count_decisions(plan, DECISION_CHOSEN));
        if (fallbacks)
            printf(", %zu of them to the fallback of a type that their rows do not fit", fallbacks);
        if (tied)
            printf(", and %zu tied to these", tied);
        putchar('\n');
    }
    if (unlisted)
        printf("remark:        %zu tensors keep their own type, since nothing allowed suits their rows\n",
               unlisted);
    if (c->ties.n)
        printf("groups tied:   %zu\n", count_ties(plan->knapsack));
}

static bool as_it_is(const struct type_plan *plan, const struct gguf_model *model)
{
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (plan->types[i] != model->tensors[i].type)
            return false;
    return true;
}

allot_status type_plan_print(const struct type_plan *plan, const struct gguf_model *model,
                             struct allot_error *err)
{
    struct type_use uses[GGML_TYPE_COUNT];
    char size[32];
    if (plan->knapsack)
        print_prediction(plan);
    else if (plan->predicted.given)
        print_given(plan);
    if (plan->budget)
        printf("size asked:    %" PRId64 " bytes (%s)\n", plan->budget, str_size(size, plan->budget));
    printf("size planned:  %" PRId64 " bytes (%s)", plan->file_bytes, str_size(size, plan->file_bytes));
    if (plan->budget)
        printf(", %" PRId64 " below", plan->budget - plan->file_bytes);
    printf("; %.4f bits per weight\n", bits_per_weight(plan->data_bytes, model_parameters(model)));
    if (plan->knapsack && as_it_is(plan, model))
        printf("remark:        the size has room for every tensor as it is; nothing is quantized\n");
    if (plan->knapsack)
        print_constraints(plan);
    printf("by llama.cpp:  %" PRId64 " bytes (allot's own keys are not in it)\n\n", plan->stock_bytes);
    allot_status status = types_print(uses, count_types(uses, model, plan->types, false), err);
    putchar('\n');
    if (status == ALLOT_OK)
        status = layers_print(model, plan->types, err);
    return status;
}

/* One row per plan. */
static allot_status print_ladder(const struct ladder *ladder, const struct type_plan *const *plans,
                                 const struct gguf_model *model, struct allot_error *err)
{
    const bool in_nats = ladder->n == 0 || plans[0]->knapsack->in_nats;
    const char *const headings[] = {"<size asked",      ">bytes",
                                    ">bits per weight", in_nats ? ">predicted KL" : ">relative error",
                                    "<optimality",      ">ms per token"};
    const bool timed = ladder->n > 0 && plans[0]->knapsack->speed_source;
    struct table t;
    table_init(&t, headings, timed ? 6 : 5);
    for (size_t r = 0; r < ladder->n; r++) {
        const struct plan_result *result = &plans[r]->answer.result;
        table_cell(&t, "%s", ladder->rungs[r].text);
        table_cell(&t, "%" PRId64, plans[r]->file_bytes);
        table_cell(&t, "%.4f", bits_per_weight(plans[r]->data_bytes, model_parameters(model)));
        table_cell(&t, "%.6g", result->cost);
        if (result->exact)
            table_cell(&t, "exact");
        else
            table_cell(&t, "within %.3g%%", 100 * gap_fraction(plans[r]));
        if (timed)
            table_cell(&t, "%.4g", plans[r]->answer.ms);
    }
    return table_print(&t, err);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static json_t *budgets_json(const struct type_plan *plan)
{
    const struct constraint_list *budgets = &plan->knapsack->constraints->budgets;
    json_t *list = json_array();
    for (size_t l = 0; l < budgets->n; l++) {
        json_t *entry = json_object();
        json_put(entry, "budget", json_text(budgets->rules[l].text));
        json_put(entry, "budget_bytes", json_integer(budgets->rules[l].bytes));
        json_put(entry, "planned_bytes", json_integer(plan->answer.used[l]));
        json_put(entry, "nats_per_megabyte",
                 plan->knapsack->in_nats ? json_number(1e6 * plan->answer.lambdas[l]) : json_null());
        json_array_append_new(list, entry);
    }
    return list;
}

static void speed_json(json_t *object, const struct type_plan *plan)
{
    const bool timed = plan->knapsack && plan->knapsack->speed_source, priced = timed && plan->speed > 0;
    const struct knapsack_answer *answer = &plan->answer;
    json_put(object, "decode_ms", timed ? json_number(answer->ms) : json_null());
    json_put(object, "speeds", timed ? json_text(plan->knapsack->speed_source) : json_null());
    json_put(object, "speed", priced ? json_number(plan->speed) : json_null());
    json_put(object, "nats_per_ms", priced ? json_number(answer->ms_price) : json_null());
    json_put(object, "objective", priced ? json_number(answer->objective) : json_null());
    json_put(object, "kl_without_speed", priced ? json_number(plan->unpriced.cost) : json_null());
    json_put(object, "decode_ms_without_speed", priced ? json_number(plan->unpriced.ms) : json_null());
}

static void prediction_json(json_t *object, const struct type_plan *plan)
{
    const struct plan_result *result = plan->knapsack ? &plan->answer.result : NULL;
    const bool known = result || plan->predicted.given,
               in_nats = result ? plan->knapsack->in_nats : known && plan->predicted.in_nats;
    const double cost = result ? result->cost : plan->predicted.cost;
    const size_t n_unknown = result ? plan->answer.n_unknown : plan->predicted.n_unknown;
    json_put(object, "predicted_kl", in_nats ? json_number(cost) : json_null());
    json_put(object, "predicted_relative_error", known && !in_nats ? json_number(cost) : json_null());
    json_put(object, "exact", result ? json_boolean(result->exact) : json_null());
    json_put(object, "lower_bound", result ? json_number(result->lower_bound) : json_null());
    json_put(object, "nats_per_megabyte",
             in_nats && result ? json_number(1e6 * result->lambda) : json_null());
    json_put(object, "unknown_costs", known ? json_integer((json_int_t)n_unknown) : json_null());
    json_put(object, "budgets", result ? budgets_json(plan) : json_null());
    speed_json(object, plan);
}

void type_plan_json(json_t *object, const struct type_plan *plan, const struct gguf_model *model)
{
    struct type_use uses[GGML_TYPE_COUNT];
    json_t *tensors = json_object(), *decisions = json_object();
    for (int64_t i = 0; i < model->n_tensors; i++) {
        if (!gguf_tensor_quantizable(&model->tensors[i]))
            continue;
        json_put(tensors, model->tensors[i].name, json_text(type_label(plan->types[i])));
        if (plan->knapsack)
            json_put(decisions, model->tensors[i].name,
                     json_text(decision_name(plan->knapsack->decisions[i])));
    }
    prediction_json(object, plan);
    json_put(object, "budget_bytes", plan->budget ? json_integer(plan->budget) : json_null());
    json_put(object, "file_bytes", json_integer(plan->file_bytes));
    json_put(object, "stock_file_bytes", json_integer(plan->stock_bytes));
    json_put(object, "bits_per_weight",
             json_number(bits_per_weight(plan->data_bytes, model_parameters(model))));
    json_put(object, "base_ftype", json_text(plan->base->ftype));
    json_put(object, "types", types_json(uses, count_types(uses, model, plan->types, false)));
    json_put(object, "tensors", tensors);
    json_put(object, "decisions", decisions);
}

allot_status type_plan_report(const struct ladder *ladder, const struct type_plan *const *plans,
                              const struct gguf_model *model, bool json,
                              allot_status (*one)(const void *user, size_t r, json_t **document,
                                                  struct allot_error *err),
                              const void *user, struct allot_error *err)
{
    const bool several = ladder->n > 1;
    json_t *array = json && several ? json_array() : NULL, *document = NULL;
    allot_status status = ALLOT_OK;
    for (size_t r = 0; status == ALLOT_OK && r < ladder->n; r++) {
        status = one(user, r, &document, err);
        if (array && status == ALLOT_OK) /* else the document is the last one's */
            json_array_append_new(array, document);
    }
    if (status == ALLOT_OK && json)
        return json_print(several ? array : document, err);
    json_decref(array);
    if (status == ALLOT_OK && several) {
        putchar('\n');
        status = print_ladder(ladder, plans, model, err);
    }
    return status;
}
