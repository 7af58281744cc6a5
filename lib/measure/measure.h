/* measure.h - how far quantized models are from the original, with libllama's real kernels.
 * SPDX-License-Identifier: MIT
 *
 * Windows and scored positions are those of llama-perplexity --kl-divergence (n_ctx tokens, positions
 * n_ctx/2 .. n_ctx-2, BOS first if the model adds one). Base and candidates are decoded side by side and
 * compared in double from their float logits, nothing is stored or clipped. The threads share out whole
 * windows and the models' weights; each has a context of its own for every model and fetches logits for few
 * positions at a time, so that memory beside the models grows with threads times models times vocabulary, not
 * with vocabulary times context; no more threads are used than there are windows, and than some 4 GiB of
 * that memory allow (a note says so). The numbers are those of llama-perplexity -b n_ctx, but for its 16-bit
 * codes of the base; its default -b 2048 decodes four windows in one batch, which changes ggml's own rounding
 * (on small models some 1e-5 of ln PPL).
 *
 * Progress stages: "load" (models), "measure" (windows); a stop is seen between windows of the calling
 * thread. */
#ifndef ALLOT_MEASURE_MEASURE_H
#define ALLOT_MEASURE_MEASURE_H

#include "allot.h"

struct measure_options {
    int32_t n_ctx;       /* 512 as llama-perplexity's default; must be even and >= 32 */
    int64_t max_windows; /* per text; < 1: all */
    int n_threads;       /* < 1: one per processor */
};

/* A mean and its standard error over windows (each window one sample: tokens within one are not
 * independent). With a single window the error is over its tokens. */
struct measure_mean {
    double mean, se;
};

struct measure_stats {
    int64_t n_windows, n_tokens; /* scored */
    struct measure_mean kl;      /* nats per token, KL(base || candidate) */
    double kl_se_tokens;         /* as llama-perplexity prints it: tokens as if independent */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max;
    struct measure_mean nll_base, nll;  /* PPL = exp(mean) */
    struct measure_mean ln_ratio;       /* ln PPL(cand)/PPL(base), paired */
    struct measure_mean same_top;       /* fraction */
    double dp_rms;                      /* root mean square change of the text token's probability */
    struct measure_mean kl_minus_first; /* paired KL difference to the first candidate (0 for itself) */
};

struct measure_result {
    size_t n_candidates, n_texts;
    /* (n_candidates, n_texts + 1); the last column pools all texts (token-weighted mean). */
    struct measure_stats *stats;
    /* (n_candidates, n_candidates): KL of the first index less that of the second, paired, all texts pooled.
     */
    struct measure_mean *differences;
    char **text_sha256; /* [n_texts], of the token windows */
};

/* All models are loaded at once, mapped. Texts are cut before any weights are touched. A NaN or infinity in a
 * model's output is ALLOT_ERR_NUMERIC, naming the model. Neither results nor, if windows fail, which failure
 * is told depend on n_threads.
 * Candidates must have the base's vocabulary (size and token texts are compared). A text shorter
 * than one window is refused with the number of tokens needed. The base may be its own candidate. */
allot_status measure_run(struct measure_result *out, const char *base_path,
                         const char *const *candidate_paths, size_t n_candidates,
                         const char *const *text_paths, size_t n_texts, const struct measure_options *options,
                         const struct allot_progress *progress, struct allot_error *err);
void measure_result_release(struct measure_result *result);

/* Whether a paired difference is within two standard errors of nothing. */
bool measure_is_tie(struct measure_mean difference);

/* Where a candidate stands among all of a result, by bytes and pooled KL. */
struct measure_place {
    /* The one of least KL among those no larger whose KL is lower beyond a tie; SIZE_MAX: none, the candidate
     * is on the Pareto front. */
    size_t beaten_by;
    /* The smallest of the others no larger (of equal ones the first) that ties with it; SIZE_MAX: none. */
    size_t ties_with;
};

/* bytes: [n_candidates]. */
struct measure_place measure_place_of(const struct measure_result *result, const int64_t *bytes,
                                      size_t candidate);

#endif
