/* A queue in memory shared by two processes: one producer, one consumer, fixed entries, one
 * doorbell.
 *
 * The producer fills entries with kvd_ring_push, which the consumer does not see, and shows all of
 * them at once with kvd_ring_publish. A consumer that finds the ring empty says so with
 * kvd_ring_sleep before it blocks on the doorbell (an eventfd); the producer rings only then, so a
 * consumer at work costs it no system call (the front, which waits in its loop for other things
 * too, counts as asleep always). Indexes come from the other process: a ring that a broken peer
 * wrote over is told by kvd_ring_count, never followed out of bounds. The producer's own place is
 * not in the ring, so a peer cannot move it. */
#ifndef KVD_RING_H
#define KVD_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/core/limits.h"

struct kvd_ring_entry {
    uint64_t job;    /* offset in staging */
    uint64_t cookie; /* the producer's own */
};

/* Producer's and consumer's words on lines of their own, so that neither's writes take the other's
 * line away. */
struct kvd_ring {
    _Alignas(64) _Atomic uint32_t tail; /* producer: entries published so far, mod 2^32 */
    _Alignas(64) _Atomic uint32_t head; /* consumer: entries taken so far */
    _Atomic uint32_t sleeping;          /* consumer: ring the doorbell */
    _Alignas(64) struct kvd_ring_entry entries[KVD_RING_ENTRIES];
};

/* The producer's side, in memory of its own. All zero with a ring that was just reset. */
struct kvd_ring_producer {
    uint32_t filled;    /* entries pushed so far, mod 2^32 */
    uint32_t published; /* of these */
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a lock of one process means nothing to the other");
_Static_assert((KVD_RING_ENTRIES & (KVD_RING_ENTRIES - 1)) == 0, "indexes wrap by a mask");
_Static_assert(KVD_RING_ENTRIES >= KVD_REQUESTS_MAX, "every request may have a job in the ring");

/* Before either side uses it, and again when a dead peer is replaced. asleep: the consumer waits on
 * the doorbell from the start. */
void kvd_ring_reset(struct kvd_ring *ring, bool asleep);

/* False when the ring is full. */
bool kvd_ring_push(struct kvd_ring *ring, struct kvd_ring_producer *producer,
                   struct kvd_ring_entry entry);
/* Shows what was pushed; true when the doorbell must be rung. */
bool kvd_ring_publish(struct kvd_ring *ring, struct kvd_ring_producer *producer);

/* Consumer. Entries to be taken now, 0 to KVD_RING_ENTRIES; -1 when the indexes make no sense. */
int32_t kvd_ring_count(struct kvd_ring *ring);
/* Consumer. False when empty. */
bool kvd_ring_pop(struct kvd_ring *ring, struct kvd_ring_entry *entry);
/* Consumer, before it blocks: true when the ring is empty and the next publish will ring; false:
 * there is something to take, do not block. */
bool kvd_ring_sleep(struct kvd_ring *ring);
/* Consumer, when it woke. */
void kvd_ring_wake(struct kvd_ring *ring);

/* A doorbell: an eventfd, non-blocking. */
int kvd_bell_open(void);      /* -1 when there is none to be had */
void kvd_bell_ring(int bell); /* never blocks */
void kvd_bell_clear(int bell);

#endif
