/* explain.h - why a tensor has the type that a plan gave it.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_EXPLAIN_H
#define ALLOT_CLI_EXPLAIN_H

#include "type_plan.h"

/* Is there such a tensor, and is there something to explain? The error suggests the nearest name. */
allot_status explain_check(const struct gguf_model *model, const char *name, struct allot_error *err);

/* The tensor's alternatives by rising bytes, each with what it would cost in place of the chosen one at the
 * price of bytes, and why it was not taken. */
allot_status explain_print(const struct type_plan *plan, const char *name, struct allot_error *err);
json_t *explain_json(const struct type_plan *plan, const char *name);

#endif
