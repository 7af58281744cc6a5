/* test_scalar.c - blocks with scalar grids, taken apart and put together.  SPDX-License-Identifier: MIT */
#include "quant/compensate_problem.h"

/* Random bytes whose scales are finite. */
static void random_block(const struct quant_type *qt, uint8_t *block, uint64_t key)
{
    for (int i = 0; i < qt->block_bytes; i++)
        block[i] = (uint8_t)rng_u64(key, (uint64_t)i);
    for (int f = 0; f < 2; f++)
        if (qt->scale_at[f] >= 0)
            block[qt->scale_at[f] + (qt->scale_mask > 0xff)] &= qt->scale_mask > 0xff ? 0xbf : 0xfe;
}

static void blocks_come_apart_and_together(void **state)
{
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        const struct scalar_type *type = scalar_type_find(all[k]);
        const struct quant_type *qt = quant_type_find(all[k]);
        assert_int_equal(type->block, qt->block);
        assert_int_equal(type->block_bytes, qt->block_bytes);
        for (uint64_t i = 0; i < 200; i++) {
            uint8_t block[256], again[256];
            float expected[256];
            struct scalar_block b;
            random_block(qt, block, seed + 1000 * i);
            memset(again, 0x55, sizeof again);
            assert_int_equal(quant_to_f32(all[k], block, expected, type->block, &err), ALLOT_OK);
            scalar_load(type, &b, block);
            for (int j = 0; j < type->block; j++) {
                const float value = value_of(type, &b, j, b.codes[j]);
                assert_memory_equal(&value, &expected[j], sizeof value);
            }
            scalar_store(type, &b, again);
            assert_memory_equal(again, block, (size_t)type->block_bytes);
        }
    }
    assert_null(scalar_type_find(GGML_TYPE_IQ3_S));
    assert_false(compensate_fits(GGML_TYPE_F16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_apart_and_together),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
