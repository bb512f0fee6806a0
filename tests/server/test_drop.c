/* DROP of all: step by step, what is pinned stays, what is read stays readable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static void all_goes_step_by_step(void **state)
{
    struct rig rig;
    struct rig_space space, other;
    struct kvw_open_space options = rig_space_options();
    struct kvw_blocks args;
    struct kvw_blocks_reply reply;
    struct rig_call *call;
    kvarn_key keys[20];
    uint32_t dropped = 0, calls = 0;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    options.model = "other";
    other = rig_open_space(&rig, &options);
    rows = rig_rows(&space, space.layers, 20 * space.group, 1);
    for (uint32_t i = 0; i < 20; i++)
        keys[i] = rig_key(i);
    rig_free(rig_compress(&rig, &space, keys, 20, KVARN_BLOCK_TILE, rows));
    rig_free(rig_compress(&rig, &other, keys, 3, KVARN_BLOCK_TILE, rows));
    args = (struct kvw_blocks){.space = space.handle};
    rig_free(rig_blocks(&rig, KVW_PIN, &args, &keys[4], 2, NULL, 0));
    args.lease_ms = 1000;
    rig_free(rig_blocks(&rig, KVW_LOOKUP, &args, &keys[10], 1, NULL, 0));
    args = (struct kvw_blocks){.space = space.handle, .all = true, .limit = 7};
    do {
        call = rig_blocks(&rig, KVW_DROP, &args, NULL, 0, NULL, 0);
        assert_int_equal(call->status, KVARN_OK);
        reply = rig_blocks_reply(call);
        assert_int_equal(reply.total, 23);
        dropped += reply.matched;
        args.cursor = reply.cursor;
        calls++;
        rig_free(call);
    } while (args.cursor);
    assert_int_equal(dropped, 18);
    assert_int_equal(calls, 4); /* 23 descriptors, 7 at a time */
    args = (struct kvw_blocks){.space = space.handle};
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 20, NULL, 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(rig_block(call, i).status, i == 4 || i == 5 ? KVARN_OK : KVARN_NOT_FOUND);
    rig_free(call);
    assert_int_equal(rig.service->blocks.live, 2 + 1 + 3); /* pinned, leased, of the other */
    args.all = true;
    args.cursor = UINT64_MAX; /* past the end: nothing is left to look at */
    args.limit = UINT32_MAX;
    call = rig_blocks(&rig, KVW_DROP, &args, NULL, 0, NULL, 0);
    assert_int_equal(rig_blocks_reply(call).cursor, 0);
    args = (struct kvw_blocks){.space = space.handle, .all = true};
    call = rig_blocks(&rig, KVW_DROP, &args, keys, 1, NULL, 0); /* which one is meant? */
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    args.all = false;
    call = rig_blocks(&rig, KVW_DROP, &args, &keys[4], 2, NULL, 0); /* by name: pinned or not */
    assert_int_equal(rig_blocks_reply(call).matched, 2);
    assert_int_equal(rig.service->blocks.pinned, 0);
    rig_hang_up(&rig, rig.conn_id);
    assert_int_equal(rig.service->blocks.live, 3);
    free(rows);
    rig_close(&rig);
}

/* VERIFY in steps: the cursor runs to the end, and every block is looked at once. */
static void verify_tells_its_progress(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args;
    struct kvw_blocks_reply reply;
    kvarn_key keys[20];
    uint32_t fine = 0;
    uint64_t before = 0;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 20 * space.group, 1);
    for (uint32_t i = 0; i < 20; i++)
        keys[i] = rig_key(i);
    rig_free(rig_compress(&rig, &space, keys, 20, KVARN_BLOCK_TILE, rows));
    args = (struct kvw_blocks){.space = space.handle, .all = true, .limit = 6};
    do {
        struct rig_call *call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);

        assert_int_equal(call->status, KVARN_OK);
        reply = rig_blocks_reply(call);
        assert_int_equal(reply.total, 20);
        assert_true(!reply.cursor || reply.cursor == before + 6);
        before = reply.cursor;
        fine += reply.matched;
        args.cursor = reply.cursor;
        rig_free(call);
    } while (reply.cursor);
    assert_int_equal(fine, 20);
    free(rows);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_goes_step_by_step),
        cmocka_unit_test(verify_tells_its_progress),
    };

    return cmocka_run_group_tests_name("drop", tests, NULL, NULL);
}
