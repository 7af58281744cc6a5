/* moments.c - what an imatrix tells of a tensor's inputs.  SPDX-License-Identifier: MIT */
#include "cost/moments.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/num.h"
#include "base/rng.h"

enum { SAMPLE_ROWS_EACH = 8 };

static const uint64_t SAMPLE_SEED = 0x776569676874; /* any: "weight" */

int64_t weight_sample(int64_t rows[static WEIGHT_SAMPLE_ROWS], int64_t n_rows, int64_t n_matrices)
{
    const int64_t n = least(n_rows, most(WEIGHT_SAMPLE_ROWS / n_matrices, SAMPLE_ROWS_EACH));
    for (int64_t k = 0; k < n; k++) {
        const int64_t low = k * n_rows / n, high = (k + 1) * n_rows / n;
        rows[k] = low + (int64_t)(rng_uniform(SAMPLE_SEED, (uint64_t)k) * (double)(high - low));
    }
    return n;
}

allot_status moments_init(struct moments *moments, const struct imatrix *im, const struct gguf_tensor *tensor,
                          struct allot_error *err)
{
    char reason[128];
    allot_status status = ALLOT_OK;
    *moments = (struct moments){.shares = malloc((size_t)tensor->ne[2] * sizeof *moments->shares)};
    if (moments->shares == NULL)
        return allot_fail_memory(err, (size_t)tensor->ne[2] * sizeof *moments->shares, tensor->name);
    imatrix_shares(im, tensor, moments->shares);
    if (im != NULL)
        status = imatrix_weights(im, tensor, &moments->s, reason, err);
    if (status == ALLOT_OK && moments->s != NULL)
        status = imatrix_means(im, tensor, &moments->m, err);
    if (status != ALLOT_OK)
        moments_release(moments);
    return status;
}

void moments_release(struct moments *moments)
{
    free(moments->s);
    free(moments->m);
    free(moments->shares);
    *moments = (struct moments){0};
}

double expected_square(const float *d, const float *s, const float *m, int64_t n)
{
    double sum = 0, along_mean = 0;
    for (int64_t i = 0; i < n; i++) {
        double variance = s != NULL ? s[i] : 1;
        if (m != NULL) {
            variance -= (double)m[i] * m[i];
            along_mean += (double)d[i] * m[i];
        }
        sum += variance > 0 ? (double)d[i] * d[i] * variance : 0; /* m^2 may pass s by rounding */
    }
    return sum + along_mean * along_mean;
}
