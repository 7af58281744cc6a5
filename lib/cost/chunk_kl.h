/* chunk_kl.h - KL divergence from sums over chunks of tokens.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. Labels of different tokens are independent, so the whole sequence's sum gives the KL
 * divergence without a bias, 1/2 E (sum_c u_c)^2, and with a lot of noise: one square a sequence. Squares of
 * chunks have less of it, but lose what the errors of different chunks have in common, which is much where
 * later tokens look back at all earlier ones (attn_v). Half of either is nearer than both:
 * docs/design.md, section 3, has the measurements. */
#ifndef ALLOT_COST_CHUNK_KL_H
#define ALLOT_COST_CHUNK_KL_H

#include <stdint.h>

enum { CHUNKS_WIDE = 4 }; /* in place of the whole sequence, should it be longer */

/* The KL divergence of a sequence in nats, summed over its tokens: u has its n chunks in order. */
static inline double chunk_kl(const double *u, int64_t n)
{
    double narrow = 0, wide = 0;
    for (int64_t first = 0; first < n; first += CHUNKS_WIDE) {
        double sum = 0;
        for (int64_t c = first; c < n && c < first + CHUNKS_WIDE; c++) {
            narrow += u[c] * u[c];
            sum += u[c];
        }
        wide += sum * sum;
    }
    return (narrow + wide) / 4;
}

#endif
