/* job.h - what commands share: a model with its archive and hash, its imatrix, lists of types.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_JOB_H
#define ALLOT_CLI_JOB_H

#include "archive/archive.h"
#include "command.h"
#include "cost/imatrix.h"
#include "gguf/model.h"

/* ---- A model, its archive, its SHA-256 ------------------------------------------------------- */
struct model_job {
    struct gguf_model *model;
    char *archive_path;
    bool archive_given;      /* by the user */
    struct archive *archive; /* NULL: works without */
    char sha256[65];         /* after model_job_hash */
};

enum archive_use {
    ARCHIVE_CREATE,       /* needed; made if absent */
    ARCHIVE_EXISTING,     /* needed, if only to read; an absent one is an error that says how to make it */
    ARCHIVE_OPPORTUNISTIC /* used if it was asked for, or is there and can be read */
};

/* The model alone, so that outputs can be checked before an archive is made. */
allot_status model_job_open(struct model_job *job, const char *path, const struct common_arguments *common,
                            struct allot_error *err);
allot_status model_job_archive(struct model_job *job, enum archive_use use, struct allot_error *err);
/* Fills sha256, from the archive if the files are those hashed before. */
allot_status model_job_hash(struct model_job *job, const struct allot_progress *progress,
                            struct allot_error *err);
void model_job_release(struct model_job *job);

/* Path of the first shard: what llama.cpp's programs want to be given. */
const char *model_first_path(const struct gguf_model *model);

/* SHA-256 of any GGUF model by way of an archive (NULL: always computed). */
allot_status cached_model_sha256(struct archive *archive, const struct gguf_model *model, char hex[static 65],
                                 const struct allot_progress *progress, struct allot_error *err);

/* ---- Sets of types --------------------------------------------------------------------------- */
struct type_set {
    bool given; /* false: the caller named none */
    bool has[GGML_TYPE_COUNT];
};

/* "Q4_K,q6_k" (case-blind; NULL: nothing given). */
allot_status type_set_parse(struct type_set *set, const char *list, struct allot_error *err);

/* ---- The imatrix of a job -------------------------------------------------------------------- */
struct job_imatrix {
    struct imatrix data;
    bool present;
    bool computed; /* here, or taken from the archive; not a file of the user's */
    char *path;    /* of the user's file */
};

/* Reads the user's file and says what it does not cover; path NULL: absent. */
allot_status job_imatrix_read(struct job_imatrix *im, const char *path, const struct gguf_model *model,
                              const struct allot_progress *progress, struct allot_error *err);
void job_imatrix_release(struct job_imatrix *im);

/* Importances per tensor for quantize_write: array of model->n_tensors (NULL where there are none), as
 * quantizers get them. */
allot_status job_imatrix_weights(float ***weights, const struct job_imatrix *im,
                                 const struct gguf_model *model, struct allot_error *err);
void job_imatrix_weights_free(float **weights, const struct gguf_model *model);

/* ---- Outputs --------------------------------------------------------------------------------- */

/* What a command reads besides the model and its archive. */
struct job_inputs {
    const char *files[4]; /* NULL entries are skipped */
    const struct string_list *texts;
};

/* Refuses a path that is, through links too, one of the inputs, and one where no file can be made: asked
 * before long work; leaves nothing behind. A path of NULL is fine, and so is a job without a model. */
allot_status job_check_output(const struct model_job *job, const struct job_inputs *inputs, const char *path,
                              struct allot_error *err);

/* malloc'd printf; NULL without memory. */
char *text_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
