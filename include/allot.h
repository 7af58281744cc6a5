/* allot.h - what every part of liballot and every user of it shares.
 *
 * SPDX-License-Identifier: MIT
 *
 * Each part has a header of its own under lib/ (gguf/model.h, net/net.h, cost/fisher.h, ...);
 * this one holds the conventions that all of them keep:
 *
 *  - A function that can fail returns an allot_status; results come through pointers. On failure
 *    it has filled `err` (never NULL) with one line that names the file, tensor or row, and its
 *    outputs are unchanged or released. The library never prints, exits or aborts.
 *  - init/release go with storage that the caller owns, open/close and new/free with storage that
 *    the library owns. Releasing a zeroed struct, or freeing NULL, is a no-op.
 *  - Sizes are bytes, costs and KL divergences are nats per token, matrices are row-major, shapes
 *    are written slowest dimension first. ggml's ne[0] is the row length.
 *  - Objects may be used by one thread at a time; distinct objects by distinct threads.
 *    Results do not depend on the number of threads.
 */
#ifndef ALLOT_H
#define ALLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALLOT_VERSION "0.1.0"

/* Stable values. */
typedef enum allot_status {
    ALLOT_OK = 0,
    ALLOT_ERR_ARGUMENT = 1,    /* the caller asked for something meaningless */
    ALLOT_ERR_IO = 2,          /* the operating system refused: open, read, write, space */
    ALLOT_ERR_FORMAT = 3,      /* a file is not what it should be */
    ALLOT_ERR_UNSUPPORTED = 4, /* valid, but not something this version handles */
    ALLOT_ERR_MEMORY = 5,      /* allocation failed */
    ALLOT_ERR_INFEASIBLE = 6,  /* no answer satisfies the constraints */
    ALLOT_ERR_NUMERIC = 7,     /* NaN or Inf where there must be none */
    ALLOT_ERR_INTERRUPTED = 8, /* the progress callback asked to stop; work so far is kept */
    ALLOT_ERR_INTERNAL = 9     /* a defect in allot or in a library under it */
} allot_status;

struct allot_error {
    allot_status status;
    char message[1024]; /* one line, no trailing newline */
};

/* Progress, and the way to stop a long job. `report` is called from the thread that called the
 * library, now and then, with `done` of `total` units of `stage` (both in the stage's own unit).
 * A true return asks the job to stop at the next safe point with ALLOT_ERR_INTERRUPTED.
 * A NULL pointer to this struct, or a NULL report, means silence. */
struct allot_progress {
    bool (*report)(void *user, const char *stage, int64_t done, int64_t total);
    void (*note)(void *user, const char *line); /* a warning or remark for people; may be NULL */
    void *user;
};

#endif
