/* PIN: stays through floods and hang-ups, counts for its tenant, ends with unpin or drop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static kvarn_status put(struct rig *rig, const struct rig_space *space, uint32_t number)
{
    uint16_t *rows = rig_rows(space, space->layers, space->group, number);
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_compress(rig, space, &key, 1, KVARN_BLOCK_EXACT, rows);
    kvarn_status status = call->status;

    rig_free(call);
    free(rows);
    return status;
}

static kvarn_status pin(struct rig *rig, const struct rig_space *space, uint32_t number, bool off)
{
    struct kvw_blocks args = {.space = space->handle, .unpin = off};
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_blocks(rig, KVW_PIN, &args, &key, 1, NULL, 0);
    kvarn_status status = call->status;

    assert_int_equal(rig_block(call, 0).status, status);
    rig_free(call);
    return status;
}

static bool stored(struct rig *rig, const struct rig_space *space, uint32_t number)
{
    struct kvw_blocks args = {.space = space->handle};
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_blocks(rig, KVW_LOOKUP, &args, &key, 1, NULL, 0);
    bool found = rig_blocks_reply(call).matched == 1;

    rig_free(call);
    return found;
}

static void pinned_blocks_stay(void **state)
{
    struct kvd_quota quota;
    const char *why = "";
    struct rig_options options = {
        .pool_bytes = 2 << 20, .eviction = KVD_EVICT_LRU, .quotas = &quota, .quota_count = 1};
    struct rig rig;
    struct rig_space space;

    (void)state;
    assert_true(kvd_quota_parse("a pinned-blocks=2", &quota, &why));
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    for (uint32_t i = 1; i <= 3; i++)
        assert_int_equal(put(&rig, &space, i), KVARN_OK);
    assert_int_equal(pin(&rig, &space, 99, false), KVARN_NOT_FOUND);
    assert_int_equal(pin(&rig, &space, 1, false), KVARN_OK);
    assert_int_equal(pin(&rig, &space, 1, false), KVARN_OK); /* counts once */
    assert_int_equal(pin(&rig, &space, 2, false), KVARN_OK);
    assert_int_equal(pin(&rig, &space, 3, false), KVARN_QUOTA);
    assert_int_equal(rig.service->blocks.pinned, 2);
    assert_int_equal(rig.service->counts.used[0][KVD_COUNTED_PINNED_BLOCKS], 2);
    rig_hang_up(&rig, rig.conn_id); /* a pin is not the connection's */
    for (uint32_t i = 100; i < 300; i++)
        assert_int_equal(put(&rig, &space, i), KVARN_OK);
    assert_true(rig.service->blocks.evictions > 100);
    assert_true(stored(&rig, &space, 1) && stored(&rig, &space, 2) && !stored(&rig, &space, 3));
    assert_int_equal(pin(&rig, &space, 1, true), KVARN_OK);
    assert_int_equal(pin(&rig, &space, 1, true), KVARN_OK); /* not pinned: nothing to do */
    assert_int_equal(rig.service->counts.used[0][KVD_COUNTED_PINNED_BLOCKS], 1);
    for (uint32_t i = 300; i < 500; i++)
        assert_int_equal(put(&rig, &space, i), KVARN_OK);
    assert_false(stored(&rig, &space, 1));
    assert_true(stored(&rig, &space, 2));
    assert_int_equal(pin(&rig, &space, 2, true), KVARN_OK);
    assert_int_equal(rig.service->blocks.pinned, 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pinned_blocks_stay)};

    return cmocka_run_group_tests_name("pin", tests, NULL, NULL);
}
