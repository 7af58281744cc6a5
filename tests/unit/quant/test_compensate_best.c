/* test_compensate_best.c - compensated rows beside the best that other codes and scales could do.
 * SPDX-License-Identifier: MIT */
#include "quant/compensate_problem.h"

/* Where errors cannot make up for each other, every weight goes to its nearest level. */
static void unrelated_inputs_are_rounded(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        const struct scalar_type *type = scalar_type_find(all[k]);
        problem_new(&p, all[k], 5, 512, UNRELATED, 0);
        run(&p, 0, false);
        errors_of(&p, p.bytes);
        for (int64_t i = 0; i < p.rows * p.n; i += type->block) {
            struct scalar_block b;
            scalar_load(type, &b, p.start + i / type->block * type->block_bytes);
            for (int j = 0; j < type->block; j++) {
                float nearest = INFINITY;
                for (int l = 0; l <= type->last - type->lowest; l++) {
                    const uint8_t code = type->table ? scalar_levels_of(type)->code[l] : (uint8_t)l;
                    if (l + type->lowest >= type->first)
                        nearest = fminf(nearest, fabsf(value_of(type, &b, j, code) - p.weights[i + j]));
                }
                assert_float_equal(fabsf(p.errors[i + j]), nearest, 1e-7);
            }
        }
        problem_free(&p);
    }
}

/* After many passes no other code of any weight lowers the objective. */
static void no_single_code_is_better(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        const struct scalar_type *type = scalar_type_find(all[k]);
        problem_new(&p, all[k], 2, 256, RELATED, 0.01);
        double objective = 0;
        run(&p, 40, false);
        errors_of(&p, p.bytes);
        for (int64_t i = 0; i < p.rows * p.n; i++) {
            const float *e = p.errors + i / p.n * p.n, *h = p.c.moment + i % p.n * p.n;
            if (i % p.n == 0)
                objective = plain_objective(p.c.moment, e, p.n);
            double g = 0;
            struct scalar_block b;
            for (int64_t j = 0; j < p.n; j++)
                g += (double)h[j] * e[j];
            scalar_load(type, &b, p.bytes + i / type->block * type->block_bytes);
            const int at = (int)(i % type->block);
            for (int l = type->first - type->lowest; l <= type->last - type->lowest; l++) {
                const uint8_t code = type->table ? scalar_levels_of(type)->code[l] : (uint8_t)l;
                const double by = (double)value_of(type, &b, at, code) - value_of(type, &b, at, b.codes[at]);
                assert_true(by * (2 * g + h[i % p.n] * by) > -1e-4 * objective);
            }
        }
        problem_free(&p);
    }
}

/* What row r's objective changes by when block b takes the place of the one in the bytes. */
static double change_by_block(const struct problem *p, const struct scalar_type *type, int64_t first,
                              const struct scalar_block *b)
{
    const int64_t column = first % p->n;
    const float *e = p->errors + first / p->n * p->n;
    double by[SCALAR_BLOCK], sum = 0;
    for (int i = 0; i < type->block; i++)
        by[i] = (double)value_of(type, b, i, b->codes[i]) - p->weights[first + i] - e[column + i];
    for (int i = 0; i < type->block; i++) {
        const float *h = p->c.moment + (column + i) * p->n;
        for (int64_t j = 0; j < p->n; j++) {
            const int64_t k = j - column;
            sum += by[i] * h[j] * (2 * e[j] + (k >= 0 && k < type->block ? by[k] : 0));
        }
    }
    return sum;
}

static float next_half(float x, int by)
{
    return ggml_fp16_to_fp32((ggml_fp16_t)(ggml_fp32_to_fp16(x) + by));
}

/* The neighbour of number k of a block: one scale, least or factor is the next lower or higher. False: it has
 * none. */
static bool neighbour(struct scalar_block *b, const struct scalar_type *type, int k)
{
    const int by = k % 2 ? 1 : -1, groups = type->block / type->group, at = k / 2 % groups;
    if (k < 2 * groups) {
        b->scales[at] = (int8_t)(b->scales[at] + by);
        return b->scales[at] - by != (by < 0 ? type->least_scale : type->most_scale);
    }
    if (k < 4 * groups) {
        b->leasts[at] = (uint8_t)(b->leasts[at] + by);
        return type->most_least > 1 && b->leasts[at] - by != (by < 0 ? 0 : type->most_least);
    }
    if (k < 4 * groups + 2)
        b->d = next_half(b->d, by);
    else
        b->min = next_half(b->min, by);
    return k < 4 * groups + 2 || type->most_least > 0;
}

/* Nor, if scales may change, is any other scale next to one of these. */
static void no_single_scale_is_better(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        const struct scalar_type *type = scalar_type_find(all[k]);
        if (type->factor != FACTOR_FP16)
            continue;
        problem_new(&p, all[k], 4, 256, RELATED, 0.01);
        run(&p, 60, true);
        errors_of(&p, p.bytes);
        for (int64_t first = 0; first < p.rows * p.n; first += type->block) {
            const double objective = plain_objective(p.c.moment, p.errors + first / p.n * p.n, p.n);
            const uint8_t *block = p.bytes + first / type->block * type->block_bytes;
            for (int i = 0; i < 4 * type->block / type->group + 4; i++) {
                struct scalar_block b;
                scalar_load(type, &b, block);
                if (neighbour(&b, type, i))
                    assert_true(change_by_block(&p, type, first, &b) > -1e-3 * objective);
            }
        }
        problem_free(&p);
    }
}

/* Inputs related in pairs only: the best codes of a pair are found by trying all. */
static void pairs_come_near_the_best(void **state)
{
    (void)state;
    struct problem p;
    const struct scalar_type *type = scalar_type_find(GGML_TYPE_Q4_0);
    problem_new(&p, GGML_TYPE_Q4_0, 8, 64, PAIRS, 0);
    const double before = compensation_objective(p.moment, errors_of(&p, p.start), p.rows, p.n, p.scratch);
    run(&p, 4, false);
    const double after = compensation_objective(p.moment, errors_of(&p, p.bytes), p.rows, p.n, p.scratch);
    double best = 0;
    for (int64_t i = 0; i < p.rows * p.n; i += 2) {
        double least_pair = INFINITY;
        struct scalar_block b;
        scalar_load(type, &b, p.start + i / 32 * 18);
        for (int codes = 0; codes < 256; codes++) {
            const double x = (double)value_of(type, &b, 0, codes & 15) - p.weights[i],
                         y = (double)value_of(type, &b, 0, (uint8_t)(codes >> 4)) - p.weights[i + 1];
            least_pair = fmin(least_pair, x * x + y * y + 2 * 0.9 * x * y);
        }
        best += least_pair;
    }
    print_message("pairs: %.4g at first, %.4g found, %.4g the best\n", before, after, best);
    assert_true(after >= best * (1 - 1e-5));
    assert_true(after - best < 0.3 * (before - best));
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unrelated_inputs_are_rounded),
        cmocka_unit_test(no_single_code_is_better),
        cmocka_unit_test(no_single_scale_is_better),
        cmocka_unit_test(pairs_come_near_the_best),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
