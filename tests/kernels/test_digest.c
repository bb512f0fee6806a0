/* kernels/digest.c: CRC-32C against a bitwise computation, continuation, every alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/tile_case.h"

static uint32_t bitwise(uint32_t crc, const uint8_t *bytes, size_t count)
{
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int b = 0; b < 8; b++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void published_check_values(void **state)
{
    uint8_t zeros[32] = {0}, ones[32];

    (void)state;
    memset(ones, 0xff, sizeof(ones));
    assert_int_equal(kvk_digest(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(kvk_digest(0, zeros, 32), 0x8A9136AAu); /* RFC 3720, B.4 */
    assert_int_equal(kvk_digest(0, ones, 32), 0x62A8AB43u);
    assert_int_equal(kvk_digest(0, "", 0), 0);
}

static void any_length_any_alignment_any_cut(void **state)
{
    struct rng rng = rng_make(tile_seed("digest"));
    uint8_t bytes[2048];

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rng_next(&rng);
    for (int i = 0; i < 3000; i++) {
        size_t from = rng_below(&rng, 70), count = rng_below(&rng, 1900);
        size_t cut = rng_below(&rng, (uint32_t)count + 1);
        uint32_t expected = bitwise(0, bytes + from, count);

        assert_int_equal(kvk_digest(0, bytes + from, count), expected);
        assert_int_equal(
            kvk_digest(kvk_digest(0, bytes + from, cut), bytes + from + cut, count - cut),
            expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_check_values),
        cmocka_unit_test(any_length_any_alignment_any_cut),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
