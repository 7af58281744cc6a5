/* tried.h - what types in a model's place measured, kept in the archive.  SPDX-License-Identifier: MIT
 *
 * cost/trial.h measures; a measurement is keyed by a hash of the types that differ and of the imatrix, by the
 * windows and by the versions of what measured, so that no command repeats what another has done. */
#ifndef ALLOT_CLI_TRIED_H
#define ALLOT_CLI_TRIED_H

#include "job.h"
#include "text/text.h"

/* What all types are tried with; all of it stays the caller's. */
struct tried {
    const struct model_job *job; /* with an archive */
    const struct job_imatrix *imatrix;
    const struct text_windows *windows;
};

/* Fills kl and, unless it is NULL, ln_ppl ([windows->n] each) with what is on record of types [n_tensors];
 * false: it is not all there, or a document says something else. */
allot_status tried_recall(bool *found, double *kl, double *ln_ppl, const struct tried *t,
                          const enum ggml_type *types, struct allot_error *err);
/* Keeps them; nothing happens where the archive cannot be written. ln_ppl may be NULL; label: what the types
 * are, for people. */
allot_status tried_record(const double *kl, const double *ln_ppl, const struct tried *t,
                          const enum ggml_type *types, const char *label, struct allot_error *err);

#endif
