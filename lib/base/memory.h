/* memory.h - how much memory the process may use, and has.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_MEMORY_H
#define ALLOT_BASE_MEMORY_H

#include "allot.h"

/* Bytes: the least of the machine's RAM and the memory limits of the process's control groups, its own and
 * all above it, as far as they can be seen (cgroup v2: memory.max; v1: memory.limit_in_bytes). A container's
 * limit is one of these. Says nothing about what others use at the moment, nor about swap. INT64_MAX if
 * nothing is known. */
int64_t memory_limit(void);

/* The same of a system whose files (/proc/self/cgroup, /proc/self/mountinfo and the mount points named there)
 * lie below the folder `root`, "" for this one, and that has `physical` bytes of RAM. */
int64_t memory_limit_below(const char *root, int64_t physical);

/* What a job may take. */
struct memory_budget {
    int64_t limit;      /* bytes of the process's own memory at most */
    const char *folder; /* where temporary files go that hold what does not fit */
};

/* The limit where the user gives none: 60 % of memory_limit. */
int64_t memory_default_limit(void);

/* Bytes of the process's own memory now: anonymous and shared pages, not those of mapped files. 0 if not
 * known. */
int64_t memory_own(void);

/* What a job that begins now has to count besides its own blocks: what the process has, and room for small
 * things to come (the heap, the buffers of OpenBLAS). */
int64_t memory_base(int n_threads);

#endif
