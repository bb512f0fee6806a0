/* Moving bytes: non-blocking sendmsg and recvmsg over the session's parts, and the poll. Connecting
 * is connect.c's. */
#include "client/transport.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/spawn_daemon.h"

enum {
    SEND_PARTS = 64,  /* parts of several calls leave in one sendmsg */
    PUMP_ROUNDS = 64, /* reads of one pump, so that a fast daemon cannot hold the caller for ever */
};

uint64_t kvc_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void kvc_transport_close(struct kvc_transport *transport)
{
    if (transport->fd >= 0) {
        /* A forked child of the application may hold a copy of the descriptor; the daemon must see
         * the end all the same. */
        shutdown(transport->fd, SHUT_RDWR);
        close(transport->fd);
    }
    transport->fd = -1;
    if (transport->child > 0)
        kvc_spawn_reap(transport->child);
    transport->child = 0;
}

short kvc_transport_events(const struct kvc_session *session)
{
    struct iovec part;

    return (short)(POLLIN | (kvc_session_pending(session, &part, 1) > 0 ? POLLOUT : 0));
}

bool kvc_transport_poll(const struct kvc_transport *transport, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = kvc_now_ns();
        struct pollfd ready = {.fd = transport->fd, .events = events};
        struct timespec left = {0, 0};

        if (deadline_ns > now) {
            left.tv_sec = (time_t)((deadline_ns - now) / 1000000000u);
            left.tv_nsec = (long)((deadline_ns - now) % 1000000000u);
        }
        if (left.tv_sec > 86400) /* also keeps "no deadline" inside time_t */
            left = (struct timespec){.tv_sec = 86400};
        int count = ppoll(&ready, 1, &left, NULL);
        if (count > 0)
            return true;
        if (count == 0 && kvc_now_ns() >= deadline_ns)
            return false;
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            return true; /* the next read or write names the fault */
    }
}

static void lost(struct kvc_session *session, const char *what, int error)
{
    char why[256];

    if (error)
        snprintf(why, sizeof why, "the connection to the daemon was lost: %s: %s", what,
                 strerror(error));
    else
        snprintf(why, sizeof why, "the daemon closed the connection");
    kvc_session_break(session, KVARN_PEER_LOST, why);
}

/* EFAULT is no fault of the connection but of the caller's memory, and the call that names it says
 * so. Half of its frame is under way, so the connection ends with it all the same. */
static void bad_memory(struct kvc_session *session, struct kvarn_call *call, const char *what)
{
    char why[256];

    snprintf(why, sizeof why,
             "%s: a pointer in its arguments is wrong (%s); the connection ended with it",
             call ? kvw_op_name(call->op) : "a call", what);
    if (call == session->hello)
        call = NULL;
    kvc_session_break(session, KVARN_PEER_LOST, why);
    if (call)
        call->status = KVARN_INVALID_SHAPE;
}

kvarn_status kvc_transport_send(struct kvc_transport *transport, struct kvc_session *session)
{
    struct iovec parts[SEND_PARTS];
    size_t count;

    while ((count = kvc_session_pending(session, parts, SEND_PARTS)) > 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t sent = sendmsg(transport->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            kvc_session_sent(session, (size_t)sent);
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        /* What the daemon said before it closed may still be unread (a refusal, say), so the end
         * is left for the reader to find. */
        if (errno == EFAULT)
            bad_memory(session, session->queue, "input that cannot be read");
        else if (errno != EPIPE && errno != ECONNRESET)
            lost(session, "send", errno);
        break;
    }
    return session->status;
}

/* One read into the session. False: there is nothing more for now. */
static bool receive_once(struct kvc_transport *transport, struct kvc_session *session)
{
    struct iovec parts[KVC_CALL_PLACES_MAX + 1];
    size_t wanted = 0, count = kvc_session_want(session, parts, KVC_CALL_PLACES_MAX + 1);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};

    if (count == 0)
        return false;
    for (size_t i = 0; i < count; i++)
        wanted += parts[i].iov_len;
    /* No control buffer: descriptors that a peer might pass are closed by the kernel. */
    ssize_t got = recvmsg(transport->fd, &message, MSG_DONTWAIT);
    if (got > 0) {
        kvc_session_received(session, (size_t)got);
        return (size_t)got == wanted; /* a short read has emptied the socket */
    }
    if (got == 0)
        lost(session, "end", 0);
    else if (errno == EINTR)
        return true;
    else if (errno == EFAULT)
        bad_memory(session, session->receiving, "output that cannot be written");
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        lost(session, "receive", errno);
    return false;
}

kvarn_status kvc_transport_pump(struct kvc_transport *transport, struct kvc_session *session)
{
    kvc_transport_send(transport, session);
    for (int i = 0; i < PUMP_ROUNDS && receive_once(transport, session); i++)
        continue;
    /* A daemon that broke the protocol should see the end now, not when the client is closed. */
    if (session->state == KVC_SESSION_BROKEN)
        shutdown(transport->fd, SHUT_RDWR);
    return session->status;
}
