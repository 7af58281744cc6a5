/* calibration.h - the imatrix and the costs of a model from calibration texts, kept in its archive.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_CALIBRATION_H
#define ALLOT_CLI_CALIBRATION_H

#include "base/pool.h"
#include "budget.h"
#include "cost/exact.h"
#include "cost/fisher.h"
#include "cost/probe.h"
#include "cost/weight.h"
#include "job.h"
#include "output.h"
#include "rounding.h"

enum { IMATRIX_CONTEXT = 512, IMATRIX_WINDOWS = 64 }; /* of an imatrix that is computed for costs */

/* The arguments of the commands that calibrate; not all of them show all of the options. */
struct calibrated_arguments {
    struct sized_arguments sized;
    struct string_list texts;
    const char *imatrix; /* the user's file; NULL: computed from the texts */
    bool no_imatrix;
    int64_t imatrix_chunks;
    int64_t chunk, sequences, sequence_length, seed, text_seed;
    const char *types, *method, *rounding;
    int64_t memory; /* bytes; 0: the default limit */
};

/* The row of --mem: `offset_` is that of an int64_t. */
#define MEMORY_ROW(offset_)                                                                          \
    {                                                                                                \
        "mem", 0, "SIZE", OPTION_SIZE, offset_, NULL, 0,                                             \
            "memory to use at most; what does not fit goes to a temporary file beside the archive; " \
            "without it 60 % of the machine's, or of what the process is limited to"                 \
    }

extern const struct option_set calibration_options;            /* offsets into struct calibrated_arguments */
extern const struct option_set calibration_methodless_options; /* without --method, its last row */
extern const struct option_set rounding_options;               /* the same, of commands that heed it */

/* The i-th option that only a run over texts heeds, or NULL. */
const char *calibration_run_option(size_t i);
/* What cannot be said by rows: known types, a chunk that divides the sequence, options that exclude others.
 */
allot_status calibration_check(const struct calibrated_arguments *args, struct allot_error *err);

/* A model opened for runs over texts, and what such runs read. */
struct calibration {
    struct model_job *job;
    struct pool *pool;
    struct net net;
    bool has_net; /* else libllama runs the model */
    struct text_vocab *vocab;
    /* Those of files once they are read, those of the model's own text once they are wanted. */
    struct text_windows sequences;       /* for the costs */
    bool own_sequences;                  /* the model wrote them */
    struct text_windows imatrix_windows; /* if an imatrix is to be computed */
    struct job_imatrix imatrix;          /* the user's */
    struct memory_budget memory;
    char *folder;                  /* of the archive, for temporary files */
    struct rounding_job *rounding; /* of candidates; the caller's, or NULL: as ggml rounds */
};

/* What runs the model: lib/net, whose architectures are few; libllama; lib/net if it can; or nothing, where
 * no text is needed. */
enum calibration_means { BY_NET, BY_LIBLLAMA, BY_EITHER, BY_NOTHING };

/* memory: as in the arguments. */
allot_status calibration_open(struct calibration *c, struct model_job *job, struct pool *pool, int64_t memory,
                              enum calibration_means means, struct allot_error *err);
/* Do the arguments' costs, or their imatrix, come from texts? Without -f the model writes them. */
bool calibration_needs_text(const struct calibrated_arguments *args);
/* Do they ask for costs to be measured, even where some are on record? */
bool calibration_wanted(const struct calibrated_arguments *args);
/* What says whether texts are the model's own: --text-seed, NULL where they are files or there are none. */
json_t *calibration_text_seed(const struct calibrated_arguments *args);
/* What measuring needs. */
enum calibration_means calibration_method(const struct calibrated_arguments *args);
/* Reads all that the arguments name and need, so that a mistake in them shows before an archive is made. */
allot_status calibration_read(struct calibration *c, const struct calibrated_arguments *args,
                              const struct allot_progress *progress, struct allot_error *err);
/* What --rounding says, with the windows of the texts that an imatrix would be computed from. */
allot_status calibration_rounding(struct rounding_job *out, const struct model_job *job,
                                  const struct calibrated_arguments *args, struct allot_error *err);
/* Up to n sequences of the costs' length, spread evenly over the same texts; those of the costs may be among
 * them. */
allot_status calibration_more_sequences(struct text_windows *out, const struct calibration *c,
                                        const struct calibrated_arguments *args, int64_t n,
                                        struct allot_error *err);
void calibration_close(struct calibration *c);

/* The windows for an imatrix that the model writes itself, max_windows of them or, if < 1, as many as an
 * imatrix has by default; after model_job_hash. Says so. */
allot_status calibration_own_windows(struct calibration *c, int32_t n_ctx, int64_t max_windows, int64_t seed,
                                     const struct allot_progress *progress, struct allot_error *err);

/* The imatrix of windows of the texts; texts NULL: they are the model's own. With an archive it is taken from
 * there, or kept there once computed.
 */
allot_status calibration_imatrix(struct job_imatrix *im, struct calibration *c,
                                 const struct text_windows *windows, const struct string_list *texts,
                                 const struct allot_progress *progress, struct allot_error *err);

/* After calibration_read. What the arguments say: the user's imatrix, none, or that of the texts. */
allot_status calibration_chosen_imatrix(struct job_imatrix *im, struct calibration *c,
                                        const struct calibrated_arguments *args,
                                        const struct allot_progress *progress, struct allot_error *err);

/* The named types, or those a table marks as candidates, by rising bits per weight; returns how many. */
size_t calibration_candidates(enum ggml_type out[static GGML_TYPE_COUNT], const struct type_set *set);
/* Those of them that --compat allows. */
allot_status calibration_types(enum ggml_type out[static GGML_TYPE_COUNT], size_t *n,
                               const struct calibrated_arguments *args, struct allot_error *err);

/* After calibration_read. Costs of all tensors in the wanted types into the archive; what is there already is
 * not computed again. */
struct calibration_result {
    struct archive_cost_set_info set;
    const char *method; /* whose result is filled in */
    struct exact_result exactly;
    struct fisher_result fisher;
    struct probe_result probe;
    struct weight_result weight;
    int64_t n_unsuited, n_resumed; /* of the method */
};
allot_status calibration_costs(struct calibration_result *result, struct calibration *c,
                               const struct calibrated_arguments *args, const struct job_imatrix *im,
                               const struct allot_progress *progress, struct allot_error *err);

/* The imatrix behind a set of costs, by its SHA-256: from the archive if it was computed here, or else from
 * the file it was read from. Absent where the costs are without one; an error where it is not at hand. */
allot_status calibration_imatrix_of_set(struct job_imatrix *im, struct model_job *job,
                                        const struct archive_cost_set_info *set,
                                        const struct allot_progress *progress, struct allot_error *err);

#endif
