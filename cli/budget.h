/* budget.h - how large the file may be: --size (several), --bpw or --like.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_BUDGET_H
#define ALLOT_CLI_BUDGET_H

#include "command.h"
#include "constraints.h"
#include "gguf/model.h"

/* What decode time is worth, and how it is known (speed_price.h). */
struct speed_arguments {
    double weight;
    const char *table;
};

/* What the types take after in place of a size (layouts.h). */
struct layout_arguments {
    const char *name, *hybrid;
    bool scale_depth;
};

/* The head of the arguments of the commands that work on a model. */
struct sized_arguments {
    struct common_arguments common;
    const char *sizes; /* "4GB,5GB" */
    double bpw;
    const char *like;
    struct constraint_arguments constraints;
    struct speed_arguments speed;
    struct layout_arguments layout;
};

extern const struct option_set budget_options; /* offsets into struct sized_arguments */

/* How many of the three were given. */
int budget_options_given(const struct sized_arguments *args);

/* The sizes to plan for, in the order given. Without --size there is one rung, of no bytes and no text. */
enum { MAX_RUNGS = 64 };
struct rung {
    int64_t bytes;
    char text[32]; /* as typed */
};
struct ladder {
    struct rung rungs[MAX_RUNGS];
    size_t n;
};
allot_status ladder_parse(struct ladder *ladder, const struct sized_arguments *args, struct allot_error *err);
/* The path for a rung: {} becomes the size as typed. malloc'd; NULL without memory. */
char *ladder_path(const char *path, const struct rung *rung);
/* Several sizes and one name for all of them are an error. */
allot_status ladder_check_path(const struct ladder *ladder, const char *path, struct allot_error *err);

/* The budget in bytes; INT64_MAX where none of the three was given. --bpw counts the tensor data alone;
 * header_bytes is what comes on top. */
allot_status budget_resolve(int64_t *budget, const struct sized_arguments *args, const struct rung *rung,
                            const struct gguf_model *model, int64_t header_bytes, struct allot_error *err);

#endif
