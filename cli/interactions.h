/* interactions.h - a solved plan improved by the interactions of its errors (--interactions).
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_INTERACTIONS_H
#define ALLOT_CLI_INTERACTIONS_H

#include "plan/interact.h"
#include "type_plan.h"

/* The search knows of KL and one size only: a price on time and --budget exclude it. */
allot_status interactions_check(const struct sized_arguments *args, struct allot_error *err);

/* Searches from the plan on with the sample values that fisher costs keep (plan/interact.h), and changes it
 * if that pays on samples not searched. Fails on costs of another method, which keep none. Not for plans
 * under --budget. */
allot_status interactions_improve(struct plan_interaction *out, struct type_plan *plan, struct model_job *job,
                                  const struct archive_cost_set_info *set, const struct provenance *keys,
                                  struct allot_error *err);

void interactions_print(const struct plan_interaction *found);
json_t *interactions_json(const struct plan_interaction *found);

#endif
