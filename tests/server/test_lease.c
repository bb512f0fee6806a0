/* Leases: bounds, expiry order, handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/lease.h"
#include "support/rng.h"
#include "support/store_rig.h"

static struct store_rig rig;
static struct kvd_leases leases;
static struct kvd_block *block;

static void setup(uint32_t max)
{
    store_open(&rig, 16 << 20);
    block = store_block(&rig, store_space(&rig, 0, "a"), 1, KVARN_BLOCK_TILE);
    assert_int_equal(kvd_leases_open(&leases, &rig.blocks, max, 5), KVARN_OK);
}

static void teardown(void)
{
    kvd_leases_close(&leases);
    assert_int_equal(block->references, 0);
    store_close(&rig);
}

static kvarn_status lease(uint64_t conn, uint64_t expires, uint64_t *handle)
{
    return kvd_lease_new(&leases, conn, 0, expires, &block, 1, handle);
}

static void test_bounds(void **state)
{
    uint64_t handle, more;

    (void)state;
    setup(3);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(lease(1, 10 + i, &handle), KVARN_OK);
    assert_int_equal(lease(1, 10, &more), KVARN_RETRY);
    assert_int_equal(block->references, 3);
    kvd_leases_expire(&leases, 9);
    assert_int_equal(leases.count, 3);
    kvd_leases_expire(&leases, 11);
    assert_int_equal(leases.count, 1);
    assert_int_equal(leases.expired_total, 2);
    assert_int_equal(lease(1, 10, &more), KVARN_OK);
    assert_int_equal(kvd_lease_release(&leases, 1, handle), KVARN_OK);
    teardown();
}

static void test_handles(void **state)
{
    uint64_t a, b;

    (void)state;
    setup(8);
    lease(1, 10, &a);
    assert_int_equal(kvd_lease_release(&leases, 2, a), KVARN_NOT_FOUND);
    assert_int_equal(kvd_lease_release(&leases, 1, a + (9ull << 32)), KVARN_NOT_FOUND);
    assert_int_equal(kvd_lease_release(&leases, 1, 0), KVARN_NOT_FOUND);
    assert_int_equal(kvd_lease_release(&leases, 1, UINT64_MAX), KVARN_NOT_FOUND);
    assert_int_equal(kvd_lease_release(&leases, 1, a), KVARN_OK);
    assert_int_equal(kvd_lease_release(&leases, 1, a), KVARN_STALE);
    lease(1, 10, &b); /* the same slot */
    assert_int_equal((uint32_t)a, (uint32_t)b);
    assert_int_equal(kvd_lease_release(&leases, 1, a), KVARN_STALE);
    assert_int_equal(leases.count, 1);
    kvd_leases_expire(&leases, 10);
    assert_int_equal(kvd_lease_release(&leases, 1, b), KVARN_LEASE_EXPIRED);
    lease(2, 10, &b);
    kvd_leases_conn_gone(&leases, 1);
    assert_int_equal(leases.count, 1);
    kvd_leases_conn_gone(&leases, 2);
    assert_int_equal(leases.count, 0);
    teardown();
}

/* Random leases and releases on a clock that moves: exactly those run out whose time has come. */
static void test_random(void **state)
{
    enum { MAX = 200 };
    struct rng rng = rng_make(rng_seed(4));
    uint64_t handles[MAX] = {0}, expires[MAX] = {0}, now = 1;

    (void)state;
    setup(MAX);
    for (int i = 0; i < 30000; i++) {
        uint32_t slot = rng_below(&rng, MAX);
        uint32_t alive = 0;

        now += rng_below(&rng, 3);
        kvd_leases_expire(&leases, now);
        if (!handles[slot]) {
            expires[slot] = now + 1 + rng_below(&rng, 500);
            assert_int_equal(lease(1, expires[slot], &handles[slot]), KVARN_OK);
        } else {
            kvarn_status status = kvd_lease_release(&leases, 1, handles[slot]);

            if (expires[slot] > now)
                assert_int_equal(status, KVARN_OK);
            else
                assert_true(status == KVARN_LEASE_EXPIRED || status == KVARN_STALE);
            handles[slot] = 0;
        }
        for (uint32_t s = 0; s < MAX; s++)
            alive += handles[s] && expires[s] > now;
        assert_int_equal(leases.count, alive);
        assert_int_equal(block->references, alive);
        assert_int_equal(leases.blocks_held, alive);
    }
    teardown();
}

/* All leases together hold a bounded number of blocks; what runs out makes room. */
static void test_blocks_are_bounded(void **state)
{
    static struct kvd_block *held[KVD_LEASED_BLOCKS_MAX];
    uint64_t most, more;

    (void)state;
    setup(4);
    for (size_t i = 0; i < KVD_LEASED_BLOCKS_MAX; i++)
        held[i] = block;
    assert_int_equal(lease(1, 10, &more), KVARN_OK);
    assert_int_equal(kvd_lease_new(&leases, 1, 0, 10, held, KVD_LEASED_BLOCKS_MAX, &most),
                     KVARN_RETRY);
    assert_int_equal(block->references, 1);
    assert_int_equal(kvd_lease_new(&leases, 1, 0, 9, held, KVD_LEASED_BLOCKS_MAX - 1, &most),
                     KVARN_OK);
    assert_int_equal(lease(1, 10, &more), KVARN_RETRY);
    kvd_leases_expire(&leases, 9);
    assert_int_equal(leases.blocks_held, 1);
    assert_int_equal(lease(1, 10, &more), KVARN_OK);
    assert_int_equal(block->references, 2);
    teardown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_handles),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_blocks_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
