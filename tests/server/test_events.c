/* EVENTS: a reader that follows a changing store by events and snapshots
 * alone and must come out with what is stored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { KEYS = 60 };

static struct rig_call *events_start(struct rig *rig, const struct kvw_events *args)
{
    uint8_t metadata[128];
    size_t bytes = kvw_events_encode(metadata, sizeof metadata, args);

    return rig_start(rig, KVW_EVENTS, metadata, bytes, NULL, 0);
}

static struct kvw_events_reply reply_of(struct rig_call *call)
{
    struct kvw_events_reply reply;
    struct kvw_arena arena;
    static uint8_t memory[KVW_ARENA_BYTES];
    const char *why = "";

    assert_true(call->replied);
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(kvw_events_reply_decode(&reply, call->meta, call->meta_bytes, &arena, &why),
                     KVARN_OK);
    assert_int_equal(call->payload_bytes, (uint64_t)reply.count * KVW_EVENT_ROW_BYTES);
    return reply;
}

struct reader {
    uint64_t epoch, next;
    uint32_t snapshots;
    bool has[KEYS];
};

static void apply(struct reader *reader, const struct rig_call *call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct kvw_event_row row;

        kvw_event_row_load(&row, call->payload + (size_t)i * KVW_EVENT_ROW_BYTES);
        if (row.type == KVW_EVENT_CLEARED)
            memset(reader->has, 0, sizeof reader->has);
        for (uint32_t key = 0; key < KEYS && row.type != KVW_EVENT_CLEARED; key++) {
            kvarn_key one = rig_key(key);

            if (!memcmp(one.bytes, row.key.bytes, sizeof one.bytes))
                reader->has[key] = row.type == KVW_EVENT_STORED;
        }
    }
}

static void take_snapshot(struct rig *rig, struct reader *reader)
{
    struct kvw_events args = {.snapshot = true, .limit = 5};

    memset(reader->has, 0, sizeof reader->has);
    reader->snapshots++;
    do {
        struct rig_call *call = events_start(rig, &args);
        struct kvw_events_reply reply = reply_of(call);

        apply(reader, call, reply.count);
        args.cursor = reply.cursor;
        rig_free(call);
    } while (args.cursor);
}

static void follow(struct rig *rig, struct reader *reader)
{
    for (;;) {
        struct kvw_events args = {.epoch = reader->epoch, .from = reader->next, .limit = 4};
        struct rig_call *call = events_start(rig, &args);
        struct kvw_events_reply reply = reply_of(call);

        reader->epoch = reply.epoch;
        reader->next = reply.next;
        apply(reader, call, reply.count);
        rig_free(call);
        if (reply.lost)
            take_snapshot(rig, reader);
        else if (!reply.count)
            return;
    }
}

static void change(struct rig *rig, const struct rig_space *space, struct rng *rng)
{
    uint32_t number = rng_below(rng, KEYS);
    kvarn_key key = rig_key(number);
    struct kvw_blocks args = {.space = space->handle};
    uint16_t *rows = rig_rows(space, space->layers, space->group, 1);

    if (rng_below(rng, 3))
        rig_free(rig_compress(rig, space, &key, 1, KVARN_BLOCK_EXACT, rows)); /* evicts others */
    else
        rig_free(rig_blocks(rig, KVW_DROP, &args, &key, 1, NULL, 0));
    free(rows);
}

static void a_reader_ends_with_what_is_stored(void **state)
{
    struct rig_options options = {.pool_bytes = 1 << 20};
    struct rng rng = rng_make(rng_seed(4));
    struct reader reader = {.epoch = 0};
    struct kvw_open_space same = rig_space_options();
    struct rig rig;
    struct rig_space space;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    for (int i = 0; i < 30; i++)
        change(&rig, &space, &rng);
    for (int round = 0; round < 200; round++) {
        struct kvw_blocks args;

        for (uint32_t i = rng_below(&rng, 20); i; i--)
            change(&rig, &space, &rng);
        if (round == 100) { /* too much for the ring, between two looks */
            struct kvw_event_row row = {.type = KVW_EVENT_STORED};

            for (uint32_t i = 0; i < KVD_EVENTS_KEPT; i++)
                kvd_events_add(&rig.service->events, 0, &row);
        }
        if (round == 150) {
            args = (struct kvw_blocks){.space = space.handle};
            rig_free(rig_blocks(&rig, KVW_RESET, &args, NULL, 0, NULL, 0));
            space = rig_open_space(&rig, &same);
        }
        follow(&rig, &reader);
        for (uint32_t i = 0; i < KEYS; i++) {
            kvarn_key key = rig_key(i);
            const struct kvd_space *at = kvd_space_find(&rig.service->spaces, 0, space.handle);

            assert_int_equal(reader.has[i], kvd_index_find(&at->index, &key) != NULL);
        }
    }
    assert_int_equal(reader.snapshots, 2); /* at the start, and when the ring ran over */
    assert_true(rig.service->blocks.evictions > 100);
    kvd_service_tick(rig.service);
    rig_close(&rig);
}

/* A reader may wait; another tenant's events are not for it. */
static void a_reader_may_wait(void **state)
{
    struct kvw_events args = {.limit = 10, .wait_ms = 500};
    struct rng rng = rng_make(5);
    struct rig rig;
    struct rig_space mine, theirs;
    struct rig_call *call;

    (void)state;
    rig_open(&rig, NULL);
    rig.deadline_ms = 5000;
    mine = rig_open_space(&rig, NULL);
    rig.tenant = 1;
    theirs = rig_open_space(&rig, NULL);
    rig.tenant = 0;
    call = events_start(&rig, &args); /* of another epoch: told at once */
    args.epoch = reply_of(call).epoch;
    args.from = reply_of(call).next;
    assert_true(reply_of(call).lost);
    call = events_start(&rig, &args);
    rig.tenant = 1;
    for (int i = 0; i < 5; i++)
        change(&rig, &theirs, &rng);
    rig.tenant = 0;
    kvd_service_tick(rig.service);
    assert_false(call->replied);
    for (int i = 0; i < 10; i++)
        change(&rig, &mine, &rng);
    kvd_service_tick(rig.service);
    assert_true(reply_of(call).count > 0 && !reply_of(call).lost);
    args.from = kvd_events_next(&rig.service->events, 0);
    call = events_start(&rig, &args);
    rig.now_ns += 499 * 1000000ull;
    kvd_service_tick(rig.service);
    assert_false(call->replied);
    rig.now_ns += 1000000ull;
    kvd_service_tick(rig.service);
    assert_int_equal(reply_of(call).count, 0);
    assert_int_equal(reply_of(call).next, args.from);
    call = events_start(&rig, &args);
    rig_hang_up(&rig, rig.conn_id);
    assert_true(call->replied);
    call = events_start(&rig, &args);
    kvd_service_drain(rig.service); /* nobody is waited for */
    kvd_service_tick(rig.service);
    assert_true(call->replied);
    args.limit = KVW_EVENTS_MAX + 1;
    call = events_start(&rig, &args);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_ends_with_what_is_stored),
        cmocka_unit_test(a_reader_may_wait),
    };

    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
