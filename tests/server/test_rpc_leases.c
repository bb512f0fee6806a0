/* A storm of look-ups whose leases are forgotten, given back, given back twice, or end with their
 * connection: nothing of it stays, and the pool is as good as before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { LOOKUPS = 100000, BLOCKS = 40, CONNS = 50, LEASES = 500, LEASE_MS = 20 };

static kvarn_status release(struct rig *rig, uint64_t lease)
{
    struct kvw_release args = {.lease = lease};
    uint8_t metadata[64];
    size_t bytes = kvw_release_encode(metadata, sizeof metadata, &args);
    struct rig_call *call = rig_call(rig, KVW_RELEASE, metadata, bytes, NULL, 0);
    kvarn_status status = call->status;

    rig_free(call);
    return status;
}

static uint64_t lookup(struct rig *rig, const struct rig_space *space, const kvarn_key *keys,
                       uint32_t count, uint32_t *refused)
{
    struct kvw_blocks args = {.space = space->handle, .lease_ms = LEASE_MS};
    struct rig_call *call = rig_blocks(rig, KVW_LOOKUP, &args, keys, count, NULL, 0);
    uint64_t lease = 0;

    if (call->status == KVARN_OK)
        lease = rig_blocks_reply(call).lease;
    else
        assert_int_equal(call->status, KVARN_RETRY); /* the table of leases is full for a while */
    *refused += call->status != KVARN_OK;
    rig_free(call);
    return lease;
}

static void put(struct rig *rig, const struct rig_space *space, uint32_t first, uint32_t count)
{
    uint16_t *rows = rig_rows(space, space->layers, count * space->group, first);
    kvarn_key keys[BLOCKS];

    for (uint32_t i = 0; i < count; i++)
        keys[i] = rig_key(first + i);
    rig_free(rig_compress(rig, space, keys, count, KVARN_BLOCK_TILE, rows));
    free(rows);
}

static void nothing_of_a_storm_stays(void **state)
{
    struct rig_options options = {.leases_max = LEASES, .pool_bytes = 4 << 20};
    struct rng rng = rng_make(rng_seed(6));
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[BLOCKS];
    uint32_t refused = 0, given = 0, twice = 0;
    uint64_t before;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    put(&rig, &space, 0, BLOCKS);
    before = rig.service->evict.listed;
    assert_int_equal(before, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        keys[i] = rig_key(i);
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        uint32_t count = 1 + rng_below(&rng, BLOCKS), what = rng_below(&rng, 10);
        uint64_t lease;

        rig.conn_id = 1 + rng_below(&rng, CONNS);
        lease = lookup(&rig, &space, keys, count, &refused);
        if (lease && what < 3) { /* three of ten are given back, one of these twice */
            assert_int_equal(release(&rig, lease), KVARN_OK);
            given++;
            if (what == 0) {
                assert_int_equal(release(&rig, lease), KVARN_STALE);
                twice++;
            }
        }
        if (what == 9 && i % 100 == 0)
            rig_hang_up(&rig, rig.conn_id);
        if (i % 40 == 0) {
            rig.now_ns += 1000000;
            kvd_service_tick(rig.service);
        }
        assert_true(rig.service->leases.count <= LEASES);
        assert_true(rig.service->evict.listed <= before);
    }
    assert_true(given > LOOKUPS / 10 && twice > LOOKUPS / 50 && refused > 100);
    assert_true(rig.service->leases.expired_total > LOOKUPS / 10);
    rig.now_ns += LEASE_MS * 1000000ull;
    kvd_service_tick(rig.service);
    assert_int_equal(rig.service->leases.count, 0);
    assert_int_equal(rig.service->leases.blocks_held, 0);
    assert_int_equal(rig.service->evict.listed, before);
    /* as good as before: all of it can go for something new */
    while (rig.service->blocks.evictions < BLOCKS)
        put(&rig, &space,
            1000 + (uint32_t)rig.service->blocks.live + (uint32_t)rig.service->blocks.evictions, 1);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_of_a_storm_stays)};

    return cmocka_run_group_tests_name("rpc_leases", tests, NULL, NULL);
}
