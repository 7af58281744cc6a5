/* mean.h - a mean and its standard error.  SPDX-License-Identifier: MIT
 *
 * Samples are values of independent sequences or windows of text. */
#ifndef ALLOT_BASE_MEAN_H
#define ALLOT_BASE_MEAN_H

#include <math.h>
#include <stdint.h>

/* {0} is empty. Welford's update, so that nothing large cancels. */
struct mean {
    int64_t n;
    double mean;
    double squares; /* of the distances from the mean, summed */
};

static inline void mean_add(struct mean *m, double value)
{
    const double distance = value - m->mean;
    m->n++;
    m->mean += distance / (double)m->n;
    m->squares += distance * (value - m->mean);
}

/* Of one sample as large as the mean itself, which is all that is known; of none 0. */
static inline double mean_std_err(const struct mean *m)
{
    return m->n > 1 ? sqrt(m->squares / (double)(m->n - 1) / (double)m->n) : fabs(m->mean);
}

#endif
