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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_walk_ends_with_its_deadline)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
