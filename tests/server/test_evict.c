/* store/evict: order of use, tenants, slot sizes, and the links of the list against a plain array.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/block.h"
#include "server/store/evict.h"
#include "support/rng.h"

static struct kvd_evict evict;
static struct kvd_block blocks[64];

static int clear(void **state)
{
    (void)state;
    memset(&evict, 0, sizeof evict);
    memset(blocks, 0, sizeof blocks);
    return 0;
}

static void the_oldest_goes_first(void **state)
{
    (void)state;
    kvd_evict_list_set(&evict, 0, 0, 100);
    assert_null(kvd_evict_choose(&evict, 0, 100));
    for (int i = 0; i < 3; i++)
        kvd_evict_add(&evict, 0, &blocks[i]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[0]);
    kvd_evict_remove(&evict, 0, &blocks[0]); /* used: goes to the young end */
    kvd_evict_add(&evict, 0, &blocks[0]);
    for (int i = 0; i < 3; i++) {
        struct kvd_block *block = kvd_evict_choose(&evict, 0, 100);

        assert_ptr_equal(block, &blocks[(i + 1) % 3]);
        assert_int_equal(evict.listed, 3 - i);
        kvd_evict_remove(&evict, 0, block);
    }
    assert_null(kvd_evict_choose(&evict, 0, 100));
    assert_int_equal(evict.listed, 0);
}

/* Over lists of one size: the least recently used of all; a list of its own size is preferred. */
static void the_wanted_size_is_preferred(void **state)
{
    (void)state;
    kvd_evict_list_set(&evict, 1, 0, 100);
    kvd_evict_list_set(&evict, 2, 0, 700);
    kvd_evict_list_set(&evict, 9, 0, 100);
    kvd_evict_add(&evict, 2, &blocks[0]); /* the oldest of all */
    kvd_evict_add(&evict, 9, &blocks[1]);
    kvd_evict_add(&evict, 1, &blocks[2]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[1]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 700), &blocks[0]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 5), &blocks[0]); /* none of this size */
    kvd_evict_remove(&evict, 9, &blocks[1]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[2]);
    kvd_evict_remove(&evict, 1, &blocks[2]);
    assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[0]);
    kvd_evict_remove(&evict, 2, &blocks[0]);
}

static void tenants_do_not_pay_for_each_other(void **state)
{
    uint32_t last = KVD_SPACES_MAX * 2 - 1;

    (void)state;
    kvd_evict_list_set(&evict, 0, 1, 100);
    kvd_evict_list_set(&evict, last, 2, 100);
    kvd_evict_add(&evict, 0, &blocks[0]);
    assert_null(kvd_evict_choose(&evict, 2, 100));
    kvd_evict_add(&evict, last, &blocks[1]);
    assert_ptr_equal(kvd_evict_choose(&evict, 2, 100), &blocks[1]);
    assert_ptr_equal(kvd_evict_choose(&evict, 1, 100), &blocks[0]);
    assert_null(kvd_evict_choose(&evict, 0, 100));
    kvd_evict_remove(&evict, 0, &blocks[0]);
    kvd_evict_list_set(&evict, 0, 2, 300); /* the place is another tenant's space now */
    kvd_evict_add(&evict, 0, &blocks[0]);
    assert_null(kvd_evict_choose(&evict, 1, 100));
    assert_ptr_equal(kvd_evict_choose(&evict, 2, 300), &blocks[0]);
}

/* Random adds and removals; the choice is always the oldest of the model. */
static void links_hold_in_any_order(void **state)
{
    struct rng rng = rng_make(rng_seed(8));
    uint64_t added[64] = {0}, now = 0; /* 0: not listed */
    uint32_t listed = 0;

    (void)state;
    for (uint32_t list = 0; list < 3; list++)
        kvd_evict_list_set(&evict, list, 0, 100);
    for (int round = 0; round < 20000; round++) {
        uint32_t i = rng_below(&rng, 64), list = i % 3, oldest = 64;

        if (added[i] > 0) {
            kvd_evict_remove(&evict, list, &blocks[i]);
            added[i] = 0;
            listed--;
        } else {
            kvd_evict_add(&evict, list, &blocks[i]);
            added[i] = ++now;
            listed++;
        }
        for (uint32_t j = 0; j < 64; j++)
            if (added[j] > 0 && (oldest == 64 || added[j] < added[oldest]))
                oldest = j;
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), oldest < 64 ? &blocks[oldest] : NULL);
        assert_int_equal(evict.listed, listed);
        assert_int_equal(blocks[i].listed, added[i] > 0);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_oldest_goes_first),
        TEST(the_wanted_size_is_preferred),
        TEST(tenants_do_not_pay_for_each_other),
        TEST(links_hold_in_any_order),
    };
    return cmocka_run_group_tests_name("evict", tests, NULL, NULL);
}
