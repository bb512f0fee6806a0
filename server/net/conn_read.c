/* Requests on their way in.
 *
 * Small frames come many at a time through the connection's buffer; a payload is read where the
 * service wants it, and the bytes behind it into the buffer by the same call. A frame whose header
 * meets a bound waits in the reader, and the socket is not read: TCP and the socket's buffer then
 * hold the client back. */
#include "server/net/conn.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DESCRIPTORS_AT_ONCE = 64, SCRATCH_BYTES = KVD_PROGRESS_BYTES, PARTS_MAX = 64 };

bool kvd_conn_has_room(const struct kvd_conn *conn)
{
    return conn->in_flight < KVD_IN_FLIGHT_MAX && conn->out_bytes <= KVD_REPLY_QUEUE_BYTES;
}

/* ---- frames */

/* What the connection itself refuses, before the service hears of it. OK = nothing. */
static kvarn_status check_header(const struct kvd_conn *conn, const char **why)
{
    const struct kvw_header *header = &conn->reader.header;

    if ((header->flags & KVW_FLAG_REPLY) != 0) {
        *why = "a client sends requests; this frame is marked as a reply";
        return KVARN_BAD_FRAME;
    }
    if (header->request_id == 0) {
        *why = "request id 0 is not a request id";
        return KVARN_BAD_FRAME;
    }
    for (const struct kvd_slot *slot = conn->slots; slot != NULL; slot = slot->next) {
        if (slot->header.request_id == header->request_id) {
            *why = "this request id is that of an unanswered request";
            return KVARN_BAD_FRAME;
        }
    }
    if (!conn->hello && header->op != KVW_HELLO) {
        *why = "HELLO comes first on a connection";
        return KVARN_DENIED;
    }
    return KVARN_OK;
}

static struct kvd_request *new_request(struct kvd_conn *conn, struct kvd_slot *slot)
{
    struct kvd_request *request = kvd_request_new(conn->conns->options.service);
    uint64_t allowed_ns;

    if (request == NULL)
        return NULL;
    allowed_ns = slot->header.deadline_us == 0 ? (uint64_t)KVD_DEADLINE_DEFAULT_MS * 1000000u
                                               : (uint64_t)slot->header.deadline_us * 1000u;
    if (allowed_ns > (uint64_t)KVD_DEADLINE_MAX_MS * 1000000u)
        allowed_ns = (uint64_t)KVD_DEADLINE_MAX_MS * 1000000u;
    slot->deadline_ns = slot->arrived_ns + allowed_ns;
    slot->request = request;
    request->conn = conn;
    request->conn_id = conn->id;
    request->tenant = conn->identity.tenant;
    request->same_uid = conn->identity.same_uid;
    request->header = slot->header;
    request->arrived_ns = slot->arrived_ns;
    request->deadline_ns = slot->deadline_ns;
    request->reply = kvd_slot_reply;
    request->slot = slot;
    return request;
}

static void stall(struct kvd_conn *conn, enum kvd_stall why)
{
    kvd_conn_set_stall(conn, why);
    if (why == KVD_STALL_TURN)
        kvd_conn_wake(conn);
    else
        kvd_metrics_add(conn->conns->options.metrics, KVD_METRIC_READS_PAUSED, 1);
}

/* Makes `current` of the header in the reader. False: there is no room, the header is held. */
static bool open_frame(struct kvd_conn *conn)
{
    const char *why = NULL;
    kvarn_status refusal;
    struct kvd_slot *slot;

    if (conn->turn_frames >= KVD_TURN_FRAMES_MAX) {
        stall(conn, KVD_STALL_TURN);
        return false;
    }
    if (!kvd_conn_has_room(conn)) {
        stall(conn, KVD_STALL_OWN);
        return false;
    }
    /* Whoever came first gets the room first, or a large payload would never find any. */
    if (conn->conns->short_of_room > 0 && !conn->conns->sharing &&
        conn->reader.header.payload_bytes > 0) {
        stall(conn, KVD_STALL_SHARED);
        return false;
    }
    refusal = check_header(conn, &why);
    slot = kvd_slot_take(conn, &conn->reader.header);
    if (slot == NULL) {
        stall(conn, KVD_STALL_SHARED);
        return false;
    }
    slot->arrived_ns = kvd_conns_now(conn->conns);
    if (refusal == KVARN_OK && new_request(conn, slot) == NULL) {
        kvd_slot_settle(slot);
        kvd_conns_ask_room(conn->conns);
        stall(conn, KVD_STALL_SHARED);
        return false;
    }
    conn->turn_frames++;
    conn->current = slot;
    if (conn->reader.header.op == KVW_HELLO && refusal == KVARN_OK)
        conn->hello = true;
    if (refusal != KVARN_OK)
        kvd_slot_note(slot, refusal, why);
    return true;
}

/* The header and metadata in the reader are complete: from here to its payload. */
static void on_header(struct kvd_conn *conn)
{
    conn->held = true;
    conn->read_due_ns = 0;
    if (conn->current == NULL && !open_frame(conn))
        return;
    if (conn->current->request != NULL &&
        kvd_request_begin(conn->current->request, conn->reader.metadata) == KVD_BEGIN_WAIT) {
        kvd_conns_ask_room(conn->conns);
        kvd_conns_arm(conn->conns, conn->current->deadline_ns);
        stall(conn, KVD_STALL_SHARED);
        return;
    }
    conn->held = false;
    conn->frames++;
}

static void on_frame_end(struct kvd_conn *conn)
{
    struct kvd_slot *slot = conn->current;

    assert(slot != NULL);
    conn->current = NULL;
    conn->started = true;
    conn->read_due_ns = 0;
    if (slot->request == NULL) {
        kvd_slot_settle(slot);
        return;
    }
    slot->running = true;
    kvd_request_run(slot->request);
    if (slot->running && !slot->answered)
        kvd_conns_arm(conn->conns, slot->deadline_ns);
}

static void on_broken(struct kvd_conn *conn, kvarn_status status, const char *why)
{
    const struct kvw_reader *reader = &conn->reader;

    /* A stranger's first bytes: another protocol, which would not understand an answer either. */
    if (!conn->started && (reader->head_fill < 4 || memcmp(reader->head, "KVRN", 4) != 0)) {
        kvd_conn_cut(conn, KVD_METRIC_CUT_FOREIGN, "its first bytes are another protocol's");
        kvd_conn_gone(conn, "another protocol");
        return;
    }
    kvd_conn_cut(conn, KVD_METRIC_CUT_BROKEN, why);
    kvd_conn_refuse(conn, status, why);
}

/* Where the payload bytes [offset, offset + bytes) of the current frame go; 0: nowhere. */
static uint32_t payload_at(const struct kvd_conn *conn, uint64_t offset, uint64_t bytes,
                           struct iovec *out, uint32_t room)
{
    const struct kvd_request *request;

    assert(conn->current != NULL);
    request = conn->current->request;
    return request == NULL ? 0 : kvd_request_payload_at(request, offset, bytes, out, room);
}

static void on_payload(struct kvd_conn *conn, const uint8_t *bytes, size_t count)
{
    uint64_t offset = conn->reader.payload_fill - count;
    struct iovec part;

    while (count > 0 && payload_at(conn, offset, count, &part, 1) == 1) {
        memcpy(part.iov_base, bytes, part.iov_len);
        bytes += part.iov_len;
        offset += part.iov_len;
        count -= part.iov_len;
    }
}

void kvd_conn_take_frames(struct kvd_conn *conn)
{
    while (conn->state == KVD_CONN_OPEN && conn->stall == KVD_STALL_NONE) {
        const uint8_t *bytes = conn->in + conn->in_begin;
        enum kvw_event event;
        kvarn_status status;
        const char *why;
        size_t taken;

        if (conn->held) {
            on_header(conn);
            continue;
        }
        event = kvw_reader_feed(&conn->reader, bytes, conn->in_end - conn->in_begin, &taken,
                                &status, &why);
        conn->in_begin += (uint32_t)taken;
        if (event == KVW_NEED_MORE)
            break;
        if (event == KVW_HEADER)
            on_header(conn);
        else if (event == KVW_PAYLOAD)
            on_payload(conn, bytes, taken);
        else if (event == KVW_FRAME_END)
            on_frame_end(conn);
        else
            on_broken(conn, status, why);
    }
    if (conn->in_begin == conn->in_end)
        conn->in_begin = conn->in_end = 0;
}

/* ---- the socket */

/* Closes what the client passed along; gives how many descriptors there were. Every control message
 * is looked at and every descriptor in it: padding lets more arrive than were made room for. */
static unsigned close_passed(struct msghdr *message)
{
    unsigned count = (message->msg_flags & MSG_CTRUNC) != 0 ? 1 : 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
            close(fd);
            count++;
        }
    }
    return count;
}

/* Where the next bytes go: the rest of a payload, and behind its end the buffer. */
static uint32_t aim(struct kvd_conn *conn, struct iovec iov[PARTS_MAX + 1], size_t *payload_bytes)
{
    const struct kvw_reader *reader = &conn->reader;
    uint64_t left = 0, wanted;
    uint32_t count;

    *payload_bytes = 0;
    if (reader->state == KVW_READ_PAYLOAD)
        left = reader->header.payload_bytes - reader->payload_fill;
    if (left == 0) {
        iov[0] = (struct iovec){conn->in, sizeof conn->in};
        return 1;
    }
    wanted = left < KVD_TURN_BYTES_MAX ? left : KVD_TURN_BYTES_MAX;
    count = payload_at(conn, reader->payload_fill, wanted, iov, PARTS_MAX);
    if (count == 0) {
        iov[0] = (struct iovec){conn->conns->scratch,
                                wanted < SCRATCH_BYTES ? (size_t)wanted : SCRATCH_BYTES};
        count = 1;
    }
    for (uint32_t i = 0; i < count; i++)
        *payload_bytes += iov[i].iov_len;
    if (*payload_bytes == left)
        iov[count++] = (struct iovec){conn->in, sizeof conn->in};
    return count;
}

/* One recvmsg. False when the socket has no more, or the connection ended. */
static bool receive(struct kvd_conn *conn)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(DESCRIPTORS_AT_ONCE * sizeof(int))];
    } control;
    struct kvd_metrics *metrics = conn->conns->options.metrics;
    struct iovec iov[PARTS_MAX + 1];
    size_t payload_bytes, room = 0, placed;
    struct msghdr message = {.msg_iov = iov};
    ssize_t got;

    message.msg_iovlen = aim(conn, iov, &payload_bytes);
    for (size_t i = 0; i < message.msg_iovlen; i++)
        room += iov[i].iov_len;
    if (conn->identity.local) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    do
        got = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got <= 0) {
        kvd_conn_gone(conn, got == 0 ? "the client closed it" : "the connection broke");
        return false;
    }
    if (message.msg_controllen > 0 && close_passed(&message) > 0) {
        kvd_conn_cut(conn, KVD_METRIC_CUT_DESCRIPTOR, "it passed descriptors");
        kvd_conn_refuse(conn, KVARN_DENIED, "descriptors are not taken here; they were closed");
        return false;
    }
    kvd_metrics_add(metrics, KVD_METRIC_BYTES_IN, (uint64_t)got);
    conn->turn_bytes += (uint64_t)got;
    placed = (size_t)got < payload_bytes ? (size_t)got : payload_bytes;
    conn->in_end = (uint32_t)((size_t)got - placed);
    if (placed > 0 && kvw_reader_payload_placed(&conn->reader, placed) == KVW_FRAME_END)
        on_frame_end(conn);
    kvd_conn_take_frames(conn);
    return (size_t)got == room;
}

void kvd_conn_read(struct kvd_conn *conn)
{
    while (conn->state == KVD_CONN_OPEN && conn->stall == KVD_STALL_NONE &&
           conn->turn_frames < KVD_TURN_FRAMES_MAX && conn->turn_bytes < KVD_TURN_BYTES_MAX) {
        assert(conn->in_end == 0);
        if (!receive(conn))
            break;
    }
}
