/* budget.h - how large the file may be: --size, --bpw or --like.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_BUDGET_H
#define ALLOT_CLI_BUDGET_H

#include "command.h"
#include "gguf/model.h"

/* The head of the arguments of the commands that work on a model. */
struct sized_arguments {
    struct common_arguments common;
    int64_t size;
    double bpw;
    const char *like;
};

extern const struct option_set budget_options; /* offsets into struct sized_arguments */

/* How many of the three were given. */
int budget_options_given(const struct sized_arguments *args);

/* The budget in bytes. --bpw counts the tensor data alone; header_bytes is what comes on top. */
allot_status budget_resolve(int64_t *budget, const struct sized_arguments *args,
                            const struct gguf_model *model, int64_t header_bytes, struct allot_error *err);

#endif
