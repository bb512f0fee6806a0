/* A device.h in this process, without a worker: jobs queue until the test runs them, by the
 * worker's executor and the scalar kernels; faults come when the test asks for them. */
#ifndef TEST_FAKE_DEVICE_H
#define TEST_FAKE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/device/device.h"

struct kvd_device *fake_device_new(uint64_t pool_bytes, uint64_t staging_bytes);
/* It says that it is this GPU: its pool is not mapped for the front, and restarts are told. */
void fake_device_be_gpu(struct kvd_device *device, const char *name);
void fake_device_free(struct kvd_device *device);

/* Runs queued jobs, also those queued meanwhile, at most `most`; gives how many it ran. */
uint32_t fake_device_run(struct kvd_device *device, uint32_t most);
uint32_t fake_device_queued(const struct kvd_device *device);
/* Jobs run so far, by operation (0 = all). */
uint32_t fake_device_ran(const struct kvd_device *device, uint32_t op);

/* After `skip` more jobs every queued job comes back as GPU_LOST, once; nothing of them is run. */
void fake_device_lose(struct kvd_device *device, uint32_t skip);
/* A new worker is ready: what a front is told after it lost one. */
void fake_device_restarted(struct kvd_device *device);
/* The pool as the worker sees it, also of a GPU. */
uint8_t *fake_device_memory(struct kvd_device *device);
/* No worker, so every submit is refused; wait_ms until there is one. 0: there is. */
void fake_device_down(struct kvd_device *device, uint32_t wait_ms);
/* The next `count` submits find the ring full. */
void fake_device_full(struct kvd_device *device, uint32_t skip, uint32_t count);
/* The next job that is run says this of itself, whatever became of it. */
void fake_device_claim(struct kvd_device *device, kvarn_status status);
/* The first block of the next DECOMPRESS job is said to have come to this. */
void fake_device_claim_get(struct kvd_device *device, kvarn_status status);
/* From now on jobs come back with other counts and offsets than they had, as from a worker that
 * wrote over them. */
void fake_device_scribble(struct kvd_device *device);

uint64_t fake_device_staging_used(const struct kvd_device *device);
/* Bytes that kvd_device_pool_zero was asked for. */
uint64_t fake_device_zeroed(const struct kvd_device *device);

#endif
