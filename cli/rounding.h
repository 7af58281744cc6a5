/* rounding.h - what `--rounding compensated` needs besides.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_ROUNDING_H
#define ALLOT_CLI_ROUNDING_H

#include "cost/rounding.h"
#include "job.h"
#include "options.h"
#include "output.h"
#include "provenance.h"

/* Second moments of a model's inputs on texts, and what rounds by them. Zero-initialised: as ggml rounds. */
struct rounding_job {
    bool compensated;
    char name[40]; /* of the rounding and its texts, in keys of costs */
    struct text_windows windows;
    struct net net;
    bool has_net;
    char *folder; /* for temporary files */
    struct second_moments moments;
    struct rounding *rounding; /* NULL: not collected yet */
    struct quantize_rounding hooks;
};

/* NULL and "ggml", or "compensated", which wants texts. */
bool rounding_compensates(const char *rounding);
allot_status rounding_check(const char *rounding, const struct string_list *texts, struct allot_error *err);

/* Reads n_windows windows of the texts, so that what is wrong with them shows before long work. */
allot_status rounding_job_open(struct rounding_job *r, const char *rounding, const struct model_job *job,
                               const struct string_list *texts, int32_t n_ctx, int64_t n_windows,
                               struct allot_error *err);
/* Passes the windows through the model, the first time it is called. Nothing happens as ggml rounds. */
allot_status rounding_job_collect(struct rounding_job *r, const struct model_job *job, struct pool *pool,
                                  int64_t memory, const struct allot_progress *progress,
                                  struct allot_error *err);
/* NULL as ggml rounds, or before it is collected. */
const struct quantize_rounding *rounding_job_hooks(const struct rounding_job *r);
void rounding_job_release(struct rounding_job *r);

/* The key that tells of it; nothing as ggml rounds. */
void rounding_job_provenance(const struct rounding_job *r, struct provenance *p);

/* Are costs with these parameters (cost sets name them) of compensated rounding? */
bool rounding_of_params(const char *params);

json_t *rounding_json(const struct rounding_result *result);
void rounding_print(const struct rounding_result *result);

#endif
