/* kernels/shape.c: what is accepted, what is refused and why, how much scratch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "kernels/tile.h"

static const struct kvk_shape good = {
    128, 128, 2, 2, KVARN_F16, KVARN_BALANCE_PUBLIC, KVARN_RANGE_MINMAX, 0, 0, 8};

static void every_size_of_the_contract_is_fine(void **state)
{
    static const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128};

    (void)state;
    for (size_t d = 0; d < 3; d++) {
        for (size_t g = 0; g < 2; g++) {
            struct kvk_shape s = good;
            const char *why = "unchanged";

            s.dim = dims[d];
            s.group = groups[g];
            s.bits_k = 4;
            s.dtype = KVARN_BF16;
            s.balance = KVARN_BALANCE_SCALE_FREE;
            s.range = KVARN_RANGE_TIGHT;
            s.k_rotated = 1;
            s.v_rotated = 1;
            s.iterations = KVARN_MAX_ITERATIONS;
            assert_int_equal(kvk_shape_check(&s, &why), KVARN_OK);
            assert_string_equal(why, "unchanged");
            assert_true(kvk_scratch_bytes(&s) >= (size_t)s.dim * s.group * sizeof(float));
        }
    }
}

static void refuse(struct kvk_shape s, kvarn_status status)
{
    const char *why = NULL;

    assert_int_equal(kvk_shape_check(&s, &why), status);
    assert_non_null(why);
    assert_int_equal(kvk_shape_check(&s, NULL), status);
}

static void everything_else_is_refused(void **state)
{
    struct kvk_shape s;

    (void)state;
#define WITH(field, value, status)                                                                 \
    s = good;                                                                                      \
    s.field = (value);                                                                             \
    refuse(s, status)
    WITH(dim, 0, KVARN_INVALID_SHAPE);
    WITH(dim, 96, KVARN_INVALID_SHAPE);
    WITH(dim, 512, KVARN_INVALID_SHAPE);
    WITH(group, 0, KVARN_INVALID_SHAPE);
    WITH(group, 32, KVARN_INVALID_SHAPE);
    WITH(group, 256, KVARN_INVALID_SHAPE);
    WITH(bits_k, 0, KVARN_UNSUPPORTED);
    WITH(bits_k, 3, KVARN_UNSUPPORTED);
    WITH(bits_v, 8, KVARN_UNSUPPORTED);
    WITH(dtype, 0, KVARN_UNSUPPORTED);
    WITH(dtype, KVARN_F32, KVARN_UNSUPPORTED);
    WITH(balance, 2, KVARN_UNSUPPORTED);
    WITH(range, 2, KVARN_UNSUPPORTED);
    WITH(k_rotated, 2, KVARN_UNSUPPORTED);
    WITH(v_rotated, 2, KVARN_UNSUPPORTED);
    WITH(iterations, 0, KVARN_INVALID_SHAPE);
    WITH(iterations, KVARN_MAX_ITERATIONS + 1, KVARN_INVALID_SHAPE);
#undef WITH
}

/* Every member counts, what stands between members does not. */
static void same_means_every_member(void **state)
{
    struct kvk_shape a, b;

    (void)state;
    memset(&a, 0xff, sizeof a);
    memset(&b, 0, sizeof b);
#define COPY(member) a.member = b.member = good.member
    COPY(dim), COPY(group), COPY(bits_k), COPY(bits_v), COPY(dtype), COPY(balance), COPY(range);
    COPY(k_rotated), COPY(v_rotated), COPY(iterations);
#undef COPY
    assert_true(kvk_shape_same(&a, &b));
#define OTHER(member)                                                                              \
    do {                                                                                           \
        b = a;                                                                                     \
        b.member ^= 1;                                                                             \
        assert_false(kvk_shape_same(&a, &b));                                                      \
    } while (0)
    OTHER(dim);
    OTHER(group);
    OTHER(bits_k);
    OTHER(bits_v);
    OTHER(dtype);
    OTHER(balance);
    OTHER(range);
    OTHER(k_rotated);
    OTHER(v_rotated);
    OTHER(iterations);
#undef OTHER
}

/* The numbers of kernels/METHOD.md, section 6. */
static void record_sizes(void **state)
{
    (void)state;
    assert_int_equal(kvk_layout_of(128, 128, 2, 2).bytes, 9728);
    assert_int_equal(kvk_layout_of(128, 128, 4, 2).bytes, 13824);
    assert_int_equal(kvk_layout_of(128, 128, 4, 4).bytes, 17920);
    assert_int_equal(kvk_layout_of(64, 64, 2, 2).bytes, 2816);
    assert_int_equal(kvk_layout_of(256, 128, 4, 4).bytes, 35072);
    assert_int_equal(kvk_layout_of(256, 64, 4, 2).bytes, 14208);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_of_the_contract_is_fine),
        cmocka_unit_test(everything_else_is_refused),
        cmocka_unit_test(same_means_every_member),
        cmocka_unit_test(record_sizes),
    };
    return cmocka_run_group_tests_name("shape", tests, NULL, NULL);
}
