/* The jobs that a worker has: who is to be told when one is done.
 *
 * A fixed table; a job's cookie in the ring is its place in the table and a count, so an entry that
 * a broken worker made up, or a second answer to one job, is told from a real one. Loop thread. */
#ifndef KVD_FLIGHTS_H
#define KVD_FLIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/limits.h"
#include "server/device/device.h"

struct kvd_flight {
    struct kvd_job *job; /* NULL: free */
    kvd_job_done done;
    void *context;
    uint32_t count; /* jobs that had this place */
    int32_t next;   /* free ones */
};

struct kvd_flights {
    struct kvd_flight table[KVD_RING_ENTRIES];
    int32_t first_free;
    uint32_t in_flight;
};

void kvd_flights_init(struct kvd_flights *flights);
/* False when the table is full. */
bool kvd_flights_add(struct kvd_flights *flights, struct kvd_job *job, kvd_job_done done,
                     void *context, uint64_t *cookie);
/* Takes the job out without a call. False for a cookie of no job in flight. */
bool kvd_flights_take(struct kvd_flights *flights, uint64_t cookie, struct kvd_flight *flight);
/* Takes the job out and calls done. False for a cookie of no job in flight. */
bool kvd_flights_end(struct kvd_flights *flights, uint64_t cookie, kvarn_status status);
/* Ends every job that is in flight now. */
void kvd_flights_end_all(struct kvd_flights *flights, kvarn_status status);

#endif
