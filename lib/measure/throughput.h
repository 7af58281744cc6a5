/* throughput.h - tokens per second of whole models with libllama.  SPDX-License-Identifier: MIT
 *
 * As llama-bench counts: a prompt is decoded in one batch, and tokens are decoded one by one from an empty
 * context. Models take turns, so that what else the machine does meets all of them, and of several
 * repetitions the median counts; one before them, not counted, touches everything. Like those of speed.h,
 * these numbers depend on machine, threads and moment. */
#ifndef ALLOT_MEASURE_THROUGHPUT_H
#define ALLOT_MEASURE_THROUGHPUT_H

#include "allot.h"

struct throughput_options {
    const char *text; /* one window of it is the prompt, whose first tokens are the ones decoded one by one */
    int32_t n_prompt; /* tokens of the prompt, at least 2 */
    int32_t n_generate; /* tokens decoded one by one, at least 1, no more than n_prompt */
    int n_repetitions;  /* at least 1 */
    int n_threads;      /* < 1: one per processor */
};

struct throughput {
    double prompt, generation; /* tokens per second */
};

/* out: [n_models]. n_threads, if not NULL: how many were used. All models are loaded at once, mapped, and
 * must share the first one's vocabulary. Progress stage "time" (turns of one model); a stop is seen between
 * turns. */
allot_status throughput_measure(struct throughput *out, int *n_threads, const char *const *paths,
                                size_t n_models, const struct throughput_options *options,
                                const struct allot_progress *progress, struct allot_error *err);

#endif
