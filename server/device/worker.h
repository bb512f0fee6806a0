/* The worker's loop: jobs out of the ring, through the executor, answers back.
 *
 * All of a ring is drained at once, so that like jobs of many requests run together, and each group
 * of like jobs is answered with one wake-up. Ends when the front's end of the control socket is
 * closed. */
#ifndef KVD_WORKER_H
#define KVD_WORKER_H

#include <stdint.h>

#include <kvarn/status.h>

#include "kernels/kernels.h"

enum { KVD_WORKER_CPU = -1 };

struct kvd_worker_options {
    uint64_t staging_bytes, pool_bytes;
    int32_t device;       /* KVD_WORKER_CPU, or number of a GPU */
    uint32_t threads;     /* CPU. 0: as many as CPUs */
    const char *cpu_mask; /* CPU. "" = none */
    /* GPU: of a pool that was made before; else pool_bytes, or percent of the memory free now */
    uint32_t pool_chunks;
    uint64_t chunk_bytes;
    uint32_t pool_percent;
};

/* Works on the descriptors of kvd_link_fd until the front is gone; greets it, or says why not and
 * gives INTERNAL. GPU_LOST: the device failed under a job; the process must end without another
 * word to it. */
kvarn_status kvd_worker_serve(const struct kvd_worker_options *options);

#endif
