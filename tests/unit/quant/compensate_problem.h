/* compensate_problem.h - rows and inputs for the tests of lib/quant/compensate.h, and plain sums about them.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_QUANT_COMPENSATE_PROBLEM_H
#define ALLOT_TEST_QUANT_COMPENSATE_PROBLEM_H

#include "quant/fixture.h"

#include <math.h>

#include "base/gemm.h"
#include "quant/compensate.h"
#include "quant/scalar.h"

static uint64_t seed;
static struct allot_error err;

static const enum ggml_type all[] = {GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,
                                     GGML_TYPE_Q6_K, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,
                                     GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                                     GGML_TYPE_MXFP4};
enum { N_ALL = sizeof all / sizeof *all };

/* ---- A problem and its plain answers --------------------------------------------------------------------
 */

struct problem {
    enum ggml_type type;
    int64_t rows, n;
    float *weights, *moment, *errors, *scratch;
    uint8_t *start, *bytes;
    size_t n_bytes;
    struct compensation c;
};

enum inputs { UNRELATED, RELATED, PAIRS };

/* The second moment of n inputs: a diagonal; pairs; or mixtures of n sources whose strengths decay. */
static inline void make_moment(float *moment, int64_t n, enum inputs inputs)
{
    memset(moment, 0, sizeof *moment * (size_t)(n * n));
    double *mix = malloc(sizeof *mix * (size_t)(n * n));
    for (int64_t i = 0; i < n * n; i++)
        mix[i] = rng_normal(seed + 1, (uint64_t)i) * pow(1 + (double)(i % n), -0.75);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = i == j ? 0.5 + rng_uniform(seed + 2, (uint64_t)i) : 0;
            if (inputs == PAIRS && i / 2 == j / 2)
                sum = i == j ? 1 : 0.9;
            for (int64_t k = 0; inputs == RELATED && k < n; k++)
                sum += mix[i * n + k] * mix[j * n + k] - (k == 0 && i == j ? sum : 0);
            moment[i * n + j] = moment[j * n + i] = (float)sum;
        }
    free(mix);
}

static inline void problem_new(struct problem *p, enum ggml_type type, int64_t rows, int64_t n,
                               enum inputs inputs, double damping)
{
    *p = (struct problem){.type = type, .rows = rows, .n = n};
    p->n_bytes = (size_t)rows * ggml_row_size(type, n);
    p->weights = malloc(sizeof(float) * (size_t)(rows * n));
    p->errors = malloc(sizeof(float) * (size_t)(rows * n));
    p->moment = malloc(sizeof(float) * (size_t)(n * n));
    p->scratch = malloc(sizeof(float) * (size_t)compensate_scratch_floats(type, n));
    p->start = malloc(p->n_bytes);
    p->bytes = malloc(p->n_bytes);
    for (int64_t i = 0; i < rows * n; i++)
        p->weights[i] = (float)(0.02 * rng_normal(seed, (uint64_t)i));
    make_moment(p->moment, n, inputs);
    assert_int_equal(compensation_init(&p->c, p->moment, n, 0, damping, &err), ALLOT_OK);
    assert_int_equal(quant_rows(type, p->weights, p->start, rows, n, NULL), QUANT_OK);
    memcpy(p->bytes, p->start, p->n_bytes);
}

static inline void problem_free(struct problem *p)
{
    compensation_release(&p->c);
    free(p->weights);
    free(p->errors);
    free(p->moment);
    free(p->scratch);
    free(p->start);
    free(p->bytes);
}

static inline void run(struct problem *p, int passes, bool scales)
{
    const struct compensation_options options = {passes, scales};
    assert_int_equal(
        compensate_rows(p->type, p->weights, p->bytes, p->rows, p->n, &p->c, &options, p->scratch, &err),
        ALLOT_OK);
    assert_true(quant_row_valid(p->type, p->bytes, p->n_bytes));
}

static inline const float *errors_of(struct problem *p, const uint8_t *bytes)
{
    assert_int_equal(quant_to_f32(p->type, bytes, p->errors, p->rows * p->n, &err), ALLOT_OK);
    for (int64_t i = 0; i < p->rows * p->n; i++)
        p->errors[i] -= p->weights[i];
    return p->errors;
}

static inline double plain_objective(const float *moment, const float *error, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            sum += (double)error[i] * moment[i * n + j] * error[j];
    return sum;
}

static inline void no_row_is_worse(struct problem *p)
{
    double *before = malloc(sizeof *before * (size_t)p->rows);
    errors_of(p, p->start);
    for (int64_t r = 0; r < p->rows; r++)
        before[r] = plain_objective(p->c.moment, p->errors + r * p->n, p->n);
    errors_of(p, p->bytes);
    for (int64_t r = 0; r < p->rows; r++)
        assert_true(plain_objective(p->c.moment, p->errors + r * p->n, p->n) <= before[r] * (1 + 1e-4));
    free(before);
}

/* The level of a code as scalar.h has it. */
static inline float level_of(const struct scalar_type *type, uint8_t code)
{
    if (!type->table)
        return (float)(type->lowest + code);
    const struct scalar_levels *levels = scalar_levels_of(type);
    for (int i = 0; i < levels->n; i++)
        if (levels->code[i] == code)
            return levels->level[i];
    return 0;
}

static inline float value_of(const struct scalar_type *type, const struct scalar_block *b, int i,
                             uint8_t code)
{
    const int group = i / type->group;
    return b->d * (float)b->scales[group] * level_of(type, code) + -(b->min * (float)b->leasts[group]);
}

/* cmocka group setup. */
static inline int set_up(void **state)
{
    (void)state;
    seed = test_seed();
    return gemm_init(&err) == ALLOT_OK ? 0 : -1;
}

#endif
