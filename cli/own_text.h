/* own_text.h - calibration windows that the model writes itself, kept in its archive.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_OWN_TEXT_H
#define ALLOT_CLI_OWN_TEXT_H

#include "base/pool.h"
#include "job.h"
#include "text/text.h"

/* What the windows are for: texts for one are not those for another. */
enum own_text_use { OWN_TEXT_IMATRIX, OWN_TEXT_COSTS };

/* n windows of n_ctx tokens, sampled as measure/sample.h says; after model_job_hash. With an archive that can
 * be written each finished group of sequences is kept, by model, version, seed, use and length: interrupted,
 * the next call goes on from there, and more windows later begin with the same. Needs a model that libllama
 * runs and memory holds. */
allot_status own_text_windows(struct text_windows *out, struct model_job *job, struct pool *pool,
                              enum own_text_use use, int64_t n, int32_t n_ctx, int64_t seed,
                              const struct allot_progress *progress, struct allot_error *err);

#endif
