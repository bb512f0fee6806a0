/* kernels/half.h: all 65536 codes of both types, and every rounding boundary between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/half.h"
#include "support/decode.h"

static const kvarn_dtype types[] = {KVARN_F16, KVARN_BF16};

static void every_code_widens_exactly(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        for (uint32_t code = 0; code < 65536; code++) {
            double expected = decode_half((uint16_t)code, (int)types[t]);
            float x = kvk_half_to_f32((uint16_t)code, types[t]);

            if (isnan(expected))
                assert_true(isnan(x));
            else
                assert_true((double)x == expected && !signbit(x) == !(code & 0x8000));
            assert_int_equal(kvk_half_is_finite((uint16_t)code, types[t]), isfinite(expected) != 0);
        }
    }
}

static void every_code_survives_the_round_trip(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        for (uint32_t code = 0; code < 65536; code++) {
            float x = kvk_half_to_f32((uint16_t)code, types[t]);
            uint16_t back = kvk_half_from_f32(x, types[t]);

            if (isnan(x))
                assert_true(isnan(kvk_half_to_f32(back, types[t])));
            else
                assert_int_equal(back, code);
        }
    }
}

/* Between two neighbours lies one boundary: the middle goes to the even one, and the next fp32
 * number on either side goes to its own side. */
static void boundaries_round_to_nearest_even(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        uint32_t last = types[t] == KVARN_F16 ? 0x7bff : 0x7f7f;

        for (uint32_t code = 0; code < last; code++) {
            float a = kvk_half_to_f32((uint16_t)code, types[t]);
            float b = kvk_half_to_f32((uint16_t)(code + 1), types[t]);
            float middle = (float)(((double)a + (double)b) / 2);
            uint16_t even = (uint16_t)(code % 2 == 0 ? code : code + 1);

            assert_int_equal(kvk_half_from_f32(middle, types[t]), even);
            assert_int_equal(kvk_half_from_f32(nextafterf(middle, a), types[t]), code);
            assert_int_equal(kvk_half_from_f32(nextafterf(middle, b), types[t]), code + 1);
            assert_int_equal(kvk_half_from_f32(-middle, types[t]), even | 0x8000);
        }
    }
}

static void the_ends_of_the_range(void **state)
{
    (void)state;
    assert_int_equal(kvk_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(kvk_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(kvk_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(kvk_f16_from_f32(0x1p-25f), 0);
    assert_int_equal(kvk_f16_from_f32(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(kvk_f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(kvk_f16_from_f32(0x1p-149f), 0);
    assert_int_equal(kvk_bf16_from_f32(3.4028235e38f), 0x7f80);
    assert_int_equal(kvk_bf16_from_f32(kvk_f32_from_bits(0x7f800001)) & 0x7fff, 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_widens_exactly),
        cmocka_unit_test(every_code_survives_the_round_trip),
        cmocka_unit_test(boundaries_round_to_nearest_even),
        cmocka_unit_test(the_ends_of_the_range),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
