/* compare-imatrix.c - how far two importance matrices are apart.  SPDX-License-Identifier: MIT
 *
 * usage: compare-imatrix A B
 *
 * For every entry, the median over its columns of |a - b| / b, with a and b the means of squares (sum over
 * count). Prints the number of entries, the median of these medians and the largest; fails if the files do
 * not hold the same entries. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cost/imatrix.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

static double entry_difference(const struct imatrix_entry *a, const struct imatrix_entry *b)
{
    size_t n = (size_t)(a->n_mats * a->n_per_mat);
    double *relative = malloc(n * sizeof *relative);
    for (size_t i = 0; i < n; i++) {
        size_t mat = i / (size_t)a->n_per_mat;
        double x = a->sums[i] / (double)a->counts[mat], y = b->sums[i] / (double)b->counts[mat];
        relative[i] = y == 0 ? (x == 0 ? 0 : INFINITY) : fabs(x - y) / y;
    }
    double result = median(relative, n);
    free(relative);
    return result;
}

int main(int argc, char **argv)
{
    struct imatrix a = {0}, b = {0};
    struct allot_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: compare-imatrix A B\n");
        return 2;
    }
    if (imatrix_read(&a, argv[1], &err) != ALLOT_OK || imatrix_read(&b, argv[2], &err) != ALLOT_OK) {
        fprintf(stderr, "compare-imatrix: %s\n", err.message);
        return 1;
    }
    if (a.n_entries != b.n_entries || a.n_entries == 0) {
        fprintf(stderr, "compare-imatrix: %zu and %zu entries\n", a.n_entries, b.n_entries);
        return 1;
    }
    double *medians = malloc(a.n_entries * sizeof *medians), worst = 0;
    for (size_t i = 0; i < a.n_entries; i++) {
        const struct imatrix_entry *x = &a.entries[i], *y = imatrix_find(&b, x->name);
        if (y == NULL || y->n_mats != x->n_mats || y->n_per_mat != x->n_per_mat ||
            x->counts[0] != y->counts[0]) {
            fprintf(stderr, "compare-imatrix: entry %s is absent, of another shape or of another count\n",
                    x->name);
            return 1;
        }
        medians[i] = entry_difference(x, y);
        worst = fmax(worst, medians[i]);
    }
    printf("entries %zu median %.3g worst %.3g\n", a.n_entries, median(medians, a.n_entries), worst);
    free(medians);
    imatrix_release(&a);
    imatrix_release(&b);
    return 0;
}
