/* tried.h - what types in a model's place measured, kept in the archive.  SPDX-License-Identifier: MIT
 *
 * cost/trial.h measures; a measurement is keyed by a hash of the types that differ and of the imatrix, by the
 * windows and by the versions of what measured, so that no command repeats what another has done. */
#ifndef ALLOT_CLI_TRIED_H
#define ALLOT_CLI_TRIED_H

#include "cost/trial.h"
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
/* Measures them, in a trial with the same model, imatrix and windows, and keeps what comes out, which is
 * nothing where the archive cannot be written. ln_ppl may be NULL; label: what the types are, for people.
 * What fails but for an interruption is told in trial.h's words, without the label. */
allot_status tried_measure(double *kl, double *ln_ppl, const struct tried *t, struct trial *trial,
                           const enum ggml_type *types, const char *label, const struct trial_step *step,
                           const struct allot_progress *progress, struct allot_error *err);

#endif
