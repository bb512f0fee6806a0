/* A connected stream socket: connecting, polling, and moving bytes between it and a session.
 *
 * Nothing blocks except kvarn_transport_open and kvarn_transport_poll, both with a time limit. No
 * threads. The descriptor is non-blocking and close-on-exec. */
#ifndef KVARN_TRANSPORT_H
#define KVARN_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <kvarn/status.h>

#include "client/address.h"
#include "client/session.h"

enum { KVARN_TRANSPORT_WHY_BYTES = 640 };

struct kvarn_transport {
    int fd;      /* -1 = none */
    pid_t child; /* of spawn:, else 0 */
};

/* Borrows both strings. */
struct kvarn_spawn_options {
    const char *kvarnd_path; /* NULL: beside the library, then on PATH */
    const char *pool;
};

/* Nanoseconds of the monotonic clock. */
uint64_t kvarn_now_ns(void);

/* Connects until deadline_ns. PEER_LOST, DEADLINE or a status of spawn, with why filled. */
kvarn_status kvarn_transport_open(struct kvarn_transport *transport,
                                  const struct kvarn_address *address,
                                  const struct kvarn_spawn_options *spawn, uint64_t deadline_ns,
                                  char why[KVARN_TRANSPORT_WHY_BYTES]);
/* Ends the connection and reaps the child, if any. Safe to repeat. */
void kvarn_transport_close(struct kvarn_transport *transport);

/* POLLIN, and POLLOUT while the session has something to send. */
short kvarn_transport_events(const struct kvarn_session *session);
/* Waits until the socket is ready or deadline_ns has passed. False: it has passed. */
bool kvarn_transport_poll(const struct kvarn_transport *transport, short events,
                          uint64_t deadline_ns);
/* Sends and receives what is possible now. A lost connection breaks the session. Returns the
 * session's status. */
kvarn_status kvarn_transport_pump(struct kvarn_transport *transport, struct kvarn_session *session);
/* The sending half alone: what starting a call does. */
kvarn_status kvarn_transport_send(struct kvarn_transport *transport, struct kvarn_session *session);

#endif
