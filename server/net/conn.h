/* Connections: bytes of clients to requests of the service and back.
 *
 * A connection is one non-blocking socket under a kvd_watch with recvmsg and sendmsg of our own.
 * What one client can make grow is bounded: requests unanswered, bytes queued, time. When a bound
 * is met its socket is not read until there is room; a client that breaks the rules or stops moving
 * is cut off. Loop thread only. */
#ifndef KVD_CONN_H
#define KVD_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "proto/frame.h"
#include "proto/wire.h"
#include "server/core/limits.h"
#include "server/core/loop.h"
#include "server/core/metrics.h"
#include "server/rpc/request.h"

/* Who is at the other end; from the kernel, never from the client. */
struct kvd_identity {
    uint32_t tenant;
    bool same_uid;
    bool local; /* Unix socket: descriptors may arrive */
};

struct kvd_conns_options {
    struct uv_loop_s *loop;
    struct kvd_service *service;
    struct kvd_metrics *metrics;
    uint32_t connections_max;          /* 0 = KVD_CONNECTIONS_MAX */
    uint64_t payload_max_bytes;        /* 0 = KVD_PAYLOAD_MAX_BYTES */
    uint64_t (*now_ns)(void *context); /* NULL = kvd_now_ns */
    void (*gone)(void *context); /* a connection ended or a request was done; NULL = nobody asks */
    void *context;               /* of the two above */
};

enum { KVD_NOTE_BYTES = 384 }; /* an answer that net makes itself, a whole frame */

/* One unanswered request: from its header until its answer is sent and the service is done. */
struct kvd_slot {
    struct kvd_conns *conns;
    struct kvd_conn *conn;       /* NULL: gone */
    struct kvd_request *request; /* NULL: net answers alone */
    struct kvd_slot *prev, *next;
    struct kvd_slot *out_next;
    struct kvw_header header;
    uint64_t arrived_ns, deadline_ns;
    bool running;  /* run was called and reply was not */
    bool answered; /* an answer was queued; a later one of the service is dropped */
    bool queued;   /* in the out list */
    bool fixed;    /* a connection's `last`: not from the free list */
    bool note;     /* the answer queued is note_frame, not the request's */
    uint8_t head[KVW_HEADER_BYTES]; /* of the answer */
    uint64_t out_bytes;             /* of the answer, unsent */
    uint32_t note_bytes;            /* a whole frame, head included */
    uint8_t note_frame[KVD_NOTE_BYTES];
};

enum kvd_conn_state {
    KVD_CONN_OPEN,
    KVD_CONN_CLOSING, /* reads no more; closes when the out list is empty */
    KVD_CONN_GONE     /* closed; freed at the end of the turn */
};

enum kvd_stall {
    KVD_STALL_NONE,
    KVD_STALL_OWN,    /* too many unanswered, or too much unsent: ends by sending */
    KVD_STALL_SHARED, /* no request slot or no staging: ends when the service says so */
    KVD_STALL_TURN    /* had its share of this loop turn */
};

struct kvd_conn {
    struct kvd_conns *conns;
    struct kvd_conn *prev, *next;
    struct kvd_conn *ready_next;
    struct kvd_watch *watch;
    int fd;
    uint64_t id;
    struct kvd_identity identity;
    enum kvd_conn_state state;
    enum kvd_stall stall;
    unsigned mask; /* what watch waits for */
    bool ready;    /* in the list of those to be pumped */
    bool pumping;  /* flush follows anyway */
    bool hello;    /* HELLO was seen and not refused */
    bool started;  /* a first frame was complete */
    bool held;     /* the header in reader waits for room */
    bool emptied;  /* kvd_conns_quiet saw it between frames */

    /* in */
    struct kvw_reader reader;
    struct kvd_slot *current; /* whose payload is being read, or waits for staging (held) */
    uint32_t in_begin, in_end;
    uint32_t turn_frames;
    uint64_t frames; /* whose header found room */
    uint64_t turn_bytes;
    uint64_t read_due_ns; /* 0 = no timer */
    uint64_t read_mark;   /* payload bytes when it was set */
    bool read_payload;    /* it was set for a payload */

    /* out */
    uint32_t in_flight;
    struct kvd_slot *slots;
    struct kvd_slot *out_head, *out_tail;
    uint32_t out_segment;              /* of out_head: 0 header, 1 metadata, then iovecs */
    size_t out_offset;                 /* within the segment */
    uint64_t out_bytes;                /* unsent */
    uint64_t write_due_ns, write_mark; /* sent_bytes when it was set */
    uint64_t sent_bytes;
    struct kvd_slot last; /* a final answer must not fail for lack of a slot */

    uint8_t in[KVD_READ_BUFFER_BYTES];
    uint8_t metadata[KVW_METADATA_MAX_BYTES];
};

struct kvd_conns {
    struct kvd_conns_options options;
    struct kvd_conn *first, *last; /* among those short of room, who waits longest comes first */
    uint32_t short_of_room;        /* connections with KVD_STALL_SHARED */
    struct kvd_conn *dead;         /* freed at the end of the turn */
    uint32_t count;                /* open and closing */
    uint64_t last_id;
    struct kvd_slot *slots, *free_slots;
    uint32_t slots_used;
    struct kvd_timer *timer;
    uint64_t armed_ns; /* 0 = not armed */
    struct kvd_deferred *turn_end;
    struct kvd_conn *ready_first, *ready_last; /* to be pumped at the end of the turn */
    bool room_asked, room_came, slots_short, sharing, ended;
    uint8_t *scratch; /* payloads that nobody wants */
    struct iovec *iov;
};

kvarn_status kvd_conns_open(struct kvd_conns **conns, const struct kvd_conns_options *options);
/* Ends every connection. Requests that run go on until the service replies: kvd_conns_close comes
 * when kvd_conns_open_requests is 0. */
void kvd_conns_end(struct kvd_conns *conns);
void kvd_conns_close(struct kvd_conns **conns);

/* Takes fd (closes it on failure too). RETRY: over the limit, the client was told so. */
kvarn_status kvd_conns_adopt(struct kvd_conns *conns, int fd, const struct kvd_identity *identity);
/* One RETRY frame, then the socket is closed. */
void kvd_conns_turn_away(struct kvd_conns *conns, int fd, const char *text);

/* Everything that is due: read and write timeouts, deadlines. The timer calls it; tests with a
 * clock of their own do too. */
void kvd_conns_tick(struct kvd_conns *conns);

uint32_t kvd_conns_count(const struct kvd_conns *conns);
/* Requests that are not yet answered and sent. */
uint32_t kvd_conns_open_requests(const struct kvd_conns *conns);
/* For the end: no request is open and no connection has a frame begun, in its buffers or in the
 * socket. One that was between frames once is not waited for again: what it sends later came after
 * the end began. */
bool kvd_conns_quiet(struct kvd_conns *conns);

/* ---- between conn.c, conn_read.c, conn_write.c and conn_time.c */

uint64_t kvd_conns_now(const struct kvd_conns *conns);
void kvd_conns_arm(struct kvd_conns *conns, uint64_t due_ns); /* tick no later than this */
void kvd_conns_ask_room(struct kvd_conns *conns);
void kvd_conns_room_came(struct kvd_conns *conns);
void kvd_conn_set_stall(struct kvd_conn *conn, enum kvd_stall stall);
void kvd_conn_wake(struct kvd_conn *conn); /* pump it before the loop waits again */
/* Detaches its requests, closes the socket. why: for the log, static text. */
void kvd_conn_gone(struct kvd_conn *conn, const char *why);
/* Counts and logs one that broke the rules or stood still; it ends next. */
void kvd_conn_cut(const struct kvd_conn *conn, enum kvd_metric cause, const char *why);

/* conn_time.c: timers for what the connection waits for now. */
void kvd_conn_set_due(struct kvd_conn *conn);

/* conn_read.c: reads what the socket holds, within the bounds of a turn; takes frames from the
 * bytes already read, as far as there is room. */
void kvd_conn_read(struct kvd_conn *conn);
void kvd_conn_take_frames(struct kvd_conn *conn);
bool kvd_conn_has_room(const struct kvd_conn *conn);

/* conn_write.c. NULL when no slot is free. */
struct kvd_slot *kvd_slot_take(struct kvd_conn *conn, const struct kvw_header *header);
void kvd_slot_settle(struct kvd_slot *slot);       /* frees it when nobody needs it any more */
void kvd_slot_detach(struct kvd_slot *slot);       /* its connection is gone */
void kvd_slot_drop_request(struct kvd_slot *slot); /* one that does not run: done */
/* Answers without the service. */
void kvd_slot_note(struct kvd_slot *slot, kvarn_status status, const char *text);
void kvd_slot_reply(struct kvd_request *request); /* request->reply */
/* One last answer, then the end. */
void kvd_conn_refuse(struct kvd_conn *conn, kvarn_status status, const char *text);
void kvd_conn_flush(struct kvd_conn *conn);
/* A whole reply frame that carries only a result. Bytes written. */
size_t kvd_result_frame(uint8_t *out, size_t room, const struct kvw_header *asked,
                        kvarn_status status, const char *text, uint32_t retry_after_us);

#endif
