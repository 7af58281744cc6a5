/* memory.h - how much memory the process may use.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_MEMORY_H
#define ALLOT_BASE_MEMORY_H

#include "allot.h"

/* Bytes: the least of the machine's RAM and the memory limits of the process's control groups, its own and
 * all above it, as far as they can be seen (cgroup v2: memory.max; v1: memory.limit_in_bytes). A container's
 * limit is one of these. Says nothing about what others use at the moment, nor about swap. INT64_MAX if
 * nothing is known. */
int64_t memory_limit(void);

/* Fails (ALLOT_ERR_MEMORY) if a job of so many bytes would not fit into nine tenths of memory_limit: one line
 * now, with the advice, instead of a machine that swaps or a killed process after an hour. */
allot_status memory_require(int64_t bytes, const char *what, const char *advice, struct allot_error *err);

/* The same of a system whose files (/proc/self/cgroup, /proc/self/mountinfo and the mount points named there)
 * lie below the folder `root`, "" for this one, and that has `physical` bytes of RAM. */
int64_t memory_limit_below(const char *root, int64_t physical);

#endif
