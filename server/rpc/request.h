/* One request from its header to the last byte of its reply, and the seam between net and rpc.
 *
 *   net                                     rpc
 *   header + metadata complete  --begin-->  decode, validate, say where the payload goes
 *   payload read into place     --run---->  plan; jobs to the device; finish
 *   sends metadata and iovecs   <--reply--  once per request, at any later time on the loop
 *   all sent, or connection gone --done-->  give memory and references back
 *
 * reply may be called from inside run, and for a request whose connection is gone too (net then
 * only calls done). done without run is right for a payload that never arrived. done frees the
 * request.
 *
 * Loop thread only. A request belongs to its connection until `reply` is called or the connection
 * is gone; a request whose connection is gone (conn = NULL) runs to its end and is dropped. */
#ifndef KVD_REQUEST_H
#define KVD_REQUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <kvarn/status.h>

#include "proto/frame.h"

struct kvd_service; /* rpc/service.h: everything the operations work on */
struct kvd_conn;

enum { KVD_REPLY_IOVECS_MAX = 1024, KVD_REPLY_META_MAX = 16384, KVD_TEXT_MAX = 512 };

struct kvd_request {
    struct kvd_service *service;
    struct kvd_conn *conn; /* NULL: the client is gone */
    uint64_t conn_id;      /* owner of sequences and leases */
    uint32_t tenant;       /* from the credential */
    bool same_uid;         /* the peer runs as the daemon's user: may drain */
    struct kvw_header header;
    uint64_t arrived_ns, deadline_ns; /* CLOCK_MONOTONIC */

    /* set by begin: where net reads the payload; NULL with payload_bytes > 0 means: read and
     * discard, then run answers the error that begin found */
    uint8_t *payload;
    /* set when the payload does not stand in one piece (IMPORT: a table, then the blocks' own
     * slots): where its bytes go, in order, all of them */
    const struct iovec *payload_parts; /* [payload_part_count]; NULL: all of it at `payload` */
    uint32_t payload_part_count;

    /* the reply: metadata bytes, then iovecs (staging or pool memory, kept until done) */
    uint8_t *reply_meta; /* of the service, until done */
    uint32_t reply_meta_bytes;
    struct iovec *reply_iov; /* [KVD_REPLY_IOVECS_MAX] */
    uint32_t reply_iov_count;
    uint64_t reply_payload_bytes;

    /* set by net before done: the answer reaches nobody, so what it hands out (sequences, a lease)
     * must not stay */
    bool unwanted;
    void (*reply)(struct kvd_request *request); /* set by net */
    void *slot;                                 /* net's own */

    /* rpc's own */
    kvarn_status status;
    char text[KVD_TEXT_MAX];
    uint32_t retry_after_us;
    void *plan;               /* operation's state */
    struct kvd_request *next; /* in whatever list it is in */
};

enum kvd_begin {
    KVD_BEGIN_OK,
    KVD_BEGIN_WAIT /* no staging now: stop reading, try again when told */
};

/* A request for this header, or NULL when KVD_REQUESTS_MAX are in use (net then stops reading). */
struct kvd_request *kvd_request_new(struct kvd_service *service);

/* Where payload bytes [offset, offset + bytes) go: at most `room` pieces in out, fewer bytes when
 * they do not reach. 0: nowhere, read and discard. */
static inline uint32_t kvd_request_payload_at(const struct kvd_request *request, uint64_t offset,
                                              uint64_t bytes, struct iovec *out, uint32_t room)
{
    uint32_t count = 0;

    if (request->payload_parts == NULL) {
        if (request->payload == NULL)
            return 0;
        out[0] = (struct iovec){request->payload + offset, (size_t)bytes};
        return 1;
    }
    for (uint32_t i = 0; i < request->payload_part_count && bytes > 0 && count < room; i++) {
        struct iovec part = request->payload_parts[i];

        if (offset >= part.iov_len) {
            offset -= part.iov_len;
            continue;
        }
        part.iov_base = (uint8_t *)part.iov_base + offset;
        part.iov_len -= (size_t)offset;
        if (part.iov_len > bytes)
            part.iov_len = (size_t)bytes;
        offset = 0;
        bytes -= part.iov_len;
        out[count++] = part;
    }
    return count;
}

/* metadata is borrowed for the call. After WAIT net calls it again, with the same bytes, when
 * service's `room` callback fires. */
enum kvd_begin kvd_request_begin(struct kvd_request *request, const uint8_t *metadata);
void kvd_request_run(struct kvd_request *request);
void kvd_request_done(struct kvd_request *request);

/* The connection is gone: its sequences and leases are given back, its requests are detached (net
 * sets request->conn to NULL first). */
void kvd_service_conn_gone(struct kvd_service *service, uint64_t conn_id);

/* Net asks to be told (once per shortage, on the loop) that staging or a request slot may be had
 * again. It is called from inside kvd_request_done: take note and go on reading in a later turn. */
void kvd_service_on_room(struct kvd_service *service, void (*room)(void *context), void *context);

#endif
