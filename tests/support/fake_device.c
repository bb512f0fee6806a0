/* See fake_device.h. Every byte of an extent is poisoned when it is handed out, so that a reply
 * that shows bytes nobody wrote does not pass by luck. */
#include "support/fake_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "server/device/executor.h"
#include "server/device/staging.h"

enum { QUEUE_MAX = 4096 };

struct queued {
    struct kvd_job *job;
    kvd_job_done done;
    void *context;
};

struct kvd_device {
    uint8_t *pool, *staging;
    uint64_t pool_bytes, staging_bytes, zeroed;
    struct kvd_extents *extents;
    struct kvd_executor *executor;
    struct queued queue[QUEUE_MAX];
    uint32_t first, last;
    uint32_t ran[16];
    int64_t lose_after; /* < 0: never */
    uint32_t full_skip, full_count, restarts, wait_ms;
    bool scribble, gpu;
    kvarn_status claim;     /* of the next job, by itself; OK: none */
    kvarn_status get_claim; /* the same of the first entry of the next DECOMPRESS */
    const char *name;
    void (*restarted)(void *context);
    void *restarted_context;
};

struct kvd_device *fake_device_new(uint64_t pool_bytes, uint64_t staging_bytes)
{
    struct kvd_device *device = calloc(1, sizeof *device);
    struct kvd_executor_options options = {.table = &kvk_table_ref, .threads = 1};

    assert(device);
    device->pool = aligned_alloc(4096, pool_bytes);
    device->staging = aligned_alloc(4096, staging_bytes);
    assert(device->pool && device->staging);
    memset(device->pool, 0xA5, pool_bytes);
    device->pool_bytes = pool_bytes;
    device->staging_bytes = staging_bytes;
    device->lose_after = -1;
    device->name = "host";
    options.regions[KVD_REGION_STAGING].base = device->staging;
    options.regions[KVD_REGION_STAGING].bytes = staging_bytes;
    options.regions[KVD_REGION_POOL].base = device->pool;
    options.regions[KVD_REGION_POOL].bytes = pool_bytes;
    assert(kvd_extents_open(&device->extents, staging_bytes, 8192) == KVARN_OK);
    assert(kvd_executor_open(&device->executor, &options) == KVARN_OK);
    return device;
}

void fake_device_free(struct kvd_device *device)
{
    kvd_executor_close(&device->executor);
    kvd_extents_close(&device->extents);
    free(device->pool);
    free(device->staging);
    free(device);
}

void fake_device_be_gpu(struct kvd_device *device, const char *name)
{
    device->gpu = true;
    device->name = name;
}

void fake_device_restarted(struct kvd_device *device)
{
    device->restarted(device->restarted_context);
}

uint8_t *fake_device_memory(struct kvd_device *device)
{
    return device->pool;
}

/* ---- device.h */

const char *kvd_device_name(const struct kvd_device *device)
{
    return device->name;
}

bool kvd_device_is_gpu(const struct kvd_device *device)
{
    return device->gpu;
}

void kvd_device_on_restart(struct kvd_device *device, void (*restarted)(void *context),
                           void *context)
{
    device->restarted = restarted;
    device->restarted_context = context;
}

uint64_t kvd_device_pool_bytes(const struct kvd_device *device)
{
    return device->pool_bytes;
}

uint64_t kvd_device_pool_unit_bytes(const struct kvd_device *device)
{
    (void)device;
    return 0;
}

const char *kvd_device_backend(const struct kvd_device *device)
{
    (void)device;
    return "fake/ref";
}

bool kvd_device_ready(const struct kvd_device *device)
{
    return device->wait_ms == 0;
}

uint32_t kvd_device_wait_ms(const struct kvd_device *device)
{
    return device->wait_ms;
}

uint32_t kvd_device_restarts(const struct kvd_device *device)
{
    return device->restarts;
}

uint8_t *kvd_staging_take(struct kvd_device *device, uint64_t bytes)
{
    uint64_t offset;

    if (!kvd_extents_take(device->extents, bytes, &offset))
        return NULL;
    memset(device->staging + offset, 0xA5, bytes);
    return device->staging + offset;
}

void kvd_staging_give(struct kvd_device *device, uint8_t *extent)
{
    kvd_extents_give(device->extents, (uint64_t)(extent - device->staging));
}

uint64_t kvd_staging_free_bytes(const struct kvd_device *device)
{
    return kvd_extents_largest_bytes(device->extents);
}

uint64_t kvd_staging_capacity_bytes(const struct kvd_device *device)
{
    return device->staging_bytes;
}

struct kvd_place kvd_device_place(const struct kvd_device *device, const void *at)
{
    const uint8_t *byte = at;

    if (byte >= device->staging && byte < device->staging + device->staging_bytes)
        return (struct kvd_place){KVD_REGION_STAGING, 0, (uint64_t)(byte - device->staging)};
    assert(byte >= device->pool && byte < device->pool + device->pool_bytes);
    return (struct kvd_place){KVD_REGION_POOL, 0, (uint64_t)(byte - device->pool)};
}

uint8_t *kvd_device_pool(const struct kvd_device *device)
{
    return device->gpu ? NULL : device->pool;
}

void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes)
{
    assert(offset + bytes <= device->pool_bytes);
    memset(device->pool + offset, 0, bytes);
    device->zeroed += bytes;
}

kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context)
{
    if (device->wait_ms)
        return KVARN_RETRY;
    if (device->full_skip) {
        device->full_skip--;
    } else if (device->full_count) {
        device->full_count--;
        return KVARN_RETRY;
    }
    assert(kvd_device_place(device, job).region == KVD_REGION_STAGING);
    assert(device->last - device->first < QUEUE_MAX);
    device->queue[device->last++ % QUEUE_MAX] = (struct queued){job, done, context};
    return KVARN_OK;
}

/* ---- running */

static kvarn_status run_job(struct kvd_device *device, struct kvd_job *job)
{
    uint64_t offset = (uint64_t)((uint8_t *)job - device->staging);
    kvarn_status status = KVARN_INTERNAL;

    kvd_executor_run(device->executor, &offset, 1, &status);
    if (device->claim != KVARN_OK)
        job->status = device->claim;
    device->claim = KVARN_OK;
    if (device->get_claim != KVARN_OK && job->op == KVD_JOB_DECOMPRESS) {
        ((struct kvd_get *)(void *)(job + 1))->status = device->get_claim;
        device->get_claim = KVARN_OK;
    }
    if (device->scribble) {
        job->count = UINT32_MAX;
        job->job_bytes = UINT64_MAX;
        job->op = 0;
    }
    return status;
}

static void lose_all(struct kvd_device *device)
{
    uint32_t last = device->last;

    device->lose_after = -1;
    device->restarts++;
    while (device->first != last) {
        struct queued next = device->queue[device->first++ % QUEUE_MAX];

        next.done(next.context, next.job, KVARN_GPU_LOST);
    }
}

uint32_t fake_device_run(struct kvd_device *device, uint32_t most)
{
    uint32_t count = 0;

    for (; count < most && device->first != device->last; count++) {
        struct queued next;

        if (device->lose_after == 0) {
            lose_all(device);
            continue;
        }
        if (device->lose_after > 0)
            device->lose_after--;
        next = device->queue[device->first++ % QUEUE_MAX];
        device->ran[0]++;
        device->ran[next.job->op]++;
        next.done(next.context, next.job, run_job(device, next.job));
    }
    return count;
}

uint32_t fake_device_queued(const struct kvd_device *device)
{
    return device->last - device->first;
}

uint32_t fake_device_ran(const struct kvd_device *device, uint32_t op)
{
    return device->ran[op];
}

void fake_device_lose(struct kvd_device *device, uint32_t skip)
{
    device->lose_after = skip;
}

void fake_device_full(struct kvd_device *device, uint32_t skip, uint32_t count)
{
    device->full_skip = skip;
    device->full_count = count;
}

void fake_device_down(struct kvd_device *device, uint32_t wait_ms)
{
    device->wait_ms = wait_ms;
}

void fake_device_claim(struct kvd_device *device, kvarn_status status)
{
    device->claim = status;
}

void fake_device_claim_get(struct kvd_device *device, kvarn_status status)
{
    device->get_claim = status;
}

void fake_device_scribble(struct kvd_device *device)
{
    device->scribble = true;
}

uint64_t fake_device_staging_used(const struct kvd_device *device)
{
    return kvd_extents_used_bytes(device->extents);
}

uint64_t fake_device_zeroed(const struct kvd_device *device)
{
    return device->zeroed;
}
