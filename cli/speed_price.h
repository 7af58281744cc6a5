/* speed_price.h - decode time of the choices of a plan, and a price on it (--speed, --speed-table).
 * SPDX-License-Identifier: MIT
 *
 * One token reads every matrix once, but of experts only those that it takes, and of token embeddings that
 * are not the output too only its row: time = sum over matrices of bytes read x time per byte of their type.
 * Vectors, attention over the context and what else a token takes do not depend on the plan and are left out.
 */
#ifndef ALLOT_CLI_SPEED_PRICE_H
#define ALLOT_CLI_SPEED_PRICE_H

#include "budget.h"
#include "knapsack.h"
#include "speed_table.h"

extern const struct option_set speed_options; /* offsets into struct sized_arguments */

/* Some option of speed_options that the command line gave, or NULL. */
const char *speed_option_given(const struct string_list *given);

/* The share of a tensor's bytes that one token reads: 0 to 1. */
double speed_active_share(const struct gguf_model *model, const struct gguf_tensor *tensor);

/* Milliseconds that one token takes for the tensor in a type; NAN where the table does not tell. */
double speed_tensor_ms(const struct speed_table *table, const struct gguf_model *model,
                       const struct gguf_tensor *tensor, enum ggml_type type);

/* Before long work: reads the table that the arguments name, if they do. */
allot_status speed_open(struct speed_table *table, const struct sized_arguments *args,
                        struct allot_error *err);

/* Fills in the times of the knapsack's choices if the arguments want any: from the table read by speed_open,
 * or measured now, of the types that choices have, which a remark says. An open choice of a type that the
 * table does not tell of is an error. */
allot_status speed_set_times(struct knapsack *k, struct speed_table *table,
                             const struct sized_arguments *args, const struct allot_progress *progress,
                             struct allot_error *err);

/* The part of speed_set_times that follows once there is a table. */
allot_status speed_fill_times(struct knapsack *k, const struct speed_table *table, struct allot_error *err);

#endif
