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

struct kvd_worker_options {
    uint64_t staging_bytes, pool_bytes;
    uint32_t threads;     /* 0: as many as CPUs */
    const char *cpu_mask; /* "" = none */
};

/* Works on the descriptors of kvd_link_fd until the front is gone; greets it, or says why not and
 * gives INTERNAL. */
kvarn_status kvd_worker_serve(const struct kvd_worker_options *options);

#endif
