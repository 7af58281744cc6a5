/* stats.c - from per-token scores to means, errors and percentiles.  SPDX-License-Identifier: MIT */
#include "measure/stats.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* One number per token, picked from the scores. */
typedef double token_value(const struct stats_input *in, int64_t i);

static double kl_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].kl;
}

static double nll_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].nll;
}

static double nll_base_of(const struct stats_input *in, int64_t i)
{
    return in->nll_base[i];
}

static double ln_ratio_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].nll - in->nll_base[i];
}

static double same_top_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].same_top ? 1.0 : 0.0;
}

static double kl_minus_first_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].kl - in->first[i].kl;
}

static double square_dp_of(const struct stats_input *in, int64_t i)
{
    return in->tokens[i].dp * in->tokens[i].dp;
}

/* Mean of consecutive groups' means and its standard error, each group of `size` tokens one sample. */
static struct measure_mean mean_of_groups(const struct stats_input *in, token_value *value, int64_t size)
{
    int64_t n = in->n_windows * in->per_window / size;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n * size; i++)
        sum += value(in, i);
    double mean = sum / (double)(n * size);
    for (int64_t g = 0; g < n; g++) {
        double group = 0.0;
        for (int64_t i = g * size; i < (g + 1) * size; i++)
            group += value(in, i) - mean;
        squares += group / (double)size * (group / (double)size);
    }
    double se = n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : 0.0;
    return (struct measure_mean){mean, se};
}

static struct measure_mean mean_of_windows(const struct stats_input *in, token_value *value)
{
    return mean_of_groups(in, value, in->n_windows > 1 ? in->per_window : 1);
}

struct measure_mean stats_kl_difference(const struct stats_input *in)
{
    return mean_of_windows(in, kl_minus_first_of);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double stats_percentile(const double *sorted, int64_t n, double fraction)
{
    double place = fraction * (double)(n - 1);
    int64_t below = (int64_t)place, above = below + 1 < n ? below + 1 : n - 1;
    double part = place - (double)below;
    return (1.0 - part) * sorted[below] + part * sorted[above];
}

allot_status stats_compute(struct measure_stats *out, const struct stats_input *in, struct allot_error *err)
{
    int64_t n = in->n_windows * in->per_window;
    double *kl = malloc((size_t)n * sizeof *kl);
    if (kl == NULL)
        return allot_fail_memory(err, (size_t)n * sizeof *kl, "sorting the KL divergences");
    for (int64_t i = 0; i < n; i++)
        kl[i] = in->tokens[i].kl;
    qsort(kl, (size_t)n, sizeof *kl, compare_doubles);
    *out = (struct measure_stats){
        .n_windows = in->n_windows,
        .n_tokens = n,
        .kl = mean_of_windows(in, kl_of),
        .kl_se_tokens = mean_of_groups(in, kl_of, 1).se,
        .kl_median = stats_percentile(kl, n, 0.5),
        .kl_p90 = stats_percentile(kl, n, 0.9),
        .kl_p99 = stats_percentile(kl, n, 0.99),
        .kl_p999 = stats_percentile(kl, n, 0.999),
        .kl_max = kl[n - 1],
        .nll_base = mean_of_windows(in, nll_base_of),
        .nll = mean_of_windows(in, nll_of),
        .ln_ratio = mean_of_windows(in, ln_ratio_of),
        .same_top = mean_of_windows(in, same_top_of),
        .dp_rms = sqrt(mean_of_groups(in, square_dp_of, 1).mean),
        .kl_minus_first = stats_kl_difference(in),
    };
    free(kl);
    return ALLOT_OK;
}
