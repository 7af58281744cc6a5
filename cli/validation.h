/* validation.h - the protocol that judges methods of costs on a model: types tried out, measured, compared.
 *
 * SPDX-License-Identifier: MIT
 *
 * Three parts, all by libllama's own kernels, against the untouched model, on evaluation windows:
 *
 *  - One tensor at a time. Every tensor is in a high type (Q8_0, or its fallback), one of them in a low type
 *    (Q2_K, or the lowest that fits). The measured change of KL, KL(with it) - KL(without), is ranked beside
 *    the predicted change, cost(low) - cost(high), tensor by tensor (Spearman).
 *  - Methods beside each other: over all (tensor, type) pairs that both hold, rank correlation and the ratio
 *    of costs, above and below LOW_BITS bits per weight.
 *    Where one method saw more text than the other and keeps what each sequence adds (Fisher), its costs of
 *    the other's sequences alone are compared, so that a difference is one of methods, not of text.
 *  - Plans. What the plans of some sizes measure over what their costs add up to: on the evaluation windows,
 *    and on the sequences that the costs are of, which tells what text adds. The kernels round activations
 * too, as the types of weights have it (Q8_0, Q8_1, Q8_K), which no cost of weights tells. So all tensors are
 * measured in the finest type of each such kernel, and what that is above its predicted cost is the kernel's
 * floor, which is added to the prediction in proportion to the weights it serves.
 *
 * The rules by which a method's plans can be trusted: */
#ifndef ALLOT_CLI_VALIDATION_H
#define ALLOT_CLI_VALIDATION_H

#include "calibration.h"
#include "measure/measure.h"
#include "output.h"
#include "seen_text.h"
#include "type_plan.h"

/* Rank correlation of measured and predicted changes: at least this. */
#define LEAST_RANK 0.9
/* Measured KL of every plan over prediction and floor: between these. */
#define LEAST_RATIO 0.9
#define MOST_RATIO 1.15
/* Of the changes, at least this share must be above two of their standard errors: else nothing was measured
 * that could be ranked. */
#define LEAST_CLEAR 0.5
/* And there must be as many of them. */
#define LEAST_TENSORS 5
/* Types below so many bits per weight are a class of their own. */
#define LOW_BITS 3.0

struct validate_arguments {
    struct calibrated_arguments calibrated;
    struct string_list evals;
    const char *methods, *bpw, *sizes; /* lists */
    int64_t ctx, windows;
};

/* Texts that types are measured on: the evaluation's, and those that costs are of. */
enum { EVAL_TEXT = 0, MAX_TEXTS = 4 };

/* Types in the model's place, and their measured KL. */
struct assignment {
    enum ggml_type *types; /* [n_tensors] */
    char label[160];       /* for messages */
    struct {
        double *kl; /* [windows]; NULL: not wanted of this text */
        bool measured;
    } on[MAX_TEXTS];
};

/* Sets of costs under judgement: of each method the newest, and the newest of each other text. */
struct judged_set {
    struct cost_table costs;
    bool newest; /* of its method */
    size_t text; /* that the costs are of; EVAL_TEXT: not known, or the costs are no KL */
};

/* Tensor k, in its low type, is assignment 1 + k. */
struct degraded {
    int64_t tensor;
    enum ggml_type low, high;
};

struct planned_trial {
    size_t set;
    double bits_per_weight;
    int64_t file_bytes;
    double predicted;
    size_t assignment;
};

/* All tensors in the finest type with kernels that round activations to `kernel`. */
struct rounding {
    enum ggml_type kernel, finest;
    size_t assignment;
};

struct validation {
    const struct validate_arguments *args;
    struct model_job job;
    struct pool *pool;
    struct text_windows windows[MAX_TEXTS];
    size_t n_texts;
    struct memory_budget memory;
    char *folder;
    struct type_set allowed;                    /* by --types */
    struct job_imatrix imatrix;                 /* of all sets */
    struct archive_cost_set_info newest_before; /* id 0: there were none */
    struct judged_set *sets;
    size_t n_sets;
    struct assignment *assignments; /* first all tensors in their high types */
    size_t n_assignments;
    size_t n_measurements, n_resumed; /* wanted of all texts; of them on record at the start */
    struct degraded *degraded;
    size_t n_degraded;
    struct planned_trial *planned;
    size_t n_planned;
    struct rounding roundings[GGML_TYPE_COUNT]; /* of kernels that plans use; the first is that of Q8_0 */
    size_t n_roundings;
    struct seen_overlap overlap; /* of the evaluation windows with what calibration saw */
};

/* ---- Costs (validation_costs.c) ---------------------------------------------------------------- */

/* A method of this name can be computed here. */
bool validation_method_known(const char *name);
/* Calls each with the names on a comma-separated list; the first failure ends it. */
allot_status validation_each_item(const char *list,
                                  allot_status (*each)(void *user, const char *item, struct allot_error *err),
                                  void *user, struct allot_error *err);
/* The imatrix, and the sets: those on record with this imatrix, or computed from the texts. */
allot_status validation_costs(struct validation *v, const struct allot_progress *progress,
                              struct allot_error *err);
/* Fills in costs (n_tensors, GGML_TYPE_COUNT) of a set, NAN where there is none. Where its sequences include
 * all those of the reference and it has kept what each adds, costs are those of these sequences alone, and
 * *n_shared says how many they are; else it is 0. */
allot_status validation_shared_costs(double *costs, int64_t *n_shared, const struct validation *v, size_t set,
                                     size_t reference, struct allot_error *err);
/* The tensor's cost in the type; false if the set has none. */
bool validation_cost(double *cost, const struct cost_table *costs, const struct gguf_model *model,
                     int64_t tensor, enum ggml_type type);

/* ---- Trials (validation_trials.c) -------------------------------------------------------------- */

/* The type to which the kernels of a type of weights round activations. */
enum ggml_type validation_kernel(enum ggml_type type);
/* A size to plan for: bits per weight, or 0 and a rung. */
struct validation_size {
    double bpw;
    struct rung rung;
};
/* Lists the sizes, from --size or --bpw. *out: caller frees. */
allot_status validation_sizes(struct validation_size **out, size_t *n, const struct validate_arguments *args,
                              struct allot_error *err);
/* Chooses types, and measures what the archive does not hold yet. */
allot_status validation_measure(struct validation *v, const struct allot_progress *progress,
                                struct allot_error *err);
/* Of an assignment (and of its change against assignment 0, on the evaluation's text): mean and standard
 * error over windows; NAN for the error of a single window. */
struct measure_mean validation_kl(const struct validation *v, size_t text, size_t assignment);
struct measure_mean validation_change(const struct validation *v, size_t assignment);

/* ---- Judging (validation_judge.c) -------------------------------------------------------------- */

/* How the newest set of a method ranks tensors. */
struct ranking {
    size_t set;
    double rank;                    /* Spearman */
    double first, median, third;    /* measured over predicted change, where both are above 0 */
    size_t n, n_clear;              /* tensors; those whose change is above two standard errors */
    double least_ratio, most_ratio; /* measured over prediction and floor, of the plans; NAN without */
    double least_seen, most_seen;   /* the same on the text that the costs are of */
    double farthest_bits;           /* bits per weight of the plan that is farthest off, on either */
    double farthest_se;             /* and the standard error of its ratio */
    bool trusted;
    char sentence[800];
};

/* Two methods over the pairs of one class of types. */
struct agreement {
    size_t set, reference;
    const char *types; /* "all", "below 3 bits", "3 bits and more" */
    int64_t n_shared;  /* sequences that the costs of both are of; 0: each has its own */
    size_t n;
    double rank, first, median, third; /* of set over reference */
};

/* What a set's costs of an assignment add up to; NAN if one is missing, or if they are not KL. */
double validation_predicted(const struct validation *v, size_t set, size_t assignment);
/* What rounding adds to the plan's KL on a text, 0 or more, nats per token. */
double validation_floor(const struct validation *v, size_t text, const struct planned_trial *plan);
/* Measured over predicted; NAN for costs that are not KL. */
double validation_ratio(const struct validation *v, size_t text, const struct planned_trial *plan,
                        bool with_floor);
/* The text that the plan's costs are of was measured. */
bool validation_has_seen(const struct validation *v, const struct planned_trial *plan);

/* rankings: room for n_sets; agreements: room for 3 * n_sets; how many go to *n_... */
allot_status validation_judge(struct ranking *rankings, size_t *n_rankings, struct agreement *agreements,
                              size_t *n_agreements, const struct validation *v, struct allot_error *err);

#endif
