/* A connected stream socket: connecting, polling, and moving bytes between it and a session.
 *
 * Nothing blocks except kvc_transport_open and kvc_transport_poll, both with a time limit. No
 * threads. The descriptor is non-blocking and close-on-exec. */
#ifndef KVC_TRANSPORT_H
#define KVC_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <kvarn/status.h>

#include "client/address.h"
#include "client/session.h"

enum { KVC_TRANSPORT_WHY_BYTES = 640 };

struct kvc_transport {
    int fd;      /* -1 = none */
    pid_t child; /* of spawn:, else 0 */
};

/* Borrows both strings. */
struct kvc_spawn_options {
    const char *kvarnd_path; /* NULL: beside the library, then on PATH */
    const char *pool;
};

/* Nanoseconds of the monotonic clock. */
uint64_t kvc_now_ns(void);

/* Connects until deadline_ns. PEER_LOST, DEADLINE or a status of spawn, with why filled. */
kvarn_status kvc_transport_open(struct kvc_transport *transport, const struct kvc_address *address,
                                const struct kvc_spawn_options *spawn, uint64_t deadline_ns,
                                char why[KVC_TRANSPORT_WHY_BYTES]);
/* Ends the connection and reaps the child, if any. Safe to repeat. */
void kvc_transport_close(struct kvc_transport *transport);

/* POLLIN, and POLLOUT while the session has something to send. */
short kvc_transport_events(const struct kvc_session *session);
/* Waits until the socket is ready or deadline_ns has passed. False: it has passed. */
bool kvc_transport_poll(const struct kvc_transport *transport, short events, uint64_t deadline_ns);
/* Sends and receives what is possible now. A lost connection breaks the session. Returns the
 * session's status. */
kvarn_status kvc_transport_pump(struct kvc_transport *transport, struct kvc_session *session);
/* The sending half alone: what starting a call does. */
kvarn_status kvc_transport_send(struct kvc_transport *transport, struct kvc_session *session);

#endif
