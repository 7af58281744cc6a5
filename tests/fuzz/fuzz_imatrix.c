/* fuzz_imatrix.c - any bytes as an importance matrix, in either format: read or refused with one line; what
 * is read can be used, written, and read again as the same. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cost/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_imatrix: %s\n", what);
    abort();
}

static void use_entry(const struct imatrix *im, const struct imatrix_entry *e)
{
    struct gguf_tensor tensor = {
        .name = e->name, .n_dims = 3, .ne = {e->n_per_mat, 2, e->n_mats, 1}, .layer = -1};
    struct gguf_model model = {.n_tensors = 1, .tensors = &tensor};
    struct allot_error err;
    char reason[128], line[512];
    float *weights;
    require(imatrix_find(im, e->name) == e, "an entry is not found by its name");
    require(imatrix_weights(im, &tensor, &weights, reason, &err) == ALLOT_OK, "out of memory");
    require(weights != NULL, "an entry does not serve its own tensor");
    for (int64_t i = 0; i < e->n_per_mat * e->n_mats; i++)
        require(isfinite(weights[i]) && weights[i] >= 0, "a weight is not finite or is negative");
    free(weights);
    imatrix_coverage(im, &model, line);
    tensor.ne[0]++;
    require(imatrix_weights(im, &tensor, &weights, reason, &err) == ALLOT_OK && !weights && reason[0],
            "an entry serves a tensor of another size");
}

static bool same(const struct imatrix *a, const struct imatrix *b)
{
    if (a->n_entries != b->n_entries || a->n_datasets != b->n_datasets || a->chunk_count != b->chunk_count)
        return false;
    for (size_t i = 0; i < a->n_entries; i++) {
        const struct imatrix_entry *x = &a->entries[i], *y = &b->entries[i];
        if (strcmp(x->name, y->name) != 0 || x->n_per_mat != y->n_per_mat || x->n_mats != y->n_mats)
            return false;
        if (memcmp(x->sums, y->sums, (size_t)(x->n_per_mat * x->n_mats) * sizeof *x->sums) != 0)
            return false;
    }
    return true;
}

static char folder[64];

static void remove_folder(void)
{
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64], written[128];
    struct imatrix im = {0}, again = {0};
    struct allot_error err = {0};

    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(folder, sizeof folder, "/tmp/fuzz-imatrix-XXXXXX");
        require(mkdtemp(folder) != NULL, "no scratch folder");
        atexit(remove_folder);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(written, sizeof written, "%s/written.gguf", folder);
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "no scratch space");
    if (imatrix_read(&im, path, &err) != ALLOT_OK) {
        require(strstr(err.message, path) && !strchr(err.message, '\n'),
                "the error is not one line naming the file");
        return 0;
    }
    for (size_t i = 0; i < im.n_entries && i < 50; i++)
        use_entry(&im, &im.entries[i]);
    /* Names too long for GGUF cannot be written; everything else can. Syncing is slow: one input in eight. */
    if (!strchr("01", im.sha256[0])) {
        imatrix_release(&im);
        return 0;
    }
    if (imatrix_write(&im, written, &err) == ALLOT_OK) {
        require(imatrix_read(&again, written, &err) == ALLOT_OK, "what was written cannot be read");
        require(same(&im, &again) && strcmp(im.sha256, again.sha256) == 0, "what was written has changed");
        imatrix_release(&again);
        unlink(written);
    } else {
        require(err.status == ALLOT_ERR_ARGUMENT, "writing failed");
    }
    imatrix_release(&im);
    return 0;
}
