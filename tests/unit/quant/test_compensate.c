/* test_compensate.c - codes that make up for each other's errors, against plain sums in double precision.
 * SPDX-License-Identifier: MIT */
#include "quant/compensate_problem.h"

#include "quant/compensate_steps.h"
#include "quant/kernels.h"

/* ---- What all rows share --------------------------------------------------------------------------------
 */

static void factor_inverts_the_moment(void **state)
{
    (void)state;
    enum { N = 96 };
    static float moment[N * N];
    struct compensation c;
    make_moment(moment, N, RELATED);
    assert_int_equal(compensation_init(&c, moment, N, 0, 0.01, &err), ALLOT_OK);
    double mean = 0;
    for (int i = 0; i < N; i++)
        mean += moment[i * N + i] / (double)N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            assert_float_equal(c.moment[i * N + j], moment[i * N + j] + (i == j ? 0.01 * mean : 0), 1e-5);
            double sum = 0; /* of u moment u' */
            for (int k = i; k < N; k++)
                for (int l = j; l < N; l++)
                    sum += (double)c.factor[i * N + k] * c.moment[k * N + l] * c.factor[j * N + l];
            assert_float_equal(sum, i == j, 1e-3);
            assert_true(j >= i || c.factor[i * N + j] == 0);
        }
    compensation_release(&c);
    compensation_release(&c);
}

/* Of rank 1, with an input that is always 0, all 0, and undamped. */
static void singular_moments_are_damped(void **state)
{
    (void)state;
    enum { N = 64 };
    for (int kind = 0; kind < 3; kind++) {
        float moment[N * N];
        struct compensation c;
        for (int i = 0; i < N * N; i++)
            moment[i] = kind == 2 || (kind == 1 && (i / N == 5 || i % N == 5)) ? 0 : 1;
        assert_int_equal(compensation_init(&c, moment, N, 0, kind == 1 ? 0.01 : 0, &err), ALLOT_OK);
        for (int i = 0; i < N; i++)
            assert_true(c.moment[i * N + i] > 0 && c.factor[i * N + i] > 0 && isfinite(c.factor[i * N + i]));
        compensation_release(&c);
    }
}

static void bad_moments_are_refused(void **state)
{
    (void)state;
    static const struct {
        float first, other;
        double damping;
        int64_t n;
        allot_status status;
    } rows[] = {
        {NAN, 0, 0.01, 32, ALLOT_ERR_NUMERIC},       {1, INFINITY, 0.01, 32, ALLOT_ERR_NUMERIC},
        {-1, 0, 0.01, 32, ALLOT_ERR_NUMERIC},        {1, 0, -0.01, 32, ALLOT_ERR_ARGUMENT},
        {1, 0, (double)NAN, 32, ALLOT_ERR_ARGUMENT}, {1, 0, 0.01, 0, ALLOT_ERR_ARGUMENT},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        float moment[32 * 32] = {0};
        struct compensation c;
        for (int i = 0; i < 32; i++)
            moment[i * 33] = 1;
        moment[0] = rows[k].first;
        moment[1] = moment[32] = rows[k].other;
        assert_int_equal(compensation_init(&c, moment, rows[k].n, 0, rows[k].damping, &err), rows[k].status);
        assert_int_equal(err.status, rows[k].status);
        assert_null(c.moment);
    }
}

static void the_objective_is_the_plain_sum(void **state)
{
    (void)state;
    enum { N = 64, ROWS = 131 };
    static float moment[N * N], errors[ROWS * N], scratch[COMPENSATE_ROWS * N];
    double expected = 0;
    make_moment(moment, N, RELATED);
    for (int i = 0; i < ROWS * N; i++)
        errors[i] = (float)rng_normal(seed, (uint64_t)i);
    for (int r = 0; r < ROWS; r++)
        expected += plain_objective(moment, errors + r * N, N);
    assert_float_equal(compensation_objective(moment, errors, ROWS, N, scratch) / expected, 1, 1e-5);
}

/* ---- Rows -----------------------------------------------------------------------------------------------
 */

static void related_inputs_gain(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        print_message("%-7s objective falls by, GPTQ and 0, 1, 2, 4 passes:", ggml_type_name(all[k]));
        problem_new(&p, all[k], 128, 512, RELATED, 0.01);
        const double before =
            compensation_objective(p.moment, errors_of(&p, p.start), p.rows, p.n, p.scratch);
        double last = before, without = 0;
        static const int passes[] = {0, 1, 2, 4};
        for (int scales = 0; scales < 2; scales++) {
            double first = 0;
            for (int i = 0; i < 4; i++) {
                memcpy(p.bytes, p.start, p.n_bytes);
                run(&p, passes[i], scales);
                last = compensation_objective(p.moment, errors_of(&p, p.bytes), p.rows, p.n, p.scratch);
                first = i == 0 ? last : first;
                print_message(" %.2f%%", 100 * (1 - last / before));
            }
            print_message(scales ? "\n" : "; with scales:");
            no_row_is_worse(&p);
            assert_true(last < 0.75 * before && last < first);
            without = scales ? without : last;
        }
        assert_true(all[k] == GGML_TYPE_MXFP4 ? last == without : last < without);
        problem_free(&p);
    }
}

/* Scales and leasts keep their bytes when only codes may change. */
static void scales_stay(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        const struct scalar_type *type = scalar_type_find(all[k]);
        problem_new(&p, all[k], 3, 256, RELATED, 0.01);
        run(&p, 2, false);
        assert_memory_not_equal(p.bytes, p.start, p.n_bytes);
        for (size_t at = 0; at < p.n_bytes; at += (size_t)type->block_bytes) {
            struct scalar_block before, after;
            scalar_load(type, &before, p.start + at);
            scalar_load(type, &after, p.bytes + at);
            memcpy(after.codes, before.codes, sizeof after.codes);
            assert_memory_equal(&before, &after, sizeof before);
        }
        problem_free(&p);
    }
}

/* A row's bytes depend on neither its company nor its place. */
static void rows_are_independent(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        problem_new(&p, all[k], 2 * COMPENSATE_ROWS - 9, 256, RELATED, 0.01);
        run(&p, 2, true);
        const size_t row_bytes = p.n_bytes / (size_t)p.rows;
        const struct compensation_options options = {2, true};
        static const int64_t cuts[] = {0, 1, 40, 41, COMPENSATE_ROWS + 3, 2 * COMPENSATE_ROWS - 9};
        for (int i = 0; i + 1 < 6; i++)
            assert_int_equal(compensate_rows(p.type, p.weights + cuts[i] * p.n,
                                             p.start + (size_t)cuts[i] * row_bytes, cuts[i + 1] - cuts[i],
                                             p.n, &p.c, &options, p.scratch, &err),
                             ALLOT_OK);
        assert_memory_equal(p.start, p.bytes, p.n_bytes);
        problem_free(&p);
    }
}

/* A row that is not finite and one of zeros among others; columns of no input; one block. */
static void odd_rows(void **state)
{
    (void)state;
    int n_changed = 0;
    for (int k = 0; k < N_ALL; k++) {
        struct problem p;
        const int64_t n = quant_type_find(all[k])->block;
        problem_new(&p, all[k], 4, n, RELATED, 0.01);
        for (int64_t i = 0; i < n; i++) {
            p.weights[n + i] = 0;
            p.moment[i * n + 3] = p.moment[3 * n + i] = 0;
        }
        compensation_release(&p.c);
        assert_int_equal(compensation_init(&p.c, p.moment, n, 0, 0.01, &err), ALLOT_OK);
        assert_int_equal(quant_rows(all[k], p.weights, p.start, p.rows, n, NULL), QUANT_OK);
        p.weights[2 * n + 7] = NAN;
        for (int scales = 0; scales < 2; scales++) {
            memcpy(p.bytes, p.start, p.n_bytes);
            run(&p, 3, scales);
            const size_t row = p.n_bytes / 4;
            assert_memory_equal(p.bytes + row, p.start + row, 2 * row);
            /* Of a row of 32 the nearest codes may be the best. */
            n_changed += memcmp(p.bytes, p.start, row) != 0;
            n_changed += memcmp(p.bytes + 3 * row, p.start + 3 * row, row) != 0;
        }
        problem_free(&p);
    }
    assert_true(n_changed > 2 * N_ALL);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    struct problem p;
    problem_new(&p, GGML_TYPE_Q4_K, 1, 256, RELATED, 0.01);
    static const struct {
        enum ggml_type type;
        int64_t rows, n;
        int passes;
        allot_status status;
    } rows[] = {
        {GGML_TYPE_IQ3_S, 1, 256, 2, ALLOT_ERR_UNSUPPORTED},
        {GGML_TYPE_F16, 1, 256, 2, ALLOT_ERR_UNSUPPORTED},
        {GGML_TYPE_Q4_K, 1, 512, 2, ALLOT_ERR_ARGUMENT},
        {GGML_TYPE_Q4_K, -1, 256, 2, ALLOT_ERR_ARGUMENT},
        {GGML_TYPE_Q4_K, 1, 256, -1, ALLOT_ERR_ARGUMENT},
        {GGML_TYPE_Q4_K, 0, 256, 2, ALLOT_OK},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const struct compensation_options options = {rows[k].passes, true};
        assert_int_equal(compensate_rows(rows[k].type, p.weights, p.bytes, rows[k].rows, rows[k].n, &p.c,
                                         &options, p.scratch, &err),
                         rows[k].status);
    }
    assert_memory_equal(p.bytes, p.start, p.n_bytes);
    problem_free(&p);
}

static void fill(float *x, int64_t n, uint64_t key, bool integers)
{
    for (int64_t i = 0; i < n; i++)
        x[i] =
            (float)(integers ? 4 + (int64_t)(rng_u64(key, (uint64_t)i) % 4) : rng_normal(key, (uint64_t)i));
}

/* A panel through all steps. */
static void through_steps(float *p_out, int64_t n_out, const struct scalar_type *type,
                          const struct compensate_steps *steps)
{
    enum { N = 256 };
    static float matrix[N * N], loss[PANEL];
    struct compensate_panel p = {.type = type, .n = N, .moment = matrix, .factor = matrix};
    p.grid = compensate_grid_of(type);
    fill(matrix, N * N, seed + 1, false);
    for (int i = 0; i < N; i++)
        matrix[i * N + i] = 3;
    fill(p_out, n_out, seed + 2, false);
    p.weight = p_out;
    p.level = p.weight + N * PANEL;
    p.error = p.level + N * PANEL;
    p.scale = p.error + N * PANEL;
    p.least = p.scale + N * PANEL;
    p.d = p.least + N * PANEL;
    p.min = p.d + N * PANEL;
    p.work = p.min + N * PANEL;
    p.change = p.work + SPAN * PANEL;
    p.product = p.change + SPAN * PANEL;
    fill(p.scale, N * PANEL, seed + 3, true);
    fill(p.least, N * PANEL, seed + 4, true);
    memset(loss, 0, sizeof loss);
    for (int first = 0; first < N; first += STEP) {
        steps->round(&p, first, p.work + first * PANEL, loss);
        steps->find_errors(&p);
        steps->descend(&p, first, p.work + first * PANEL, p.change + first * PANEL);
        steps->refit(&p, first, p.work + first * PANEL, p.change + first * PANEL);
        steps->add_products(loss, p.error, p.work, N);
    }
    for (int which = 0; which < 2 && type->block == SPAN; which++) {
        steps->direct(&p, 0, (enum compensate_factor)which, p.change);
        steps->move(&p, 0, (enum compensate_factor)which, p.change, p.product, p.work);
    }
    memcpy(p_out + n_out - PANEL, loss, sizeof loss);
}

static void all_processors_agree(void **state)
{
    (void)state;
#if defined(__x86_64__)
    enum { COLUMNS = 11 * 256 };
    float *one = malloc(sizeof *one * 2 * COLUMNS * PANEL), *other = one + COLUMNS * PANEL;
    const struct quant_kernel_set *const *sets = quant_kernel_sets();
    for (int k = 0; k < N_ALL; k++)
        for (int i = 0; sets[i] != NULL; i++) {
            const bool wide = strcmp(sets[i]->name, "avx512") == 0;
            through_steps(one, COLUMNS * PANEL, scalar_type_find(all[k]), &compensate_steps_plain);
            through_steps(other, COLUMNS * PANEL, scalar_type_find(all[k]),
                          wide ? &compensate_steps_avx512 : &compensate_steps_avx2);
            assert_memory_equal(one, other, sizeof *one * COLUMNS * PANEL);
        }
    free(one);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factor_inverts_the_moment), cmocka_unit_test(singular_moments_are_damped),
        cmocka_unit_test(bad_moments_are_refused),   cmocka_unit_test(the_objective_is_the_plain_sum),
        cmocka_unit_test(related_inputs_gain),       cmocka_unit_test(scales_stay),
        cmocka_unit_test(rows_are_independent),      cmocka_unit_test(odd_rows),
        cmocka_unit_test(misuse_is_refused),         cmocka_unit_test(all_processors_agree),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
