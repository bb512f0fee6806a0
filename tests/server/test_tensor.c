/* Layouts against a payload: whatever is accepted lies inside it, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "server/rpc/tensor.h"
#include "support/rng.h"

static struct kvd_tensor shape(void)
{
    return (struct kvd_tensor){.layers = 3, .blocks = 2, .tokens = 4, .heads = 2, .row_bytes = 10};
}

static void test_dense(void **state)
{
    struct kvd_tensor t = shape();
    uint64_t half = 3 * 2 * 4 * 2 * 10;
    char text[256];

    (void)state;
    assert_int_equal(kvd_tensor_resolve(&t, NULL, 2 * half, text, sizeof text), KVARN_OK);
    assert_int_equal(t.k, 0);
    assert_int_equal(t.v, half);
    assert_int_equal(t.strides.head, 10);
    assert_int_equal(t.strides.token, 20);
    assert_int_equal(t.block_stride, 80);
    assert_int_equal(t.strides.layer, 160);
    for (int d = -1; d <= 1; d += 2) {
        t = shape();
        assert_int_equal(
            kvd_tensor_resolve(&t, NULL, 2 * half + (uint64_t)(int64_t)d, text, sizeof text),
            KVARN_INVALID_SHAPE);
        assert_non_null(strstr(text, "960 bytes"));
    }
}

__extension__ typedef unsigned __int128 wide_int;

/* One past the last byte, in arithmetic wide enough for anything. */
static wide_int end_of(const struct kvd_tensor *t, uint64_t first)
{
    return (wide_int)first + (wide_int)(t->layers - 1) * t->strides.layer +
           (wide_int)(t->blocks - 1) * t->block_stride +
           (wide_int)(t->tokens - 1) * t->strides.token +
           (wide_int)(t->heads - 1) * t->strides.head + t->row_bytes;
}

static uint64_t wild(struct rng *rng)
{
    uint64_t value = rng_next(rng);

    switch (rng_below(rng, 5)) {
    case 0:
        return 0;
    case 1:
        return value % 2000;
    case 2:
        return UINT64_MAX - value % 4;
    case 3:
        return (uint64_t)1 << value % 64;
    default:
        return value;
    }
}

static void test_random(void **state)
{
    struct rng rng = rng_make(rng_seed(5));
    uint32_t accepted = 0;
    char text[256];

    (void)state;
    for (int i = 0; i < 200000; i++) {
        struct kvd_tensor t = shape();
        struct kvw_layout layout = {true,       wild(&rng), wild(&rng), wild(&rng),
                                    wild(&rng), wild(&rng), wild(&rng)};
        uint64_t available = 100 + rng_below(&rng, 20000);

        if (i % 2) /* often something that fits */
            layout = (struct kvw_layout){true,
                                         rng_below(&rng, 600),
                                         rng_below(&rng, 600),
                                         rng_below(&rng, 400),
                                         rng_below(&rng, 200),
                                         rng_below(&rng, 100),
                                         rng_below(&rng, 50)};
        if (kvd_tensor_resolve(&t, &layout, available, text, sizeof text) != KVARN_OK)
            continue;
        accepted++;
        assert_true(end_of(&t, t.k) <= available && end_of(&t, t.v) <= available);
    }
    assert_true(accepted > 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
