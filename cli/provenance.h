/* provenance.h - the metadata keys that say what a quantized file was made from.
 * SPDX-License-Identifier: MIT
 *
 * First llama-quantize's own quantize.imatrix.* keys, with the same values, then allot's. */
#ifndef ALLOT_CLI_PROVENANCE_H
#define ALLOT_CLI_PROVENANCE_H

#include "job.h"
#include "quant/quantize.h"

struct provenance {
    struct quantize_key keys[9];
    size_t n_keys, n_stock_keys; /* the first n_stock_keys are llama-quantize's */
    char imatrix_file[128], imatrix_dataset[128], imatrix_sha256[65], source_sha256[65], rounding[96];
};

/* imatrix_path: as llama-quantize would be given it. */
void provenance_fill(struct provenance *p, const struct job_imatrix *im, const char *imatrix_path,
                     const char *source_sha256);
/* How codes were chosen, if not by ggml, and the hash of the windows of text that this took. */
void provenance_add_rounding(struct provenance *p, const char *name, const char *text_sha256);

#endif
