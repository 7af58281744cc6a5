/* quantize_job.h - the steps of allot quantize.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_QUANTIZE_JOB_H
#define ALLOT_CLI_QUANTIZE_JOB_H

#include "calibration.h"
#include "interactions.h"
#include "layouts.h"
#include "refine.h"
#include "speed_table.h"
#include "type_plan.h"

struct quantize_arguments {
    struct calibrated_arguments calibrated;
    const char *recipe, *base;
    const char *codes; /* a file whose types are taken, with better codes */
    bool strict;
    int64_t refine; /* rounds */
};

/* Are the types given, so that nothing is measured? By a recipe, by layouts or by a file. */
bool quantize_types_given(const struct quantize_arguments *args);

/* One file to write. */
struct quantize_output {
    char *path;
    char *recipe_path;  /* OUT.recipe, or the user's where that is complete */
    char *export_path;  /* OUT.imatrix.gguf, for an imatrix that was computed here */
    char *imatrix_path; /* OUT.imatrix.gguf, or the user's; NULL: none */
    struct provenance keys;
    struct type_plan plan;
    struct plan_interaction interaction; /* of the plan, these two if asked for */
    struct refinement refinement;
    struct quantize_result result;
    struct rounding_result rounding; /* if it is compensated */
};

struct quantize_run {
    const struct quantize_arguments *args;
    const struct allot_progress *progress;
    struct ladder ladder;
    struct constraints constraints;
    bool writes_recipe;
    struct pool *pool;
    struct model_job job;
    bool own_text;                  /* the calibration's text is the model's own */
    bool measures;                  /* costs; else they are on record, or the types are in a recipe */
    struct calibration calibration; /* if so */
    struct rounding_job rounding;
    struct job_imatrix imatrix;
    struct knapsack knapsack; /* without a recipe */
    struct speed_table speeds;
    int64_t n_fallbacks;                       /* of a recipe */
    struct layout_use layout;                  /* with --layout or --hybrid */
    struct quantize_output outputs[MAX_RUNGS]; /* [ladder.n] */
};

/* Opens model and archive; refuses an output that cannot or must not be written. */
allot_status quantize_run_open(struct quantize_run *run, struct allot_error *err);
/* Types by costs and a budget, by a recipe, or by layouts: fills imatrix, and keys and plan of the outputs.
 */
allot_status quantize_run_plan(struct quantize_run *run, struct allot_error *err);
allot_status quantize_run_recipe(struct quantize_run *run, struct allot_error *err);
allot_status quantize_run_layout(struct quantize_run *run, struct allot_error *err);
allot_status quantize_run_codes(struct quantize_run *run, struct allot_error *err);
/* Where llama-quantize finds the imatrix, and the keys that tell of it. */
allot_status quantize_name_imatrix(struct quantize_run *run, struct allot_error *err);
/* Writes and checks the files and what goes beside them. */
allot_status quantize_run_write(struct quantize_run *run, struct allot_error *err);
allot_status quantize_run_report(const struct quantize_run *run, struct allot_error *err);
void quantize_run_release(struct quantize_run *run);

#endif
