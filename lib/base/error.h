/* error.h - filling struct allot_error.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_ERROR_H
#define ALLOT_BASE_ERROR_H

#include "allot.h"

/* Fills err with the status and a printf-style message (truncated with "..." if too long, control
 * characters replaced by '?') and returns the status, so that `return allot_fail(...)` reads well. */
allot_status allot_fail(struct allot_error *err, allot_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* allot_fail with ALLOT_ERR_MEMORY and the number of bytes wanted for `what`. */
allot_status allot_fail_memory(struct allot_error *err, size_t bytes, const char *what);

/* Reports progress; ALLOT_ERR_INTERRUPTED (with err filled) when the caller asked to stop. */
allot_status allot_report(const struct allot_progress *progress, struct allot_error *err, const char *stage,
                          int64_t done, int64_t total);

/* Passes one printf-style line to progress->note, if there is one. */
void allot_note(const struct allot_progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
