/* constraints.h - what a plan may give the tensors: --types, --compat, --pin, --min, --max, --tie, --budget.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_CONSTRAINTS_H
#define ALLOT_CLI_CONSTRAINTS_H

#include "gguf/model.h"
#include "job.h"
#include "plan/pattern.h"

/* As given, behind struct sized_arguments; --types stands with the options of the commands. */
struct constraint_arguments {
    const char *compat;
    struct string_list pins, mins, maxs, ties, budgets;
    bool interactions; /* no constraint, but asked for at the same places */
};

extern const struct option_set constraint_options; /* offsets into struct sized_arguments */

/* Some option of constraint_options that the command line gave, or NULL. */
const char *constraint_option_given(const struct string_list *given);

struct constraint_rule {
    const char *option, *text; /* as given: "pin", "attn_v=Q6_K" */
    struct pattern *pattern;   /* NULL: every tensor */
    enum ggml_type type;       /* of --pin, --min, --max */
    int64_t bytes;             /* of --budget */
};

/* The rules of one option, in order. */
struct constraint_list {
    struct constraint_rule *rules;
    size_t n;
    int32_t *of; /* of[i]: the first rule that matches tensor i, or -1; after constraints_bind */
};

struct constraints {
    struct type_set named;   /* by --types; costs must tell of these */
    struct type_set allowed; /* by --types and --compat */
    const char *compat;
    struct constraint_list pins, mins, maxs, ties, budgets;
    int32_t *tied; /* tied[i]: a number that all tensors tied to tensor i share, or -1; after bind */
};

/* Of an unbound struct of zeros; types as in --types. Errors are a sentence for the user. `args` stays the
 * caller's, and must stay. */
allot_status constraints_parse(struct constraints *c, const char *types,
                               const struct constraint_arguments *args, struct allot_error *err);
/* Finds which rule holds for which quantizable tensor, of budgets for which tensor. A pattern that matches
 * none is an error: a misspelt constraint would be broken in silence. */
allot_status constraints_bind(struct constraints *c, const struct gguf_model *model, struct allot_error *err);
void constraints_release(struct constraints *c);

/* The types that --types and --compat leave; given: any of both was. */
allot_status constraint_types(struct type_set *set, const char *types, const char *compat,
                              struct allot_error *err);

/* The rule of the list that holds for a tensor, or NULL. */
const struct constraint_rule *constraint_rule_of(const struct constraint_list *list, int64_t tensor);

/* "--pin 'attn_v=Q6_K'", cut to fit. */
const char *constraint_label(char buf[static 200], const struct constraint_rule *rule);

/* What llama-quantize writes for the tensor's pin: its fallback where the rows do not fit. False: no pin. */
bool constraint_pinned(const struct constraints *c, const struct gguf_model *model, int64_t tensor,
                       enum ggml_type *type, bool *fallback);

/* Bits per weight of a type. */
double type_bits(enum ggml_type type);

#endif
