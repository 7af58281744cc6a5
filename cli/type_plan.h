/* type_plan.h - from measured costs and a budget to one type per tensor.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_TYPE_PLAN_H
#define ALLOT_CLI_TYPE_PLAN_H

#include "archive/archive.h"
#include "budget.h"
#include "job.h"
#include "knapsack.h"
#include "output.h"
#include "provenance.h"

/* The costs of one set, tensor by tensor. */
struct tensor_costs {
    struct plan_choice choices[GGML_TYPE_COUNT + 1]; /* feasible rows; bytes padded */
    double std_err[GGML_TYPE_COUNT + 1];
    bool infeasible[GGML_TYPE_COUNT];
    size_t n, n_infeasible;
};

/* Are the costs of a set KL divergences? Those of --method weight are relative errors, which have no scale in
 * common with them. */
bool cost_set_in_nats(const struct archive_cost_set_info *set);
const char *cost_set_unit(const struct archive_cost_set_info *set); /* "nats per token", "relative error" */

/* Sets of costs of the model, the newest first; those of other rounding than ggml's are left out, since what
 * is planned from sets on record is rounded so. The list is the caller's to free. */
allot_status cost_sets(struct archive_cost_set_info **sets, size_t *n, const struct model_job *job,
                       struct allot_error *err);

struct cost_table {
    struct archive_cost_set_info set;
    struct tensor_costs *tensors; /* [model->n_tensors] */
    bool types[GGML_TYPE_COUNT];  /* finished in the set; costs of others are left out */
    int64_t n_measured;           /* tensors with a cost, feasible or not */
};

allot_status cost_table_load(struct cost_table *table, struct model_job *job,
                             const struct archive_cost_set_info *set, struct allot_error *err);
/* The newest of these with finished types; if imatrix_sha256 is not NULL, of that imatrix ("": none).
 * The error says what there is instead. */
allot_status cost_table_newest(struct cost_table *table, struct model_job *job, const char *imatrix_sha256,
                               struct allot_error *err);
void cost_table_release(struct cost_table *table);

struct type_plan {
    enum ggml_type *types;           /* [model->n_tensors] */
    const struct knapsack *knapsack; /* that types were chosen from; NULL: by a recipe or a layout */
    struct knapsack_answer answer;
    struct {
        bool given, in_nats;
        double cost;
        size_t n_unknown; /* tensors whose cost was never measured and is not in the sum */
    } predicted;          /* without a knapsack, by type_plan_predict */
    double speed;         /* --speed: nats for all of unpriced.ms, 0: no price on time */
    struct {
        double cost, ms;
    } unpriced;                    /* of the plan without a price, where there is one */
    int64_t budget;                /* 0: none */
    int64_t file_bytes;            /* exact size of the file allot writes */
    int64_t stock_bytes;           /* and of llama-quantize's, which lacks allot's keys */
    int64_t data_bytes;            /* of the tensors, without padding */
    const struct quant_type *base; /* the type whose ftype the file is called after */
};

/* Solves for the budget in args, at one rung of its ladder. The knapsack must stay. */
allot_status type_plan_solve(struct type_plan *plan, const struct knapsack *knapsack,
                             const struct sized_arguments *args, const struct rung *rung,
                             const struct provenance *keys, struct allot_error *err);
/* The same with the price on time that the arguments say, for knapsacks with times: what decodes as fast as
 * the plan without it is worth nothing, and W nats are what all of that plan's time is worth. Leaves the
 * price in the knapsack. */
allot_status type_plan_solve_priced(struct type_plan *plan, struct knapsack *knapsack,
                                    const struct sized_arguments *args, const struct rung *rung,
                                    const struct provenance *keys, struct allot_error *err);
/* After another choice than the solver's, in answer.chosen: types, sizes, and the sum of costs, which need no
 * longer be the least; only the bound is known. */
allot_status type_plan_choose(struct type_plan *plan, const struct provenance *keys, struct allot_error *err);
/* Fills in what follows from plan->types: sizes and base. */
allot_status type_plan_measure(struct type_plan *plan, const struct gguf_model *model,
                               const struct provenance *keys, struct allot_error *err);
/* The sum of the costs of plan->types, for a plan without a knapsack. */
void type_plan_predict(struct type_plan *plan, const struct gguf_model *model,
                       const struct cost_table *costs);
void type_plan_release(struct type_plan *plan);

/* One anchored rule per quantizable tensor. */
allot_status type_plan_write_recipe(const struct type_plan *plan, const struct gguf_model *model,
                                    const char *path, struct allot_error *err);

/* The llama-quantize command that writes the same tensors; caller releases sb. */
allot_status type_plan_stock_command(struct strbuf *sb, const struct type_plan *plan,
                                     const struct gguf_model *model, const char *imatrix_path,
                                     const char *recipe_path, const char *out_path, struct allot_error *err);

/* Prediction, sizes and types, as text or into a JSON object. */
allot_status type_plan_print(const struct type_plan *plan, const struct gguf_model *model,
                             struct allot_error *err);
void type_plan_json(json_t *object, const struct type_plan *plan, const struct gguf_model *model);

/* Reports a ladder of plans. one(user, r, &document) prints the r-th, or makes its JSON document. Of several
 * sizes the documents form an array; the text ends with a table. */
allot_status type_plan_report(const struct ladder *ladder, const struct type_plan *const *plans,
                              const struct gguf_model *model, bool json,
                              allot_status (*one)(const void *user, size_t r, json_t **document,
                                                  struct allot_error *err),
                              const void *user, struct allot_error *err);

#endif
