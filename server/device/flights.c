/* Cookie: place in the low half, count in the high half. */
#include "server/device/flights.h"

enum { NONE = -1 };

void kvd_flights_init(struct kvd_flights *flights)
{
    *flights = (struct kvd_flights){.first_free = 0};
    for (int32_t i = 0; i < KVD_RING_ENTRIES; i++)
        flights->table[i].next = i + 1 < KVD_RING_ENTRIES ? i + 1 : NONE;
}

bool kvd_flights_add(struct kvd_flights *flights, struct kvd_job *job, kvd_job_done done,
                     void *context, uint64_t *cookie)
{
    int32_t at = flights->first_free;

    if (at == NONE)
        return false;
    struct kvd_flight *flight = &flights->table[at];
    flights->first_free = flight->next;
    flights->in_flight++;
    flight->job = job;
    flight->done = done;
    flight->context = context;
    flight->count++;
    *cookie = (uint64_t)flight->count << 32 | (uint32_t)at;
    return true;
}

bool kvd_flights_take(struct kvd_flights *flights, uint64_t cookie, struct kvd_flight *flight)
{
    uint32_t at = (uint32_t)cookie;

    if (at >= KVD_RING_ENTRIES || flights->table[at].job == NULL ||
        flights->table[at].count != (uint32_t)(cookie >> 32))
        return false;
    *flight = flights->table[at];
    flights->table[at].job = NULL;
    flights->table[at].next = flights->first_free;
    flights->first_free = (int32_t)at;
    flights->in_flight--;
    return true;
}

bool kvd_flights_end(struct kvd_flights *flights, uint64_t cookie, kvarn_status status)
{
    struct kvd_flight flight;

    if (!kvd_flights_take(flights, cookie, &flight))
        return false;
    flight.done(flight.context, flight.job, status);
    return true;
}

void kvd_flights_end_all(struct kvd_flights *flights, kvarn_status status)
{
    for (uint32_t at = 0; at < KVD_RING_ENTRIES; at++)
        if (flights->table[at].job != NULL)
            kvd_flights_end(flights, (uint64_t)flights->table[at].count << 32 | at, status);
}
