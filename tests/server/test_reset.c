/* RESET: at once nothing of before is found, handles are stale, and everything comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static struct rig_call *put_start(struct rig *rig, const struct rig_space *space, uint32_t number)
{
    uint16_t *rows = rig_rows(space, space->layers, space->group, number);
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_compress_start(rig, space, &key, 1, KVARN_BLOCK_TILE, rows);

    free(rows);
    return call;
}

static kvarn_status put(struct rig *rig, const struct rig_space *space, uint32_t number)
{
    struct rig_call *call = put_start(rig, space, number);
    kvarn_status status;

    rig_run(rig);
    status = call->status;
    rig_free(call);
    return status;
}

static kvarn_status ask(struct rig *rig, uint8_t op, uint64_t handle, uint32_t number,
                        uint32_t count, uint32_t *matched)
{
    struct kvw_blocks args = {.space = handle};
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_blocks(rig, op, &args, &key, count, NULL, 0);
    kvarn_status status = call->status;

    if (status == KVARN_OK && matched)
        *matched = rig_blocks_reply(call).matched;
    rig_free(call);
    return status;
}

static void nothing_of_before_is_found(void **state)
{
    struct kvw_open_space half = rig_space_options(), other = rig_space_options();
    struct rig rig;
    struct rig_space space, upper, elsewhere, again;
    struct kvw_blocks args;
    struct rig_call *late;
    uint8_t before[KVARN_FINGERPRINT_BYTES];
    kvarn_key key = rig_key(2);
    uint32_t matched = 0, made;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    half.head_begin = 1;
    half.head_count = 1;
    upper = rig_open_space(&rig, &half); /* another shard of the same model */
    other.model = "other";
    elsewhere = rig_open_space(&rig, &other);
    memcpy(before, rig_origin(&rig, space.handle).fingerprint, sizeof before);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(put(&rig, &space, i), KVARN_OK);
        assert_int_equal(put(&rig, &upper, i), KVARN_OK);
        assert_int_equal(put(&rig, &elsewhere, i), KVARN_OK);
    }
    args = (struct kvw_blocks){.space = space.handle, .lease_ms = 1000};
    rig_free(rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0));
    assert_int_equal(ask(&rig, KVW_PIN, space.handle, 3, 1, NULL), KVARN_OK);
    rig_seq_open(&rig, &space, &key, 1, NULL);
    assert_int_equal(rig.service->sequences.count, 1);
    late = put_start(&rig, &space, 50); /* its job ends after the reset */
    assert_int_equal(ask(&rig, KVW_RESET, space.handle, 0, 0, &matched), KVARN_OK);
    assert_int_equal(matched, 2); /* both shards */
    assert_int_equal(ask(&rig, KVW_LOOKUP, space.handle, 1, 1, NULL), KVARN_STALE);
    assert_int_equal(ask(&rig, KVW_LOOKUP, upper.handle, 1, 1, NULL), KVARN_STALE);
    assert_int_equal(ask(&rig, KVW_RESET, space.handle, 0, 0, NULL), KVARN_STALE);
    assert_int_equal(ask(&rig, KVW_LOOKUP, elsewhere.handle, 1, 1, &matched), KVARN_OK);
    assert_int_equal(matched, 1);
    rig.tenant = 1; /* tells nothing to others */
    assert_int_equal(ask(&rig, KVW_LOOKUP, space.handle, 1, 1, NULL), KVARN_NOT_FOUND);
    rig.tenant = 0;
    again = rig_open_space(&rig, NULL);
    assert_int_not_equal(again.handle, space.handle);
    assert_memory_not_equal(before, rig_origin(&rig, again.handle).fingerprint, sizeof before);
    assert_int_equal(ask(&rig, KVW_LOOKUP, again.handle, 1, 1, &matched), KVARN_OK);
    assert_int_equal(matched, 0);
    rig_run(&rig);
    assert_int_equal(late->status, KVARN_OK); /* it was right when it began; nobody finds it */
    assert_int_equal(rig.service->sequences.count, 0);
    made = rig.service->blocks.made;
    assert_true(made > 10 && kvd_service_ticking(rig.service));
    kvd_service_tick(rig.service);
    assert_int_equal(rig.service->blocks.live, 5 + 1); /* the other model's, and the leased one */
    rig_hang_up(&rig, rig.conn_id);
    assert_int_equal(rig.service->blocks.live, 5);
    assert_int_equal(rig.service->blocks.pinned, 0);
    assert_false(kvd_service_ticking(rig.service));
    assert_int_equal(put(&rig, &again, 1), KVARN_OK);
    assert_int_equal(ask(&rig, KVW_RESET, again.handle, 0, 0, NULL), KVARN_OK);
    assert_int_equal(rig.service->spaces.epoch_count, 1); /* the same model: epoch 2 */
    assert_int_equal(rig.service->spaces.epochs[0].epoch, 2);
    kvd_service_tick(rig.service);
    assert_int_equal(rig.service->blocks.live, 5);
    rig_close(&rig);
}

static void models_that_can_be_reset_are_bounded(void **state)
{
    struct rig rig;
    struct rig_space space;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rig.service->spaces.epoch_count = KVD_EPOCHS_MAX; /* all of other models */
    assert_int_equal(ask(&rig, KVW_RESET, space.handle, 0, 0, NULL), KVARN_RETRY);
    assert_int_equal(put(&rig, &space, 1), KVARN_OK);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_before_is_found),
        cmocka_unit_test(models_that_can_be_reset_are_bounded),
    };

    return cmocka_run_group_tests_name("reset", tests, NULL, NULL);
}
