/* version.h - the version of what computed a number.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_COST_VERSION_H
#define ALLOT_COST_VERSION_H

/* allot, the revision of its methods, ggml and its commit: costs, imatrices, measurements and unfinished
 * files of another version are not used. */
const char *cost_version(void);

#endif
