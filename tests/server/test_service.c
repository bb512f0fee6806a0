/* Control operations, and what happens when slots, staging or time run out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "server/core/log.h"
#include "support/rpc_rig.h"

static struct rig_call *hello(struct rig *rig, uint32_t least, uint32_t most)
{
    struct kvw_hello in = {
        .version_min = least, .version_max = most, .features = ~0ull, .client = "test"};
    uint8_t meta[256];

    return rig_call(rig, KVW_HELLO, meta, kvw_hello_encode(meta, sizeof meta, &in), NULL, 0);
}

static void test_hello(void **state)
{
    struct rig rig;
    struct rig_call *call;
    struct kvw_hello_reply reply;
    const char *why;
    char log[512];
    ssize_t got;
    int ends[2];

    (void)state;
    rig_open(&rig, NULL);
    assert_int_equal(pipe(ends), 0);
    kvd_log_set_fd(ends[1]);
    kvd_log_set_level(KVD_LOG_DEBUG);
    call = hello(&rig, 1, 9);
    kvd_log_set_level(KVD_LOG_INFO);
    kvd_log_set_fd(2);
    close(ends[1]);
    got = read(ends[0], log, sizeof log - 1);
    close(ends[0]);
    log[got > 0 ? got : 0] = '\0';
    assert_non_null(strstr(log, "client=test tenant=default"));
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(kvw_hello_reply_decode(&reply, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    assert_int_equal(reply.version, KVW_VERSION_MAX);
    assert_int_equal(reply.features, KVW_FEATURE_SEQUENCES);
    assert_string_equal(reply.backend, "fake/ref");
    assert_string_equal(reply.tenant, "default");
    assert_int_equal(reply.payload_max_bytes, KVD_PAYLOAD_MAX_BYTES);
    assert_int_equal(reply.in_flight_max, KVD_IN_FLIGHT_MAX);
    call = hello(&rig, KVW_VERSION_MAX + 1, KVW_VERSION_MAX + 3);
    assert_int_equal(call->status, KVARN_UNSUPPORTED);
    assert_non_null(strstr(call->text, "the server 1..1"));
    assert_int_equal(hello(&rig, 3, 2)->status, KVARN_BAD_FRAME);
    assert_int_equal(hello(&rig, 0, 1)->status, KVARN_BAD_FRAME);
    rig_close(&rig);
}

static void test_drain(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_drain in = {.grace_ms = 50};
    struct kvw_ping ping = {.echo = 7};
    struct kvw_blocks args;
    kvarn_key key = rig_key(1);
    uint8_t meta[64];
    size_t bytes = kvw_drain_encode(meta, sizeof meta, &in);

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rig.same_uid = false;
    assert_int_equal(rig_call(&rig, KVW_DRAIN, meta, bytes, NULL, 0)->status, KVARN_DENIED);
    assert_false(kvd_service_draining(rig.service));
    rig.same_uid = true;
    assert_int_equal(rig_call(&rig, KVW_DRAIN, meta, bytes, NULL, 0)->status, KVARN_OK);
    assert_int_equal(rig.drained_ms, 51);
    args = (struct kvw_blocks){.space = space.handle};
    assert_int_equal(rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0)->status, KVARN_DRAINING);
    bytes = kvw_ping_encode(meta, sizeof meta, &ping);
    assert_int_equal(rig_call(&rig, KVW_PING, meta, bytes, NULL, 0)->status, KVARN_OK);
    rig_close(&rig);
}

/* Somebody else's user sees its own tenant's figures only. */
static void test_stats_and_list(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key key = rig_key(1);
    struct rig_call *call;
    struct kvw_stats_reply stats;
    struct kvw_list_reply list;
    const char *why;
    uint16_t *rows;
    size_t all;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, 2, space.group, 1);
    rig_free(rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows));
    free(rows);
    assert_true(rig_metric(&rig, "kvarn_blocks{kind=\"tile\"}") == 1);
    assert_true(rig_metric(&rig, "kvarn_requests_total{op=\"COMPRESS\",status=\"OK\"}") == 1);
    assert_true(rig_metric(&rig, "kvarn_pool_used_bytes") >= (double)space.tile_bytes);
    assert_true(rig_metric(&rig, "kvarn_tile_compression_ratio") ==
                (double)space.exact_bytes / (double)space.tile_bytes);
    call = rig_call(&rig, KVW_STATS, NULL, 0, NULL, 0);
    assert_int_equal(kvw_stats_reply_decode(&stats, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    all = stats.count;
    rig.same_uid = false;
    rig.tenant = 9;
    call = rig_call(&rig, KVW_STATS, NULL, 0, NULL, 0);
    kvw_arena_reset(&rig.arena);
    assert_int_equal(kvw_stats_reply_decode(&stats, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    assert_true(stats.count < all);
    for (size_t i = 0; i < stats.count; i++)
        assert_true(stats.metrics[i].value == 0);
    call = rig_call(&rig, KVW_LIST, NULL, 0, NULL, 0);
    kvw_arena_reset(&rig.arena);
    assert_int_equal(kvw_list_reply_decode(&list, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    assert_int_equal(list.count, 0);
    rig.tenant = 0;
    call = rig_call(&rig, KVW_LIST, NULL, 0, NULL, 0);
    kvw_arena_reset(&rig.arena);
    assert_int_equal(kvw_list_reply_decode(&list, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.spaces[0].model, "test/model");
    assert_int_equal(list.spaces[0].tile_blocks, 1);
    rig_close(&rig);
}

static void test_many_spaces_listed(void **state)
{
    struct rig rig;
    struct kvw_open_space options = rig_space_options();
    struct kvw_list_reply list;
    struct rig_call *call;
    const char *why;
    char model[160];

    (void)state;
    rig_open(&rig, NULL);
    memset(model, 'm', sizeof model);
    memcpy(model + 126, "\xe2\x82\xac", 3); /* a character across the longest name that is kept */
    model[sizeof model - 1] = 0;
    options.model = model;
    for (int i = 0; i < KVD_SPACES_MAX; i++) {
        model[0] = (char)('a' + i % 16);
        model[1] = (char)('a' + i / 16);
        rig_open_space(&rig, &options);
    }
    call = rig_call(&rig, KVW_LIST, NULL, 0, NULL, 0);
    kvw_arena_reset(&rig.arena);
    assert_int_equal(kvw_list_reply_decode(&list, call->meta, call->meta_bytes, &rig.arena, &why),
                     KVARN_OK);
    assert_int_equal(list.count, KVD_SPACES_MAX);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(strlen(list.spaces[i].model), 126);
    rig_close(&rig);
}

/* Slots run out: NULL, and room is told when one comes back. Staging the same with WAIT. */
static void test_shortage(void **state)
{
    struct rig_options options = {.requests_max = 2, .staging_bytes = 1 << 20};
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[8], more = rig_key(100);
    struct rig_call *a, *b, *c;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, 2, 8 * space.group, 1);
    for (uint32_t i = 0; i < 8; i++)
        keys[i] = rig_key(i);
    a = rig_compress_start(&rig, &space, keys, 1, KVARN_BLOCK_TILE, rows);
    b = rig_compress_start(&rig, &space, &more, 1, KVARN_BLOCK_TILE, rows);
    c = rig_start(&rig, KVW_PING, (const uint8_t *)"", 0, NULL, 0);
    assert_true(c->waited);
    assert_int_equal(rig.room_calls, 0);
    rig_run(&rig);
    assert_true(a->replied && b->replied);
    assert_int_equal(rig.room_calls, 1);
    a = rig_compress_start(&rig, &space, keys + 1, 7, KVARN_BLOCK_TILE, rows); /* 458752 + ... */
    b = rig_compress_start(&rig, &space, keys + 1, 7, KVARN_BLOCK_TILE, rows);
    c = rig_compress_start(&rig, &space, keys + 1, 7, KVARN_BLOCK_TILE, rows);
    assert_false(a->waited);
    assert_true(b->waited || c->waited);
    rig_run(&rig);
    assert_int_equal(a->status, KVARN_OK);
    assert_true(rig.room_calls >= 2);
    free(rows);
    /* what can never fit is refused, not waited for */
    rows = rig_rows(&space, 2, 40 * space.group, 1);
    {
        kvarn_key many[40];

        for (uint32_t i = 0; i < 40; i++)
            many[i] = rig_key(200 + i);
        a = rig_compress(&rig, &space, many, 40, KVARN_BLOCK_TILE, rows);
        assert_int_equal(a->status, KVARN_TOO_LARGE);
    }
    free(rows);
    rig_close(&rig);
}

/* A payload that never arrives: begin, then done. A deadline that is over before run. */
static void test_no_run(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args;
    struct kvd_request *request;
    struct rig_call *call;
    kvarn_key key = rig_key(1);
    uint8_t meta[64];
    size_t bytes;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = (struct kvw_blocks){.space = space.handle, .block_count = 1};
    bytes = kvw_blocks_encode(meta, sizeof meta, &args);
    request = kvd_request_new(rig.service);
    request->conn = (struct kvd_conn *)(void *)&rig;
    request->header = (struct kvw_header){
        .op = KVW_LOOKUP, .metadata_bytes = (uint32_t)bytes, .payload_bytes = 32};
    assert_int_equal(kvd_request_begin(request, meta), KVD_BEGIN_OK);
    assert_non_null(request->payload);
    assert_true(fake_device_staging_used(rig.device) > 0);
    kvd_request_done(request);
    rig_assert_quiet(&rig);
    rig.deadline_ms = 0;
    call = rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_DEADLINE);
    rig_close(&rig);
}

static void test_too_large_replies(void **state)
{
    struct rig_options options = {.payload_max_bytes = 100000};
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[9];
    struct kvw_blocks args;
    struct rig_call *call;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, 2, 9 * space.group, 1);
    for (uint32_t i = 0; i < 9; i++)
        keys[i] = rig_key(i);
    rig_free(rig_compress(&rig, &space, keys, 9, KVARN_BLOCK_TILE, rows));
    args = (struct kvw_blocks){.space = space.handle};
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 9, NULL, 0);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    call = rig_blocks(&rig, KVW_EXPORT, &args, keys, 9, NULL, 0);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    assert_int_equal(call->payload_bytes, 0);
    call = rig_blocks(&rig, KVW_EXPORT, &args, keys, 2, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    free(rows);
    rig_close(&rig);
}

/* Without a worker: the true sentence, and the time that it takes. */
static void test_no_worker(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args = {0};
    struct kvw_drain drain = {.grace_ms = 50};
    kvarn_key key = rig_key(1);
    uint16_t *rows;
    uint8_t meta[64];

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args.space = space.handle;
    rows = rig_rows(&space, space.layers, 64, 6);
    rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    for (int down = 0; down < 2; down++) {
        struct rig_call *call;

        fake_device_down(rig.device, down ? 350 : 0);
        fake_device_full(rig.device, 0, 1);
        call = rig_blocks(&rig, KVW_DECOMPRESS, &args, &key, 1, NULL, 0);
        assert_int_equal(call->status, KVARN_RETRY);
        assert_non_null(strstr(call->text, down ? "worker ended" : "queue is full"));
        assert_int_equal(call->retry_after_us, down ? 350000 : KVD_RETRY_US);
    }
    rig_call(&rig, KVW_DRAIN, meta, kvw_drain_encode(meta, sizeof meta, &drain), NULL, 0);
    assert_int_equal(rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0)->retry_after_us,
                     KVD_DRAINING_RETRY_US);
    free(rows);
    rig_close(&rig);
}

static void test_unknown_operation_is_no_other(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, NULL);
    assert_int_equal(rig_call(&rig, KVD_OPS + KVW_COMPRESS, NULL, 0, NULL, 0)->status,
                     KVARN_UNSUPPORTED);
    assert_true(rig_metric(&rig, "kvarn_requests_total{op=\"unknown\",status=\"UNSUPPORTED\"}") ==
                1);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stats_and_list),
        cmocka_unit_test(test_many_spaces_listed),
        cmocka_unit_test(test_shortage),
        cmocka_unit_test(test_no_run),
        cmocka_unit_test(test_too_large_replies),
        cmocka_unit_test(test_no_worker),
        cmocka_unit_test(test_unknown_operation_is_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
