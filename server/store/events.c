/* A ring per tenant. See events.h. */
#include "server/store/events.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kvd_event_ring {
    uint64_t next; /* number of the next event */
    struct kvw_event_row events[KVD_EVENTS_KEPT];
};

void kvd_events_init(struct kvd_events *events, uint64_t epoch)
{
    memset(events, 0, sizeof *events);
    events->epoch = epoch ? epoch : 1;
}

void kvd_events_free(struct kvd_events *events)
{
    for (uint32_t i = 0; i < KVD_TENANTS_MAX; i++)
        free(events->rings[i]);
    memset(events, 0, sizeof *events);
}

kvarn_status kvd_events_watch(struct kvd_events *events, uint32_t tenant)
{
    assert(tenant < KVD_TENANTS_MAX);
    if (events->rings[tenant])
        return KVARN_OK;
    if (events->count == KVD_EVENT_TENANTS_MAX)
        return KVARN_RETRY;
    events->rings[tenant] = calloc(1, sizeof(struct kvd_event_ring));
    if (!events->rings[tenant])
        return KVARN_RETRY;
    events->rings[tenant]->next = 1;
    events->count++;
    return KVARN_OK;
}

void kvd_events_add(struct kvd_events *events, uint32_t tenant, const struct kvw_event_row *event)
{
    struct kvd_event_ring *ring = events->rings[tenant];
    struct kvw_event_row *at;

    if (!ring)
        return;
    at = &ring->events[ring->next % KVD_EVENTS_KEPT];
    *at = *event;
    at->sequence = ring->next++;
}

uint64_t kvd_events_next(const struct kvd_events *events, uint32_t tenant)
{
    return events->rings[tenant] ? events->rings[tenant]->next : 0;
}

uint32_t kvd_events_read(const struct kvd_events *events, uint32_t tenant, uint64_t from,
                         struct kvw_event_row *out, uint32_t room, bool *lost)
{
    const struct kvd_event_ring *ring = events->rings[tenant];
    uint64_t oldest;
    uint32_t count = 0;

    *lost = true;
    if (!ring)
        return 0;
    oldest = ring->next > KVD_EVENTS_KEPT ? ring->next - KVD_EVENTS_KEPT : 1;
    *lost = from < oldest || from > ring->next;
    if (*lost)
        return 0;
    for (; count < room && from + count < ring->next; count++)
        out[count] = ring->events[(from + count) % KVD_EVENTS_KEPT];
    return count;
}
