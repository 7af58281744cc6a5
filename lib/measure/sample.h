/* sample.h - text of the model's own: windows of tokens sampled from it with libllama.
 *
 * SPDX-License-Identifier: MIT
 *
 * Temperature 1, nothing cut off: every token is drawn from the model's whole distribution, from float logits
 * in double. A window is a sequence of its own. It begins as texts do, with BOS where the model adds one;
 * else with a token drawn evenly from the plain ones (neither control nor end nor byte nor unused), since a
 * model that was never shown a first token has no distribution for it. Where the model ends a text, the end
 * stands in the window and another text begins behind it in the same way, as in files that hold several:
 * masking ends would force the model on where it has nothing to say, and drawing on behind one repeats ends
 * for ever in some models.
 *
 * The token at a position is a function of (model, seed, stream, sequence, position): sequences are decoded
 * in fixed groups, each by one thread alone, so that neither the number of threads nor that of windows
 * matters. On another processor libllama's kernels may round differently, and the text may differ from there
 * on. */
#ifndef ALLOT_MEASURE_SAMPLE_H
#define ALLOT_MEASURE_SAMPLE_H

#include "base/pool.h"
#include "measure/engine.h"
#include "text/text.h"

#define SAMPLE_GROUP 16 /* sequences decoded together */

struct sample_options {
    uint64_t seed;
    uint64_t stream; /* texts of other streams have nothing in common */
    int32_t n_ctx;   /* tokens of a sequence, at least 2 */
};

struct sampler;

/* Loads the model for at most max_groups groups at a time. Fails on an n_ctx beyond the context that it was
 * trained on: with learned positions libllama would end the process. The pool must outlive the sampler. */
allot_status sampler_open(struct sampler **out, const char *model_path, const struct sample_options *options,
                          int64_t max_groups, struct pool *pool, struct allot_error *err);
void sampler_close(struct sampler *sampler);
/* How many groups are sampled at a time: as many as there are threads and memory for. */
int64_t sampler_groups(const struct sampler *sampler);

/* Writes n_groups (no more than sampler_groups) x SAMPLE_GROUP sequences of n_ctx ids, group `first` first.
 * Progress stage: "sample", in tokens: from `done` on, of `total`. */
allot_status sampler_run(struct sampler *sampler, int32_t *ids, int64_t first, int64_t n_groups, int64_t done,
                         int64_t total, const struct allot_progress *progress, struct allot_error *err);

/* The index at which the running sum of softmax(logits) passes u, 0 < u < 1; -1 if logits are not finite
 * (negative infinity has no share). */
int32_t sample_draw(const float *logits, int32_t n, double u);

#endif
