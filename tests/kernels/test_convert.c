/* kernels/convert_ref.c: nothing is lost between the two orders, and device order is what a warp's
 * loads hand to mma.m16n8k32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "support/tile_case.h"

enum { RECORD = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM + 6 * 384, GUARD = 32 };

static uint8_t record[RECORD], device[RECORD + 2 * GUARD], back[RECORD + 2 * GUARD];

static void each_shape(void (*check)(const struct kvk_shape *shape, struct rng *rng))
{
    const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128};
    struct rng rng = rng_make(tile_seed("convert"));

    for (int n = 0; n < 24; n++) {
        struct kvk_shape shape = {.dim = dims[n % 3],
                                  .group = groups[n / 3 % 2],
                                  .bits_k = n / 6 % 2 ? 4 : 2,
                                  .bits_v = n / 12 ? 4 : 2,
                                  .dtype = KVARN_BF16,
                                  .iterations = 8};

        for (size_t i = 0; i < sizeof record; i++)
            record[i] = (uint8_t)rng_next(&rng);
        check(&shape, &rng);
    }
}

static void check_guards(const uint8_t *memory, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(memory[i], 0xa5);
        assert_int_equal(memory[GUARD + bytes + i], 0xa5);
    }
}

static void check_return(const struct kvk_shape *shape, struct rng *rng)
{
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;

    (void)rng;
    memset(device, 0xa5, sizeof device);
    memset(back, 0xa5, sizeof back);
    kvk_device_from_record(shape, device + GUARD, record);
    kvk_record_from_device(shape, back + GUARD, device + GUARD);
    check_guards(device, bytes);
    check_guards(back, bytes);
    assert_memory_equal(back + GUARD, record, bytes);
    /* and the other way round: both are onto */
    kvk_record_from_device(shape, back + GUARD, record);
    kvk_device_from_record(shape, device + GUARD, back + GUARD);
    assert_memory_equal(device + GUARD, record, bytes);
}

/* One bit in, one bit out. */
static void check_bits(const struct kvk_shape *shape, struct rng *rng)
{
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;

    for (int turn = 0; turn < 20; turn++) {
        size_t at = rng_below(rng, (uint32_t)bytes);
        uint32_t ones = 0;

        memset(record, 0, bytes);
        record[at] = (uint8_t)(1u << rng_below(rng, 8));
        kvk_device_from_record(shape, device, record);
        for (size_t i = 0; i < bytes; i++)
            ones += (uint32_t)__builtin_popcount(device[i]);
        assert_int_equal(ones, 1);
    }
}

static uint32_t canonical_code(size_t section, uint32_t bits, size_t row, size_t columns,
                               size_t column)
{
    size_t per_byte = 8 / bits, index = row * columns + column;

    return (uint32_t)record[section + index / per_byte] >> (index % per_byte * bits) &
           ((1u << bits) - 1);
}

/* What one warp reads of `rows` x `columns` codes: 16 bytes a lane and load, one AND a register;
 * register r of lane l is bytes b = 0..3 of A[l / 4 + 8 (r % 2)][4 (l % 4) + 16 (r / 2) + b] in the
 * PTX manual's table for 8-bit m16n8k32. `code` takes a row of the matrix and a column along k. */
static void check_fragments(size_t section, uint32_t bits, uint32_t rows, uint32_t columns,
                            uint32_t (*code)(const struct kvk_shape *shape, uint32_t row,
                                             uint32_t step, uint32_t k),
                            const struct kvk_shape *shape)
{
    uint32_t mask = bits == 4 ? 0x0f0f0f0f : 0x03030303;
    uint32_t strips = bits == 4 ? 1 : 2; /* of 16 rows in one word */
    const uint8_t *at = device + section;

    for (uint32_t block = 0; block < rows / (16 * strips); block++) {
        for (uint32_t load = 0; load < columns / 64; load++) {
            for (uint32_t lane = 0; lane < 32; lane++, at += 16) {
                for (uint32_t i = 0; i < 4 * 2 * strips; i++) {
                    uint32_t n = i / (2 * strips), slot = i % (2 * strips), word;

                    memcpy(&word, at + (size_t)4 * n, 4);
                    word = word >> (bits * slot) & mask;
                    for (uint32_t b = 0; b < 4; b++) {
                        uint32_t row = (block * strips + slot / 2) * 16 + slot % 2 * 8 + lane / 4;
                        uint32_t k = 4 * (lane % 4) + 16 * (n % 2) + b;

                        assert_int_equal(word >> 8 * b & 0xff,
                                         code(shape, row, 2 * load + n / 2, k));
                    }
                }
            }
        }
    }
}

/* K: along k a lane's two halves are 8 adjacent channels. */
static uint32_t k_code(const struct kvk_shape *shape, uint32_t token, uint32_t step, uint32_t k)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    uint32_t lane = k % 16 / 4, half = k / 16;

    return canonical_code(at.k_codes, shape->bits_k, 32 * step + 8 * lane + 4 * half + k % 4,
                          shape->group, token);
}

/* V: bytes 0 and 2 are adjacent tokens, 1 and 3 the same eight further on. */
static uint32_t v_code(const struct kvk_shape *shape, uint32_t channel, uint32_t step, uint32_t k)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    static const uint32_t tokens[] = {0, 8, 1, 9};
    uint32_t token = 32 * step + 16 * (k / 16) + 2 * (k % 16 / 4) + tokens[k % 4];

    return canonical_code(at.v_codes, shape->bits_v, token, shape->dim, channel);
}

static void check_vector(size_t section, uint32_t count)
{
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t j = 0; j < count / 8; j++) {
            const uint8_t *at = device + section + 2 * (size_t)(i * (count / 8) + j);

            assert_int_equal(kvk_u16_load(at),
                             kvk_u16_load(record + section + 2 * (size_t)(8 * j + i)));
        }
    }
}

static void check_order(const struct kvk_shape *shape, struct rng *rng)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);

    (void)rng;
    kvk_device_from_record(shape, device, record);
    check_fragments(at.k_codes, shape->bits_k, shape->group, shape->dim, k_code, shape);
    check_fragments(at.v_codes, shape->bits_v, shape->dim, shape->group, v_code, shape);
    assert_memory_equal(device + at.k_step, record + at.k_step, at.k_token - at.k_step);
    check_vector(at.k_token, shape->group);
    check_vector(at.v_channel, shape->dim);
    check_vector(at.v_step, shape->group);
    check_vector(at.v_zero, shape->group);
}

static void records_come_back(void **state)
{
    (void)state;
    each_shape(check_return);
}

static void a_bit_stays_one_bit(void **state)
{
    (void)state;
    each_shape(check_bits);
}

static void device_order_is_what_mma_takes(void **state)
{
    (void)state;
    each_shape(check_order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(a_bit_stays_one_bit),
        cmocka_unit_test(device_order_is_what_mma_takes),
    };
    return cmocka_run_group_tests_name("convert", tests, NULL, NULL);
}
