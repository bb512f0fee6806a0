/* VERIFY of a whole space: that it ends when nobody waits for it any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { BLOCKS = 300, G = 64 }; /* three steps */

static void a_walk_ends_with_its_deadline(void **state)
{
    static kvarn_key keys[BLOCKS];
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args = {.all = true};
    struct rig_call *call;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args.space = space.handle;
    rows = rig_rows(&space, space.layers, G, 6);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        keys[i] = rig_key(i);
        rig_compress(&rig, &space, &keys[i], 1, KVARN_BLOCK_TILE, rows);
    }
    call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, BLOCKS);
    rig.deadline_ms = 1000;
    call = rig_blocks_start(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    fake_device_run(rig.device, 1);
    assert_false(call->replied);
    rig.now_ns += 1001000000ull;
    fake_device_run(rig.device, 1);
    assert_true(call->replied);
    assert_int_equal(call->status, KVARN_DEADLINE);
    assert_non_null(strstr(call->text, "after 256 blocks"));
    free(rows);
    rig_close(&rig);
}

static void the_own_user_walks_every_tenants_space(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args = {.all = true};
    struct rig_call *call;
    kvarn_key key = rig_key(1);
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args.space = space.handle;
    rows = rig_rows(&space, space.layers, G, 6);
    rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rig.tenant++;
    rig.same_uid = true;
    call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, 1);
    args.all = false;
    args.block_count = 1; /* its keys are another tenant's */
    call = rig_blocks(&rig, KVW_VERIFY, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    args = (struct kvw_blocks){.all = true, .space = space.handle};
    rig.same_uid = false;
    call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    rig.tenant--;
    free(rows);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_walk_ends_with_its_deadline),
                                       cmocka_unit_test(the_own_user_walks_every_tenants_space)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
