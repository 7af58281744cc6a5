/* test_rows.c - quantizing rows: ggml's bytes where ggml gives any, and no abort where it would.
 * SPDX-License-Identifier: MIT */
#include "quant/fixture.h"

#include <float.h>
#include <math.h>
#include <pthread.h>

enum { ROW = 512, N_ROWS = 6 };

static uint64_t seed;

static float *random_weights(uint64_t key, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    fill_weights(x, n, ROW, key);
    return x;
}

static void random_importances(uint64_t key, float *q, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = (float)exp(3 * rng_normal(key, (uint64_t)i));
}

/* With stderr closed to ggml's remarks. */
static bool ggml_says_valid(enum ggml_type type, const void *row, size_t n_bytes)
{
    fflush(stderr);
    const int saved = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    const bool valid = ggml_validate_row_data(type, row, n_bytes);
    dup2(saved, 2);
    close(saved);
    close(null);
    return valid;
}

static void rows_equal_ggml(void **state)
{
    (void)state;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    float *x = random_weights(seed, N_ROWS * ROW), q[ROW];
    random_importances(seed + 9, q, ROW);
    for (size_t k = 0; k < 2 * n; k++) {
        const struct quant_type *t = &types[k / 2];
        const float *importances = k % 2 ? q : NULL;
        uint8_t ours[N_ROWS * ROW * 4], theirs[N_ROWS * ROW * 4];
        if (!importances && t->aborts_without) {
            assert_int_equal(quant_rows(t->type, x, ours, N_ROWS, ROW, NULL), QUANT_INFEASIBLE);
            continue;
        }
        const size_t n_bytes = ggml_quantize_chunk(t->type, x, theirs, 0, N_ROWS, ROW, importances);
        memset(ours, 0xee, sizeof ours);
        assert_int_equal(quant_rows(t->type, x, ours, N_ROWS, ROW, importances), QUANT_OK);
        assert_memory_equal(ours, theirs, n_bytes);
        assert_int_equal(ours[n_bytes < sizeof ours ? n_bytes : 0],
                         n_bytes < sizeof ours ? 0xee : theirs[0]); /* nothing behind the rows */

        /* Rows are independent, and what "depends on the imatrix" says holds. */
        assert_int_equal(quant_rows(t->type, x + 3 * ROW, ours, 1, ROW, importances), QUANT_OK);
        assert_memory_equal(ours, theirs + 3 * n_bytes / N_ROWS, n_bytes / N_ROWS);
        if (importances && !t->aborts_without) {
            ggml_quantize_chunk(t->type, x, ours, 0, N_ROWS, ROW, NULL);
            assert_int_equal(memcmp(ours, theirs, n_bytes) != 0, t->uses_imatrix);
        }
    }
    free(x);
}

/* Whether a block is valid is decided as ggml decides it, on random bytes with many invalid scales. */
static void validity_equals_ggml(void **state)
{
    (void)state;
    size_t n, n_invalid = 0, n_valid = 0;
    const struct quant_type *types = quant_types(&n);
    for (size_t k = 0; k < n; k++) {
        for (uint64_t trial = 0; trial < 400; trial++) {
            const uint64_t key = seed + 1000 * k + trial;
            const size_t n_bytes = (size_t)types[k].block_bytes * (1 + trial % 3);
            uint8_t bytes[1024];
            for (size_t i = 0; i < n_bytes; i++) {
                const uint64_t r = rng_u64(key, i);
                bytes[i] = r % 3 == 0   ? 0xff
                           : r % 3 == 1 ? 0x7c | (uint8_t)(r >> 40 & 0x83)
                                        : (uint8_t)(r >> 20);
            }
            if (trial % 4 == 0) /* a single invalid or valid value among harmless ones */
                for (size_t i = 0; i < n_bytes; i++)
                    bytes[i] = rng_u64(key, i) % n_bytes == 0 ? 0xff : 0x11;
            const bool expected = ggml_says_valid(types[k].type, bytes, n_bytes);
            if (quant_row_valid(types[k].type, bytes, n_bytes) != expected)
                fail_msg("%s, trial %d: expected %d", types[k].name, (int)trial, expected);
            n_invalid += !expected;
            n_valid += expected;
        }
    }
    assert_true(n_invalid > 1000 && n_valid > 1000);
    assert_false(quant_row_valid(GGML_TYPE_Q4_0, "x", 1));
}

/* ---- Hostile values --------------------------------------------------------------------------------- */

struct hostile {
    const char *name;
    float (*weight)(int i);
    float (*importance)(int i); /* NULL: without */
};

static float ordinary(int i)
{
    return (float)(0.02 * rng_normal(5, (uint64_t)i));
}
static float positive(int i)
{
    return (float)(0.5 + rng_uniform(6, (uint64_t)i));
}
static float zero(int i)
{
    (void)i;
    return 0;
}
static float negative_zero(int i)
{
    (void)i;
    return -0.0f;
}
static float one(int i)
{
    (void)i;
    return 1;
}
static float denormal(int i)
{
    return (float)((i % 9 - 4) * 1e-42);
}
static float tiny(int i)
{
    return (float)(1e-30 * rng_normal(7, (uint64_t)i));
}
static float large(int i)
{
    return (float)(1e5 * rng_normal(7, (uint64_t)i));
}
static float huge(int i)
{
    return (float)(1e30 * rng_normal(7, (uint64_t)i));
}
static float extreme(int i)
{
    return i % 2 ? FLT_MAX : -FLT_MAX;
}
static float one_extreme(int i)
{
    return i == 77 ? FLT_MAX : ordinary(i);
}
static float zero_block(int i)
{
    return i < 256 ? 0 : positive(i);
}
static float one_positive(int i)
{
    return i == 300 ? 1e-3f : 0;
}
static float not_a_number(int i)
{
    return i % 10 == 3 ? NAN : positive(i);
}
static float not_a_number_block(int i)
{
    return i < 256 ? NAN : positive(i);
}
static float huge_positive(int i)
{
    return fabsf(huge(i));
}
static float infinite(int i)
{
    return i % 10 == 3 ? INFINITY : positive(i);
}
static float negative(int i)
{
    return i % 10 == 3 ? -1 : positive(i);
}
static float wide(int i)
{
    return (float)pow(10, i % 76 - 38);
}

static const struct hostile hostiles[] = {
    {"zeros", zero, positive},
    {"zeros, no imatrix", zero, NULL},
    {"negative zeros", negative_zero, positive},
    {"constant", one, positive},
    {"constant, no imatrix", one, NULL},
    {"denormals", denormal, positive},
    {"denormals, no imatrix", denormal, NULL},
    {"tiny", tiny, positive},
    {"large", large, positive},
    {"huge", huge, positive},
    {"huge, no imatrix", huge, NULL},
    {"extreme", extreme, positive},
    {"extreme, no imatrix", extreme, NULL},
    {"one extreme", one_extreme, positive},
    {"one extreme, no imatrix", one_extreme, NULL},
    {"zero importances", ordinary, zero},
    {"a super-block of zero importances", ordinary, zero_block},
    {"one importance", ordinary, one_positive},
    {"NaN importances", ordinary, not_a_number},
    {"a super-block of NaN importances", ordinary, not_a_number_block},
    {"infinite importances", ordinary, infinite},
    {"negative importances", ordinary, negative},
    {"denormal importances", ordinary, denormal},
    {"huge importances", ordinary, huge},
    {"huge positive importances", ordinary, huge_positive},
    {"extreme importances", ordinary, extreme},
    {"importances of all sizes", ordinary, wide},
    {"large weights, importances of all sizes", large, wide},
};

/* No abort, and whatever is called feasible is valid by ggml and finite. Ordinary weights are feasible
 * whatever the importances. */
static void hostile_values_never_abort(void **state)
{
    (void)state;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t h = 0; h < sizeof hostiles / sizeof hostiles[0]; h++) {
        const struct hostile *c = &hostiles[h];
        float x[ROW], q[ROW], back[ROW];
        for (int i = 0; i < ROW; i++) {
            x[i] = c->weight(i);
            q[i] = c->importance ? c->importance(i) : 0;
        }
        for (size_t k = 0; k < n; k++) {
            const struct quant_type *t = &types[k];
            uint8_t bytes[ROW * 4];
            const size_t n_bytes = ggml_row_size(t->type, ROW);
            struct allot_error err;
            if (!c->importance && t->aborts_without)
                continue;
            const enum quant_result result = quant_rows(t->type, x, bytes, 1, ROW, c->importance ? q : NULL);
            if (result == QUANT_INFEASIBLE && c->weight != ordinary && c->weight != zero)
                continue;
            if (result == QUANT_INFEASIBLE)
                fail_msg("%s, %s: infeasible", c->name, t->name);
            if (!ggml_says_valid(t->type, bytes, n_bytes))
                fail_msg("%s, %s: invalid blocks", c->name, t->name);
            assert_int_equal(quant_to_f32(t->type, bytes, back, ROW, &err), ALLOT_OK);
            if (quant_first_nonfinite(back, ROW) >= 0)
                fail_msg("%s, %s: not finite", c->name, t->name);
            if (result == QUANT_FLOORED && (!c->importance || !t->uses_imatrix))
                fail_msg("%s, %s: nothing to floor", c->name, t->name);
        }
    }
}

/* All types at once are what they are one by one, whatever the weights. */
static void types_together_are_as_alone(void **state)
{
    (void)state;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t h = 0; h < sizeof hostiles / sizeof hostiles[0]; h++) {
        const struct hostile *c = &hostiles[h];
        enum { ROWS = 5 };
        static float x[ROWS * ROW], errors[64][ROWS * ROW], back[ROWS * ROW];
        float q[ROW];
        struct quant_target targets[64];
        for (int i = 0; i < ROWS * ROW; i++) /* the last row is harmless */
            x[i] = i < (ROWS - 1) * ROW ? c->weight(i) : ordinary(i);
        for (int i = 0; i < ROW; i++)
            q[i] = c->importance ? c->importance(i) : 0;
        for (size_t k = 0; k < n; k++)
            targets[k] = (struct quant_target){.type = types[k].type, .error = errors[k]};
        quant_rows_all(targets, n, x, ROWS, ROW, c->importance ? q : NULL);
        for (size_t k = 0; k < n; k++) {
            uint8_t bytes[ROWS * ROW * 4];
            struct allot_error err;
            const enum quant_result alone =
                quant_rows(types[k].type, x, bytes, ROWS, ROW, c->importance ? q : NULL);
            if (targets[k].result != alone)
                fail_msg("%s, %s: %d together, %d alone", c->name, types[k].name, targets[k].result, alone);
            if (alone == QUANT_INFEASIBLE)
                continue;
            assert_int_equal(quant_to_f32(types[k].type, bytes, back, ROWS * ROW, &err), ALLOT_OK);
            for (int i = 0; i < ROWS * ROW; i++)
                if (errors[k][i] != back[i] - x[i])
                    fail_msg("%s, %s: weight %d", c->name, types[k].name, i);
        }
    }
}

/* More types at once than are worked on together, some of them twice and some that are none. */
static void any_number_of_types(void **state)
{
    (void)state;
    enum { TARGETS = 130, ROWS = 67, N = ROWS * ROW };
    size_t n;
    const struct quant_type *types = quant_types(&n);
    struct quant_target targets[TARGETS];
    float *x = random_weights(seed, N), q[ROW], *errors = malloc(sizeof(float) * TARGETS * N), *back = errors;
    uint8_t *bytes = malloc(sizeof(float) * N);
    assert_true(errors && bytes);
    random_importances(seed, q, ROW);
    for (size_t k = 0; k < TARGETS; k++) {
        const enum ggml_type type = k % 40 == 39 ? GGML_TYPE_Q8_K : types[k * 7 % n].type;
        targets[k] = (struct quant_target){.type = type, .error = errors + k * N};
    }
    quant_rows_all(targets, TARGETS, x, ROWS, ROW, q);
    for (size_t k = TARGETS; k-- > 1;) { /* the first one's errors are overwritten */
        struct allot_error err;
        const enum quant_result alone = quant_rows(targets[k].type, x, bytes, ROWS, ROW, q);
        assert_int_equal(targets[k].result, alone);
        if (alone == QUANT_INFEASIBLE)
            continue;
        assert_int_equal(quant_to_f32(targets[k].type, bytes, back, N, &err), ALLOT_OK);
        for (int i = 0; i < N; i++)
            if (targets[k].error[i] != back[i] - x[i])
                fail_msg("target %d, %s: weight %d", (int)k, ggml_type_name(targets[k].type), i);
    }
    free(x);
    free(errors);
    free(bytes);
}

/* A zero super-block makes Q4_K invalid for llama-quantize; floored it is as good as with equal importances.
 */
static void floored_rows_are_good(void **state)
{
    (void)state;
    float x[ROW], q[ROW], back[ROW];
    uint8_t bytes[ROW * 4];
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (int i = 0; i < ROW; i++) {
        x[i] = ordinary(i);
        q[i] = not_a_number_block(i);
    }
    for (size_t k = 0; k < n; k++) {
        double error[2] = {0, 0}; /* with equal importances, with useless ones */
        struct allot_error err;
        const float equal[ROW] = {[0 ... ROW - 1] = 1};
        enum quant_result result = QUANT_OK;
        for (int useless = 0; useless < 2; useless++) {
            result = quant_rows(types[k].type, x, bytes, 1, ROW, useless ? q : equal);
            assert_int_equal(quant_to_f32(types[k].type, bytes, back, ROW, &err), ALLOT_OK);
            for (int i = 0; i < 256; i++)
                error[useless] += pow((double)(back[i] - x[i]), 2);
        }
        assert_int_equal(result, types[k].uses_imatrix ? QUANT_FLOORED : QUANT_OK);
        if (error[1] > 1.5 * error[0])
            fail_msg("%s: squared error %g, with equal importances %g", types[k].name, error[1], error[0]);
    }
}

static double squared_error(const struct quant_type *t, const void *bytes, const float *x, int start, int n)
{
    float back[ROW];
    struct allot_error err;
    double sum = 0;
    assert_int_equal(quant_to_f32(t->type, bytes, back, ROW, &err), ALLOT_OK);
    for (int i = start; i < start + n; i++)
        sum += pow((double)(back[i] - x[i]), 2);
    return sum;
}

/* Where all importances of a run of columns are 0, the weights there are nevertheless as good as with equal
 * ones, nearly so where ggml's bytes are kept; those are lost only in the runs that the table names. */
static void weights_without_importance_survive(void **state)
{
    (void)state;
    static const int runs[] = {16, 32, 256, 512};
    float x[ROW], q[ROW], equal[ROW];
    uint8_t ours[ROW * 4], theirs[ROW * 4];
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (int i = 0; i < ROW; i++) {
        x[i] = ordinary(i);
        equal[i] = 1;
    }
    for (size_t k = 0; k < n; k++) {
        const struct quant_type *t = &types[k];
        for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
            double best = 0, got = 0, ggml = 0;
            const bool lost = t->zero_group && runs[r] >= t->zero_group;
            for (int start = 0; start < ROW; start += runs[r] < 64 ? 64 : runs[r]) {
                for (int i = 0; i < ROW; i++)
                    q[i] = i >= start && i < start + runs[r] ? 0 : positive(i);
                quant_rows(t->type, x, ours, 1, ROW, equal);
                best += squared_error(t, ours, x, start, runs[r]);
                ggml_quantize_chunk(t->type, x, theirs, 0, 1, ROW, q);
                ggml += squared_error(t, theirs, x, start, runs[r]);
                assert_int_equal(quant_rows(t->type, x, ours, 1, ROW, q), lost ? QUANT_FLOORED : QUANT_OK);
                got += squared_error(t, ours, x, start, runs[r]);
                if (!lost)
                    assert_memory_equal(ours, theirs, ggml_row_size(t->type, ROW));
            }
            if (got > (lost ? 2 : 8) * best || (lost && ggml < 3 * best))
                fail_msg("%s, %d zeros: squared error %g, ggml's %g, with equal importances %g", t->name,
                         runs[r], got, ggml, best);
        }
    }
}

/* Zeros that leave some importance in every group change nothing: the bytes are ggml's. */
static void single_zeros_keep_their_bytes(void **state)
{
    (void)state;
    float *x = random_weights(seed, N_ROWS * ROW), q[ROW];
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (int i = 0; i < ROW; i++)
        q[i] = i % 16 == 5 || rng_u64(seed, (uint64_t)i) % 4 ? positive(i) : 0;
    q[0] = 0;
    for (size_t k = 0; k < n; k++) {
        uint8_t ours[N_ROWS * ROW * 4], theirs[N_ROWS * ROW * 4];
        const size_t n_bytes = ggml_quantize_chunk(types[k].type, x, theirs, 0, N_ROWS, ROW, q);
        assert_int_equal(quant_rows(types[k].type, x, ours, N_ROWS, ROW, q), QUANT_OK);
        assert_memory_equal(ours, theirs, n_bytes);
    }
    free(x);
}

/* Every third is 0, the others too large for the large weights of a grid search. */
static float too_large(int i)
{
    return i % 3 ? 1e25f * positive(i) : 0;
}

/* Only the failing row is retried: the others keep ggml's bytes. */
static void other_rows_keep_their_bytes(void **state)
{
    (void)state;
    static const struct {
        enum ggml_type type;
        float (*importance)(int i);
    } rows[] = {{GGML_TYPE_Q4_0, wide},         {GGML_TYPE_IQ1_S, too_large},  {GGML_TYPE_IQ1_M, too_large},
                {GGML_TYPE_IQ2_XXS, too_large}, {GGML_TYPE_IQ2_XS, too_large}, {GGML_TYPE_IQ2_S, too_large},
                {GGML_TYPE_IQ3_XXS, too_large}, {GGML_TYPE_IQ3_S, too_large}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const enum ggml_type type = rows[r].type;
        float x[3 * ROW], q[ROW];
        uint8_t ours[3 * ROW], theirs[3 * ROW];
        const size_t row_bytes = ggml_row_size(type, ROW);
        for (int i = 0; i < 3 * ROW; i++)
            x[i] = i / ROW == 1 ? large(i) : ordinary(i);
        for (int i = 0; i < ROW; i++)
            q[i] = rows[r].importance(i);
        for (int i = 0; i < 3; i += 2) {
            ggml_quantize_chunk(type, x + i * ROW, theirs + (size_t)i * row_bytes, 0, 1, ROW, q);
            assert_true(ggml_says_valid(type, theirs + (size_t)i * row_bytes, row_bytes));
        }
        assert_int_equal(quant_rows(type, x, ours, 3, ROW, q), QUANT_FLOORED);
        assert_memory_equal(ours, theirs, row_bytes);
        assert_memory_equal(ours + 2 * row_bytes, theirs + 2 * row_bytes, row_bytes);
        assert_true(ggml_says_valid(type, ours + row_bytes, row_bytes));
    }
}

static void floor_replaces_what_quantizers_cannot_stand(void **state)
{
    (void)state;
    float all_zero[4] = {0, 0, 0, 0};
    assert_int_equal(quant_floor_imatrix(all_zero, 4), 4);
    for (int i = 0; i < 4; i++)
        assert_true(all_zero[i] == 1);

    float mixed[6] = {2, 0, NAN, -1, INFINITY, 6};
    assert_int_equal(quant_floor_imatrix(mixed, 6), 4);
    assert_true(mixed[0] == 2 && mixed[5] == 6);
    for (int i = 1; i < 5; i++)
        assert_true(mixed[i] > 0 && mixed[i] < 0.01f);

    float good[3] = {1, 2, 3};
    assert_int_equal(quant_floor_imatrix(good, 3), 0);

    float extreme_values[3] = {FLT_MAX, FLT_MAX / 2, 0};
    quant_floor_imatrix(extreme_values, 3);
    assert_true(extreme_values[0] < 1e12f && extreme_values[0] == 2 * extreme_values[1]);
    assert_true(extreme_values[2] > 0);
    assert_int_equal(quant_floor_imatrix(good, 0), 0);
}

static void first_nonfinite_is_found(void **state)
{
    (void)state;
    enum { N = 3000 };
    static float x[N];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? FLT_MAX : -FLT_MIN;
    assert_int_equal(quant_first_nonfinite(x, N), -1);
    assert_int_equal(quant_first_nonfinite(x, 0), -1);
    for (int trial = 0; trial < 300; trial++) {
        const int at = (int)(rng_u64(seed, (uint64_t)trial) % N), later = at + (N - at) / 2;
        const float old = x[at], old_later = x[later];
        x[later] = bad[(trial + 1) % 3];
        x[at] = bad[trial % 3];
        assert_int_equal(quant_first_nonfinite(x, N), at);
        x[at] = old;
        if (later != at)
            x[later] = old_later;
    }
}

/* ---- Threads ------------------------------------------------------------------------------------------ */

struct thread_job {
    const float *x, *q;
    uint8_t bytes[N_ROWS * ROW];
    enum ggml_type type;
};

static void *quantize_in_thread(void *arg)
{
    struct thread_job *job = arg;
    for (int repeat = 0; repeat < 20; repeat++)
        quant_rows(job->type, job->x, job->bytes, N_ROWS, ROW, job->q);
    return NULL;
}

/* Also the first use of a type, when ggml builds its search grid: so this runs first. */
static void rows_are_thread_safe(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    static struct thread_job jobs[THREADS];
    pthread_t threads[THREADS];
    float *x = random_weights(seed, N_ROWS * ROW), q[ROW];
    uint8_t expected[N_ROWS * ROW];
    random_importances(seed + 9, q, ROW);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct thread_job){.x = x, .q = q, .type = i % 2 ? GGML_TYPE_IQ2_XXS : GGML_TYPE_IQ3_S};
        assert_int_equal(pthread_create(&threads[i], NULL, quantize_in_thread, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        const size_t n_bytes = ggml_quantize_chunk(jobs[i].type, x, expected, 0, N_ROWS, ROW, q);
        assert_memory_equal(jobs[i].bytes, expected, n_bytes);
    }
    free(x);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_thread_safe),
        cmocka_unit_test(rows_equal_ggml),
        cmocka_unit_test(validity_equals_ggml),
        cmocka_unit_test(hostile_values_never_abort),
        cmocka_unit_test(types_together_are_as_alone),
        cmocka_unit_test(any_number_of_types),
        cmocka_unit_test(floored_rows_are_good),
        cmocka_unit_test(weights_without_importance_survive),
        cmocka_unit_test(single_zeros_keep_their_bytes),
        cmocka_unit_test(other_rows_keep_their_bytes),
        cmocka_unit_test(floor_replaces_what_quantizers_cannot_stand),
        cmocka_unit_test(first_nonfinite_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
