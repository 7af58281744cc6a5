/* place.c - which candidates are worth their bytes.  SPDX-License-Identifier: MIT */
#include "measure/measure.h"

#include <math.h>

bool measure_is_tie(struct measure_mean difference)
{
    return fabs(difference.mean) <= 2 * difference.se;
}

struct measure_place measure_place_of(const struct measure_result *result, const int64_t *bytes,
                                      size_t candidate)
{
    struct measure_place place = {SIZE_MAX, SIZE_MAX};
    const size_t n = result->n_candidates;
    for (size_t other = 0; other < n; other++) {
        const struct measure_mean *row = result->differences + other * n;
        if (other == candidate || bytes[other] > bytes[candidate])
            continue;
        if (measure_is_tie(row[candidate])) {
            if (place.ties_with == SIZE_MAX || bytes[other] < bytes[place.ties_with])
                place.ties_with = other;
        } else if (row[candidate].mean < 0) {
            if (place.beaten_by == SIZE_MAX || row[place.beaten_by].mean < 0)
                place.beaten_by = other;
        }
    }
    return place;
}
