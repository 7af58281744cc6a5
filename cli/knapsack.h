/* knapsack.h - the choices of a model's tensors as a problem to solve: a table of costs under constraints.
 * SPDX-License-Identifier: MIT
 *
 * For every caller that plans: make one, change costs if wanted (a price of time, a measured correction),
 * solve it for any number of sizes. An item is a tensor, or several tied ones with bytes and costs added. */
#ifndef ALLOT_CLI_KNAPSACK_H
#define ALLOT_CLI_KNAPSACK_H

#include "constraints.h"
#include "plan/plan.h"

struct cost_table;

/* Why a choice is not open. */
enum choice_bar {
    CHOICE_OPEN,
    CHOICE_UNLISTED, /* --types or --compat does not name it */
    CHOICE_BELOW_MIN,
    CHOICE_ABOVE_MAX,
    CHOICE_NOT_PINNED /* --pin says another */
};

struct knapsack_choice {
    enum ggml_type type;
    int64_t bytes; /* in the file, padding included, of all tensors of the item */
    double
        cost; /* nats per token; the caller may change it, to negative values too, but must keep it finite */
    double std_err; /* of tied tensors the sum, which is never too small */
    bool known;     /* false: never measured; cost is 0 and says nothing */
    enum choice_bar bar;
};

struct knapsack_item {
    const char *name; /* of its first tensor */
    int64_t *tensors; /* of the model, rising */
    size_t n_tensors;
    struct knapsack_choice *choices; /* by rising bytes, then cost */
    size_t n_choices;
    size_t limit; /* which --budget, or PLAN_UNLIMITED */
};

enum tensor_decision {
    DECISION_NONE, /* nothing to decide: llama-quantize never changes it */
    DECISION_CHOSEN,
    DECISION_PINNED,
    DECISION_FALLBACK, /* pinned to a type that its rows do not fit */
    DECISION_TIED      /* to a pinned tensor */
};
const char *decision_name(enum tensor_decision decision);

struct knapsack {
    const struct gguf_model *model;
    const struct constraints *constraints; /* bound to the model */
    bool in_nats;                          /* costs are KL; else relative errors (cost_set_in_nats) */
    struct knapsack_item *items;
    size_t n;
    size_t *item_of;                 /* [model->n_tensors], or SIZE_MAX */
    enum tensor_decision *decisions; /* [model->n_tensors] */
    int64_t source_bytes;            /* of all items as they are, padded */
    int64_t *limit_fixed;            /* per --budget: bytes of tensors under it that keep their type */
    int64_t *tensors;                /* storage */
    struct knapsack_choice *choices; /* storage */
};

/* The model, table (only during this call) and constraints stay the caller's. Errors name what cannot be: a
 * pin that the tensor cannot take, a floor above a ceiling, tied tensors without a type in common, types that
 * the costs do not tell of. */
allot_status knapsack_init(struct knapsack *k, const struct gguf_model *model, const struct cost_table *costs,
                           const struct constraints *constraints, struct allot_error *err);
void knapsack_release(struct knapsack *k);

struct knapsack_answer {
    size_t *chosen;            /* [n]: the choice of each item */
    struct plan_result result; /* cost, bound: sums of costs as they stood, negative ones included */
    double *lambdas;           /* per --budget: what a byte is worth under it, nats per token */
    int64_t *used;             /* per --budget: bytes taken, by tensors that keep their type too */
    size_t n_unknown;          /* tensors whose cost was never measured and is not in the sum */
};

/* budget: bytes of the file, fixed_bytes of them for all that is no item; INT64_MAX: no limit. The error
 * names the constraint that cannot be kept and the nearest size that can. */
allot_status knapsack_solve(struct knapsack_answer *answer, const struct knapsack *k, int64_t fixed_bytes,
                            int64_t budget, struct allot_error *err);
void knapsack_answer_release(struct knapsack_answer *answer);

/* What a byte of the item is worth: cost + this * bytes is what choices compete by. */
double knapsack_lambda(const struct knapsack_answer *answer, const struct knapsack_item *item);

#endif
