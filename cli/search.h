/* search.h - the search for files that nothing of their size beats: sources rebuilt on equal footing, their
 * groups judged alone, combinations and plans tried where a prediction says that they are worth it, and what
 * survives.  SPDX-License-Identifier: MIT
 *
 * A build is types for all tensors, tried in the loaded model's place (cost/trial.h): the kernels that will
 * run the file run here, on the bytes that it will hold, so nothing is written until it has survived. Tensors
 * that the build before had in the same type are not quantized again. What is measured goes into the archive
 * at once, and what is tried next follows from measurements alone: a search that was ended in any way goes on
 * as if it had not been. */
#ifndef ALLOT_CLI_SEARCH_H
#define ALLOT_CLI_SEARCH_H

#include "calibration.h"
#include "cost/trial.h"
#include "layouts.h"
#include "measure/measure.h"
#include "search/candidates.h"
#include "search/prune.h"
#include "tried.h"

struct search_arguments {
    struct calibrated_arguments calibrated;
    struct string_list evals;
    const char *sources; /* a list; NULL: the usual mixes, and all learned layouts that suit the model */
    const char *output;  /* a folder */
    int64_t ctx, windows, builds;
    double hours;
    bool scale_depth;
};

struct build {
    char *name;
    enum family family;
    enum ggml_type *types;     /* [n_tensors] */
    int64_t bytes, data_bytes; /* of the file; of its tensors, without padding */
    double *kl, *ln_ppl;       /* [windows] */
    bool measured;
    char failure[256];            /* why it was not, if it was tried; else "" */
    size_t *options;              /* [n_groups], or NULL: no combination */
    double predicted, confidence; /* before it was measured; NAN */
    char reason[384];             /* why it was tried */
};

/* A file or mix whose layout is rebuilt. */
struct source {
    struct build build;
    const struct layout *layout; /* NULL: a mix of llama-quantize */
    const char *found_by;        /* the mix's name, or the SHA-256 that the layout is kept by */
    bool learning_only;          /* its groups are used, the whole is no candidate */
    char *origin;
};

/* One way to have the tensors of a group. */
struct group_option {
    const struct build *of; /* types of the group's tensors; NULL: as they are in the model */
    struct build alone;     /* all other groups as they are */
    struct pruned pruned;
    bool stays; /* is there to be combined */
};

struct group {
    enum role role;
    int64_t *tensors; /* [n_tensors] */
    size_t n_tensors;
    int64_t n_weights;
    struct group_option *options; /* the first leaves the group as it is */
    size_t n_options;
};

struct search {
    const struct search_arguments *args;
    const struct allot_progress *progress;
    struct model_job job;
    struct pool *pool;
    struct job_imatrix imatrix;
    struct cost_table costs;
    struct layout_use layouts; /* its lists */
    struct text_windows windows;
    size_t *first_window;    /* [evals.n + 1]: of each text */
    char (*text_sha256)[65]; /* [evals.n]: of its windows */
    struct memory_budget memory;
    char *folder;
    struct trial *trial;
    struct provenance keys;
    double started; /* seconds_now */
    int64_t n_tried, n_recalled;
    bool begun;       /* the untouched model was run */
    bool over_budget; /* builds or hours ran out */

    struct source *sources;
    size_t n_sources;
    struct group groups[N_ROLES];
    size_t n_groups;
    struct build *attempts; /* [n_attempts], as candidate_next wants them made */
    struct candidate_attempt *records;
    size_t n_attempts;
    struct build *probes; /* [n_probes]: contexts of anomalies, in which most groups are exact */
    size_t n_probes;
    struct anomaly_rule *anomalies; /* [n_anomalies], of options */
    size_t n_anomalies;
};

/* The whole (cmd_search.c): prints and writes what comes of it, or, if document is not NULL, gives the
 * document of docs/search-result.md, which the caller drops. */
allot_status search_run(const struct search_arguments *args, const struct allot_progress *progress,
                        json_t **document, struct allot_error *err);
/* The options that args come from, in the command's sets and order; n of them. */
const struct option_set *const *search_option_sets(size_t *n);

/* ---- Builds (search_build.c) ------------------------------------------------------------------- */

/* The name (printf; where a source or an attempt has it, or one that makes the same name of a file, with a
 * number behind it) and a copy of types [n_tensors]; fills in bytes. */
allot_status build_init(struct build *b, struct search *s, enum family family, const enum ggml_type *types,
                        struct allot_error *err, const char *name, ...) __attribute__((format(printf, 6, 7)));
void build_release(struct build *b);
/* Measures it, or takes what is on record; a build that fails by its numbers says so in failure. Nothing
 * happens when the search is over budget. */
allot_status build_measure(struct build *b, struct search *s, const struct trial_step *step,
                           struct allot_error *err);
/* As it is compared with others; options only if they are in the space. */
struct measured build_measured(const struct build *b, const struct search *s);
/* Means over the windows of a text; `text` evals.n: of all. */
struct measure_mean build_kl(const struct build *b, const struct search *s, size_t text);
struct measure_mean build_ln_ppl(const struct build *b, const struct search *s, size_t text);
/* The sum of its tensors' costs; NAN if one has none or costs are no KL. */
double build_cost(const struct build *b, const struct search *s);

/* ---- Sources and groups (search_sources.c) ----------------------------------------------------- */

/* types [n_tensors] become the model's own; or only those of tensors that cannot be tried (trial.h). */
void search_own_types(const struct search *s, enum ggml_type *types);
void search_keep_unusable(const struct search *s, enum ggml_type *types);
/* Bytes of the group's tensors in the file, with padding. */
int64_t group_bytes(const struct search *s, const struct group *group, const enum ggml_type *types);

/* The source that it is of, or "as it is". */
const char *group_option_name(const struct group_option *option);

/* Rebuilds the sources, and lists groups with the different options that they have for them. */
allot_status search_list(struct search *s, struct allot_error *err);
/* Measures sources whole, and groups alone; prunes. */
allot_status search_isolate(struct search *s, struct allot_error *err);

/* ---- Candidates (search_candidates.c) ---------------------------------------------------------- */

/* Can plans be made of these costs with these types? Asked before anything is measured. */
allot_status search_check_plans(const struct search *s, struct allot_error *err);
/* Until nothing earns a build, or the budget is used up. Anomalies are probed as they are met. */
allot_status search_candidates(struct search *s, struct allot_error *err);

/* ---- What came of it (search_result.c) --------------------------------------------------------- */

/* Prints the document of docs/search-result.md, or a text for people; recipes of survivors and the document
 * go to the folder, if one is given. Or, if it is not NULL, fills *document, which the caller drops, and no
 * more. */
allot_status search_report(struct search *s, json_t **document, struct allot_error *err);

#endif
