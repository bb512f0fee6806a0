/* kernels/rows.c: copies with odd strides, faults named, fp32 rows stored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/half.h"
#include "kernels/variants.h"
#include "support/tile_case.h"

enum { TOKENS = 9, STRIDE = 533, MAX_DIM = 256 };

static void finite_rows(uint8_t *rows, struct rng *rng, kvarn_dtype dtype)
{
    for (size_t i = 0; i + 1 < TOKENS * STRIDE; i += 2) {
        uint16_t half;

        do
            half = (uint16_t)rng_next(rng);
        while (!kvk_half_is_finite(half, dtype));
        kvk_u16_store(rows + i, half);
    }
}

static void copies_and_touches_nothing_else(void **state)
{
    struct rng rng = rng_make(tile_seed("rows"));
    uint8_t dst[TOKENS * 600 + 8], src[TOKENS * STRIDE + 1];

    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        kvarn_dtype dtype = turn % 2 ? KVARN_F16 : KVARN_BF16;
        uint32_t dim = 1 + rng_below(&rng, MAX_DIM);
        size_t stride = 2 * (size_t)dim + rng_below(&rng, 80), shift = rng_below(&rng, 8);
        struct kvk_fault fault = {'x', 1, 1};

        memset(dst, 0x5a, sizeof(dst));
        /* an odd source stride would change the parity of the elements: even here, odd below */
        finite_rows(src, &rng, dtype);
        assert_int_equal(
            kvk_copy_rows(dst + shift, stride, src, 532, TOKENS, dim, dtype, 'k', &fault),
            KVARN_OK);
        assert_int_equal(fault.tensor, 0);
        for (size_t i = 0; i < sizeof(dst); i++) {
            size_t at = i - shift, g = at / stride, b = at % stride;

            if (i >= shift && g < TOKENS && b < 2 * (size_t)dim)
                assert_int_equal(dst[i], src[g * 532 + b]);
            else
                assert_int_equal(dst[i], 0x5a);
        }
    }
}

static void the_first_fault_is_named(void **state)
{
    static const uint16_t bad[2][4] = {{0x7c00, 0xfc00, 0x7e00, 0x7c01},
                                       {0x7f80, 0xff80, 0x7fc0, 0x7f81}};
    struct rng rng = rng_make(tile_seed("rows"));
    uint8_t dst[TOKENS * 2 * MAX_DIM], src[TOKENS * STRIDE + 2 * MAX_DIM];

    (void)state;
    for (int turn = 0; turn < 2000; turn++) {
        kvarn_dtype dtype = turn % 2 ? KVARN_BF16 : KVARN_F16;
        uint32_t dim = 1 + rng_below(&rng, MAX_DIM), g = rng_below(&rng, TOKENS);
        uint32_t d = turn % 3 == 0 ? 0 : turn % 3 == 1 ? dim - 1 : rng_below(&rng, dim);
        uint16_t value = bad[turn % 2][rng_below(&rng, 4)];
        struct kvk_fault fault;

        memset(src, 0, sizeof(src));
        kvk_u16_store(src + g * STRIDE + 2 * (size_t)d, value);
        if (d + 1 < dim) /* a later one in the same row does not count */
            kvk_u16_store(src + g * STRIDE + 2 * ((size_t)dim - 1), value);
        assert_int_equal(
            kvk_copy_rows(dst, 2 * (size_t)dim, src, STRIDE, TOKENS, dim, dtype, 'v', &fault),
            KVARN_NON_FINITE);
        assert_int_equal(fault.tensor, 'v');
        assert_int_equal(fault.token, g);
        assert_int_equal(fault.channel, d);
        assert_int_equal(kvk_rows_check(src, STRIDE, g, dim, dtype, 'v', &fault), KVARN_OK);
    }
}

static void stores_rounded(void **state)
{
    const float src[5] = {1.0f, 1.00048828125f, -70000.0f, 3.0e38f, 0x1p-24f};
    uint8_t dst[21];
    float back[5];

    (void)state;
    memset(dst, 0x5a, sizeof(dst));
    kvk_store_rows(dst + 1, KVARN_F16, src, 5);
    assert_int_equal(kvk_u16_load(dst + 1), 0x3c00);
    assert_int_equal(kvk_u16_load(dst + 3), 0x3c00); /* a tie goes to even */
    assert_int_equal(kvk_u16_load(dst + 5), 0xfc00);
    assert_int_equal(kvk_u16_load(dst + 9), 1);
    assert_int_equal(dst[11], 0x5a);
    kvk_store_rows(dst + 1, KVARN_BF16, src, 5);
    assert_int_equal(kvk_u16_load(dst + 1), 0x3f80);
    assert_int_equal(kvk_u16_load(dst + 7), 0x7f62);
    kvk_store_rows(dst + 1, KVARN_F32, src, 5);
    memcpy(back, dst + 1, sizeof(back));
    assert_memory_equal(back, src, sizeof(src));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_and_touches_nothing_else),
        cmocka_unit_test(the_first_fault_is_named),
        cmocka_unit_test(stores_rounded),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
