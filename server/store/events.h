/* What happened to blocks, kept for a while for those who ask.
 *
 * Every tenant has numbers of its own, from 1 on, so that the numbers tell nothing about others. A
 * ring is made when a tenant asks for the first time; who never asks costs nothing. What has left
 * the ring is lost, and the reader is told so. Loop thread only. */
#ifndef KVD_EVENTS_H
#define KVD_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "proto/wire.h"
#include "server/core/limits.h"

struct kvd_event_ring;

struct kvd_events {
    uint64_t epoch; /* of this daemon; numbers of another one mean nothing */
    struct kvd_event_ring *rings[KVD_TENANTS_MAX];
    uint32_t count;
};

void kvd_events_init(struct kvd_events *events, uint64_t epoch);
void kvd_events_free(struct kvd_events *events);

/* RETRY when KVD_EVENT_TENANTS_MAX have a ring, or without memory. */
kvarn_status kvd_events_watch(struct kvd_events *events, uint32_t tenant);

void kvd_events_add(struct kvd_events *events, uint32_t tenant, const struct kvw_event_row *event);

/* The number that the tenant's next event will have; 0 when it has no ring. */
uint64_t kvd_events_next(const struct kvd_events *events, uint32_t tenant);

/* Copies at most `room` events from number `from` on. Gives how many; *lost when some of them, or
 * numbers that were never given out, are not there. */
uint32_t kvd_events_read(const struct kvd_events *events, uint32_t tenant, uint64_t from,
                         struct kvw_event_row *out, uint32_t room, bool *lost);

#endif
