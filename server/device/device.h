/* The front's side of one device worker: process, shared memory, ring.
 *
 * Loop thread only. Staging and pool belong to the front: memfds, or for a GPU's pool the
 * descriptors of its chunks, which the first worker made; a worker that dies loses nothing of them.
 * Its jobs in flight come back as GPU_LOST, a new worker maps the same memory. */
#ifndef KVD_DEVICE_H
#define KVD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/job.h"

struct uv_loop_s;
struct kvd_device;

enum { KVD_DEVICE_NAME_MAX = 16 };

struct kvd_device_options {
    const char *worker_path; /* kvarn-worker */
    bool gpu;                /* cuda:NUMBER; else the CPU */
    uint32_t number;
    uint64_t pool_bytes;   /* 0 on a GPU: pool_percent counts */
    uint32_t pool_percent; /* of the GPU memory that is free at the first start */
    uint64_t staging_bytes;
    uint32_t threads;     /* of the worker */
    const char *cpu_mask; /* KVARN_CPU; NULL = none */
    uint32_t stall_ms;    /* a worker that makes no progress for so long is killed; 0 =
                             KVD_WORKER_STALL_MS or, on a GPU, KVD_GPU_STALL_MS */
};

/* Called on the loop for every job, in no promised order, once. status is the ring's: OK (read the
 * job's own fields), GPU_LOST, or INTERNAL (the worker could not make sense of the job; its entries
 * say nothing). */
typedef void (*kvd_job_done)(void *context, struct kvd_job *job, kvarn_status status);

/* Makes the memfds, starts the worker and waits until it says that its self-test passed. *why lives
 * until the next call. UNSUPPORTED: there is no such GPU, or no driver for it. */
kvarn_status kvd_device_open(struct kvd_device **device, struct uv_loop_s *loop,
                             const struct kvd_device_options *options, const char **why);
/* Stops the worker (in order, then by SIGKILL), unmaps and frees; sets *device to NULL. Jobs still
 * in flight are dropped without a call. */
void kvd_device_close(struct kvd_device **device);

/* "host", "cuda:0" */
const char *kvd_device_name(const struct kvd_device *device);
bool kvd_device_is_gpu(const struct kvd_device *device);
/* "cpu/avx512" */
const char *kvd_device_backend(const struct kvd_device *device);
/* What is called when a worker that was started again is ready, before any job goes to it. */
void kvd_device_on_restart(struct kvd_device *device, void (*restarted)(void *context),
                           void *context);
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
uint64_t kvd_device_pool_bytes(const struct kvd_device *device);
/* The pool is made of pieces of this size; 0: of one. */
uint64_t kvd_device_pool_unit_bytes(const struct kvd_device *device);
uint32_t kvd_device_pool_descriptors(const struct kvd_device *device); /* that it keeps open */
/* Base of the pool mapping in the front; NULL: a GPU's pool is not mapped here. */
uint8_t *kvd_device_pool(const struct kvd_device *device);
/* A pool range reads as zero for every job that is queued from now on. Of a host pool the pages go
 * back to the system; a GPU's worker is told to, before any other job goes to it. */
void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes);

/* Queues a job (it stands in a staging extent, all of it; the caller keeps it until done). Jobs
 * queued in one loop turn go to the worker with one doorbell. RETRY when the ring is full or no
 * worker is ready. */
kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context);

#endif
