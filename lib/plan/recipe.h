/* recipe.h - llama-quantize's --tensor-type-file.  SPDX-License-Identifier: MIT
 *
 * White-space separated PATTERN=TYPE rules, split at the first '=', unanchored regular expressions,
 * the first match wins, the pattern lowercased as llama-quantize does. A written recipe has one anchored,
 * escaped rule per quantizable tensor, one per line; characters a rule cannot carry (upper case, '=',
 * white space) become \xHH, which std::regex reads as the character itself, so that names stay apart.
 *
 * Expressions are those of pattern.h. */
#ifndef ALLOT_PLAN_RECIPE_H
#define ALLOT_PLAN_RECIPE_H

#include "allot.h"
#include "base/strbuf.h"

struct recipe; /* parsed rules */

/* type_by_name maps a type's name to the caller's label, or returns -1; known_types is for the
 * message about an unknown one. Errors name the file, the rule's number and the cause. */
allot_status recipe_parse(struct recipe **out, const char *path, int (*type_by_name)(const char *name),
                          const char *known_types, struct allot_error *err);
void recipe_free(struct recipe *recipe);
/* The label of the first rule that matches, -1 if none. */
int recipe_type(const struct recipe *recipe, const char *tensor_name);
/* A rule whose matching took too many steps for some name and was taken for no match there, or NULL. */
const char *recipe_hard_rule(const struct recipe *recipe);
/* The index-th rule that no name given to recipe_type so far has matched first, or NULL. */
const char *recipe_unused_rule(const struct recipe *recipe, size_t index);

/* Appends the rules for n names and type names. A name given twice is an error. */
allot_status recipe_format(struct strbuf *sb, const char *const *names, const char *const *types, size_t n,
                           struct allot_error *err);

#endif
