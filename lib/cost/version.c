/* version.c - the version of the methods.  SPDX-License-Identifier: MIT */
#include "cost/version.h"

#include <pthread.h>
#include <stdio.h>

#include "allot.h"
#include "ggml.h"

/* Rises whenever the same inputs would give other costs, imatrices, measurements or files. */
enum { METHOD_REVISION = 2 };

static char version_text[96];

static void write_version(void)
{
    snprintf(version_text, sizeof version_text, "allot %s.%d ggml %s %s", ALLOT_VERSION, METHOD_REVISION,
             ggml_version(), ggml_commit());
}

const char *cost_version(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_version);
    return version_text;
}
