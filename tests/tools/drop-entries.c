/* drop-entries.c - an importance matrix without entries whose names begin so.
 * SPDX-License-Identifier: MIT
 *
 * usage: drop-entries IN.gguf OUT.gguf PREFIX */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost/imatrix.h"

int main(int argc, char **argv)
{
    struct allot_error err;
    struct imatrix im;
    if (argc != 4 || imatrix_read(&im, argv[1], &err) != ALLOT_OK) {
        fprintf(stderr, "drop-entries: %s\n", argc != 4 ? "usage: drop-entries IN OUT PREFIX" : err.message);
        return 1;
    }
    size_t kept = 0, n = im.n_entries;
    for (size_t i = 0; i < n; i++) {
        struct imatrix_entry e = im.entries[i];
        if (strncmp(e.name, argv[3], strlen(argv[3])) != 0) {
            im.entries[kept++] = e;
            continue;
        }
        free(e.name);
        free(e.sums);
        free(e.counts);
    }
    im.n_entries = kept;
    allot_status status = kept < n ? imatrix_write(&im, argv[2], &err) : ALLOT_ERR_ARGUMENT;
    if (status != ALLOT_OK)
        fprintf(stderr, "drop-entries: %s\n", kept < n ? err.message : "no such entry");
    imatrix_release(&im);
    return status == ALLOT_OK ? 0 : 1;
}
