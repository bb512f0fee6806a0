/* The pretended daemon behind a listening socket, in a thread of its own: one connection after the
 * other, until stopped. */
#ifndef TEST_FAKE_DAEMON_H
#define TEST_FAKE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>

#include "peer.h"

struct fake_daemon {
    char address[128];  /* for kvarn_connect() */
    char directory[64]; /* "" for TCP */
    int listener, wake[2];
    pthread_t thread;
    _Atomic int fault, hello_fault; /* enum peer_fault */
    _Atomic uint32_t requests;
    _Atomic uint64_t payload_sum; /* of the last request */
    _Atomic int slow;             /* reads and writes 1000 bytes at a time */
};

/* tcp: on a free port of the loopback, else a Unix socket in a fresh directory. */
void fake_daemon_start(struct fake_daemon *daemon, int tcp);
void fake_daemon_stop(struct fake_daemon *daemon);

#endif
