/* The set of connections: their beginning and end, what wakes them, what is due. */
#include "server/net/conn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/core/log.h"

enum { RETRY_AFTER_US = 100000 };

static void turn_end(void *context);
static void timer_due(void *context);

/* ---- the set */

kvarn_status kvd_conns_open(struct kvd_conns **conns, const struct kvd_conns_options *options)
{
    enum { SLOTS = 2 * KVD_REQUESTS_MAX }; /* refusals of net itself take slots too */
    struct kvd_conns *made = calloc(1, sizeof *made);

    *conns = NULL;
    if (made == NULL)
        return KVARN_INTERNAL;
    made->options = *options;
    if (made->options.connections_max == 0)
        made->options.connections_max = KVD_CONNECTIONS_MAX;
    if (made->options.payload_max_bytes == 0)
        made->options.payload_max_bytes = KVD_PAYLOAD_MAX_BYTES;
    made->slots = calloc(SLOTS, sizeof *made->slots);
    made->scratch = malloc(KVD_PROGRESS_BYTES);
    made->iov = calloc(KVD_REPLY_IOVECS_MAX, sizeof *made->iov);
    if (made->slots == NULL || made->scratch == NULL || made->iov == NULL ||
        kvd_timer_open(&made->timer, options->loop, timer_due, made) != KVARN_OK ||
        kvd_deferred_open(&made->turn_end, options->loop, turn_end, made) != KVARN_OK) {
        kvd_conns_close(&made);
        return KVARN_INTERNAL;
    }
    for (size_t i = SLOTS; i-- > 0;) {
        made->slots[i].next = made->free_slots;
        made->free_slots = &made->slots[i];
    }
    *conns = made;
    return KVARN_OK;
}

static void bury_dead(struct kvd_conns *conns)
{
    struct kvd_conn **at = &conns->dead;

    while (*at != NULL) {
        struct kvd_conn *conn = *at;

        if (conn->ready) { /* still in the list of the next turn */
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        free(conn);
    }
}

void kvd_conns_end(struct kvd_conns *conns)
{
    conns->ended = true;
    while (conns->first != NULL)
        kvd_conn_gone(conns->first, "the daemon ends");
}

void kvd_conns_close(struct kvd_conns **conns)
{
    struct kvd_conns *it = *conns;

    if (it == NULL)
        return;
    assert(it->count == 0 && it->slots_used == 0);
    for (struct kvd_conn *conn = it->dead; conn != NULL; conn = conn->next)
        conn->ready = false;
    bury_dead(it);
    kvd_deferred_close(&it->turn_end);
    kvd_timer_close(&it->timer);
    free(it->slots);
    free(it->scratch);
    free(it->iov);
    free(it);
    *conns = NULL;
}

uint32_t kvd_conns_count(const struct kvd_conns *conns)
{
    return conns->count;
}

uint32_t kvd_conns_open_requests(const struct kvd_conns *conns)
{
    return conns->slots_used;
}

static bool frame_begun(const struct kvd_conn *conn)
{
    const struct kvw_reader *reader = &conn->reader;
    int waiting = 0;

    if (conn->in_flight > 0 || conn->out_head != NULL)
        return true;
    if (conn->state != KVD_CONN_OPEN)
        return false;
    if (conn->held || conn->in_end > conn->in_begin || reader->state != KVW_READ_HEADER ||
        reader->head_fill > 0)
        return true;
    return ioctl(conn->fd, FIONREAD, &waiting) == 0 && waiting > 0;
}

bool kvd_conns_quiet(struct kvd_conns *conns)
{
    bool quiet = conns->slots_used == 0;

    for (struct kvd_conn *conn = conns->first; conn != NULL; conn = conn->next) {
        conn->emptied = conn->emptied || !frame_begun(conn);
        quiet = quiet && conn->emptied;
    }
    return quiet;
}

uint64_t kvd_conns_now(const struct kvd_conns *conns)
{
    return conns->options.now_ns == NULL ? kvd_now_ns()
                                         : conns->options.now_ns(conns->options.context);
}

/* ---- one connection */

static void link_last(struct kvd_conn *conn)
{
    struct kvd_conns *conns = conn->conns;

    conn->next = NULL;
    conn->prev = conns->last;
    if (conns->last != NULL)
        conns->last->next = conn;
    else
        conns->first = conn;
    conns->last = conn;
}

static void unlink_conn(struct kvd_conn *conn)
{
    struct kvd_conns *conns = conn->conns;

    if (conn->prev != NULL)
        conn->prev->next = conn->next;
    else
        conns->first = conn->next;
    if (conn->next != NULL)
        conn->next->prev = conn->prev;
    else
        conns->last = conn->prev;
}

static void watch_again(struct kvd_conn *conn)
{
    unsigned mask = KVD_HANGUP;

    if (conn->state == KVD_CONN_OPEN && conn->stall == KVD_STALL_NONE)
        mask |= KVD_READABLE;
    if (conn->out_head != NULL)
        mask |= KVD_WRITABLE;
    if (mask == conn->mask)
        return;
    conn->mask = mask;
    kvd_watch_set(conn->watch, mask);
}

/* Everything a connection can do now: frames at hand, the socket when it has something, answers. */
static void pump(struct kvd_conn *conn, bool readable)
{
    conn->pumping = true;
    conn->turn_frames = 0;
    conn->turn_bytes = 0;
    if (conn->stall == KVD_STALL_TURN)
        kvd_conn_set_stall(conn, KVD_STALL_NONE);
    for (;;) {
        kvd_conn_take_frames(conn);
        if (readable)
            kvd_conn_read(conn);
        kvd_conn_flush(conn);
        if (conn->state != KVD_CONN_OPEN || conn->stall != KVD_STALL_OWN ||
            !kvd_conn_has_room(conn))
            break;
        kvd_conn_set_stall(conn, KVD_STALL_NONE);
    }
    conn->pumping = false;
    if (conn->state == KVD_CONN_CLOSING && conn->out_head == NULL)
        kvd_conn_gone(conn, "cut off after its last answer");
    if (conn->state == KVD_CONN_GONE)
        return;
    watch_again(conn);
    kvd_conn_set_due(conn);
}

static void on_event(void *context, unsigned events)
{
    struct kvd_conn *conn = context;
    bool reading = conn->state == KVD_CONN_OPEN && conn->stall == KVD_STALL_NONE;

    /* Held back or on its way out, and the client left: nobody reads the answers. */
    if ((events & KVD_HANGUP) != 0 && !reading) {
        kvd_conn_gone(conn, "the client left before its answers");
        return;
    }
    pump(conn, reading && (events & (KVD_READABLE | KVD_HANGUP)) != 0);
}

kvarn_status kvd_conns_adopt(struct kvd_conns *conns, int fd, const struct kvd_identity *identity)
{
    struct kvd_conn *conn;

    if (conns->ended || conns->count >= conns->options.connections_max) {
        kvd_conns_turn_away(conns, fd, "too many connections; try again later");
        return KVARN_RETRY;
    }
    conn = malloc(sizeof *conn);
    if (conn == NULL) {
        kvd_conns_turn_away(conns, fd, "out of memory; try again later");
        return KVARN_RETRY;
    }
    memset(conn, 0, offsetof(struct kvd_conn, in)); /* the buffers cost nothing until used */
    conn->conns = conns;
    conn->fd = fd;
    conn->id = ++conns->last_id;
    conn->identity = *identity;
    kvw_reader_init(&conn->reader, conn->metadata, conns->options.payload_max_bytes);
    if (kvd_watch_open(&conn->watch, conns->options.loop, fd, on_event, conn) != KVARN_OK) {
        close(fd);
        free(conn);
        return KVARN_INTERNAL;
    }
    link_last(conn);
    conns->count++;
    kvd_log(KVD_LOG_DEBUG, "connected", kvd_number("conn", (int64_t)conn->id),
            kvd_text("transport", identity->local ? "unix" : "tcp"),
            kvd_number("tenant", identity->tenant));
    kvd_metrics_add(conns->options.metrics, KVD_METRIC_CONNECTIONS, 1);
    kvd_metrics_add(conns->options.metrics, KVD_METRIC_CONNECTIONS_TOTAL, 1);
    watch_again(conn);
    kvd_conn_set_due(conn);
    return KVARN_OK;
}

void kvd_conns_turn_away(struct kvd_conns *conns, int fd, const char *text)
{
    uint8_t frame[KVD_NOTE_BYTES];
    size_t bytes = kvd_result_frame(frame, sizeof frame, &(struct kvw_header){.op = KVW_HELLO},
                                    KVARN_RETRY, text, RETRY_AFTER_US);

    /* A new socket has room for this; when it has not, the client sees only the end. */
    (void)send(fd, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
    kvd_metrics_add(conns->options.metrics, KVD_METRIC_CONNECTIONS_REFUSED, 1);
    kvd_log(KVD_LOG_WARN, "turned_away", kvd_text("why", text));
}

void kvd_conn_cut(const struct kvd_conn *conn, enum kvd_metric cause, const char *why)
{
    kvd_metrics_add(conn->conns->options.metrics, cause, 1);
    kvd_log(KVD_LOG_INFO, "cut_off", kvd_number("conn", (int64_t)conn->id), kvd_text("why", why));
}

void kvd_conn_gone(struct kvd_conn *conn, const char *why)
{
    struct kvd_conns *conns = conn->conns;

    if (conn->state == KVD_CONN_GONE)
        return;
    conn->state = KVD_CONN_GONE;
    kvd_log(KVD_LOG_DEBUG, "disconnected", kvd_number("conn", (int64_t)conn->id),
            kvd_text("why", why), kvd_number("requests", (int64_t)conn->frames));
    conn->current = NULL;
    conn->out_head = conn->out_tail = NULL;
    kvd_watch_close(&conn->watch);
    close(conn->fd);
    while (conn->slots != NULL)
        kvd_slot_detach(conn->slots);
    kvd_service_conn_gone(conns->options.service, conn->id);
    if (conn->stall == KVD_STALL_SHARED) {
        kvd_conn_set_stall(conn, KVD_STALL_NONE);
        kvd_conns_room_came(conns); /* for who stands behind it */
    }
    unlink_conn(conn);
    conns->count--;
    kvd_metrics_sub(conns->options.metrics, KVD_METRIC_CONNECTIONS, 1);
    conn->next = conns->dead;
    conns->dead = conn;
    kvd_deferred_arm(conns->turn_end);
    if (conns->options.gone != NULL)
        conns->options.gone(conns->options.context);
}

/* ---- what wakes connections */

void kvd_conn_set_stall(struct kvd_conn *conn, enum kvd_stall stall)
{
    struct kvd_conns *conns = conn->conns;

    if (conn->stall == stall)
        return;
    if (conn->stall == KVD_STALL_SHARED)
        conns->short_of_room--;
    conn->stall = stall;
    if (stall != KVD_STALL_SHARED)
        return;
    conns->short_of_room++;
    if (!conns->sharing) {
        unlink_conn(conn);
        link_last(conn);
    }
}

void kvd_conn_wake(struct kvd_conn *conn)
{
    struct kvd_conns *conns = conn->conns;

    if (conn->ready || conn->state == KVD_CONN_GONE ||
        (conn->pumping && conn->stall != KVD_STALL_TURN))
        return;
    conn->ready = true;
    conn->ready_next = NULL;
    if (conns->ready_first == NULL)
        conns->ready_first = conn;
    else
        conns->ready_last->ready_next = conn;
    conns->ready_last = conn;
    kvd_deferred_arm(conns->turn_end);
}

void kvd_conns_room_came(struct kvd_conns *conns)
{
    conns->room_came = true;
    kvd_deferred_arm(conns->turn_end);
}

static void room(void *context)
{
    struct kvd_conns *conns = context;

    conns->room_asked = false;
    kvd_conns_room_came(conns);
}

void kvd_conns_ask_room(struct kvd_conns *conns)
{
    if (conns->room_asked)
        return;
    conns->room_asked = true;
    kvd_service_on_room(conns->options.service, room, conns);
}

/* Those who are held back try again in the order in which they came; the first who still finds no
 * room keeps the others waiting. */
static void share_room(struct kvd_conns *conns)
{
    struct kvd_conn *conn = conns->first, *last = conns->last, *next;

    conns->sharing = true;
    for (; conn != NULL; conn = next) {
        uint64_t frames = conn->frames;

        next = conn == last ? NULL : conn->next;
        if (conn->stall != KVD_STALL_SHARED)
            continue;
        kvd_conn_set_stall(conn, KVD_STALL_NONE);
        pump(conn, false);
        if (conn->state == KVD_CONN_GONE || conn->stall != KVD_STALL_SHARED)
            continue;
        if (conn->frames == frames)
            break;
        unlink_conn(conn); /* it had its turn and wants another */
        link_last(conn);
    }
    conns->sharing = false;
}

static void turn_end(void *context)
{
    struct kvd_conns *conns = context;
    struct kvd_conn *ready = conns->ready_first;

    if (conns->room_came) {
        conns->room_came = false;
        share_room(conns);
        ready = conns->ready_first;
    }
    /* Who becomes ready from here on has the next turn. */
    conns->ready_first = conns->ready_last = NULL;
    while (ready != NULL) {
        struct kvd_conn *conn = ready;

        ready = conn->ready_next;
        conn->ready = false;
        if (conn->state != KVD_CONN_GONE)
            pump(conn, false);
    }
    bury_dead(conns);
}

static void timer_due(void *context)
{
    kvd_conns_tick(context);
}
