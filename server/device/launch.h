/* Starting and ending the worker process: which descriptors it inherits, nothing else.
 *
 * The front only. A worker never outlives it: the kernel kills it when the front's thread dies, and
 * the end of its control socket ends it as well. */
#ifndef KVD_LAUNCH_H
#define KVD_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <kvarn/status.h>

struct kvd_launch {
    const char *worker_path;
    const char *cpu_mask; /* NULL = none */
    uint32_t threads;     /* 0 = as many as CPUs */
    uint64_t staging_bytes, pool_bytes;
    bool gpu;
    /* of a GPU: cuda:NUMBER, and the pool's size as pool_bytes or pool_percent, until it is made;
     * then it has pool_chunks of chunk_bytes, whose descriptors are sent to the worker */
    uint32_t number, pool_percent, pool_chunks;
    uint64_t chunk_bytes;
    int staging, pool, rings, jobs_bell,
        done_bell; /* descriptors, borrowed; no pool of a GPU: -1 */
};

/* Gives the process and the front's end of its control socket (non-blocking). */
kvarn_status kvd_launch_start(const struct kvd_launch *launch, pid_t *pid, int *control,
                              const char **why);
/* Waits for the end of a worker whose control socket is closed; kills it after grace_ms. */
void kvd_launch_end(pid_t pid, int grace_ms);

#endif
