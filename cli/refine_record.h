/* refine_record.h - what the passes of a refinement found, kept in the archive.  SPDX-License-Identifier: MIT
 *
 * Keyed by everything that it depends on, so that an interrupted refinement given again passes quickly
 * through what it has been through. Without an archive to write, nothing is kept, and that is no error. */
#ifndef ALLOT_CLI_REFINE_RECORD_H
#define ALLOT_CLI_REFINE_RECORD_H

#include "base/hash.h"
#include "cost/relinearize.h"
#include "job.h"

struct record_key {
    char hex[HASH_HEX];
};

/* types: [n_tensors] of the plan. options: NULL for the divergence. */
allot_status record_key(struct record_key *key, const struct model_job *job, const struct imatrix *imatrix,
                        const struct text_windows *windows, const enum ggml_type *types,
                        const struct relinearize_options *options, struct allot_error *err);

/* Of the n sequences' KL. *found: kl is filled. */
allot_status record_kl_get(bool *found, double *kl, int64_t n, const struct model_job *job,
                           const struct record_key *key, struct allot_error *err);
allot_status record_kl_put(const double *kl, int64_t n, const struct model_job *job,
                           const struct record_key *key, struct allot_error *err);

/* changes: [n_tensors] of the job's model, empty ones; tensor_changes_free them, whatever is returned. */
allot_status record_changes_get(bool *found, struct tensor_changes *changes, const struct model_job *job,
                                const struct record_key *key, struct allot_error *err);
allot_status record_changes_put(const struct tensor_changes *changes, const struct model_job *job,
                                const struct record_key *key, struct allot_error *err);

#endif
