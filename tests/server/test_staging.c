/* The extent allocator against a byte map, and its bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "server/device/staging.h"
#include "support/rng.h"

enum { GRAINS = 8192, EXTENTS = 300 };

struct model {
    struct kvd_extents *extents;
    uint16_t owner[GRAINS]; /* 0 = free, else extent + 1 */
    uint64_t offset[EXTENTS], grains[EXTENTS];
    uint32_t count;
};

static uint64_t longest_run(const struct model *m)
{
    uint64_t run = 0, longest = 0;
    for (uint32_t g = 0; g < GRAINS; g++) {
        run = m->owner[g] == 0 ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static bool model_take(struct model *m, uint64_t bytes)
{
    uint64_t offset, grains = bytes == 0 ? 1 : (bytes + 63) / 64;
    uint32_t at = 0;
    bool taken = kvd_extents_take(m->extents, bytes, &offset);

    /* exact: refused only when no run of free bytes is long enough */
    assert_int_equal(taken, m->count < EXTENTS && grains <= longest_run(m));
    if (!taken)
        return false;
    while (m->grains[at] != 0)
        at++;
    assert_int_equal(offset % 64, 0);
    assert_true(offset / 64 + grains <= GRAINS);
    for (uint64_t g = offset / 64; g < offset / 64 + grains; g++) {
        assert_int_equal(m->owner[g], 0);
        m->owner[g] = (uint16_t)(at + 1);
    }
    m->offset[at] = offset;
    m->grains[at] = grains;
    m->count++;
    return true;
}

static void model_give(struct model *m, uint32_t at)
{
    kvd_extents_give(m->extents, m->offset[at]);
    for (uint64_t g = m->offset[at] / 64; g < m->offset[at] / 64 + m->grains[at]; g++)
        m->owner[g] = 0;
    m->grains[at] = 0;
    m->count--;
}

static uint64_t some_size(struct rng *rng)
{
    switch (rng_below(rng, 4)) {
    case 0:
        return rng_below(rng, 300);
    case 1:
        return rng_below(rng, 4096);
    case 2:
        return 64ull * rng_below(rng, GRAINS / 8);
    default:
        return rng_below(rng, GRAINS * 64 + 100);
    }
}

static void agrees_with_the_model(void **state)
{
    (void)state;
    uint64_t seed = rng_seed(31), used;
    struct rng rng = rng_make(seed);
    struct model *m = calloc(1, sizeof(*m));
    uint32_t refused = 0;

    print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(kvd_extents_open(&m->extents, GRAINS * 64 + 63, EXTENTS), KVARN_OK);
    for (uint32_t op = 0; op < 100000; op++) {
        uint32_t at = rng_below(&rng, EXTENTS);
        if (m->grains[at] == 0)
            refused += !model_take(m, some_size(&rng));
        else
            model_give(m, at);
        used = 0;
        for (uint32_t i = 0; i < EXTENTS; i++)
            used += m->grains[i] * 64;
        assert_int_equal(kvd_extents_used_bytes(m->extents), used);
        if (op % 16 == 0)
            assert_int_equal(kvd_extents_largest_bytes(m->extents),
                             m->count < EXTENTS ? longest_run(m) * 64 : 0);
    }
    assert_true(refused > 100);
    for (uint32_t i = 0; i < EXTENTS; i++)
        if (m->grains[i] != 0)
            model_give(m, i);
    assert_int_equal(kvd_extents_largest_bytes(m->extents), GRAINS * 64);
    assert_true(model_take(m, GRAINS * 64));
    model_give(m, 0);
    kvd_extents_close(&m->extents);
    assert_null(m->extents);
    free(m);
}

static void count_is_bounded(void **state)
{
    (void)state;
    struct kvd_extents *extents = NULL;
    uint64_t offset[4];
    assert_int_equal(kvd_extents_open(&extents, 63, 3), KVARN_INTERNAL);
    assert_int_equal(kvd_extents_open(&extents, 1 << 20, 3), KVARN_OK);
    for (int i = 0; i < 3; i++)
        assert_true(kvd_extents_take(extents, 1, &offset[i]));
    assert_false(kvd_extents_take(extents, 1, &offset[3]));
    assert_int_equal(kvd_extents_largest_bytes(extents), 0);
    kvd_extents_give(extents, offset[1]);
    assert_true(kvd_extents_take(extents, 1, &offset[3]));
    assert_false(kvd_extents_take(extents, UINT64_MAX, &offset[1]));
    kvd_extents_close(&extents);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_model),
        cmocka_unit_test(count_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
