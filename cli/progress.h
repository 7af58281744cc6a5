/* progress.h - progress and remarks on stderr.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_PROGRESS_H
#define ALLOT_CLI_PROGRESS_H

#include "allot.h"

/* On a terminal: a bar with rate and time left, redrawn in place. Otherwise one line at most every ten
 * seconds, and one at the end of each stage that took a noticeable time. */
struct progress {
    bool quiet, terminal;
    bool bar_shown;
    char stage[64];
    int64_t done, total;
    double start, last; /* of the stage; of the last line or bar; monotonic seconds */
};

void progress_init(struct progress *p, bool quiet);
/* The callbacks for the library; valid as long as p. report asks to stop once a signal has come. */
struct allot_progress progress_callbacks(struct progress *p);
/* Ends the last stage: clears the bar or prints its final line. */
void progress_finish(struct progress *p);

#endif
