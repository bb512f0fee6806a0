/* Parts of a GPU's pool that are to read as zero before anything else is done there.
 *
 * The front cannot write to the pool, so the worker is told to by jobs that go into the ring ahead
 * of every later one. What a worker that ended had not done is done by the next. Loop thread. */
#ifndef KVD_WIPES_H
#define KVD_WIPES_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/device.h"

struct kvd_wipes;

/* What puts a job into the ring, as kvd_device_submit. */
typedef kvarn_status (*kvd_wipes_queue)(struct kvd_device *device, struct kvd_job *job,
                                        kvd_job_done done, void *context);

struct kvd_wipes_options {
    struct kvd_device *device; /* for the jobs' staging */
    uint64_t unit_bytes;       /* parts begin and end at multiples of it */
    uint64_t pool_bytes;
    kvd_wipes_queue queue;
    void (*failed)(struct kvd_device *device); /* a worker answered that it did not do it */
};

/* INTERNAL without memory. */
kvarn_status kvd_wipes_open(struct kvd_wipes **wipes, const struct kvd_wipes_options *options);
void kvd_wipes_close(struct kvd_wipes **wipes);

void kvd_wipes_add(struct kvd_wipes *wipes, uint64_t offset, uint64_t bytes);
/* All that was added is in the ring when this gives OK; RETRY: not now. */
kvarn_status kvd_wipes_flush(struct kvd_wipes *wipes);

#endif
