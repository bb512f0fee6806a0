/* What a worker of a GPU holds: the GPU, its kernels, the pool, the staging as the GPU sees it, and
 * an executor over them. */
#ifndef KVD_CUDA_WORKER_H
#define KVD_CUDA_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/link.h"
#include "server/device/region.h"

struct kvd_cuda_worker;

/* A pool that was made before has chunks; else bytes, or percent of the memory free now. */
struct kvd_cuda_worker_options {
    uint32_t device;
    uint32_t pool_percent;
    uint64_t pool_bytes;
    uint32_t pool_chunks;
    uint64_t chunk_bytes;
    const struct kvd_memory *staging; /* borrowed */
    _Atomic uint32_t *progress;
};

/* Tests the GPU, makes or takes over the pool (by the control socket), and fills in the hello:
 * false when that is a refusal. */
bool kvd_cuda_worker_open(struct kvd_cuda_worker **worker,
                          const struct kvd_cuda_worker_options *options,
                          struct kvd_link_hello *hello);
void kvd_cuda_worker_close(struct kvd_cuda_worker **worker);

/* As kvd_executor_run; 0: the GPU is lost, and the log has a line about it. */
uint32_t kvd_cuda_worker_run(struct kvd_cuda_worker *worker, const uint64_t *jobs, uint32_t count,
                             kvarn_status *statuses);

#endif
