/* Answers on their way out.
 *
 * Answers wait in a list per connection and leave together: one sendmsg takes as many as its iovecs
 * hold, straight from the service's memory. That memory is given back when the last byte of its
 * answer is in the socket, so a client that does not read holds what it asked for until it is cut
 * off, and cannot ask for more. */
#include "server/net/conn.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/codec.h"
#include "server/core/log.h"

/* ---- slots */

static void put_slot(struct kvd_slot *slot, struct kvd_conn *conn, const struct kvw_header *header)
{
    memset(slot, 0, offsetof(struct kvd_slot, note_frame));
    slot->conns = conn->conns;
    slot->conn = conn;
    slot->header = *header;
    slot->next = conn->slots;
    if (slot->next != NULL)
        slot->next->prev = slot;
    conn->slots = slot;
    conn->in_flight++;
}

struct kvd_slot *kvd_slot_take(struct kvd_conn *conn, const struct kvw_header *header)
{
    struct kvd_conns *conns = conn->conns;
    struct kvd_slot *slot = conns->free_slots;

    if (slot == NULL) {
        conns->slots_short = true;
        return NULL;
    }
    conns->free_slots = slot->next;
    conns->slots_used++;
    kvd_metrics_add(conns->options.metrics, KVD_METRIC_REQUESTS_OPEN, 1);
    put_slot(slot, conn, header);
    return slot;
}

static void unlink_slot(struct kvd_slot *slot)
{
    struct kvd_conn *conn = slot->conn;

    if (slot->prev != NULL)
        slot->prev->next = slot->next;
    else
        conn->slots = slot->next;
    if (slot->next != NULL)
        slot->next->prev = slot->prev;
    slot->prev = slot->next = NULL;
    slot->conn = NULL;
    conn->in_flight--;
    if (conn->stall == KVD_STALL_OWN && kvd_conn_has_room(conn))
        kvd_conn_wake(conn);
}

void kvd_slot_settle(struct kvd_slot *slot)
{
    struct kvd_conns *conns = slot->conns;
    struct kvd_conn *conn = slot->conn;

    if (slot->request != NULL || slot->queued || (conn != NULL && conn->current == slot))
        return;
    if (conn != NULL)
        unlink_slot(slot);
    if (slot->fixed)
        return;
    slot->next = conns->free_slots;
    conns->free_slots = slot;
    conns->slots_used--;
    kvd_metrics_sub(conns->options.metrics, KVD_METRIC_REQUESTS_OPEN, 1);
    if (conns->slots_short) {
        conns->slots_short = false;
        kvd_conns_room_came(conns);
    }
    if (conns->options.gone != NULL)
        conns->options.gone(conns->options.context);
}

void kvd_slot_drop_request(struct kvd_slot *slot)
{
    struct kvd_request *request = slot->request;

    assert(!slot->running);
    slot->request = NULL;
    if (request != NULL)
        kvd_request_done(request);
}

void kvd_slot_detach(struct kvd_slot *slot)
{
    slot->queued = false;
    slot->answered = true;
    if (slot->request != NULL) {
        slot->request->conn = NULL;
        slot->request->unwanted = true;
    }
    unlink_slot(slot);
    if (!slot->running)
        kvd_slot_drop_request(slot);
    kvd_slot_settle(slot);
}

/* ---- making answers */

size_t kvd_result_frame(uint8_t *out, size_t room, const struct kvw_header *asked,
                        kvarn_status status, const char *text, uint32_t retry_after_us)
{
    struct kvw_result result = {.status = status, .text = text, .retry_after_us = retry_after_us};
    size_t bytes = kvw_result_encode(out + KVW_HEADER_BYTES, room - KVW_HEADER_BYTES, &result);
    struct kvw_header header = {
        .version = KVW_VERSION_MAX,
        .op = asked->op,
        .flags = KVW_FLAG_REPLY,
        .request_id = asked->request_id,
        .metadata_bytes = (uint32_t)bytes,
    };

    assert(bytes > 0);
    kvw_header_pack(out, &header);
    return KVW_HEADER_BYTES + bytes;
}

/* Digits of a key, as texts for the client have them, stay out of the log. */
static void without_keys(char *out, size_t room, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;

    while (*text != '\0' && used + 1 < room) {
        size_t run = strspn(text, digits);

        if (run < 16) {
            out[used++] = *text++;
            continue;
        }
        out[used++] = '*';
        text += run;
    }
    out[used] = '\0';
}

static void log_refusal(const struct kvd_slot *slot, kvarn_status status, const char *text)
{
    const char *op = kvw_op_name(slot->header.op);
    char said[KVD_NOTE_BYTES];

    if (kvarn_status_class_of(status) == KVARN_CLASS_SUCCESS)
        return;
    without_keys(said, sizeof said, text);
    kvd_log(KVD_LOG_DEBUG, "refused", kvd_number("conn", (int64_t)slot->conn->id),
            kvd_text("op", op != NULL ? op : "unknown"),
            kvd_text("status", kvarn_status_name(status)), kvd_text("text", said));
}

static void queue(struct kvd_slot *slot, uint64_t bytes)
{
    struct kvd_conn *conn = slot->conn;

    slot->answered = true;
    slot->queued = true;
    slot->out_bytes = bytes;
    slot->out_next = NULL;
    if (conn->out_head == NULL)
        conn->out_head = slot;
    else
        conn->out_tail->out_next = slot;
    conn->out_tail = slot;
    conn->out_bytes += bytes;
    kvd_conn_wake(conn);
}

void kvd_slot_note(struct kvd_slot *slot, kvarn_status status, const char *text)
{
    struct kvd_conns *conns = slot->conns;
    uint64_t now = kvd_conns_now(conns);

    assert(!slot->answered);
    log_refusal(slot, status, text);
    slot->note = true;
    slot->note_bytes = (uint32_t)kvd_result_frame(slot->note_frame, sizeof slot->note_frame,
                                                  &slot->header, status, text, 0);
    kvd_metrics_request(conns->options.metrics, slot->header.op,
                        slot->arrived_ns == 0 ? 0 : now - slot->arrived_ns);
    queue(slot, slot->note_bytes);
}

void kvd_slot_reply(struct kvd_request *request)
{
    struct kvd_slot *slot = request->slot;
    struct kvd_conns *conns = slot->conns;

    assert(slot->running && slot->request == request);
    slot->running = false;
    if (slot->answered) { /* too late, or nobody is there */
        request->unwanted = true;
        kvd_slot_drop_request(slot);
        kvd_slot_settle(slot);
        return;
    }
    if (slot->header.op == KVW_HELLO &&
        kvarn_status_class_of(request->status) != KVARN_CLASS_SUCCESS)
        slot->conn->hello = false;
    log_refusal(slot, request->status, request->text);
    kvd_metrics_request(conns->options.metrics, slot->header.op,
                        kvd_conns_now(conns) - slot->arrived_ns);
    kvw_header_pack(slot->head, &(struct kvw_header){
                                    .version = slot->header.version,
                                    .op = slot->header.op,
                                    .flags = KVW_FLAG_REPLY,
                                    .request_id = slot->header.request_id,
                                    .metadata_bytes = request->reply_meta_bytes,
                                    .payload_bytes = request->reply_payload_bytes,
                                });
    queue(slot, KVW_HEADER_BYTES + request->reply_meta_bytes + request->reply_payload_bytes);
}

void kvd_conn_refuse(struct kvd_conn *conn, kvarn_status status, const char *text)
{
    struct kvw_header about = {.version = KVW_VERSION_MAX, .op = KVW_HELLO};
    struct kvd_slot *current = conn->current;

    if (conn->state != KVD_CONN_OPEN)
        return;
    conn->state = KVD_CONN_CLOSING;
    if (conn->reader.state != KVW_READ_HEADER || conn->reader.head_fill == KVW_HEADER_BYTES)
        about = conn->reader.header;
    conn->current = NULL;
    conn->held = false;
    if (current != NULL) {
        kvd_slot_drop_request(current);
        kvd_slot_settle(current);
    }
    put_slot(&conn->last, conn, &about);
    conn->last.fixed = true;
    kvd_slot_note(&conn->last, status, text);
}

/* ---- sending */

/* Segment `at` of an answer; false past its end. */
static bool segment(struct kvd_slot *slot, uint32_t at, struct iovec *out)
{
    const struct kvd_request *request = slot->request;

    if (slot->note) {
        out->iov_base = slot->note_frame;
        out->iov_len = slot->note_bytes;
        return at == 0;
    }
    if (at == 0) {
        out->iov_base = slot->head;
        out->iov_len = KVW_HEADER_BYTES;
        return true;
    }
    if (at == 1) {
        out->iov_base = request->reply_meta;
        out->iov_len = request->reply_meta_bytes;
        return true;
    }
    if (at - 2 >= request->reply_iov_count)
        return false;
    *out = request->reply_iov[at - 2];
    return true;
}

/* What stands in the list from the cursor on, as far as one sendmsg takes it. */
static size_t gather(const struct kvd_conn *conn, struct iovec *iov, size_t *bytes)
{
    size_t count = 0;
    uint32_t at = conn->out_segment;
    size_t skip = conn->out_offset;

    *bytes = 0;
    for (struct kvd_slot *slot = conn->out_head; slot != NULL; slot = slot->out_next) {
        struct iovec piece;

        while (count < KVD_REPLY_IOVECS_MAX && segment(slot, at, &piece)) {
            piece.iov_base = (uint8_t *)piece.iov_base + skip;
            piece.iov_len -= skip;
            *bytes += piece.iov_len;
            if (piece.iov_len > 0)
                iov[count++] = piece;
            skip = 0;
            at++;
        }
        at = 0;
        if (count == KVD_REPLY_IOVECS_MAX || *bytes >= KVD_TURN_BYTES_MAX)
            break;
    }
    return count;
}

static void sent_whole(struct kvd_conn *conn)
{
    struct kvd_slot *slot = conn->out_head;

    conn->out_head = slot->out_next;
    conn->out_segment = 0;
    conn->out_offset = 0;
    conn->write_due_ns = 0; /* progress */
    slot->queued = false;
    if (!slot->running)
        kvd_slot_drop_request(slot);
    kvd_slot_settle(slot);
}

/* Moves the cursor over what the socket took. */
static void advance(struct kvd_conn *conn, size_t bytes)
{
    conn->out_bytes -= bytes;
    conn->sent_bytes += bytes;
    for (;;) {
        struct kvd_slot *slot = conn->out_head;
        struct iovec piece;
        size_t left, step;

        if (slot == NULL)
            return;
        if (!segment(slot, conn->out_segment, &piece)) {
            assert(slot->out_bytes == 0);
            sent_whole(conn);
            continue;
        }
        left = piece.iov_len - conn->out_offset;
        step = left < bytes ? left : bytes;
        slot->out_bytes -= step;
        bytes -= step;
        if (step < left) {
            conn->out_offset += step;
            return;
        }
        conn->out_segment++;
        conn->out_offset = 0;
    }
}

void kvd_conn_flush(struct kvd_conn *conn)
{
    struct kvd_conns *conns = conn->conns;
    size_t budget = KVD_TURN_BYTES_MAX;

    while (conn->state != KVD_CONN_GONE && conn->out_head != NULL && budget > 0) {
        size_t bytes;
        struct msghdr message = {.msg_iov = conns->iov};
        ssize_t sent;

        message.msg_iovlen = gather(conn, conns->iov, &bytes);
        sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
            return;
        if (sent < 0) {
            kvd_conn_gone(conn, "the client left before its answers");
            return;
        }
        kvd_metrics_add(conns->options.metrics, KVD_METRIC_BYTES_OUT, (uint64_t)sent);
        advance(conn, (size_t)sent);
        if ((size_t)sent < bytes)
            return;
        budget -= (size_t)sent < budget ? (size_t)sent : budget;
    }
}
