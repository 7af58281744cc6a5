/* clock.h - time for measuring durations.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_CLOCK_H
#define ALLOT_BASE_CLOCK_H

#include <time.h>

/* Seconds since some fixed moment; no change of the system's date disturbs them. */
static inline double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
