/* archive-values.c - prints a model's newest costs in an archive to the last bit.
 * SPDX-License-Identifier: MIT
 *
 * usage: archive-values MODEL.gguf ARCHIVE
 *
 * One line for each tensor and type: name, type, bytes, cost and standard error in hexadecimal, and the
 * SHA-256 of the u of all chunks. Two archives hold the same costs if the outputs are equal. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "archive/archive.h"
#include "base/hash.h"
#include "gguf/model.h"

static bool print_row(void *user, const char *tensor, const struct archive_cost *cost)
{
    char hex[HASH_HEX];
    (void)user;
    hash_bytes(hex, cost->u, cost->n_u * sizeof *cost->u);
    printf("%s %s %" PRId64 " %a %a %s\n", tensor, cost->type, cost->bytes, cost->cost, cost->std_err, hex);
    return false;
}

static allot_status print_values(const char *model_path, const char *archive_path, struct allot_error *err)
{
    struct gguf_model *model = NULL;
    struct archive *archive = NULL;
    struct archive_cost_set_info *sets = NULL;
    char sha256[HASH_HEX];
    size_t n = 0;
    allot_status status = gguf_model_open(&model, model_path, err);
    if (status == ALLOT_OK)
        status = gguf_model_sha256(model, sha256, NULL, err);
    if (status == ALLOT_OK)
        status = archive_open_to_read(&archive, archive_path, err);
    if (status == ALLOT_OK)
        status = archive_cost_sets(archive, sha256, &sets, &n, err);
    if (status == ALLOT_OK && n > 0)
        status = archive_cost_each(archive, sets[0].id, true, print_row, NULL, err);
    else if (status == ALLOT_OK)
        printf("no costs\n");
    free(sets);
    archive_close(archive);
    gguf_model_close(model);
    return status;
}

int main(int argc, char **argv)
{
    struct allot_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: archive-values MODEL.gguf ARCHIVE\n");
        return 2;
    }
    if (print_values(argv[1], argv[2], &err) == ALLOT_OK)
        return 0;
    fprintf(stderr, "archive-values: %s\n", err.message);
    return 1;
}
