/* kernels/cell.c: NaN and infinity are found in every vector of a record and in every exact row,
 * and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "kernels/kernels.h"
#include "kernels/tile.h"

static const struct kvk_shape shape = {
    .dim = 64, .group = 128, .bits_k = 4, .bits_v = 2, .dtype = KVARN_BF16, .iterations = 8};

static void put(uint8_t *at, uint16_t value)
{
    memcpy(at, &value, sizeof value);
}

static void a_record_of_any_codes_is_fine(void **state)
{
    static uint8_t record[32768];
    struct kvk_layout at = kvk_layout_of(64, 128, 4, 2);
    struct kvk_fault fault;

    (void)state;
    memset(record, 0, sizeof record);
    memset(record + at.k_codes, 0xff, at.k_step); /* as fp16 these would be NaN */
    memset(record + at.v_codes, 0xff, at.v_channel - at.v_codes);
    put(record + at.k_step, 0x7bff); /* the largest number */
    put(record + at.v_zero, 0x8001); /* the smallest, negative */
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_TILE, record, &fault), KVARN_OK);
}

static void every_element_of_every_vector_counts(void **state)
{
    static uint8_t record[32768 + 1];
    struct kvk_layout at = kvk_layout_of(64, 128, 4, 2);
    const struct {
        size_t at;
        uint32_t count;
        char tensor;
        int per_token;
    } vectors[] = {{at.k_step, 64, 'k', 0},    {at.k_zero, 64, 'k', 0},  {at.k_token, 128, 'k', 1},
                   {at.v_channel, 64, 'v', 0}, {at.v_step, 128, 'v', 1}, {at.v_zero, 128, 'v', 1}};
    const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01};
    struct kvk_fault fault;

    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        for (uint32_t e = 0; e < vectors[i].count; e++) {
            uint8_t *place = record + 1 + vectors[i].at + 2 * (size_t)e; /* at an odd address */

            put(place, bad[e % 4]);
            assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_TILE, record + 1, &fault),
                             KVARN_NON_FINITE);
            assert_int_equal(fault.tensor, vectors[i].tensor);
            assert_int_equal(vectors[i].per_token ? fault.token : fault.channel, e);
            put(place, 0);
        }
    }
}

/* Whichever vector they stand in: the smallest (tensor, token, channel), as on a GPU. */
static void of_several_the_smallest_place_is_named(void **state)
{
    static uint8_t record[32768];
    struct kvk_layout at = kvk_layout_of(64, 128, 4, 2);
    struct kvk_fault fault;

    (void)state;
    put(record + at.v_step + 2 * (size_t)63, 0x7e00);
    put(record + at.v_zero + 2 * (size_t)4, 0x7c00);
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_TILE, record, &fault), KVARN_NON_FINITE);
    assert_int_equal(fault.tensor, 'v');
    assert_int_equal(fault.token, 4);
    put(record + at.v_channel + 2 * (size_t)9, 0x7e00); /* token 0 */
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_TILE, record, &fault), KVARN_NON_FINITE);
    assert_int_equal(fault.token, 0);
    assert_int_equal(fault.channel, 9);
    put(record + at.k_token + 2 * (size_t)100, 0x7e00);
    put(record + at.k_zero + 2 * (size_t)5, 0x7e00);
    put(record + at.k_step + 2 * (size_t)7, 0x7e00);
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_TILE, record, &fault), KVARN_NON_FINITE);
    assert_int_equal(fault.tensor, 'k');
    assert_int_equal(fault.token, 0);
    assert_int_equal(fault.channel, 5);
}

static void exact_rows_are_looked_at_in_their_own_type(void **state)
{
    static uint8_t rows[2 * 128 * 64 * 2];
    struct kvk_fault fault;

    (void)state;
    put(rows, 0x7c00); /* infinity in fp16, a number in bf16 */
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_EXACT, rows, &fault), KVARN_OK);
    put(rows + (128 * 64 + 127 * 64 + 63) * 2, 0xff80);
    assert_int_equal(kvk_cell_check(&shape, KVARN_BLOCK_EXACT, rows, &fault), KVARN_NON_FINITE);
    assert_int_equal(fault.tensor, 'v');
    assert_int_equal(fault.token, 127);
    assert_int_equal(fault.channel, 63);
}

static void a_shape_that_is_none_is_refused(void **state)
{
    struct kvk_shape wrong = shape;
    struct kvk_fault fault;

    (void)state;
    wrong.dim = 96;
    assert_int_not_equal(kvk_cell_check(&wrong, KVARN_BLOCK_TILE, NULL, &fault), KVARN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_of_any_codes_is_fine),
        cmocka_unit_test(every_element_of_every_vector_counts),
        cmocka_unit_test(of_several_the_smallest_place_is_named),
        cmocka_unit_test(exact_rows_are_looked_at_in_their_own_type),
        cmocka_unit_test(a_shape_that_is_none_is_refused),
    };
    return cmocka_run_group_tests_name("cell", tests, NULL, NULL);
}
