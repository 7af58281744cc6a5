/* spill.h - large blocks, in memory or in a temporary file.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_SPILL_H
#define ALLOT_BASE_SPILL_H

#include "allot.h"

/* A block of zeros at first. In a file its pages are the page cache's, which the system writes out and takes
 * back when memory is short, instead of the process's own. */
struct spill {
    void *data; /* starts on a page; NULL: no block */
    size_t size;
    bool in_file;
};

/* folder NULL: in memory. Otherwise in a file of that folder that has no name, so that it goes with the
 * process, and whose room is reserved before this returns. Errors name the folder and the cause: no room, no
 * right to write, a file system that is memory itself. `what` is the block's name in errors. */
allot_status spill_new(struct spill *block, size_t size, const char *folder, const char *what,
                       struct allot_error *err);
void spill_release(struct spill *block);

/* n bytes at `start`, inside the block, are not wanted for a while: if they are in a file, the process lets
 * go of their pages, and finds them again as they were. */
void spill_forget(const struct spill *block, const void *start, size_t n);

#endif
