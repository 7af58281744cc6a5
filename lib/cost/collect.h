/* collect.h - the importance matrix of a calibration text, from one forward pass.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_COST_COLLECT_H
#define ALLOT_COST_COLLECT_H

#include "cost/imatrix.h"
#include "net/net.h"
#include "text/text.h"

/* Sums of squares of the inputs of every linear map of every layer over all windows, as llama-imatrix
 * collects them (the output matrix left out, as there by default). datasets: the names of the texts,
 * for the file's metadata. memory NULL: no limit. progress counts layers ("imatrix"). Release with
 * imatrix_release. */
allot_status imatrix_collect(struct imatrix *out, const struct net *net, struct pool *pool,
                             const struct text_windows *windows, const char *const *datasets,
                             size_t n_datasets, const struct memory_budget *memory,
                             const struct allot_progress *progress, struct allot_error *err);

/* The same for a model of any architecture that libllama runs, by its kernels and from its graph; the whole
 * model should fit into memory. progress counts windows. */
allot_status imatrix_collect_decoded(struct imatrix *out, const struct gguf_model *model, struct pool *pool,
                                     const struct text_windows *windows, const char *const *datasets,
                                     size_t n_datasets, const struct allot_progress *progress,
                                     struct allot_error *err);

#endif
