/* One request and its answer: the bytes to send, where the reply's payload goes, how it ended.
 *
 * One allocation holds the struct, the head (header, metadata, request tables) and the reply table.
 * Tensors are never copied in here: `parts` and `places` point at the caller's memory, which is not
 * touched any more once the call is done or abandoned. Made by an operation file, run by the
 * session. */
#ifndef KVC_CALL_H
#define KVC_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <kvarn/status.h>

#include "proto/arena.h"
#include "proto/codec.h"
#include "proto/frame.h"
#include "proto/wire.h"

struct kvarn_call;
struct kvarn_client;
struct kvc_session;

enum kvc_call_state { KVC_CALL_NEW, KVC_CALL_QUEUED, KVC_CALL_SENT, KVC_CALL_DONE };

enum {
    KVC_CALL_PARTS_MAX = 4,  /* head, then three tensors or key tables */
    KVC_CALL_PLACES_MAX = 3, /* table, then two tensors */
    KVC_METADATA_ROOM = 512  /* enough for every message without names */
};

struct kvc_place {
    uint8_t *base; /* NULL: these bytes are dropped */
    uint64_t bytes;
};

/* The metadata of a reply, as it came. */
struct kvc_reply {
    const uint8_t *metadata;
    size_t metadata_bytes;
    uint64_t payload_bytes;
    struct kvw_arena *arena; /* empty; valid during the callback */
};

/* Reads metadata into the call (kvc_call_take_result) and sets places from place 0, the table.
 * Anything but OK ends the connection, with *why (static text) set. */
typedef kvarn_status kvc_reply_fn(struct kvarn_call *call, const struct kvc_reply *reply,
                                  const char **why);
/* Runs when the whole payload is in place: writes the outputs. The same rule for errors. */
typedef kvarn_status kvc_finish_fn(struct kvarn_call *call, const char **why);

struct kvarn_call {
    struct kvc_session *session; /* NULL before start and once done */
    struct kvarn_client *client; /* NULL once done: a done call outlives its client */
    struct kvarn_call *next;     /* in the session's send queue */
    uint64_t request_id, deadline_ns;
    enum kvc_call_state state;
    uint8_t op;

    struct iovec parts[KVC_CALL_PARTS_MAX]; /* part 0 is the head */
    uint32_t part_count, part_index;
    size_t part_sent; /* of parts[part_index] */

    kvc_reply_fn *on_reply;
    kvc_finish_fn *on_finish; /* NULL: nothing to do */
    void *args;               /* the caller's argument struct */
    size_t rows;              /* of the reply table */
    struct kvc_place places[KVC_CALL_PLACES_MAX];
    uint32_t place_count;
    uint8_t *table; /* memory for the reply table, table_bytes long */
    size_t table_bytes;
    uint64_t payload_bytes; /* of the reply; set before on_finish */

    kvarn_status status;
    uint32_t retry_after_us;
    uint64_t device_ns;
    char text[KVW_TEXT_MAX_BYTES + 1];
    /* What an operation remembers between plan, reply and finish. */
    uint64_t matched, lease, echo, cursor, total;

    size_t metadata_bytes, head_bytes, head_room;
    uint8_t head[]; /* header, metadata, request tables; then the reply table */
};

/* NULL without memory. head_room is for metadata and request tables together. */
struct kvarn_call *kvc_call_new(uint8_t op, size_t head_room, size_t table_bytes);

/* Where metadata is encoded, and how much fits. */
uint8_t *kvc_call_metadata(struct kvarn_call *call);
/* Metadata has `count` bytes. Before any append. */
void kvc_call_set_metadata(struct kvarn_call *call, size_t count);
/* Appends `count` bytes of request table to the head; the caller fills them. */
uint8_t *kvc_call_append(struct kvarn_call *call, size_t count);
/* `count` bytes of the head's room that are no part of the head: for rows packed into the call. */
uint8_t *kvc_call_spare(struct kvarn_call *call, size_t count);
/* The next part of the payload, kept. Nothing when count is 0. */
void kvc_call_add_part(struct kvarn_call *call, const void *base, size_t count);
/* Payload bytes of the request: tables and parts. */
uint64_t kvc_call_payload_bytes(const struct kvarn_call *call);
/* Writes the header; request_id and deadline are known now. */
void kvc_call_seal(struct kvarn_call *call, uint32_t deadline_us);

/* Replies. */
void kvc_call_take_result(struct kvarn_call *call, const struct kvw_result *result);
void kvc_call_add_place(struct kvarn_call *call, void *base, uint64_t bytes);
/* True when the table came with the reply (an error reply may come without). */
bool kvc_call_has_table(const struct kvarn_call *call);
/* A status up to 15 means that the operation did what it was asked. */
bool kvc_call_succeeded(const struct kvarn_call *call);

#endif
