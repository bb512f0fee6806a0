/* The client's side of the protocol, without I/O: bytes in, bytes out, and a table of calls.
 *
 * The owner asks where the next received bytes belong (want), puts them there and says how many
 * (received); it asks what to send (pending) and says how much went (sent). Payloads of replies
 * land straight in the caller's memory. Time comes in as an argument. A reply that is not expected
 * or is malformed breaks the session for good: framing cannot be trusted after it, so every call in
 * flight ends with PEER_LOST and the session keeps the typed reason. Not thread-safe. */
#ifndef KVC_SESSION_H
#define KVC_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <kvarn/status.h>

#include "client/call.h"

enum kvc_session_state { KVC_SESSION_HELLO, KVC_SESSION_OPEN, KVC_SESSION_BROKEN };

enum {
    KVC_SLOTS_MAX = 1024, /* calls in flight, whatever the daemon allows */
    /* Read-ahead: a payload that follows its header in the same read is copied out of here, at most
     * this much of it; the rest is received in place. */
    KVC_INPUT_BYTES = 16384,
    KVC_ARENA_BYTES = 262144, /* the largest decode: 256 metrics or spaces */
    KVC_WHY_BYTES = 640
};

/* One unanswered request. Outlives its call: an abandoned one is still answered by the daemon. */
struct kvc_slot {
    uint64_t request_id;     /* 0 = free */
    struct kvarn_call *call; /* NULL = abandoned */
    uint16_t next_free;
    uint8_t op;
};

/* What HELLO brought. */
struct kvc_peer {
    uint32_t version, in_flight_max;
    uint64_t features, payload_max_bytes;
    char server[KVW_TEXT_MAX_BYTES + 1], backend[KVW_TEXT_MAX_BYTES + 1];
    char tenant[KVW_TEXT_MAX_BYTES + 1];
};

struct kvc_session {
    enum kvc_session_state state;
    kvarn_status status; /* BROKEN: why */
    uint32_t
        retry_after_us; /* BROKEN by the daemon's own word: when to connect again, 0 = unsaid */
    char why[KVC_WHY_BYTES]; /* BROKEN: the sentence */
    struct kvc_peer peer;
    struct kvarn_call *hello;

    struct kvc_slot slots[KVC_SLOTS_MAX];
    uint16_t free_slot; /* head of the free list; KVC_SLOTS_MAX = none */
    uint32_t in_flight;
    uint64_t sequence;          /* of the next request id */
    uint64_t earliest_deadline; /* no call in flight ends before it; UINT64_MAX = none */

    struct kvarn_call *queue, **queue_end; /* not yet sent whole, in order */
    uint8_t *residue;                      /* rest of a frame whose call is gone */
    size_t residue_bytes, residue_sent;

    struct kvw_reader reader;
    struct kvarn_call *receiving; /* whose payload comes; NULL: it is dropped */
    uint32_t receiving_slot;      /* KVC_SLOTS_MAX = none */
    struct kvw_arena arena;
    uint8_t metadata[KVW_METADATA_MAX_BYTES], input[KVC_INPUT_BYTES];
    uint8_t arena_memory[KVC_ARENA_BYTES];
};

/* Starts with HELLO queued. name: for the daemon's log. NULL without memory. */
struct kvc_session *kvc_session_new(const char *name, uint32_t deadline_us);
/* Frees every call that is not done; done ones are their owners'. Accepts NULL. */
void kvc_session_free(struct kvc_session *session);

/* True when another call may start. */
bool kvc_session_has_room(const struct kvc_session *session);
/* Queues the call and keeps it until it is done or abandoned. RETRY when the table is full;
 * TOO_LARGE for the payload bound; PEER_LOST when the session is broken. */
kvarn_status kvc_session_start(struct kvc_session *session, struct kvarn_call *call,
                               uint64_t deadline_ns, uint32_t deadline_us);
/* The session forgets the call, which becomes CANCELLED, and touches none of its memory again. */
void kvc_session_abandon(struct kvc_session *session, struct kvarn_call *call);
/* Calls whose deadline has passed are done with DEADLINE. */
void kvc_session_expire(struct kvc_session *session, uint64_t now_ns);
/* Ends the session (connection lost, or a fault of the peer): every call is done with PEER_LOST. */
void kvc_session_break(struct kvc_session *session, kvarn_status status, const char *why);

/* What to send next: up to `capacity` parts, their number is returned; 0 = nothing. */
size_t kvc_session_pending(const struct kvc_session *session, struct iovec *out, size_t capacity);
void kvc_session_sent(struct kvc_session *session, size_t count);

/* Where the next received bytes belong, in order: 1..capacity parts (0 when broken). Good until
 * the next call into the session. capacity at least 4. */
size_t kvc_session_want(struct kvc_session *session, struct iovec *out, size_t capacity);
/* `count` bytes now stand there. Returns the session's status. */
kvarn_status kvc_session_received(struct kvc_session *session, size_t count);

#endif
