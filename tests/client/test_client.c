/* client: every operation against a pretended daemon, over Unix and TCP, fast and in dribbles;
 * calls in flight, deadlines, lost connections. */
#include <poll.h>

#include "client_rig.h"

static uint8_t k[4 * PEER_BLOCK_ROWS_BYTES], v[4 * PEER_BLOCK_ROWS_BYTES];

static void control(struct rig *rig)
{
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_stats_args stats = KVARN_STATS_INIT;
    kvarn_list_args list = KVARN_LIST_INIT;
    kvarn_drain_args drain = KVARN_DRAIN_INIT;
    kvarn_metric metrics[4];
    kvarn_space_info spaces[4];
    kvarn_server_info info;

    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_OK);
    stats.metrics = metrics;
    stats.capacity = 1;
    assert_int_equal(kvarn_stats(rig->client, &stats), KVARN_OK);
    assert_int_equal(stats.count, 2);
    assert_string_equal(metrics[0].name, "kvarn_a");
    list.spaces = spaces;
    list.capacity = 4;
    assert_int_equal(kvarn_list(rig->client, &list), KVARN_OK);
    assert_int_equal(list.count, 1);
    assert_string_equal(spaces[0].model, "m");
    assert_int_equal(spaces[0].tile_blocks, 5);
    assert_int_equal(kvarn_drain(rig->client, &drain), KVARN_OK);
    assert_int_equal(kvarn_client_info(rig->client, &info), KVARN_OK);
    assert_string_equal(info.backend, "cpu/none");
}

static void blocks(struct rig *rig)
{
    kvarn_block_result results[4];
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    args.space = rig->space;
    args.keys = keys;
    args.count = 3;
    args.lease_ms = 5;
    args.results = results;
    assert_int_equal(kvarn_lookup(rig->client, &args), KVARN_OK);
    assert_int_equal(args.matched, 3);
    assert_int_equal(args.lease, 99);
    assert_int_equal(results[2].status, KVARN_EXISTS);
    assert_int_equal(results[1].digest, 41);
    assert_int_equal(kvarn_release(rig->client, &args), KVARN_OK);
    assert_int_equal(kvarn_drop(rig->client, &args), KVARN_OK);
    assert_int_equal(kvarn_verify(rig->client, &args), KVARN_OK);
    args.all = 1;
    assert_int_equal(kvarn_verify(rig->client, &args), KVARN_OK);
}

static void rows(struct rig *rig)
{
    kvarn_block_result results[4];
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;

    for (size_t i = 0; i < sizeof k; i++) {
        k[i] = peer_pattern(5, i);
        v[i] = peer_pattern(6, i);
    }
    put.space = rig->space;
    put.keys = keys;
    put.count = 4;
    put.k = k;
    put.v = v;
    put.results = results;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_int_equal(put.stored, 4);
    assert_int_equal(results[3].digest, 43);

    get.space = rig->space;
    get.keys = keys;
    get.count = 4;
    get.k = k;
    get.v = v;
    assert_int_equal(kvarn_decompress(rig->client, &get), KVARN_OK);
    assert_int_equal(get.matched, 4);
    assert_pattern(k, 1, sizeof k);
    assert_pattern(v, 2, sizeof v);
    get.layer_begin = 1;
    memset(k, 0, sizeof k);
    assert_int_equal(kvarn_decompress(rig->client, &get), KVARN_OK);
    assert_pattern(k, 1, sizeof k / 2);
    assert_int_equal(k[sizeof k / 2 + 1], 0);
}

static void attend(struct rig *rig)
{
    static uint8_t q[3 * 4 * PEER_DIM * 2];
    static float out[3 * 4 * PEER_DIM], lse[3 * 4];
    kvarn_attend_args args = KVARN_ATTEND_INIT;

    args.space = rig->space;
    args.layer = 1;
    args.keys = keys;
    args.count = 2;
    args.query.q_heads = 4;
    args.q_tokens = 3;
    args.q = q;
    args.out = out;
    args.lse = lse;
    assert_int_equal(kvarn_attend(rig->client, &args), KVARN_OK);
    assert_pattern(out, 3, sizeof out);
    assert_pattern(lse, 4, sizeof lse);
    args.lse = NULL; /* not wanted */
    args.query.out_dtype = KVARN_F16;
    assert_int_equal(kvarn_attend(rig->client, &args), KVARN_OK);
    assert_pattern(out, 3, sizeof out / 2);
}

static void export_import(struct rig *rig)
{
    static uint8_t bytes[3 * PEER_TILE_BYTES];
    kvarn_block_result results[4];
    kvarn_export_args out = KVARN_EXPORT_INIT;
    kvarn_import_args in = KVARN_IMPORT_INIT;

    out.space = rig->space;
    out.keys = keys;
    out.count = 3;
    out.bytes = bytes;
    out.bytes_capacity = sizeof bytes;
    out.results = results;
    assert_int_equal(kvarn_export(rig->client, &out), KVARN_OK);
    assert_int_equal(out.bytes_used, 2 * PEER_TILE_BYTES); /* block 1 is missing */
    assert_int_equal(results[1].status, KVARN_NOT_FOUND);
    assert_int_equal(results[2].status, KVARN_OK);
    assert_int_equal(results[2].digest, 42);
    assert_pattern(bytes, 0, PEER_TILE_BYTES);
    assert_pattern(bytes + PEER_TILE_BYTES, 2, PEER_TILE_BYTES);

    memset(bytes, 0xaa, sizeof bytes);
    out.bytes_capacity = PEER_TILE_BYTES + 10;
    assert_int_equal(kvarn_export(rig->client, &out), KVARN_TOO_LARGE);
    assert_int_equal(out.bytes_used, 2 * PEER_TILE_BYTES);
    assert_int_equal(bytes[PEER_TILE_BYTES + 10], 0xaa);
    assert_non_null(strstr(kvarn_client_error(rig->client), "2000"));

    in.space = rig->space;
    in.keys = keys;
    in.blocks = results;
    in.count = 1;
    in.bytes = bytes;
    in.bytes_count = PEER_TILE_BYTES;
    in.origin = &out.origin;
    assert_int_equal(kvarn_import_blocks(rig->client, &in), KVARN_OK);
    assert_int_equal(in.stored, 1);
    in.bytes_count--;
    assert_int_equal(kvarn_import_blocks(rig->client, &in), KVARN_INVALID_SHAPE);
}

static void sequences(struct rig *rig)
{
    static uint8_t q[4 * PEER_DIM * 2 * 5];
    static float out[4 * PEER_DIM * 5], lse[4 * 5];
    kvarn_seq seqs[4] = {{.position = KVARN_AT_END}};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = rig->space;
    args.seqs = seqs;
    args.count = 1;
    args.keys = keys;
    args.key_count = 2;
    assert_int_equal(kvarn_sequence_open(rig->client, &args), KVARN_OK);
    assert_int_equal(seqs[0].sequence, 500);
    assert_int_equal(seqs[0].blocks, 3);
    args.count = 2;
    assert_int_equal(kvarn_sequence_fork(rig->client, &args), KVARN_OK);
    assert_int_equal(seqs[2].sequence, 501);
    seqs[0].tokens = 3;
    seqs[1].tokens = 2;
    args.k = k;
    args.v = v;
    assert_int_equal(kvarn_sequence_append(rig->client, &args), KVARN_OK);
    assert_int_equal(seqs[1].committed, 1001);
    seqs[0].q_tokens = 3;
    seqs[1].q_tokens = 2;
    args.query.q_heads = 4;
    args.q = q;
    args.out = out;
    args.lse = lse;
    assert_int_equal(kvarn_sequence_attend(rig->client, &args), KVARN_OK);
    assert_pattern(out, 3, sizeof out);
    assert_pattern(lse, 4, sizeof lse);
    seqs[0].keys = 2;
    assert_int_equal(kvarn_sequence_commit(rig->client, &args), KVARN_OK);
    seqs[0].keys = 1;
    assert_int_equal(kvarn_sequence_commit(rig->client, &args), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_sequence_release(rig->client, &args), KVARN_OK);
}

static void every_operation(void **state)
{
    struct rig *rig = *state;

    for (int slow = 0; slow < 2; slow++) {
        atomic_store(&rig->daemon.slow, slow);
        control(rig);
        blocks(rig);
        rows(rig);
        attend(rig);
        export_import(rig);
        sequences(rig);
    }
}
/* ---- calls in flight */

static void pipelined_calls(void **state)
{
    struct rig *rig = *state;
    kvarn_call *calls[PEER_IN_FLIGHT_MAX + 1] = {NULL};
    kvarn_decompress_args get[PEER_IN_FLIGHT_MAX + 1];
    kvarn_ping_args ping = KVARN_PING_INIT;
    size_t done = 0;

    for (size_t i = 0; i <= PEER_IN_FLIGHT_MAX; i++) {
        get[i] = (kvarn_decompress_args)KVARN_DECOMPRESS_INIT;
        get[i].space = rig->space;
        get[i].keys = keys;
        get[i].count = 1;
        get[i].k = k + i % 4 * PEER_BLOCK_ROWS_BYTES;
        get[i].v = v + i % 4 * PEER_BLOCK_ROWS_BYTES;
    }
    for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++)
        assert_int_equal(kvarn_decompress_start(rig->client, &get[i], &calls[i]), KVARN_OK);
    assert_int_equal(kvarn_decompress_start(rig->client, &get[8], &calls[8]), KVARN_RETRY);
    assert_null(calls[8]);
    assert_non_null(strstr(kvarn_client_error(rig->client), "in flight"));
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_OK); /* waits for room */
    while (done < PEER_IN_FLIGHT_MAX) {
        struct pollfd ready = {.fd = kvarn_client_fd(rig->client),
                               .events = kvarn_client_events(rig->client)};
        poll(&ready, 1, 10);
        assert_int_equal(kvarn_client_process(rig->client), KVARN_OK);
        done = 0;
        for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++)
            done += (size_t)kvarn_call_done(calls[i]);
    }
    for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++) {
        assert_int_equal(kvarn_call_status(calls[i]), KVARN_OK);
        assert_int_equal(kvarn_call_device_ns(calls[i]), 1234);
        assert_int_equal(get[i].matched, 1);
        kvarn_call_free(&calls[i]);
    }
    assert_pattern(k, 1, PEER_BLOCK_ROWS_BYTES);
}

static void waiting_and_abandoning(void **state)
{
    struct rig *rig = *state;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_call *call = NULL;

    atomic_store(&rig->daemon.fault, PEER_SILENT);
    assert_int_equal(kvarn_ping_start(rig->client, &ping, &call), KVARN_OK);
    assert_int_equal(kvarn_call_done(call), 0);
    assert_int_equal(kvarn_call_wait(call, 0), KVARN_RETRY);
    assert_int_equal(kvarn_call_wait(call, 20), KVARN_RETRY);
    assert_int_equal(kvarn_call_status(call), KVARN_RETRY);
    kvarn_call_free(&call);
    assert_null(call);
    kvarn_call_free(&call);
    kvarn_call_free(NULL);
    ping.deadline_ms = 30;
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_DEADLINE);
    assert_non_null(strstr(kvarn_client_error(rig->client), "deadline"));
    assert_int_equal(kvarn_ping_start(rig->client, &ping, &call), KVARN_OK);
    assert_int_equal(kvarn_call_wait(call, -1), KVARN_DEADLINE);
    kvarn_call_free(&call);
    atomic_store(&rig->daemon.fault, PEER_FINE);
    ping.deadline_ms = 0;
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_OK);
}

static void closing_with_calls_in_flight(void **state)
{
    struct rig *rig = *state;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_call *done = NULL, *open = NULL;

    assert_int_equal(kvarn_ping_start(rig->client, &ping, &done), KVARN_OK);
    assert_int_equal(kvarn_call_wait(done, -1), KVARN_OK);
    atomic_store(&rig->daemon.fault, PEER_SILENT);
    assert_int_equal(kvarn_ping_start(rig->client, &ping, &open), KVARN_OK);
    kvarn_close(&rig->client);
    assert_int_equal(kvarn_call_status(done), KVARN_OK); /* outlives its client */
    assert_int_equal(kvarn_call_wait(done, -1), KVARN_OK);
    kvarn_call_free(&done);
}

static void lost_connection(void **state)
{
    struct rig *rig = *state;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_call *call = NULL;

    atomic_store(&rig->daemon.fault, PEER_CUT);
    assert_int_equal(kvarn_ping_start(rig->client, &ping, &call), KVARN_OK);
    assert_int_equal(kvarn_call_wait(call, -1), KVARN_PEER_LOST);
    assert_non_null(strstr(kvarn_call_text(call), "closed"));
    kvarn_call_free(&call);
    assert_int_equal(kvarn_client_fd(rig->client), -1);
    assert_int_equal(kvarn_client_events(rig->client), 0);
    assert_int_equal(kvarn_client_process(rig->client), KVARN_PEER_LOST);
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_PEER_LOST);
    assert_non_null(strstr(kvarn_client_error(rig->client), "closed"));
}

static void refusals_and_wrong_replies(void **state)
{
    struct rig *rig = *state;
    kvarn_ping_args ping = KVARN_PING_INIT;

    atomic_store(&rig->daemon.fault, PEER_REFUSES);
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_RETRY);
    assert_string_equal(kvarn_client_error(rig->client), "ping: busy");
    atomic_store(&rig->daemon.fault, PEER_WRONG_ECHO);
    assert_int_equal(kvarn_ping(rig->client, &ping), KVARN_PEER_LOST);
    assert_non_null(strstr(kvarn_client_error(rig->client), "echo"));
}

/* A table of another length than was asked for breaks the connection, whatever the operation. */
static void wrong_counts(void **state)
{
    struct rig *rig = *state;
    kvarn_seq seq = {.position = KVARN_AT_END};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_blocks_args find = KVARN_BLOCKS_INIT;

    args.space = rig->space;
    args.seqs = &seq;
    args.count = 1;
    assert_int_equal(kvarn_sequence_open(rig->client, &args), KVARN_OK);
    atomic_store(&rig->daemon.fault, PEER_WRONG_COUNT);
    assert_int_equal(kvarn_sequence_release(rig->client, &args), KVARN_PEER_LOST);
    assert_non_null(strstr(kvarn_client_error(rig->client), "number of sequences"));
    kvarn_close(&rig->client);
    atomic_store(&rig->daemon.fault, PEER_FINE);
    assert_int_equal(kvarn_connect(&rig->client, rig->daemon.address, NULL), KVARN_OK);
    open_space(rig);
    find.space = rig->space;
    find.keys = keys;
    find.count = 2;
    atomic_store(&rig->daemon.fault, PEER_WRONG_COUNT);
    assert_int_equal(kvarn_lookup(rig->client, &find), KVARN_PEER_LOST);
    assert_non_null(strstr(kvarn_client_error(rig->client), "number of blocks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(every_operation),
        cmocka_unit_test_setup_teardown(every_operation, setup_tcp, teardown),
        RIG(pipelined_calls),
        RIG(waiting_and_abandoning),
        RIG(closing_with_calls_in_flight),
        RIG(lost_connection),
        RIG(refusals_and_wrong_replies),
        RIG(wrong_counts),
    };
    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
