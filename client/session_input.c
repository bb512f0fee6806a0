/* Replies: which call they answer, where their payload goes, and HELLO's own answer.
 *
 * The peer is not trusted: a reply must name a request that was sent and its operation, and its
 * payload must have the length that the request implies. */
#include "client/session_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- HELLO */

static kvarn_status hello_reply(struct kvarn_call *call, const struct kvc_reply *reply,
                                const char **why)
{
    struct kvw_hello_reply in;
    kvarn_status status =
        kvw_hello_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);
    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    if (!kvc_call_succeeded(call))
        return KVARN_OK;
    if (in.version < KVW_VERSION_MIN || in.version > KVW_VERSION_MAX) {
        *why = "HELLO: the daemon chose a protocol version that was not offered";
        return KVARN_UNSUPPORTED;
    }
    if (in.in_flight_max == 0 || in.payload_max_bytes == 0) {
        *why = "HELLO: the daemon states no bound for payload or calls in flight";
        return KVARN_BAD_FRAME;
    }
    struct kvc_peer *peer = &call->session->peer;
    peer->version = in.version;
    peer->features = in.features;
    peer->payload_max_bytes = in.payload_max_bytes;
    peer->in_flight_max = in.in_flight_max < KVC_SLOTS_MAX ? in.in_flight_max : KVC_SLOTS_MAX;
    snprintf(peer->server, sizeof peer->server, "%s", in.server);
    snprintf(peer->backend, sizeof peer->backend, "%s", in.backend);
    snprintf(peer->tenant, sizeof peer->tenant, "%s", in.tenant);
    return KVARN_OK;
}

struct kvarn_call *kvc_session_hello(const char *name)
{
    struct kvarn_call *call = kvc_call_new(KVW_HELLO, KVC_METADATA_ROOM, 0);
    if (!call)
        return NULL;
    struct kvw_hello hello = {
        .version_min = KVW_VERSION_MIN,
        .version_max = KVW_VERSION_MAX,
        .features = KVW_FEATURE_SEQUENCES,
        .client = name,
    };
    size_t bytes = kvw_hello_encode(kvc_call_metadata(call), KVC_METADATA_ROOM, &hello);
    if (bytes == 0) {
        free(call);
        return NULL;
    }
    kvc_call_set_metadata(call, bytes);
    call->on_reply = hello_reply;
    return call;
}

static void hello_answered(struct kvc_session *session, struct kvarn_call *call)
{
    session->hello = NULL;
    if (session->state == KVC_SESSION_BROKEN) {
        /* broken while the answer was under way; it opens nothing any more */
    } else if (kvc_call_succeeded(call)) {
        session->state = KVC_SESSION_OPEN;
        session->reader.payload_max_bytes = session->peer.payload_max_bytes;
    } else {
        char why[KVC_WHY_BYTES];
        snprintf(why, sizeof why, "the daemon refused the connection: %s",
                 call->text[0] ? call->text : kvarn_status_text(call->status));
        kvc_session_break(session, call->status, why);
    }
    free(call);
}

/* ---- replies */

/* An error reply may leave out the tensors, or everything. */
static bool payload_fits(const struct kvarn_call *call, uint64_t payload_bytes)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < call->place_count; i++) {
        if (call->places[i].bytes > UINT64_MAX - total)
            return false;
        total += call->places[i].bytes;
    }
    if (payload_bytes == total)
        return true;
    if (kvc_call_succeeded(call))
        return false;
    return payload_bytes == 0 || payload_bytes == call->places[0].bytes;
}

/* A reply to request 0 is about the connection itself: why the daemon ends it (over its limit of
 * connections, garbage in the stream). The session ends with that status and sentence. */
static kvarn_status farewell(struct kvc_session *session, const char **why)
{
    struct kvw_result result;
    kvarn_status status;
    char sentence[KVC_WHY_BYTES];

    kvw_arena_reset(&session->arena);
    status = kvw_result_decode(&result, session->metadata, session->reader.header.metadata_bytes,
                               &session->arena, why);
    if (status != KVARN_OK)
        return status;
    if (kvarn_status_class_of(result.status) == KVARN_CLASS_SUCCESS) {
        *why = "a reply to request 0 that is no error";
        return KVARN_BAD_FRAME;
    }
    snprintf(sentence, sizeof sentence, "the daemon ended the connection: %s",
             result.text[0] ? result.text : kvarn_status_text(result.status));
    session->retry_after_us = result.retry_after_us;
    kvc_session_break(session, result.status, sentence);
    return KVARN_OK;
}

static kvarn_status reply_begins(struct kvc_session *session, const char **why)
{
    const struct kvw_header *header = &session->reader.header;
    uint32_t index = (uint32_t)(header->request_id % KVC_SLOTS_MAX);
    struct kvc_slot *slot = &session->slots[index];

    if (!(header->flags & KVW_FLAG_REPLY)) {
        *why = "the daemon sent a request";
        return KVARN_BAD_FRAME;
    }
    if (header->request_id == 0)
        return farewell(session, why);
    if (slot->request_id != header->request_id) {
        *why = "a reply to a request that is not in flight";
        return KVARN_BAD_FRAME;
    }
    if (slot->op != header->op) {
        *why = "a reply with another operation than its request";
        return KVARN_BAD_FRAME;
    }
    session->receiving_slot = index;
    session->receiving = slot->call;
    struct kvarn_call *call = slot->call;
    if (!call) /* abandoned: the payload is dropped */
        return KVARN_OK;
    if (call->state == KVC_CALL_QUEUED && call->part_index == 0 && call->part_sent == 0) {
        *why = "a reply to a request that was not sent yet";
        return KVARN_BAD_FRAME;
    }
    struct kvc_reply reply = {
        .metadata = session->metadata,
        .metadata_bytes = header->metadata_bytes,
        .payload_bytes = header->payload_bytes,
        .arena = &session->arena,
    };
    kvw_arena_reset(&session->arena);
    kvarn_status status = call->on_reply(call, &reply, why);
    if (status != KVARN_OK)
        return status;
    if (!payload_fits(call, header->payload_bytes)) {
        *why = "a reply whose payload has not the length that its request implies";
        return KVARN_BAD_FRAME;
    }
    call->payload_bytes = header->payload_bytes;
    return KVARN_OK;
}

static kvarn_status reply_ends(struct kvc_session *session, const char **why)
{
    struct kvarn_call *call = session->receiving;
    struct kvc_slot *slot = &session->slots[session->receiving_slot];

    session->receiving = NULL;
    session->receiving_slot = KVC_SLOTS_MAX;
    if (!call) {
        kvc_session_give_slot(session, slot);
        return KVARN_OK;
    }
    if (call->on_finish) {
        kvarn_status status = call->on_finish(call, why);
        if (status != KVARN_OK)
            return status;
    }
    bool hello = call == session->hello;
    kvc_session_answered(session, call);
    if (hello)
        hello_answered(session, call);
    return KVARN_OK;
}

/* ---- bytes */

/* Finds the place of the payload byte at `offset`. False: it is dropped. */
static bool place_at(const struct kvarn_call *call, uint64_t offset, uint32_t *index,
                     uint64_t *inside)
{
    if (!call)
        return false;
    for (uint32_t i = 0; i < call->place_count; i++) {
        if (offset < call->places[i].bytes) {
            *index = i;
            *inside = offset;
            return true;
        }
        offset -= call->places[i].bytes;
    }
    return false;
}

/* Copies payload bytes that came with the read-ahead to their places. */
static void place_copied(const struct kvarn_call *call, uint64_t offset, const uint8_t *in,
                         size_t count)
{
    uint32_t index = 0;
    uint64_t inside = 0;

    while (count > 0 && place_at(call, offset, &index, &inside)) {
        uint64_t room = call->places[index].bytes - inside;
        size_t part = room < count ? (size_t)room : count;
        if (call->places[index].base)
            memcpy(call->places[index].base + inside, in, part);
        in += part;
        count -= part;
        offset += part;
    }
}

size_t kvc_session_want(struct kvc_session *session, struct iovec *out, size_t capacity)
{
    const struct kvw_reader *reader = &session->reader;
    const struct kvarn_call *call = session->receiving;
    size_t count = 0;

    if (session->state == KVC_SESSION_BROKEN || capacity == 0)
        return 0;
    if (reader->state == KVW_READ_PAYLOAD) {
        uint64_t offset = reader->payload_fill;
        uint64_t left = reader->header.payload_bytes - offset;
        uint32_t index = 0;
        uint64_t inside = 0;

        while (left > 0 && count < capacity - 1 && place_at(call, offset, &index, &inside)) {
            struct kvc_place place = call->places[index];
            if (!place.base) /* dropped bytes go through the read-ahead */
                break;
            uint64_t part = place.bytes - inside < left ? place.bytes - inside : left;
            out[count++] = (struct iovec){.iov_base = place.base + inside, .iov_len = (size_t)part};
            offset += part;
            left -= part;
        }
    }
    out[count++] = (struct iovec){.iov_base = session->input, .iov_len = sizeof session->input};
    return count;
}

/* Bytes of the coming `count` that the peer's payload put straight into place. */
static size_t placed_directly(struct kvc_session *session, size_t count)
{
    struct iovec parts[KVC_CALL_PLACES_MAX + 1];
    size_t parts_count = kvc_session_want(session, parts, KVC_CALL_PLACES_MAX + 1);
    size_t direct = 0;

    for (size_t i = 0; i + 1 < parts_count; i++)
        direct += parts[i].iov_len;
    return direct < count ? direct : count;
}

static kvarn_status feed(struct kvc_session *session, const uint8_t *in, size_t count,
                         const char **why)
{
    for (;;) {
        size_t taken = 0;
        kvarn_status status = KVARN_OK;
        uint64_t offset = session->reader.payload_fill;

        switch (kvw_reader_feed(&session->reader, in, count, &taken, &status, why)) {
        case KVW_NEED_MORE:
            return KVARN_OK;
        case KVW_HEADER:
            status = reply_begins(session, why);
            break;
        case KVW_PAYLOAD:
            place_copied(session->receiving, offset, in, taken);
            break;
        case KVW_FRAME_END:
            status = reply_ends(session, why);
            break;
        case KVW_BROKEN:
            break;
        }
        if (status != KVARN_OK)
            return status;
        if (session->state ==
            KVC_SESSION_BROKEN) /* HELLO was refused, or the daemon said why it ends */
            return KVARN_OK;
        in += taken;
        count -= taken;
    }
}

kvarn_status kvc_session_received(struct kvc_session *session, size_t count)
{
    const char *why = "";

    if (session->state == KVC_SESSION_BROKEN)
        return session->status;
    size_t direct = placed_directly(session, count);
    kvarn_status status = KVARN_OK;
    if (direct > 0 && kvw_reader_payload_placed(&session->reader, direct) == KVW_FRAME_END)
        status = reply_ends(session, &why);
    if (status == KVARN_OK && session->state != KVC_SESSION_BROKEN)
        status = feed(session, session->input, count - direct, &why);
    if (status != KVARN_OK) {
        char sentence[KVC_WHY_BYTES];
        snprintf(sentence, sizeof sentence, "the daemon broke the protocol: %.512s", why);
        kvc_session_break(session, status, sentence);
    }
    return session->status;
}
