/* provenance.h - the metadata keys that say what a quantized file was made from.
 * SPDX-License-Identifier: MIT
 *
 * First llama-quantize's own quantize.imatrix.* keys, with the same values, then allot's. */
#ifndef ALLOT_CLI_PROVENANCE_H
#define ALLOT_CLI_PROVENANCE_H

#include "job.h"
#include "quant/quantize.h"

struct provenance {
    struct quantize_key keys[8];
    size_t n_keys, n_stock_keys; /* the first n_stock_keys are llama-quantize's */
    char imatrix_file[128], imatrix_dataset[128], imatrix_sha256[65], source_sha256[65];
};

/* What is known of an imatrix without having it at hand; kept in the archive beside the costs made with it.
 */
struct imatrix_facts {
    char sha256[65]; /* "": no imatrix */
    char path[4096]; /* of the user's file, absolute; "" if it was computed here */
    char dataset[128];
    int64_t n_entries, n_chunks;
};

void imatrix_facts_of(struct imatrix_facts *facts, const struct job_imatrix *im);
/* Kept under the imatrix's hash. Loading what was never stored leaves everything but sha256 empty. */
allot_status imatrix_facts_store(struct archive *archive, const struct imatrix_facts *facts,
                                 struct allot_error *err);
allot_status imatrix_facts_load(struct imatrix_facts *facts, struct archive *archive, const char *sha256,
                                struct allot_error *err);

/* imatrix_path: as llama-quantize would be given it. */
void provenance_fill(struct provenance *p, const struct imatrix_facts *facts, const char *imatrix_path,
                     const char *source_sha256);

#endif
