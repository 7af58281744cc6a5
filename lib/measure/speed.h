/* speed.h - how long ggml's CPU kernels take to read weights of a type.  SPDX-License-Identifier: MIT
 *
 * Decoding one token multiplies every matrix by one vector, and where the matrices outgrow the caches its
 * time is that of reading and unpacking them. So one matrix per type, larger than the caches, is multiplied
 * by one vector as llama.cpp does it: with the buffer type that libllama would choose on this processor
 * (weights may be rearranged in it), and the graph and threads of ggml's CPU backend. The shortest of several
 * runs counts: others on the machine only add to it. Unlike other numbers of allot, these depend on machine,
 * threads and moment. */
#ifndef ALLOT_MEASURE_SPEED_H
#define ALLOT_MEASURE_SPEED_H

#include "allot.h"
#include "ggml.h"

/* One type to measure. */
struct speed_kind {
    enum ggml_type type;
    const void *rows;   /* n_rows rows of `width` weights in that type, which the matrix repeats */
    int64_t n_rows;     /* a multiple of 64, for kernels that take several rows at once */
    double ns_per_byte; /* out: nanoseconds for one token per byte of the matrix */
};

struct speed_options {
    int64_t width;   /* weights of a row */
    int64_t bytes;   /* of each matrix, rounded up to whole repetitions; < 1: speed_default_bytes */
    int n_threads;   /* > 0 */
    double duration; /* seconds of runs per type, in all; three runs at least */
};

/* Twice the last cache, 64 MiB at least, 512 MiB at most, and no more than a sixteenth of the memory. */
int64_t speed_default_bytes(void);

/* Fills in ns_per_byte, in order. Needs twice the bytes of a matrix. Progress stage "speed" (types); a stop
 * is seen between types. */
allot_status speed_measure(struct speed_kind *kinds, size_t n, const struct speed_options *options,
                           const struct allot_progress *progress, struct allot_error *err);

#endif
