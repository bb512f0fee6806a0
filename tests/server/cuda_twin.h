/* The CUDA executor over the stand-in driver (or the one that KVARN_CUDA_DRIVER names), beside the
 * CPU executor of an exec_fixture: the same jobs at the same places, so that what both leave in
 * staging can be compared byte by byte. */
#ifndef KVARN_TEST_CUDA_TWIN_H
#define KVARN_TEST_CUDA_TWIN_H

#include <stdbool.h>
#include <stdint.h>

#include "server/device/cuda_executor.h"
#include "server/exec_fixture.h"

struct cuda_twin {
    struct exec_fixture *f;
    struct kvd_gpu gpu;
    struct kvd_kernels *kernels;
    struct kvd_cuda_executor *executor;
    struct kvd_cuda_regions regions;
    _Atomic uint32_t progress;
};

/* Fails the test when the GPU does not open. */
struct cuda_twin *twin_open(uint64_t seed);
void twin_close(struct cuda_twin *t);

/* Runs the jobs, which are in the fixture's staging, on the GPU alone: its answers come into the
 * fixture's staging. Jobs run as they do in a worker: again for the rest, until all have. */
void twin_run_cuda(struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count,
                   kvarn_status *statuses);
/* On both; fails the test unless both leave the same bytes in staging, times apart. */
void twin_run_both(struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count);

#endif
