/* trial.h - a loaded model tried out with other types in place of its own, without writing a file.
 *
 * SPDX-License-Identifier: MIT
 *
 * Tensors are quantized as `quantize` would, their bytes put in place of libllama's own (exchange.h), and the
 * KL divergence of the model's output to that of the untouched model is measured at every position of some
 * windows, with the kernels that will run the file: what is measured is what the file of these types would
 * give. Bytes stay in place from one trial to the next, so that a change of one tensor costs the quantizing
 * of that tensor and a forward pass. */
#ifndef ALLOT_COST_TRIAL_H
#define ALLOT_COST_TRIAL_H

#include "base/memory.h"
#include "base/pool.h"
#include "cost/imatrix.h"
#include "text/text.h"

struct trial;

/* Loads the model and finds its tensors by a pass over one window. imatrix: or NULL. memory: beside the
 * model, which is mapped; quantized tensors and logits that it has no room for go to temporary files (NULL:
 * no limit). All must outlive the trial. Windows longer than the context that the model was trained on are
 * ALLOT_ERR_ARGUMENT. */
allot_status trial_open(struct trial **out, const struct gguf_model *model, struct pool *pool,
                        const struct text_windows *windows, const struct imatrix *imatrix,
                        const struct memory_budget *memory, struct allot_error *err);
void trial_close(struct trial *trial);

/* Can this tensor get another type? Not what the graph does not use, or uses as no quantized type can be
 * used.
 */
bool trial_usable(const struct trial *trial, int64_t tensor);

/* Keeps the untouched model's logits, which the first measurement needs; seconds: of this one pass. */
allot_status trial_begin(struct trial *trial, double *seconds, struct allot_error *err);

/* How progress calls the measurement: pass `done` of `total` of a stage. */
struct trial_step {
    const char *stage;
    int64_t done, total;
};

/* kl [windows->n] gets KL(untouched || model with types[n_tensors]) of each window, its mean over positions,
 * nats per token; ln_ppl (NULL: not wanted) the logarithm of its perplexity over the untouched model's, over
 * the positions that have a next token. Types of tensors that are not usable must be their own. A tensor that
 * its type cannot hold, and an output that is not finite, are ALLOT_ERR_NUMERIC. Does not depend on earlier
 * trials, nor on the number of threads. */
allot_status trial_measure(double *kl, double *ln_ppl, struct trial *trial, const enum ggml_type *types,
                           const struct trial_step *step, const struct allot_progress *progress,
                           struct allot_error *err);

#endif
