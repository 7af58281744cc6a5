/* rank.c - whether two lists of numbers rank alike, and where the middle of one lies.
 * SPDX-License-Identifier: MIT */
#include "measure/rank.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "measure/stats.h"

struct place {
    double value;
    size_t index;
};

static int compare_places(const void *a, const void *b)
{
    double x = ((const struct place *)a)->value, y = ((const struct place *)b)->value;
    return (x > y) - (x < y);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Ranks from 0 on, less their mean. places: [n], for sorting. */
static void center_ranks(double *rank, struct place *places, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        places[i] = (struct place){x[i], i};
    qsort(places, n, sizeof *places, compare_places);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && places[end].value == places[i].value; end++)
            ;
        for (size_t k = i; k < end; k++)
            rank[places[k].index] = ((double)i + (double)end - 1) / 2 - ((double)n - 1) / 2;
    }
}

allot_status rank_correlation(double *rho, const double *x, const double *y, size_t n,
                              struct allot_error *err)
{
    struct place *places = malloc((n + 1) * sizeof *places);
    double *a = malloc((n + 1) * sizeof *a), *b = malloc((n + 1) * sizeof *b);
    double ab = 0, aa = 0, bb = 0;
    allot_status status = ALLOT_OK;
    if (places == NULL || a == NULL || b == NULL) {
        status = allot_fail_memory(err, n * sizeof *places, "ranks");
    } else {
        center_ranks(a, places, x, n);
        center_ranks(b, places, y, n);
        for (size_t i = 0; i < n; i++) {
            ab += a[i] * b[i];
            aa += a[i] * a[i];
            bb += b[i] * b[i];
        }
        *rho = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
    }
    free(places);
    free(a);
    free(b);
    return status;
}

struct rank_quartiles rank_quartiles(double *x, size_t n)
{
    if (n == 0)
        return (struct rank_quartiles){NAN, NAN, NAN};
    qsort(x, n, sizeof *x, compare_doubles);
    return (struct rank_quartiles){stats_percentile(x, (int64_t)n, 0.25),
                                   stats_percentile(x, (int64_t)n, 0.5),
                                   stats_percentile(x, (int64_t)n, 0.75)};
}
