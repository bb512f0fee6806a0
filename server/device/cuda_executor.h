/* Runs jobs on a GPU: what kvd_executor does on the CPU, with the same contract.
 *
 * Places are checked against the regions, entries become tables for the kernels, like entries of
 * all jobs go into one launch, and the thread waits until the GPU is done. All memory is taken at
 * open. One thread calls. */
#ifndef KVD_CUDA_EXECUTOR_H
#define KVD_CUDA_EXECUTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/cuda_gpu.h"
#include "server/device/cuda_kernels.h"
#include "server/device/job.h"

struct kvd_cuda_executor;

/* What jobs are about. Staging is host memory that the GPU maps, the pool is the GPU's own. */
struct kvd_cuda_regions {
    uint8_t *staging;         /* for us */
    uint64_t staging_address; /* for the GPU */
    uint64_t staging_bytes;
    uint64_t pool_address, pool_bytes;
};

/* False: the GPU's failure says why. */
bool kvd_cuda_executor_open(struct kvd_cuda_executor **executor, struct kvd_gpu *gpu,
                            struct kvd_kernels *kernels);
void kvd_cuda_executor_close(struct kvd_cuda_executor **executor);

/* Before the first job; the self-test uses others than the worker. progress counts what the GPU has
 * done; NULL = nobody asks. */
void kvd_cuda_executor_use(struct kvd_cuda_executor *executor,
                           const struct kvd_cuda_regions *regions, _Atomic uint32_t *progress);

/* As kvd_executor_run; 0: the GPU failed, its failure says how, and nothing was answered. */
uint32_t kvd_cuda_executor_run(struct kvd_cuda_executor *executor, const uint64_t *jobs,
                               uint32_t count, kvarn_status *statuses);

#endif
