/* Life of a block, and eviction: order, tenants, references. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/rng.h"
#include "support/store_rig.h"

static struct store_rig rig;

static void test_claim(void **state)
{
    struct kvd_space *space;
    struct kvd_block *block, *other;
    kvarn_key key = store_key(1);

    (void)state;
    store_open(&rig, 16 << 20);
    space = store_space(&rig, 0, "a");
    assert_int_equal(kvd_block_claim(&rig.blocks, space, &key, KVARN_BLOCK_TILE, &block), KVARN_OK);
    assert_null(kvd_block_find(&rig.blocks, space, &key)); /* not visible while it fills */
    assert_int_equal(kvd_block_claim(&rig.blocks, space, &key, KVARN_BLOCK_TILE, &other),
                     KVARN_RETRY);
    assert_null(other);
    /* failed: key and bytes are free again */
    kvd_block_release(&rig.blocks, block);
    assert_int_equal(rig.settled, 1);
    assert_int_equal(rig.blocks.live, 0);
    assert_int_equal(kvd_block_claim(&rig.blocks, space, &key, KVARN_BLOCK_TILE, &block), KVARN_OK);
    kvd_block_publish(&rig.blocks, block, 77);
    assert_int_equal(rig.settled, 2);
    assert_ptr_equal(kvd_block_find(&rig.blocks, space, &key), block);
    assert_int_equal(kvd_block_claim(&rig.blocks, space, &key, KVARN_BLOCK_EXACT, &other),
                     KVARN_EXISTS);
    assert_ptr_equal(other, block);
    assert_int_equal(block->references, 2);
    /* dropped while two read it */
    kvd_block_drop(&rig.blocks, block);
    assert_null(kvd_block_find(&rig.blocks, space, &key));
    kvd_block_release(&rig.blocks, block);
    assert_int_equal(rig.blocks.live, 1);
    kvd_block_release(&rig.blocks, block);
    assert_int_equal(rig.blocks.live, 0);
    store_close(&rig);
}

static void test_name(void **state)
{
    struct kvd_space *space;
    struct kvd_block *mine, *other;
    kvarn_key key = store_key(1), second = store_key(2);

    (void)state;
    store_open(&rig, 16 << 20);
    space = store_space(&rig, 0, "a");
    assert_int_equal(kvd_block_take(&rig.blocks, space, KVARN_BLOCK_EXACT, &mine), KVARN_OK);
    store_block(&rig, space, 1, KVARN_BLOCK_EXACT);
    assert_int_equal(kvd_block_name(&rig.blocks, mine, &key, &other), KVARN_EXISTS);
    kvd_block_release(&rig.blocks, other);
    assert_int_equal(kvd_block_name(&rig.blocks, mine, &second, &other), KVARN_OK);
    assert_null(kvd_block_find(&rig.blocks, space, &second));
    kvd_block_unclaim(&rig.blocks, mine);
    assert_int_equal(kvd_block_name(&rig.blocks, mine, &second, &other), KVARN_OK);
    kvd_block_publish(&rig.blocks, mine, 5);
    assert_ptr_equal(kvd_block_find(&rig.blocks, space, &second), mine);
    kvd_block_release(&rig.blocks, mine);
    assert_int_equal(rig.evict.listed, 2);
    store_close(&rig);
}

/* Fills until the first eviction; gives how many blocks the pool holds. */
static uint32_t fill(struct kvd_space *space, uint32_t first, uint32_t kind)
{
    uint64_t before = rig.blocks.evictions;
    uint32_t count = 0;

    while (rig.blocks.evictions == before)
        store_block(&rig, space, first + count++, kind);
    return count - 1;
}

static void test_least_recently_used(void **state)
{
    struct kvd_space *space;
    kvarn_key key;
    uint32_t count;

    (void)state;
    store_open_policy(&rig, 1 << 20, KVD_EVICT_LRU);
    space = store_space(&rig, 0, "a");
    count = fill(space, 0, KVARN_BLOCK_TILE);
    assert_true(count > 10);
    key = store_key(0);
    assert_null(kvd_block_find(&rig.blocks, space, &key)); /* the oldest went */
    key = store_key(1);
    assert_non_null(kvd_block_find(&rig.blocks, space, &key)); /* used: goes last */
    for (uint32_t i = 0; i < count - 1; i++)
        store_block(&rig, space, 1000 + i, KVARN_BLOCK_TILE);
    assert_non_null(kvd_block_find(&rig.blocks, space, &key));
    key = store_key(2);
    assert_null(kvd_block_find(&rig.blocks, space, &key));
    store_close(&rig);
}

/* A block of another size helps only with its whole chunk; all of them may have to go. */
static void test_other_size(void **state)
{
    struct kvd_space *space;
    struct kvd_block *block;

    (void)state;
    store_open(&rig, 1 << 20);
    space = store_space(&rig, 0, "a");
    fill(space, 0, KVARN_BLOCK_TILE);
    assert_int_equal(kvd_block_take(&rig.blocks, space, KVARN_BLOCK_EXACT, &block), KVARN_OK);
    assert_true(space->tile_blocks > 0);
    kvd_block_release(&rig.blocks, block);
    store_close(&rig);
}

static void test_tenants(void **state)
{
    struct kvd_space *a, *b;
    struct kvd_block *block;
    uint32_t count;

    (void)state;
    store_open(&rig, 1 << 20);
    a = store_space(&rig, 1, "a");
    b = store_space(&rig, 2, "b");
    count = fill(a, 0, KVARN_BLOCK_TILE);
    /* a tenant cannot push another one's blocks out */
    assert_int_equal(kvd_block_take(&rig.blocks, b, KVARN_BLOCK_TILE, &block), KVARN_NO_SPACE);
    assert_int_equal(a->tile_blocks, count);
    store_close(&rig);
}

static void test_referenced_stays(void **state)
{
    struct kvd_space *space;
    struct kvd_block *held[256], *block;
    uint32_t count = 0;

    (void)state;
    store_open(&rig, 1 << 20);
    space = store_space(&rig, 0, "a");
    while (count < 256) {
        kvarn_status status = kvd_block_take(&rig.blocks, space, KVARN_BLOCK_TILE, &held[count]);

        if (status == KVARN_NO_SPACE)
            break;
        kvd_block_publish(&rig.blocks, held[count++], 0);
    }
    assert_true(count > 10);
    assert_int_equal(kvd_block_take(&rig.blocks, space, KVARN_BLOCK_TILE, &block), KVARN_NO_SPACE);
    kvd_block_release(&rig.blocks, held[--count]);
    assert_int_equal(kvd_block_take(&rig.blocks, space, KVARN_BLOCK_TILE, &block), KVARN_OK);
    kvd_block_release(&rig.blocks, block);
    while (count)
        kvd_block_release(&rig.blocks, held[--count]);
    store_close(&rig);
}

/* Random takes, claims, holds, drops; the sums hold after each. */
static void test_random(void **state)
{
    struct kvd_block *held[40] = {0};
    struct rng rng = rng_make(rng_seed(3));
    struct kvd_space *spaces[2];

    (void)state;
    store_open(&rig, 2 << 20);
    spaces[0] = store_space(&rig, 0, "a");
    spaces[1] = store_space(&rig, 0, "b");
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t slot = rng_below(&rng, 40), kind = 1 + rng_below(&rng, 2);
        struct kvd_space *space = spaces[rng_below(&rng, 2)];
        kvarn_key key = store_key(rng_below(&rng, 60));

        if (held[slot]) {
            if (held[slot]->state == KVD_BLOCK_FILLING && rng_below(&rng, 2))
                kvd_block_publish(&rig.blocks, held[slot], 1);
            kvd_block_release(&rig.blocks, held[slot]);
            held[slot] = NULL;
        } else if (rng_below(&rng, 4)) {
            kvd_block_claim(&rig.blocks, space, &key, kind, &held[slot]);
        } else {
            struct kvd_block *block = kvd_block_find(&rig.blocks, space, &key);

            if (block)
                kvd_block_drop(&rig.blocks, block);
        }
        assert_int_equal(spaces[0]->tile_blocks + spaces[0]->exact_blocks + spaces[1]->tile_blocks +
                             spaces[1]->exact_blocks,
                         rig.blocks.live);
    }
    for (uint32_t i = 0; i < 40; i++)
        if (held[i])
            kvd_block_release(&rig.blocks, held[i]);
    store_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_other_size),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_referenced_stays),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
