/* signals.h - a request to stop that long jobs can see.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_SIGNALS_H
#define ALLOT_CLI_SIGNALS_H

#include <stdbool.h>

/* SIGINT, SIGTERM and SIGHUP ask to stop at the next safe point; a second one removes temporary files
 * and ends the process with 130. A file size limit (SIGXFSZ) becomes an ordinary write error. SIGBUS, which
 * reading a mapped file that was cut short raises, says so in a line and ends the process with 1. */
void signals_install(void);
bool signals_stop_requested(void);

#endif
