/* kernels/decompress_*.c: random records against double precision, variants bit for bit, partial
 * calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/half.h"
#include "kernels/kernels.h"
#include "support/decode.h"
#include "support/tile_case.h"

enum { SIZE = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM, RECORD = SIZE + 6 * 384 };

static const char *const names[] = {"ref", "avx2", "avx512"};
static _Alignas(64) uint8_t record[RECORD], scratch[SIZE * 4 + 65536];
static uint8_t k[3][2 * SIZE], v[3][2 * SIZE];
static double k64[SIZE], v64[SIZE];

/* Any codes; vectors of any sign, normal, subnormal or zero, up to `top` in exponent. */
static void random_record(const struct kvk_shape *s, struct rng *rng, uint32_t top)
{
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    const size_t vectors[] = {at.k_step, at.k_zero, at.k_token, at.v_channel, at.v_step, at.v_zero};
    const uint32_t counts[] = {s->dim, s->dim, s->group, s->dim, s->group, s->group};

    for (size_t i = 0; i < at.bytes; i++)
        record[i] = (uint8_t)rng_next(rng);
    for (size_t n = 0; n < 6; n++) {
        for (uint32_t i = 0; i < counts[n]; i++)
            kvk_u16_store(record + vectors[n] + 2 * (size_t)i,
                          (uint16_t)(rng_below(rng, top << 10) | rng_below(rng, 2) << 15));
    }
}

static void run(const struct kvk_shape *s, size_t table, void *k_rows, void *v_rows)
{
    struct kvk_decompress op = {.shape = *s,
                                .record = record,
                                .k = k_rows,
                                .v = v_rows,
                                .k_token_stride_bytes = 2 * (size_t)s->dim,
                                .v_token_stride_bytes = 2 * (size_t)s->dim,
                                .scratch = scratch};

    assert_true(kvk_scratch_bytes(s) <= sizeof(scratch));
    assert_int_equal(kvk_cpu_table(names[table])->decompress(&op), KVARN_OK);
}

/* Half a unit of the type plus what fp32 butterflies may lose, relative to the row. */
static void compare_row(const struct kvk_shape *s, const uint8_t *got, const double *expected,
                        const char *text)
{
    double unit = s->dtype == KVARN_BF16 ? 0x1p-8 : 0x1p-11, top = 0;

    for (uint32_t d = 0; d < s->dim; d++)
        top += expected[d] * expected[d];
    for (uint32_t d = 0; d < s->dim; d++) {
        double x = decode_half(kvk_u16_load(got + 2 * (size_t)d), s->dtype);
        double least = s->dtype == KVARN_BF16 ? 0x1p-134 : 0x1p-25;
        double slack = 1.001 * unit * fabs(expected[d]) + 2e-6 * sqrt(top) + least;

        if (s->dtype == KVARN_F16 && fabs(expected[d]) > 65000)
            continue; /* may round to infinity */
        if (!(fabs(x - expected[d]) <= slack))
            fail_msg("channel %u: %g instead of %g: %s", d, x, expected[d], text);
    }
}

static void random_records_decode(void **state)
{
    uint64_t seed = tile_seed("decompress");
    struct rng rng = rng_make(seed);

    (void)state;
    for (int turn = 0; turn < 40; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        const struct kvk_shape *s = &plan.shape;
        size_t rows = 2 * (size_t)s->dim * s->group;

        random_record(s, &rng, turn % 4 == 0 ? 31 : turn % 4 == 1 ? 2 : 18);
        run(s, 0, k[0], v[0]);
        decode_tile(s, record, k64, v64);
        for (uint32_t g = 0; g < s->group; g++) {
            size_t at = (size_t)g * s->dim;

            compare_row(s, k[0] + 2 * at, k64 + at, tile_plan_text(&plan, seed));
            compare_row(s, v[0] + 2 * at, v64 + at, tile_plan_text(&plan, seed));
        }
        for (size_t i = 1; i < 3; i++) {
            if (kvk_cpu_table(names[i]) == NULL)
                continue;
            run(s, i, k[i], v[i]);
            if (memcmp(k[i], k[0], rows) != 0 || memcmp(v[i], v[0], rows) != 0)
                fail_msg("%s: other bits: %s", names[i], tile_plan_text(&plan, seed));
        }
    }
}

static void either_side_may_be_left_out(void **state)
{
    struct rng rng = rng_make(tile_seed("decompress"));

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct tile_plan plan = tile_plan_random(&rng);
        size_t rows = 2 * (size_t)plan.shape.dim * plan.shape.group;

        if (kvk_cpu_table(names[i]) == NULL)
            continue;
        random_record(&plan.shape, &rng, 18);
        run(&plan.shape, i, k[0], v[0]);
        memset(k[1], 1, rows);
        memset(v[1], 1, rows);
        run(&plan.shape, i, k[1], NULL);
        run(&plan.shape, i, NULL, v[1]);
        run(&plan.shape, i, NULL, NULL);
        assert_memory_equal(k[1], k[0], rows);
        assert_memory_equal(v[1], v[0], rows);
    }
}

/* A damaged record may hold anything: no crash, nothing promised about the values. */
static void vectors_that_are_not_finite(void **state)
{
    struct rng rng = rng_make(tile_seed("decompress"));

    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);

        random_record(&plan.shape, &rng, 32);
        for (size_t i = 0; i < 3; i++) {
            if (kvk_cpu_table(names[i]) != NULL)
                run(&plan.shape, i, k[i], v[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_records_decode),
        cmocka_unit_test(either_side_may_be_left_out),
        cmocka_unit_test(vectors_that_are_not_finite),
    };
    return cmocka_run_group_tests_name("decompress", tests, NULL, NULL);
}
