/* client/session_input: negotiation, replies in any pieces, every fault of a peer. In
 * memory: no socket is opened. */
#include "session_rig.h"

/* ---- HELLO */

static void hello_negotiates(void **state)
{
    struct rig *rig = *state;

    assert_false(kvc_session_has_room(rig->session)); /* nothing starts before the answer */
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
        {PEER_FAREWELL, KVARN_RETRY},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        teardown(state);
        setup(state);
        struct rig *rig = *state;
        rig->peer.hello_fault = cases[i].fault;
        exchange(rig, 50);
        assert_int_equal(rig->session->state, KVC_SESSION_BROKEN);
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
        assert_int_equal(rig->session->state, KVC_SESSION_OPEN);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(calls[i]->state, KVC_CALL_DONE);
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
    assert_int_equal(kvc_session_want(rig->session, parts, 4), 3);
    assert_ptr_equal(parts[0].iov_base, k + 100);
    assert_int_equal(parts[0].iov_len, sizeof k - 100);
    assert_ptr_equal(parts[1].iov_base, v);
    assert_int_equal(parts[1].iov_len, sizeof v);
    place(rig, rig->peer.out.bytes + head + 100, rig->peer.out.count - head - 100);
    assert_int_equal(call->state, KVC_CALL_DONE);
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
    assert_int_equal(b->state, KVC_CALL_DONE);
    assert_int_equal(a->state, KVC_CALL_SENT);
    place(rig, second.bytes, second.count);
    assert_int_equal(a->state, KVC_CALL_DONE);
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
    assert_int_equal(rig->session->state, KVC_SESSION_OPEN);
    free(call);
}

/* A reply to request 0 says why the daemon ends the connection. */
static void a_farewell_is_passed_on(void **state)
{
    struct rig *rig = *state;

    rig->peer.hello_fault = PEER_FAREWELL;
    exchange(rig, 50);
    assert_int_equal(rig->session->state, KVC_SESSION_BROKEN);
    assert_int_equal(rig->session->status, KVARN_RETRY);
    assert_int_equal(rig->session->retry_after_us, 5);
    assert_non_null(strstr(rig->session->why, "full house"));
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
        {PEER_WRONG_COUNT, KVARN_BAD_FRAME},    {PEER_FAREWELL, KVARN_RETRY},
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
        assert_int_equal(rig->session->state, KVC_SESSION_BROKEN);
        assert_int_equal(rig->session->status, cases[i].status);
        assert_int_equal(call->state, KVC_CALL_DONE);
        assert_int_equal(call->status, KVARN_PEER_LOST);
        assert_int_equal(other->status, KVARN_PEER_LOST);
        assert_true(strlen(call->text) > 10);
        struct iovec parts[4];
        assert_int_equal(kvc_session_want(rig->session, parts, 4), 0);
        assert_int_equal(kvc_session_pending(rig->session, parts, 4), 0);
        free(call);
        free(other);
    }
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
        broken += rig->session->state == KVC_SESSION_BROKEN;
        fine += rig->session->state == KVC_SESSION_OPEN;
        for (size_t i = 0; i < 2; i++) {
            kvc_session_abandon(rig->session, calls[i]);
            assert_int_equal(calls[i]->state, KVC_CALL_DONE);
            free(calls[i]);
        }
    }
    assert_true(broken > 100 && fine > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(hello_negotiates),         RIG(hello_that_fails),
        RIG(replies_in_any_pieces),    RIG(large_payloads_are_received_in_place),
        RIG(replies_out_of_order),     RIG(error_replies_need_no_payload),
        RIG(faults_break_the_session), RIG(damaged_replies),
        RIG(a_farewell_is_passed_on),  RIG(damaged_replies),
    };
    return cmocka_run_group_tests_name("session_input", tests, NULL, NULL);
}
