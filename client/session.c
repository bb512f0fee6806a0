/* Slots, the send queue, deadlines and the end of a session. What comes in is session_input.c's. */
#include "client/session_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvc_session *kvc_session_new(const char *name, uint32_t deadline_us)
{
    /* Not zeroed as a whole: 340 KiB of buffers that most sessions touch little of. */
    struct kvc_session *session = malloc(sizeof *session);
    if (!session)
        return NULL;
    memset(session, 0, offsetof(struct kvc_session, slots));
    for (uint32_t i = 0; i < KVC_SLOTS_MAX; i++)
        session->slots[i] = (struct kvc_slot){.next_free = (uint16_t)(i + 1)};
    session->free_slot = 0;
    session->in_flight = 0;
    session->sequence = 1;
    session->earliest_deadline = UINT64_MAX;
    session->queue = NULL;
    session->queue_end = &session->queue;
    session->residue = NULL;
    session->residue_bytes = session->residue_sent = 0;
    session->receiving = NULL;
    session->receiving_slot = KVC_SLOTS_MAX;
    kvw_reader_init(&session->reader, session->metadata, 0);
    kvw_arena_init(&session->arena, session->arena_memory, sizeof session->arena_memory);

    session->peer.in_flight_max = 1; /* HELLO alone, until it is answered */
    session->hello = kvc_session_hello(name);
    if (!session->hello || kvc_session_start(session, session->hello, UINT64_MAX, deadline_us)) {
        kvc_session_free(session);
        return NULL;
    }
    return session;
}

void kvc_session_free(struct kvc_session *session)
{
    if (!session)
        return;
    if (session->hello && session->hello->state == KVC_CALL_NEW)
        free(session->hello);
    for (uint32_t i = 0; i < KVC_SLOTS_MAX; i++)
        free(session->slots[i].call);
    free(session->residue);
    free(session);
}

bool kvc_session_has_room(const struct kvc_session *session)
{
    return session->in_flight < session->peer.in_flight_max && session->free_slot < KVC_SLOTS_MAX;
}

kvarn_status kvc_session_start(struct kvc_session *session, struct kvarn_call *call,
                               uint64_t deadline_ns, uint32_t deadline_us)
{
    uint64_t payload = kvc_call_payload_bytes(call);

    assert(call->state == KVC_CALL_NEW);
    if (session->state == KVC_SESSION_BROKEN) {
        snprintf(call->text, sizeof call->text, "%.*s", KVW_TEXT_MAX_BYTES, session->why);
        return KVARN_PEER_LOST;
    }
    if (payload > session->peer.payload_max_bytes) {
        snprintf(call->text, sizeof call->text,
                 "the request has %llu payload bytes and the daemon takes at most %llu: send fewer "
                 "blocks or tokens per call",
                 (unsigned long long)payload, (unsigned long long)session->peer.payload_max_bytes);
        return KVARN_TOO_LARGE;
    }
    if (!kvc_session_has_room(session)) {
        snprintf(call->text, sizeof call->text,
                 "%u calls are in flight, the most for one connection: wait for one of them",
                 session->in_flight);
        return KVARN_RETRY;
    }
    uint16_t index = session->free_slot;
    struct kvc_slot *slot = &session->slots[index];
    session->free_slot = slot->next_free;
    session->in_flight++;
    /* The index in the low bits finds the slot of a reply; the count above it makes ids unique. */
    call->request_id = session->sequence++ * KVC_SLOTS_MAX + index;
    *slot = (struct kvc_slot){.request_id = call->request_id, .call = call, .op = call->op};

    call->session = session;
    call->deadline_ns = deadline_ns;
    call->state = KVC_CALL_QUEUED;
    kvc_call_seal(call, deadline_us);
    call->next = NULL;
    *session->queue_end = call;
    session->queue_end = &call->next;
    if (deadline_ns < session->earliest_deadline)
        session->earliest_deadline = deadline_ns;
    return KVARN_OK;
}

static struct kvc_slot *slot_of(struct kvc_session *session, const struct kvarn_call *call)
{
    return &session->slots[call->request_id % KVC_SLOTS_MAX];
}

void kvc_session_give_slot(struct kvc_session *session, struct kvc_slot *slot)
{
    assert(session->in_flight > 0);
    *slot = (struct kvc_slot){.next_free = session->free_slot};
    session->free_slot = (uint16_t)(slot - session->slots);
    session->in_flight--;
}

static bool begun(const struct kvarn_call *call)
{
    return call->part_index > 0 || call->part_sent > 0;
}

static void unqueue(struct kvc_session *session, struct kvarn_call *call)
{
    struct kvarn_call **link = &session->queue;

    while (*link && *link != call)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = call->next;
    if (!*link)
        session->queue_end = link;
}

/* The rest of a frame that went out in part. The daemon must get exactly those bytes, or it would
 * store something else under their key, and the caller's memory may not be read after this. */
static bool keep_residue(struct kvc_session *session, const struct kvarn_call *call)
{
    size_t bytes = 0;

    assert(!session->residue);
    for (uint32_t i = call->part_index; i < call->part_count; i++)
        bytes += call->parts[i].iov_len;
    bytes -= call->part_sent;
    uint8_t *at = malloc(bytes);
    if (!at)
        return false;
    session->residue = at;
    session->residue_bytes = bytes;
    session->residue_sent = 0;
    size_t skip = call->part_sent;
    for (uint32_t i = call->part_index; i < call->part_count; i++) {
        size_t part = call->parts[i].iov_len - skip;
        memcpy(at, (const uint8_t *)call->parts[i].iov_base + skip, part);
        at += part;
        skip = 0;
    }
    return true;
}

/* Takes a queued call out of the send queue. False: its frame stands half sent and there is no
 * memory to finish it with. */
static bool stop_sending(struct kvc_session *session, struct kvarn_call *call)
{
    bool fine = !begun(call) || keep_residue(session, call);

    unqueue(session, call);
    return fine;
}

void kvc_session_done(struct kvarn_call *call, kvarn_status status, const char *text)
{
    call->state = KVC_CALL_DONE;
    call->status = status;
    if (text)
        snprintf(call->text, sizeof call->text, "%.*s", KVW_TEXT_MAX_BYTES, text);
    call->session = NULL;
    call->client = NULL;
}

/* Parts the session from the call, whatever the call is doing. */
static void detach(struct kvc_session *session, struct kvarn_call *call)
{
    struct kvc_slot *slot = slot_of(session, call);
    bool unsent = call->state == KVC_CALL_QUEUED && !begun(call);
    bool fine = call->state != KVC_CALL_QUEUED || stop_sending(session, call);

    if (session->receiving == call)
        session->receiving = NULL;
    slot->call = NULL;
    if (unsent) /* the daemon never saw it, so no answer will free the slot */
        kvc_session_give_slot(session, slot);
    if (!fine)
        kvc_session_break(session, KVARN_INTERNAL,
                          "out of memory while a request was half sent; the connection ended");
}

void kvc_session_abandon(struct kvc_session *session, struct kvarn_call *call)
{
    if (call->state != KVC_CALL_QUEUED && call->state != KVC_CALL_SENT)
        return;
    detach(session, call);
    kvc_session_done(call, KVARN_CANCELLED, "the call was abandoned");
}

void kvc_session_answered(struct kvc_session *session, struct kvarn_call *call)
{
    struct kvc_slot *slot = slot_of(session, call);

    /* A daemon may refuse a request before it has read all of it. */
    bool fine = call->state != KVC_CALL_QUEUED || stop_sending(session, call);
    kvc_session_give_slot(session, slot);
    kvc_session_done(call, call->status, NULL);
    if (!fine)
        kvc_session_break(session, KVARN_INTERNAL,
                          "out of memory while a request was half sent; the connection ended");
}

void kvc_session_expire(struct kvc_session *session, uint64_t now_ns)
{
    uint64_t earliest = UINT64_MAX;

    if (now_ns < session->earliest_deadline)
        return;
    for (uint32_t i = 0; i < KVC_SLOTS_MAX; i++) {
        struct kvarn_call *call = session->slots[i].call;
        if (!call)
            continue;
        if (call->deadline_ns > now_ns) {
            earliest = call->deadline_ns < earliest ? call->deadline_ns : earliest;
            continue;
        }
        detach(session, call);
        kvc_session_done(call, KVARN_DEADLINE,
                         "no answer before the deadline; raise deadline_ms or send less at once");
    }
    session->earliest_deadline = earliest;
}

void kvc_session_break(struct kvc_session *session, kvarn_status status, const char *why)
{
    if (session->state == KVC_SESSION_BROKEN)
        return;
    session->state = KVC_SESSION_BROKEN;
    session->status = status;
    snprintf(session->why, sizeof session->why, "%s", why);
    session->queue = NULL;
    session->queue_end = &session->queue;
    free(session->residue);
    session->residue = NULL;
    session->receiving = NULL;
    for (uint32_t i = 0; i < KVC_SLOTS_MAX; i++) {
        struct kvc_slot *slot = &session->slots[i];
        struct kvarn_call *call = slot->call;

        slot->call = NULL;
        if (!call)
            continue;
        kvc_session_done(call, KVARN_PEER_LOST, session->why);
        if (call == session->hello) {
            session->hello = NULL;
            free(call);
        }
    }
    session->earliest_deadline = UINT64_MAX;
}

size_t kvc_session_pending(const struct kvc_session *session, struct iovec *out, size_t capacity)
{
    size_t count = 0;

    if (session->residue && capacity > 0)
        out[count++] = (struct iovec){.iov_base = session->residue + session->residue_sent,
                                      .iov_len = session->residue_bytes - session->residue_sent};
    for (const struct kvarn_call *call = session->queue; call; call = call->next) {
        size_t skip = call->part_sent;
        for (uint32_t i = call->part_index; i < call->part_count && count < capacity; i++) {
            out[count++] = (struct iovec){.iov_base = (uint8_t *)call->parts[i].iov_base + skip,
                                          .iov_len = call->parts[i].iov_len - skip};
            skip = 0;
        }
        if (count == capacity)
            break;
    }
    return count;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void kvc_session_sent(struct kvc_session *session, size_t count)
{
    if (session->residue) {
        size_t part = min_size(count, session->residue_bytes - session->residue_sent);
        session->residue_sent += part;
        count -= part;
        if (session->residue_sent == session->residue_bytes) {
            free(session->residue);
            session->residue = NULL;
        }
    }
    while (count > 0 && session->queue) {
        struct kvarn_call *call = session->queue;
        size_t part = min_size(count, call->parts[call->part_index].iov_len - call->part_sent);
        call->part_sent += part;
        count -= part;
        if (call->part_sent < call->parts[call->part_index].iov_len)
            break;
        call->part_sent = 0;
        if (++call->part_index < call->part_count)
            continue;
        call->state = KVC_CALL_SENT;
        unqueue(session, call);
    }
}
