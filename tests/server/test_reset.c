/* RESET: at once nothing of before is found, handles are stale, and everything comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/folder.h"
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
    assert_int_equal(rig.service->spaces.epochs->count, 1); /* the same model: epoch 2 */
    assert_int_equal(rig.service->spaces.epochs->rows[0].epoch, 2);
    kvd_service_tick(rig.service);
    assert_int_equal(rig.service->blocks.live, 5);
    rig_close(&rig);
}

/* ---- the table of epochs is bounded */

static struct rig_space open_model(struct rig *rig, uint32_t number)
{
    struct kvw_open_space options = rig_space_options();
    char name[32];

    snprintf(name, sizeof name, "model-%u", number);
    options.model = name;
    return rig_open_space(rig, &options);
}

static kvarn_status reset(struct rig *rig, const struct rig_space *space, char text[KVD_TEXT_MAX])
{
    struct kvw_blocks args = {.space = space->handle};
    struct rig_call *call = rig_blocks_start(rig, KVW_RESET, &args, NULL, 0, NULL, 0);
    kvarn_status status;

    if (rig->loop)
        rig_disk_settle(rig);
    assert_true(call->replied);
    status = call->status;
    memcpy(text, call->text, KVD_TEXT_MAX);
    rig_free(call);
    return status;
}

static uint32_t epoch_of(struct rig *rig, const struct rig_space *space)
{
    return kvd_space_find(&rig->service->spaces, 0, space->handle)->epoch;
}

static void a_full_table_says_so(void **state)
{
    struct rig_options options = {.epochs_max = 2};
    struct rig rig;
    struct rig_space space;
    char text[KVD_TEXT_MAX];

    (void)state;
    rig_open(&rig, &options);
    for (uint32_t i = 0; i < 2; i++) {
        space = open_model(&rig, i);
        assert_int_equal(reset(&rig, &space, text), KVARN_OK);
        space = open_model(&rig, i); /* whose epoch must not be forgotten now */
        assert_int_equal(epoch_of(&rig, &space), 1);
    }
    space = open_model(&rig, 2);
    assert_int_equal(put(&rig, &space, 1), KVARN_OK);
    assert_int_equal(reset(&rig, &space, text), KVARN_NO_SPACE);
    assert_non_null(strstr(text, "nothing was reset: 2 models"));
    assert_non_null(strstr(text, "drop all blocks of one of them"));
    assert_int_equal(put(&rig, &space, 2), KVARN_OK); /* nothing was */
    assert_int_equal(ask(&rig, KVW_VERIFY, space.handle, 1, 1, NULL), KVARN_OK);
    space = open_model(&rig, 1);
    assert_int_equal(reset(&rig, &space, text), KVARN_OK); /* has its place */
    space = open_model(&rig, 2);
    assert_int_equal(reset(&rig, &space, text), KVARN_OK); /* nothing is left of model 1 */
    rig_close(&rig);
}

/* More models than there are rows, one after the other: the table is never full for good. */
static void who_is_gone_gives_its_place(void **state)
{
    struct rig rig;
    struct rig_space space, first;
    char text[KVD_TEXT_MAX];

    (void)state;
    rig_open(&rig, NULL);
    first = open_model(&rig, 0);
    assert_int_equal(reset(&rig, &first, text), KVARN_OK);
    first = open_model(&rig, 0); /* stays */
    for (uint32_t i = 1; i < KVD_EPOCHS_MAX + KVD_SPACES_MAX; i++) {
        space = open_model(&rig, i);
        assert_int_equal(epoch_of(&rig, &space), 0);
        assert_int_equal(reset(&rig, &space, text), KVARN_OK);
    }
    assert_int_equal(rig.service->spaces.epochs->count, KVD_EPOCHS_MAX);
    assert_int_equal(epoch_of(&rig, &first), 1);
    assert_int_equal(reset(&rig, &first, text), KVARN_OK);
    first = open_model(&rig, 0);
    assert_int_equal(epoch_of(&rig, &first), 2);
    rig_close(&rig);
}

/* What stands on disk alone holds its model's place: else it could be found again after as many
 * RESETs as there were. */
static void blocks_on_disk_hold_their_place(void **state)
{
    struct rig_options options = {.epochs_max = 1};
    struct kvw_blocks args = {.all = true};
    struct rig rig;
    struct rig_space space;
    char text[KVD_TEXT_MAX], folder[64];

    (void)state;
    folder_new(folder, sizeof folder);
    options.disk_path = folder;
    rig_open(&rig, &options);
    space = open_model(&rig, 0);
    assert_int_equal(reset(&rig, &space, text), KVARN_OK);
    space = open_model(&rig, 0);
    assert_int_equal(put(&rig, &space, 1), KVARN_OK);
    rig_disk_settle(&rig);
    rig_close(&rig);
    rig_open(&rig, &options); /* and nobody opens it */
    assert_int_equal(rig_metric(&rig, "kvarn_disk_blocks"), 1);
    space = open_model(&rig, 1);
    assert_int_equal(reset(&rig, &space, text), KVARN_NO_SPACE);
    assert_non_null(strstr(text, "1 models"));
    space = open_model(&rig, 0);
    assert_int_equal(epoch_of(&rig, &space), 1);
    args.space = space.handle;
    rig_free(rig_blocks(&rig, KVW_DROP, &args, NULL, 0, NULL, 0));
    rig_disk_settle(&rig);
    rig_close(&rig);
    rig_open(&rig, &options); /* what the text says */
    space = open_model(&rig, 1);
    assert_int_equal(reset(&rig, &space, text), KVARN_OK);
    rig_close(&rig);
    rig_open(&rig, &options);
    space = open_model(&rig, 0);
    assert_int_equal(epoch_of(&rig, &space), 0);
    space = open_model(&rig, 1);
    assert_int_equal(epoch_of(&rig, &space), 1);
    rig_close(&rig);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_before_is_found),
        cmocka_unit_test(a_full_table_says_so),
        cmocka_unit_test(who_is_gone_gives_its_place),
        cmocka_unit_test(blocks_on_disk_hold_their_place),
    };

    return cmocka_run_group_tests_name("reset", tests, NULL, NULL);
}
