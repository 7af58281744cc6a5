/* folder.h - a temporary folder of a test program's own.  SPDX-License-Identifier: MIT */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

static char folder[256];

/* Makes it, under $TMPDIR or /tmp. A set-up of cmocka, as the next is a tear-down. */
static inline int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/allot-test-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

/* Removes it with all that is in it; a test that must leave nothing behind calls rmdir instead. */
static inline int remove_folder(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* One of a few rotating buffers. */
static inline const char *in_folder(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

#endif
