/* vector.c - short vector loops.  SPDX-License-Identifier: MIT */
#include "net/vector.h"

#include "net/ops.h"

static double fold(const float *partial)
{
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += partial[i];
    return sum;
}

VECTORISED double dot(const float *a, const float *b, int64_t n)
{
    float partial[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            partial[l] += a[i + l] * b[i + l];
    double sum = fold(partial);
    for (; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

VECTORISED double dot3(const float *a, const float *b, const float *c, int64_t n)
{
    float partial[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            partial[l] += a[i + l] * b[i + l] * c[i + l];
    double sum = fold(partial);
    for (; i < n; i++)
        sum += (double)a[i] * b[i] * c[i];
    return sum;
}

VECTORISED double exp_shifted(float *x, int64_t n, float shift)
{
    float partial[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float e = exp_inline(x[i + l] - shift);
            x[i + l] = e;
            partial[l] += e;
        }
    }
    double sum = fold(partial);
    for (; i < n; i++) {
        x[i] = exp_inline(x[i] - shift);
        sum += x[i];
    }
    return sum;
}

VECTORISED double sum_exp_shifted(const float *x, int64_t n, float shift)
{
    float partial[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            partial[l] += exp_inline(x[i + l] - shift);
    double sum = fold(partial);
    for (; i < n; i++)
        sum += exp_inline(x[i] - shift);
    return sum;
}

VECTORISED float max_of(const float *x, int64_t n)
{
    float partial[LANES];
    float best = x[0];
    if (n >= LANES) {
        memcpy(partial, x, sizeof partial);
        int64_t i = LANES;
        for (; i + LANES <= n; i += LANES)
            for (int l = 0; l < LANES; l++)
                partial[l] = partial[l] > x[i + l] ? partial[l] : x[i + l];
        for (int l = 0; l < LANES; l++)
            best = best > partial[l] ? best : partial[l];
        for (; i < n; i++)
            best = best > x[i] ? best : x[i];
        return best;
    }
    for (int64_t i = 1; i < n; i++)
        best = best > x[i] ? best : x[i];
    return best;
}

/* tanh(u) = 1 - 2 / (1 + exp(2u)); near 0, where that loses digits, by its series to u^7. */
VECTORISED void softcap_values(float *x, int64_t n, float cap)
{
    float inv = 1.0f / cap;
    for (int64_t i = 0; i < n; i++) {
        float u = x[i] * inv, u2 = u * u;
        float near = u + u * u2 * (-1.0f / 3 + u2 * (2.0f / 15 - u2 * (17.0f / 315)));
        float far = 1.0f - 2.0f / (1.0f + exp_inline(2.0f * u));
        x[i] = cap * (u2 < 0.04f ? near : far);
    }
}
