/* The front's side of one device worker: process, shared memory, ring.
 *
 * Loop thread only. The staging and pool memfds belong to the front; a worker that dies loses
 * nothing of them. Its jobs in flight come back as GPU_LOST, a new worker maps the same memory. */
#ifndef KVD_DEVICE_H
#define KVD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/job.h"

struct uv_loop_s;
struct kvd_device;

struct kvd_device_options {
    const char *worker_path; /* kvarn-worker */
    uint64_t pool_bytes, staging_bytes;
    uint32_t threads;     /* of the worker */
    const char *cpu_mask; /* KVARN_CPU; NULL = none */
    uint32_t stall_ms;    /* a worker that makes no progress for so long is killed; 0 =
                             KVD_WORKER_STALL_MS */
};

/* Called on the loop for every job, in no promised order, once. status is the ring's: OK (read the
 * job's own fields), GPU_LOST, or INTERNAL (the worker could not make sense of the job; its entries
 * say nothing). */
typedef void (*kvd_job_done)(void *context, struct kvd_job *job, kvarn_status status);

/* Makes the memfds, starts the worker and waits until it says that its self-test passed. */
kvarn_status kvd_device_open(struct kvd_device **device, struct uv_loop_s *loop,
                             const struct kvd_device_options *options, const char **why);
/* Stops the worker (in order, then by SIGKILL), unmaps and frees; sets *device to NULL. Jobs still
 * in flight are dropped without a call. */
void kvd_device_close(struct kvd_device **device);

/* "cpu/avx512" */
const char *kvd_device_backend(const struct kvd_device *device);
bool kvd_device_ready(const struct kvd_device *device);
/* About how long until kvd_device_ready; 0 when it is. */
uint32_t kvd_device_wait_ms(const struct kvd_device *device);
uint32_t kvd_device_restarts(const struct kvd_device *device);

/* Staging: extents of 64-byte alignment. NULL when there is no room now. Zeroed is not promised. */
uint8_t *kvd_staging_take(struct kvd_device *device, uint64_t bytes);
void kvd_staging_give(struct kvd_device *device, uint8_t *extent);
uint64_t kvd_staging_free_bytes(const struct kvd_device *device); /* largest extent to be had now */
uint64_t kvd_staging_capacity_bytes(const struct kvd_device *device);

/* Address in the front <-> place. The pointer must lie in the staging or the pool. */
struct kvd_place kvd_device_place(const struct kvd_device *device, const void *at);
uint8_t *
kvd_device_pool(const struct kvd_device *device); /* base of the pool mapping in the front */
/* Gives the pages of a pool range back to the system; they read as zero afterwards. */
void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes);

/* Queues a job (it stands in a staging extent, all of it; the caller keeps it until done). Jobs
 * queued in one loop turn go to the worker with one doorbell. RETRY when the ring is full or no
 * worker is ready. */
kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context);

#endif
