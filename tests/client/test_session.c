/* client/session: bounds, deadlines, and calls that are abandoned or answered in the middle. */
#include "session_rig.h"

static void calls_in_flight_are_bounded(void **state)
{
    struct rig *rig = *state;
    struct kvarn_call *calls[PEER_IN_FLIGHT_MAX], *more = NULL;
    struct kvw_blocks meta = {.block_count = 1};

    open_session(rig);
    for (size_t i = 0; i < PEER_IN_FLIGHT_MAX; i++)
        calls[i] = start_decompress(rig, 1, NULL, NULL);
    assert_false(kvc_session_has_room(rig->session));
    kvc_blocks_new(&rig->client, KVW_LOOKUP, &meta, 0, 1, 16, &more);
    assert_int_equal(kvc_session_start(rig->session, more, UINT64_MAX, 0), KVARN_RETRY);
    assert_non_null(strstr(more->text, "8 calls"));
    exchange(rig, 100000);
    assert_int_equal(kvc_session_start(rig->session, more, UINT64_MAX, 0), KVARN_OK);
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
    kvc_blocks_new(&rig->client, KVW_IMPORT, &meta, 0, 1, 16, &call);
    kvc_call_add_part(call, &byte, PEER_PAYLOAD_MAX_BYTES + 1); /* never read */
    assert_int_equal(kvc_session_start(rig->session, call, UINT64_MAX, 0), KVARN_TOO_LARGE);
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
    kvc_session_expire(rig->session, 999);
    assert_int_equal(call->state, KVC_CALL_SENT);
    kvc_session_expire(rig->session, 1000);
    assert_int_equal(call->status, KVARN_DEADLINE);
    assert_int_equal(other->state, KVC_CALL_SENT);
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
        kvc_session_abandon(rig->session, call);
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
        kvc_session_abandon(rig->session, call);
        free(call);
        free(k);
        free(v);
        place(rig, rig->peer.out.bytes + cut, rig->peer.out.count - cut);
        rig->peer.out.count = 0;
        assert_int_equal(rig->session->state, KVC_SESSION_OPEN);
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
    kvc_session_abandon(rig->session, call);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(calls_in_flight_are_bounded),
        RIG(payload_over_the_bound_is_refused_here),
        RIG(deadlines_end_calls_and_late_replies_are_dropped),
        RIG(abandoned_at_every_byte),
        RIG(half_sent_requests_keep_their_bytes),
        RIG(early_refusal_of_a_half_sent_request),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
