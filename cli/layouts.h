/* layouts.h - types that take after a learned layout, a mix of llama-quantize or a hybrid: --layout,
 * --hybrid. SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_LAYOUTS_H
#define ALLOT_CLI_LAYOUTS_H

#include "search/rebuild.h"
#include "type_plan.h"

/* Where `allot learn` keeps layouts unless it is told otherwise: in the current folder. */
#define LAYOUTS_ARCHIVE "layouts.allot"

extern const struct option_set layout_options; /* offsets into struct sized_arguments */

/* Do the types come from a layout, and not from a size? */
bool layout_given(const struct sized_arguments *args);
/* Refuses what cannot be understood, and options that a layout would not heed: those of sizes, constraints
 * and speed, and the `others` (NULL at the end), which the command has besides. */
allot_status layout_check(const struct sized_arguments *args, const char *const *others,
                          struct allot_error *err);

/* What a plan takes after. */
struct layout_use {
    struct layout_list lists[2]; /* of the model's archive and of LAYOUTS_ARCHIVE */
    struct hybrid hybrid;        /* of one layout: no parts */
    struct layout_fit fits[N_ROLES + 1];
};

/* The lists of layouts alone. */
allot_status layout_lists_load(struct layout_use *use, const struct model_job *job, struct allot_error *err);
/* Where the names of layouts are looked for. */
struct rebuild_source layout_source(const struct layout_use *use);

/* Fills plan->types of an empty plan. Layouts are looked for in the job's archive if it has one, then in
 * LAYOUTS_ARCHIVE if there is such a file. */
allot_status layout_plan(struct type_plan *plan, struct layout_use *use, const struct model_job *job,
                         const struct sized_arguments *args, bool has_imatrix,
                         const struct allot_progress *progress, struct allot_error *err);
void layout_use_release(struct layout_use *use);

/* The newest costs of the model if there are any, as cost_table_newest; else table->tensors is NULL. */
allot_status layout_costs(struct cost_table *table, struct model_job *job, const char *imatrix_sha256,
                          struct allot_error *err);

/* One line for the base and each part, or a JSON object. */
void layout_use_print(const struct layout_use *use);
json_t *layout_use_json(const struct layout_use *use);

/* "REPOSITORY@REVISION:FILE", what is not known left out. */
void layout_origin_text(struct strbuf *sb, const struct layout *layout);

#endif
