/* client/session: negotiation, replies in any pieces, deadlines, abandoned calls, every fault of a
 * peer. In memory: no socket is opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/blocks.h"
#include "peer.h"
#include "support/rng.h"

struct rig {
    struct kvarn_client client; /* for its error text alone */
    struct kvarn_session *session;
    struct peer peer;
    struct rng rng;
};

/* Sends at most `limit` bytes to the peer, in pieces of at most `piece`. */
static void to_peer(struct rig *rig, size_t limit, size_t piece)
{
    struct iovec part;

    while (limit > 0 && kvarn_session_pending(rig->session, &part, 1) > 0) {
        size_t count = part.iov_len < piece ? part.iov_len : piece;
        count = count < limit ? count : limit;
        peer_feed(&rig->peer, part.iov_base, count);
        kvarn_session_sent(rig->session, count);
        limit -= count;
    }
}

/* Gives the session `count` bytes where it wants them. */
static void place(struct rig *rig, const uint8_t *in, size_t count)
{
    while (count > 0) {
        struct iovec parts[4];
        size_t given = 0, parts_count = kvarn_session_want(rig->session, parts, 4);

        if (parts_count == 0)
            return;
        for (size_t i = 0; i < parts_count && given < count; i++) {
            size_t one = parts[i].iov_len < count - given ? parts[i].iov_len : count - given;
            memcpy(parts[i].iov_base, in + given, one);
            given += one;
        }
        kvarn_session_received(rig->session, given);
        in += given;
        count -= given;
    }
}

/* Delivers what the peer said: pieces of 1..most bytes, random unless most is 1. */
static void from_peer(struct rig *rig, size_t most)
{
    size_t at = 0;

    while (at < rig->peer.out.count) {
        size_t piece = 1 + (most > 1 ? (size_t)(rng_next(&rig->rng) % most) : 0);
        if (piece > rig->peer.out.count - at)
            piece = rig->peer.out.count - at;
        place(rig, rig->peer.out.bytes + at, piece);
        at += piece;
    }
    rig->peer.out.count = 0;
    if (rig->peer.ends)
        kvarn_session_break(rig->session, KVARN_PEER_LOST, "the daemon closed the connection");
}

static void exchange(struct rig *rig, size_t most)
{
    to_peer(rig, SIZE_MAX, most);
    from_peer(rig, most);
}

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    peer_init(&rig->peer);
    rig->rng = rng_make(rng_seed(1));
    rig->session = kvarn_session_new("test", 0);
    rig->client.session = rig->session;
    *state = rig;
    return rig && rig->session ? 0 : -1;
}

static int teardown(void **state)
{
    struct rig *rig = *state;

    kvarn_session_free(rig->session);
    peer_free(&rig->peer);
    free(rig);
    return 0;
}

static void open_session(struct rig *rig)
{
    exchange(rig, 1000);
    assert_int_equal(rig->session->state, KVARN_SESSION_OPEN);
}

/* DECOMPRESS of `blocks` blocks into k and v. Keys are zeros. */
static struct kvarn_call *start_decompress(struct rig *rig, uint32_t blocks, uint8_t *k, uint8_t *v)
{
    static const kvarn_key keys[4];
    struct kvw_blocks meta = {.block_count = blocks, .layer_count = PEER_LAYERS};
    struct kvarn_call *call = NULL;

    assert_true(blocks <= 4);
    assert_int_equal(kvarn_blocks_new(&rig->client, KVW_DECOMPRESS, &meta, 0, blocks,
                                      KVW_BLOCK_STATUS_BYTES, &call),
                     KVARN_OK);
    kvarn_call_add_part(call, keys, blocks * sizeof keys[0]);
    kvarn_call_add_place(call, k, (uint64_t)blocks * PEER_BLOCK_ROWS_BYTES);
    kvarn_call_add_place(call, v, (uint64_t)blocks * PEER_BLOCK_ROWS_BYTES);
    assert_int_equal(kvarn_session_start(rig->session, call, UINT64_MAX, 0), KVARN_OK);
    return call;
}

/* IMPORT with a payload of `count` bytes: a request that is large to send. */
static struct kvarn_call *start_import(struct rig *rig, const uint8_t *bytes, size_t count)
{
    struct kvw_blocks meta = {.block_count = 1};
    struct kvarn_call *call = NULL;

    assert_int_equal(
        kvarn_blocks_new(&rig->client, KVW_IMPORT, &meta, 0, 1, KVW_BLOCK_STATUS_BYTES, &call),
        KVARN_OK);
    kvarn_call_add_part(call, bytes, count);
    assert_int_equal(kvarn_session_start(rig->session, call, UINT64_MAX, 0), KVARN_OK);
    return call;
}

static void assert_pattern(const uint8_t *bytes, uint32_t salt, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != peer_pattern(salt, i))
            fail_msg("tensor %u differs at byte %zu", salt, i);
}

/* ---- HELLO */

static void hello_negotiates(void **state)
{
    struct rig *rig = *state;

    assert_false(kvarn_session_has_room(rig->session)); /* nothing starts before the answer */
    open_session(rig);
    assert_string_equal(rig->session->peer.server, "fake 1");
    assert_string_equal(rig->session->peer.tenant, "uid");
    assert_int_equal(rig->session->peer.version, 1);
    assert_int_equal(rig->session->peer.in_flight_max, PEER_IN_FLIGHT_MAX);
    assert_int_equal(rig->session->peer.payload_max_bytes, PEER_PAYLOAD_MAX_BYTES);
    assert_int_equal(rig->session->in_flight, 0);
}

static void hello_that_fails(void **state)
{
    const struct {
        enum peer_fault fault;
        kvarn_status status;
    } cases[] = {
        {PEER_REFUSES, KVARN_DENIED},         {PEER_WRONG_VERSION, KVARN_UNSUPPORTED},
        {PEER_NO_BOUNDS, KVARN_BAD_FRAME},    {PEER_PAYLOAD_LONG, KVARN_TOO_LARGE},
        {PEER_BAD_METADATA, KVARN_BAD_FRAME}, {PEER_CUT, KVARN_PEER_LOST},
        {PEER_WRONG_ID, KVARN_BAD_FRAME},     {PEER_BAD_MAGIC, KVARN_BAD_FRAME},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        teardown(state);
        setup(state);
        struct rig *rig = *state;
        rig->peer.hello_fault = cases[i].fault;
        exchange(rig, 50);
        assert_int_equal(rig->session->state, KVARN_SESSION_BROKEN);
        assert_int_equal(rig->session->status, cases[i].status);
        assert_true(strlen(rig->session->why) > 10);
    }
}

/* ---- replies */

static void replies_in_any_pieces(void **state)
{
    struct rig *rig = *state;
    size_t bytes = 3 * PEER_BLOCK_ROWS_BYTES;
    uint8_t *k = malloc(bytes), *v = malloc(bytes);
    static const size_t pieces[] = {1, 2, 3, 31, 64, 1000, 20000, 100000, 1000000};

    open_session(rig);
    for (size_t round = 0; round < 60; round++) {
        size_t piece = pieces[round % (sizeof pieces / sizeof pieces[0])];
        struct kvarn_call *calls[3];
        memset(k, 0, bytes);
        memset(v, 0, bytes);
        calls[0] = start_decompress(rig, 1, NULL, NULL); /* places of NULL: dropped */
        calls[1] = start_decompress(rig, 3, k, v);
        calls[2] = start_decompress(rig, 1, NULL, NULL);
        exchange(rig, piece);
        assert_int_equal(rig->session->state, KVARN_SESSION_OPEN);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(calls[i]->state, KVARN_CALL_DONE);
            assert_int_equal(calls[i]->status, KVARN_OK);
            assert_int_equal(calls[i]->device_ns, 1234);
        }
        assert_pattern(k, 1, bytes);
        assert_pattern(v, 2, bytes);
        struct kvw_block_status row;
        kvw_block_status_load(&row, calls[1]->table + 2 * KVW_BLOCK_STATUS_BYTES);
        assert_int_equal(row.status, KVARN_EXISTS);
        assert_int_equal(row.digest, 42);
        for (size_t i = 0; i < 3; i++)
            free(calls[i]);
        assert_int_equal(rig->session->in_flight, 0);
    }
    free(k);
    free(v);
}

static void large_payloads_are_received_in_place(void **state)
{
    struct rig *rig = *state;
    static uint8_t k[PEER_BLOCK_ROWS_BYTES], v[PEER_BLOCK_ROWS_BYTES];
    struct iovec parts[4];

    open_session(rig);
    struct kvarn_call *call = start_decompress(rig, 1, k, v);
    to_peer(rig, SIZE_MAX, SIZE_MAX);
    size_t head = rig->peer.out.count - 2 * PEER_BLOCK_ROWS_BYTES;
    place(rig, rig->peer.out.bytes, head + 100);
    assert_int_equal(kvarn_session_want(rig->session, parts, 4), 3);
    assert_ptr_equal(parts[0].iov_base, k + 100);
    assert_int_equal(parts[0].iov_len, sizeof k - 100);
    assert_ptr_equal(parts[1].iov_base, v);
    assert_int_equal(parts[1].iov_len, sizeof v);
    place(rig, rig->peer.out.bytes + head + 100, rig->peer.out.count - head - 100);
    assert_int_equal(call->state, KVARN_CALL_DONE);
    assert_pattern(k, 1, sizeof k);
    assert_pattern(v, 2, sizeof v);
    free(call);
}

static void replies_out_of_order(void **state)
{
    struct rig *rig = *state;
    struct peer_buffer second = {0};

    open_session(rig);
    struct kvarn_call *a = start_decompress(rig, 1, NULL, NULL);
    to_peer(rig, SIZE_MAX, SIZE_MAX);
    second = rig->peer.out;
    rig->peer.out = (struct peer_buffer){0};
    struct kvarn_call *b = start_decompress(rig, 2, NULL, NULL);
    exchange(rig, 5000);
    assert_int_equal(b->state, KVARN_CALL_DONE);
    assert_int_equal(a->state, KVARN_CALL_SENT);
    place(rig, second.bytes, second.count);
    assert_int_equal(a->state, KVARN_CALL_DONE);
    free(second.bytes);
    free(a);
    free(b);
}

static void error_replies_need_no_payload(void **state)
{
    struct rig *rig = *state;
    static uint8_t k[PEER_BLOCK_ROWS_BYTES], v[PEER_BLOCK_ROWS_BYTES];

    open_session(rig);
    rig->peer.fault = PEER_REFUSES;
    struct kvarn_call *call = start_decompress(rig, 1, k, v);
    exchange(rig, 7);
    assert_int_equal(call->status, KVARN_RETRY);
    assert_string_equal(call->text, "busy");
    assert_int_equal(rig->session->state, KVARN_SESSION_OPEN);
    free(call);
}

static void faults_break_the_session(void **state)
{
    const struct {
        enum peer_fault fault;
        kvarn_status status;
    } cases[] = {
        {PEER_WRONG_ID, KVARN_BAD_FRAME},       {PEER_WRONG_OP, KVARN_BAD_FRAME},
        {PEER_NOT_A_REPLY, KVARN_BAD_FRAME},    {PEER_BAD_MAGIC, KVARN_BAD_FRAME},
        {PEER_UNKNOWN_FLAG, KVARN_UNSUPPORTED}, {PEER_BAD_METADATA, KVARN_BAD_FRAME},
        {PEER_PAYLOAD_SHORT, KVARN_BAD_FRAME},  {PEER_PAYLOAD_LONG, KVARN_BAD_FRAME},
        {PEER_OVERSIZE, KVARN_TOO_LARGE},       {PEER_CUT, KVARN_PEER_LOST},
        {PEER_WRONG_COUNT, KVARN_BAD_FRAME},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static uint8_t k[PEER_BLOCK_ROWS_BYTES], v[PEER_BLOCK_ROWS_BYTES];
        teardown(state);
        setup(state);
        struct rig *rig = *state;
        open_session(rig);
        rig->peer.fault = cases[i].fault;
        struct kvarn_call *call = start_decompress(rig, 1, k, v);
        struct kvarn_call *other = start_decompress(rig, 1, k, v);
        exchange(rig, 3000);
        assert_int_equal(rig->session->state, KVARN_SESSION_BROKEN);
        assert_int_equal(rig->session->status, cases[i].status);
        assert_int_equal(call->state, KVARN_CALL_DONE);
        assert_int_equal(call->status, KVARN_PEER_LOST);
        assert_int_equal(other->status, KVARN_PEER_LOST);
        assert_true(strlen(call->text) > 10);
        struct iovec parts[4];
        assert_int_equal(kvarn_session_want(rig->session, parts, 4), 0);
        assert_int_equal(kvarn_session_pending(rig->session, parts, 4), 0);
        free(call);
        free(other);
    }
}

/* ---- bounds, deadlines, abandoned calls */

static void calls_in_flight_are_bounded(void **state)
{
    struct rig *rig = *state;
    struct kvarn_call *calls[PEER_IN_FLIGHT_MAX], *more = NULL;
    struct kvw_blocks meta = {.block_count = 1};

    open_session(rig);
    for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++)
        calls[i] = start_decompress(rig, 1, NULL, NULL);
    assert_false(kvarn_session_has_room(rig->session));
    kvarn_blocks_new(&rig->client, KVW_LOOKUP, &meta, 0, 1, 16, &more);
    assert_int_equal(kvarn_session_start(rig->session, more, UINT64_MAX, 0), KVARN_RETRY);
    assert_non_null(strstr(more->text, "8 calls"));
    exchange(rig, 100000);
    assert_int_equal(kvarn_session_start(rig->session, more, UINT64_MAX, 0), KVARN_OK);
    for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++)
        free(calls[i]);
    /* `more` is the session's now: freeing the session must free it */
}

static void payload_over_the_bound_is_refused_here(void **state)
{
    struct rig *rig = *state;
    struct kvarn_call *call = NULL;
    struct kvw_blocks meta = {.block_count = 1};
    uint8_t byte = 0;

    open_session(rig);
    kvarn_blocks_new(&rig->client, KVW_IMPORT, &meta, 0, 1, 16, &call);
    kvarn_call_add_part(call, &byte, PEER_PAYLOAD_MAX_BYTES + 1); /* never read */
    assert_int_equal(kvarn_session_start(rig->session, call, UINT64_MAX, 0), KVARN_TOO_LARGE);
    assert_non_null(strstr(call->text, "fewer"));
    free(call);
}

static void deadlines_end_calls_and_late_replies_are_dropped(void **state)
{
    struct rig *rig = *state;
    uint8_t *k = malloc(PEER_BLOCK_ROWS_BYTES), *v = malloc(PEER_BLOCK_ROWS_BYTES);

    open_session(rig);
    struct kvarn_call *call = start_decompress(rig, 1, k, v);
    call->deadline_ns = rig->session->earliest_deadline = 1000;
    struct kvarn_call *other = start_decompress(rig, 1, NULL, NULL);
    to_peer(rig, SIZE_MAX, 100);
    kvarn_session_expire(rig->session, 999);
    assert_int_equal(call->state, KVARN_CALL_SENT);
    kvarn_session_expire(rig->session, 1000);
    assert_int_equal(call->status, KVARN_DEADLINE);
    assert_int_equal(other->state, KVARN_CALL_SENT);
    free(k); /* the reply must not touch these any more */
    free(v);
    free(call);
    assert_int_equal(rig->session->in_flight, 2);
    from_peer(rig, 5000);
    assert_int_equal(other->status, KVARN_OK);
    assert_int_equal(rig->session->in_flight, 0);
    free(other);
}

static void abandoned_at_every_byte(void **state)
{
    struct rig *rig = *state;
    size_t bytes = PEER_BLOCK_ROWS_BYTES;

    open_session(rig);
    for (size_t cut = 0; cut < 400; cut += 7) { /* of the request: header, metadata, payload */
        uint8_t *payload = malloc(300);
        for (size_t i = 0; i < 300; i++)
            payload[i] = peer_pattern(9, i);
        uint32_t before = rig->peer.requests;
        struct kvarn_call *call = start_import(rig, payload, 300);
        to_peer(rig, cut, 13);
        kvarn_session_abandon(rig->session, call);
        assert_int_equal(call->status, KVARN_CANCELLED);
        free(payload);
        free(call);
        struct kvarn_call *next = start_decompress(rig, 1, NULL, NULL);
        to_peer(rig, SIZE_MAX, 50);
        assert_int_equal(rig->peer.requests, before + (cut > 0 ? 2 : 1));
        from_peer(rig, 5000);
        assert_int_equal(next->status, KVARN_OK);
        assert_int_equal(rig->session->in_flight, 0);
        free(next);
    }
    for (size_t cut = 1; cut < 2 * bytes; cut += 3001) { /* of the reply */
        uint8_t *k = malloc(bytes), *v = malloc(bytes);
        struct kvarn_call *call = start_decompress(rig, 1, k, v);
        to_peer(rig, SIZE_MAX, SIZE_MAX);
        place(rig, rig->peer.out.bytes, cut);
        kvarn_session_abandon(rig->session, call);
        free(call);
        free(k);
        free(v);
        place(rig, rig->peer.out.bytes + cut, rig->peer.out.count - cut);
        rig->peer.out.count = 0;
        assert_int_equal(rig->session->state, KVARN_SESSION_OPEN);
        assert_int_equal(rig->session->in_flight, 0);
    }
}

static void half_sent_requests_keep_their_bytes(void **state)
{
    struct rig *rig = *state;
    uint8_t *payload = malloc(300);

    open_session(rig);
    for (size_t i = 0; i < 300; i++)
        payload[i] = peer_pattern(9, i);
    uint64_t sum = peer_checksum(payload, 300);
    struct kvarn_call *call = start_import(rig, payload, 300);
    to_peer(rig, 150, 13);
    kvarn_session_abandon(rig->session, call);
    memset(payload, 0xee, 300);
    free(payload);
    free(call);
    exchange(rig, 20);
    assert_true(rig->peer.payload_sum == sum);
    assert_int_equal(rig->session->in_flight, 0);
}

static void early_refusal_of_a_half_sent_request(void **state)
{
    struct rig *rig = *state;
    static uint8_t payload[3000];
    uint8_t metadata[64];
    struct kvw_result refusal = {.status = KVARN_NO_SPACE, .text = "full"};

    open_session(rig);
    struct kvarn_call *call = start_import(rig, payload, sizeof payload);
    struct kvarn_call *unsent = start_import(rig, payload, sizeof payload);
    to_peer(rig, 1000, 1000);
    struct kvw_header header = {
        .version = 1, .op = KVW_IMPORT, .flags = KVW_FLAG_REPLY, .request_id = call->request_id};
    header.metadata_bytes = (uint32_t)kvw_result_encode(metadata, sizeof metadata, &refusal);
    struct peer_buffer frame = {0};
    peer_frame(&frame, &header, metadata, NULL);
    place(rig, frame.bytes, frame.count);
    assert_int_equal(call->status, KVARN_NO_SPACE);
    assert_string_equal(call->text, "full");
    free(call);

    /* But a reply to something that was never sent is no reply. */
    frame.count = 0;
    header.request_id = unsent->request_id;
    peer_frame(&frame, &header, metadata, NULL);
    place(rig, frame.bytes, frame.count);
    assert_int_equal(rig->session->status, KVARN_BAD_FRAME);
    free(frame.bytes);
    free(unsent);
}

/* Valid replies with a few bytes changed: whatever they say, no byte lands outside the places and
 * every call ends or stays in flight. The sanitizer build looks at the memory. */
static void damaged_replies(void **state)
{
    size_t broken = 0, fine = 0;

    for (int round = 0; round < 1500; round++) {
        static uint8_t k[2 * PEER_BLOCK_ROWS_BYTES], v[2 * PEER_BLOCK_ROWS_BYTES];
        struct rng rng = ((struct rig *)*state)->rng;
        teardown(state);
        setup(state);
        struct rig *rig = *state;
        rig->rng = rng;
        open_session(rig);
        struct kvarn_call *calls[2] = {start_decompress(rig, 2, k, v),
                                       start_decompress(rig, 1, NULL, NULL)};
        to_peer(rig, SIZE_MAX, SIZE_MAX);
        for (uint32_t i = 0; i < 1 + rng_below(&rig->rng, 3); i++) {
            /* Mostly in the first header, metadata and table; the rows are just bytes. */
            size_t at = rng_below(&rig->rng, rng_below(&rig->rng, 4) ? 90 : 200000);
            if (at < rig->peer.out.count)
                rig->peer.out.bytes[at] ^= (uint8_t)(1u << rng_below(&rig->rng, 8));
        }
        from_peer(rig, 20000);
        broken += rig->session->state == KVARN_SESSION_BROKEN;
        fine += rig->session->state == KVARN_SESSION_OPEN;
        for (size_t i = 0; i < 2; i++) {
            kvarn_session_abandon(rig->session, calls[i]);
            assert_int_equal(calls[i]->state, KVARN_CALL_DONE);
            free(calls[i]);
        }
    }
    assert_true(broken > 100 && fine > 100);
}

int main(void)
{
#define RIG(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        RIG(hello_negotiates),
        RIG(hello_that_fails),
        RIG(replies_in_any_pieces),
        RIG(large_payloads_are_received_in_place),
        RIG(replies_out_of_order),
        RIG(error_replies_need_no_payload),
        RIG(faults_break_the_session),
        RIG(calls_in_flight_are_bounded),
        RIG(payload_over_the_bound_is_refused_here),
        RIG(deadlines_end_calls_and_late_replies_are_dropped),
        RIG(abandoned_at_every_byte),
        RIG(half_sent_requests_keep_their_bytes),
        RIG(early_refusal_of_a_half_sent_request),
        RIG(damaged_replies),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
