/* overlap.h - how much of one set of windows occurs in another.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_OVERLAP_H
#define ALLOT_TEXT_OVERLAP_H

#include "text/text.h"

#define OVERLAP_LENGTH 16 /* tokens: long enough that texts rarely share them by chance or habit */

struct overlap {
    int64_t n_tokens; /* in the windows asked about */
    int64_t
        n_covered; /* of them, those in a run of OVERLAP_LENGTH or more tokens that is in the others too */
};

/* Of the tokens of `windows`, how many lie in n-grams of OVERLAP_LENGTH tokens, within one window, that occur
 * within one window of `others`. Where the windows of either begin does not matter but for runs of fewer
 * tokens than that, cut off at an edge. Matches are verified token by token. Windows shorter than an n-gram
 * share nothing. The vocabulary must be the same. Time and memory grow with the tokens of both. */
allot_status overlap_measure(struct overlap *out, const struct text_windows *windows,
                             const struct text_windows *others, struct allot_error *err);

/* n_covered / n_tokens; 0 without tokens. */
double overlap_share(const struct overlap *overlap);

#endif
