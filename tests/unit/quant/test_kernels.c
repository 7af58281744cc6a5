/* test_kernels.c - the fast quantizers give the bytes of the linked ggml, on every set of instructions that
 * the processor has.  SPDX-License-Identifier: MIT
 *
 * tools/check-kernels compares as many weights as one wants to wait for. */
#include "quant/fixture.h"
#include "quant/identity.h"

static uint64_t seed;

static void every_kind_gives_ggmls_bytes(void **state)
{
    (void)state;
    size_t n;
    int64_t compared = 0;
    const struct quant_type *types = quant_types(&n);
    if (!quant_kernel_sets()[0])
        skip(); /* this processor has ggml only */
    for (size_t k = 0; k < n; k++)
        for (int kind = 0; kind < GIVEN; kind++)
            for (int importances = 0; importances < IMPORTANCE_KINDS; importances++) {
                const int64_t done = compare_kind(&types[k], (enum weight_kind)kind,
                                                  (enum importance_kind)importances, seed, NULL, 0, 1 << 15);
                assert_true(done >= 0);
                compared += done;
            }
    print_message("%lld weights compared\n", (long long)compared);
    assert_true(compared > 1000000);
}

/* The set that would be used is, unless the environment says otherwise. */
static void kernels_are_used(void **state)
{
    (void)state;
    const struct quant_kernel_set *const *sets = quant_kernel_sets(), *set;
    const struct quant_kernel *kernel = quant_kernel_find(GGML_TYPE_Q4_K, true, &set);
    assert_true((kernel != NULL) == (sets[0] != NULL));
    assert_null(quant_kernel_find(GGML_TYPE_F16, true, &set));
    for (size_t i = 0; sets[0] && i < sets[0]->n; i++) {
        const struct quant_kernel *k = &sets[0]->kernels[i];
        if (kernel_takes(k, true))
            assert_ptr_equal(quant_kernel_find(k->type, true, &set), k);
        if (kernel_takes(k, false))
            assert_ptr_equal(quant_kernel_find(k->type, false, &set), k);
    }
}

/* A kernel that weighs errors in another way is found out when the program starts; the true ones are not. */
static void a_wrong_kernel_is_not_trusted(void **state)
{
    (void)state;
    const struct quant_kernel_set *set = quant_kernel_sets()[0];
    if (!set)
        skip();
    for (size_t i = 0; i < set->n; i++) {
        struct quant_kernel wrong = set->kernels[i];
        if (quant_type_find(wrong.type)->searches_grid || wrong.with == WEIGHT_NONE)
            continue;
        assert_true(quant_kernel_serves(set, &wrong));
        wrong.with = wrong.with == WEIGHT_RAW ? WEIGHT_SUPER : WEIGHT_RAW;
        assert_false(quant_kernel_serves(set, &wrong));
    }
}

/* The comparison sees a single changed bit. */
static void a_difference_is_seen(void **state)
{
    (void)state;
    const struct quant_kernel_set *set = quant_kernel_sets()[0];
    struct sample s;
    if (!set)
        skip();
    assert_true(sample_new(&s, quant_type_find(GGML_TYPE_Q4_K), NORMAL, UNIFORM, seed, NULL, 0, 4096));
    ggml_quantize_chunk(GGML_TYPE_Q4_K, (const float *)s.x.data, s.theirs.data, 0, s.n_rows, s.n_per_row,
                        (const float *)s.q.data);
    assert_int_equal(first_difference(&s, set, kernel_of(set, GGML_TYPE_Q4_K)), -1);
    s.theirs.data[s.theirs.n - 1] ^= 0x10;
    assert_int_equal(first_difference(&s, set, kernel_of(set, GGML_TYPE_Q4_K)), s.theirs.n - 1);
    sample_free(&s);
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_used),
        cmocka_unit_test(a_difference_is_seen),
        cmocka_unit_test(a_wrong_kernel_is_not_trusted),
        cmocka_unit_test(every_kind_gives_ggmls_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
