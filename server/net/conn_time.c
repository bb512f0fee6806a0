/* What is due, and when: slow headers, payloads that do not move, answers that nobody reads,
 * deadlines. One timer serves them all; it is set only when something really waits. */
#include "server/net/conn.h"

#define NS_PER_MS 1000000ull

/* Time runs for the client only while we wait for it: not while we hold it back. */
static void set_read_due(struct kvd_conn *conn)
{
    const struct kvw_reader *reader = &conn->reader;
    bool payload = reader->state == KVW_READ_PAYLOAD;
    bool begun = payload || reader->state == KVW_READ_METADATA || reader->head_fill > 0;

    if (!(conn->mask & KVD_READABLE) || (!begun && conn->hello)) {
        conn->read_due_ns = 0;
        return;
    }
    if (conn->read_due_ns != 0 && payload == conn->read_payload &&
        (!payload || reader->payload_fill - conn->read_mark < KVD_PROGRESS_BYTES))
        return;
    conn->read_payload = payload;
    conn->read_mark = reader->payload_fill;
    conn->read_due_ns =
        kvd_conns_now(conn->conns) +
        (uint64_t)(payload ? KVD_PAYLOAD_TIMEOUT_MS : KVD_HEADER_TIMEOUT_MS) * NS_PER_MS;
    kvd_conns_arm(conn->conns, conn->read_due_ns);
}

static void set_write_due(struct kvd_conn *conn)
{
    if (conn->out_head == NULL) {
        conn->write_due_ns = 0;
        return;
    }
    if (conn->write_due_ns != 0 && conn->sent_bytes - conn->write_mark < KVD_PROGRESS_BYTES)
        return;
    conn->write_mark = conn->sent_bytes;
    conn->write_due_ns = kvd_conns_now(conn->conns) + (uint64_t)KVD_WRITE_TIMEOUT_MS * NS_PER_MS;
    kvd_conns_arm(conn->conns, conn->write_due_ns);
}

void kvd_conn_set_due(struct kvd_conn *conn)
{
    set_read_due(conn);
    set_write_due(conn);
}

void kvd_conns_arm(struct kvd_conns *conns, uint64_t due_ns)
{
    uint64_t now;

    if (conns->armed_ns != 0 && conns->armed_ns <= due_ns)
        return;
    now = kvd_conns_now(conns);
    conns->armed_ns = due_ns;
    kvd_timer_start(conns->timer, due_ns <= now ? 0 : (due_ns - now) / NS_PER_MS + 1, 0);
}

/* The deadline of a request passed: it is answered now. One that runs keeps its memory, and its
 * place among the unanswered, until the service is done with it. */
static void expire(struct kvd_slot *slot)
{
    struct kvd_conn *conn = slot->conn;

    bool begun = slot->running;

    if (conn->current == slot) {
        kvd_slot_drop_request(slot);
        if (conn->held) { /* its payload is read and thrown away */
            conn->held = false;
            kvd_conn_set_stall(conn, KVD_STALL_NONE);
            kvd_conns_room_came(conn->conns); /* for who stands behind it */
        }
    }
    kvd_slot_note(slot, KVARN_DEADLINE,
                  begun ? "the deadline passed while the call ran; it may have happened"
                        : "the deadline passed before the call could begin; nothing happened");
}

static bool too_slow(struct kvd_conn *conn, uint64_t now)
{
    if (conn->read_due_ns != 0 && now >= conn->read_due_ns)
        kvd_conn_cut(conn, KVD_METRIC_CUT_READ_TIMEOUT, "its request stood still");
    else if (conn->write_due_ns != 0 && now >= conn->write_due_ns)
        kvd_conn_cut(conn, KVD_METRIC_CUT_WRITE_TIMEOUT, "it did not read its answers");
    else
        return false;
    return true;
}

static void soonest(uint64_t *least, uint64_t due)
{
    if (due != 0 && (*least == 0 || due < *least))
        *least = due;
}

void kvd_conns_tick(struct kvd_conns *conns)
{
    uint64_t now = kvd_conns_now(conns), least = 0;
    struct kvd_conn *next;

    for (struct kvd_conn *conn = conns->first; conn != NULL; conn = next) {
        next = conn->next;
        if (too_slow(conn, now)) {
            kvd_conn_gone(conn, "too slow");
            continue;
        }
        soonest(&least, conn->read_due_ns);
        soonest(&least, conn->write_due_ns);
        for (struct kvd_slot *slot = conn->slots; slot != NULL; slot = slot->next) {
            if (slot->answered || slot->deadline_ns == 0)
                continue;
            if (now >= slot->deadline_ns)
                expire(slot);
            else
                soonest(&least, slot->deadline_ns);
        }
    }
    conns->armed_ns = 0;
    if (least != 0)
        kvd_conns_arm(conns, least);
}
