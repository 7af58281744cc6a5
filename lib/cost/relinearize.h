/* relinearize.h - what changing one tensor's type costs from where a plan stands.
 *
 * SPDX-License-Identifier: MIT
 *
 * Costs (fisher.h) are a second-order expansion around the original, where KL(p || p') has no slope. Around
 * the weights W' of a plan, with distribution p', it has one, and it holds all interactions with the errors
 * that are there already:
 *
 *     KL(W' + d) - KL(W') = g' d + 1/2 d' F d,
 *
 * g the gradient of KL and F the Fisher information of p' (Gauss-Newton: the curvature of the weights in the
 * network is left out). Both come from one pass through the quantized network. On some of its sequences the
 * gradient is that of sum_y p(y) log p'(y), with p of the original; v_c are its products with an error D_j =
 * dequant(quant_j(W)) - W, summed over chunks. On the others labels are drawn from p', which gives u_c. For
 * one tensor that goes from type i to j
 *
 *     change(j) = -1/n_v sum_c (v_c(j) - v_c(i)) + 1/(2 n_u) sum_c (u_c(j) - u_c(i))^2   [nats per token]
 *
 * with n_v and n_u the numbers of tokens. Changes of several tensors are taken as independent of each other,
 * which they are the more the fewer they are. After "Riemannian constrained optimization" of bit widths
 * (arXiv 2605.00649), with an exact knapsack in place of its relaxation. */
#ifndef ALLOT_COST_RELINEARIZE_H
#define ALLOT_COST_RELINEARIZE_H

#include "cost/imatrix.h"
#include "net/net.h"
#include "text/text.h"

struct type_change {
    enum ggml_type type;
    double slope, curve; /* nats per token; the change is their sum */
    double std_err;      /* of the sum, over sequences */
};

/* Of one tensor: candidates, the type it has and the source's own; those that cannot hold it are left out. */
struct tensor_changes {
    struct type_change *list;
    size_t n;
};

struct relinearize_options {
    int32_t chunk;    /* tokens; divides a sequence */
    uint64_t seed;    /* of the labels */
    int64_t n_taught; /* sequences for the slope, the first of the windows; the others have labels */
    const enum ggml_type *types; /* candidates; legal ones are used for each tensor */
    size_t n_types;
    const struct memory_budget *memory; /* NULL: no limit */
};

/* now: [n_tensors], types of the plan. Fills changes [n_tensors], empty where a tensor is not quantizable;
 * free them with tensor_changes_free. Results do not depend on the number of threads. */
allot_status relinearize_run(struct tensor_changes *changes, const struct net *net, const enum ggml_type *now,
                             struct pool *pool, const struct text_windows *windows,
                             const struct imatrix *imatrix, const struct relinearize_options *options,
                             const struct allot_progress *progress, struct allot_error *err);
void tensor_changes_free(struct tensor_changes *changes, int64_t n_tensors);

/* kl [windows->n] receives KL(p || p') for the plan's weights, the mean over each sequence's tokens [nats per
 * token], by the network's float32 passes. */
allot_status planned_divergence(double *kl, const struct net *net, const enum ggml_type *types,
                                struct pool *pool, const struct text_windows *windows,
                                const struct imatrix *imatrix, const struct memory_budget *memory,
                                const struct allot_progress *progress, struct allot_error *err);

#endif
