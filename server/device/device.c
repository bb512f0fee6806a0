/* Shared memory, rings and the table of jobs in flight around one worker process. While no worker
 * is ready a submit is answered RETRY. When one is gone, the answers it left in the ring are taken
 * and all other jobs in flight end as GPU_LOST; both rings start anew with the next worker. */
#include "server/device/device.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/device/flights.h"
#include "server/device/link.h"
#include "server/device/process.h"
#include "server/device/region.h"
#include "server/device/staging.h"

enum { PAGE_BYTES = 4096 };

struct kvd_device {
    struct uv_loop_s *loop;
    struct kvd_memory staging, pool, ring_memory;
    struct kvd_link_rings *rings;
    struct kvd_ring_producer jobs;
    int jobs_bell, done_bell;
    struct kvd_extents *extents;
    struct kvd_flights flights;
    struct kvd_watch *done_watch;
    struct kvd_deferred *flush;
    struct kvd_process *process;
    struct kvd_timer *stall; /* runs while jobs are in flight */
    uint64_t stall_ms;
    uint64_t ended, ended_before; /* jobs; before: when the timer was started */
    uint32_t progress_before;     /* the worker's word, then */
    bool watched;
    bool distrusted; /* the worker wrote nonsense: nothing goes to it or is taken from it */
};

static bool serving(const struct kvd_device *device)
{
    return kvd_process_ready(device->process) && !device->distrusted;
}

/* ---- jobs ---- */

/* A ring that makes no sense was written by a worker gone wild: the front believes nothing more of
 * it. Its jobs end when it has. */
static void distrust(struct kvd_device *device, const char *ring)
{
    kvd_log(KVD_LOG_ERROR, "worker_ring_broken", kvd_text("ring", ring),
            kvd_number("jobs_in_flight", device->flights.in_flight));
    device->distrusted = true;
    kvd_process_kill(device->process);
}

/* Takes the answers there are. */
static void take_done(struct kvd_device *device)
{
    struct kvd_ring *done = &device->rings->done;
    struct kvd_ring_entry entry;

    for (uint32_t taken = 0; taken < KVD_RING_ENTRIES; taken++) {
        int32_t count = kvd_ring_count(done);
        if (count == 0)
            return;
        bool sane = count > 0 && kvd_ring_pop(done, &entry) &&
                    kvd_flights_end(&device->flights, entry.cookie,
                                    entry.job == KVD_LINK_REFUSED ? KVARN_INTERNAL : KVARN_OK);
        device->ended++;
        if (!sane) {
            distrust(device, "done");
            return;
        }
    }
    kvd_bell_ring(device->done_bell); /* others of the loop first, the rest in the next turn */
}

static void on_done(void *context, unsigned events)
{
    struct kvd_device *device = context;

    (void)events;
    kvd_bell_clear(device->done_bell);
    if (serving(device))
        take_done(device);
}

static void on_flush(void *context)
{
    struct kvd_device *device = context;

    if (serving(device) && kvd_ring_publish(&device->rings->jobs, &device->jobs))
        kvd_bell_ring(device->jobs_bell);
}

static uint32_t progress(const struct kvd_device *device)
{
    return atomic_load_explicit(&device->rings->progress, memory_order_relaxed);
}

static void watch_for_stall(struct kvd_device *device)
{
    device->watched = true;
    device->ended_before = device->ended;
    device->progress_before = progress(device);
    kvd_timer_start(device->stall, device->stall_ms, 0);
}

static void on_stall(void *context)
{
    struct kvd_device *device = context;

    device->watched = false;
    if (device->flights.in_flight == 0)
        return;
    if (device->ended == device->ended_before && progress(device) == device->progress_before) {
        kvd_log(KVD_LOG_ERROR, "worker_stalled",
                kvd_number("jobs_in_flight", device->flights.in_flight));
        kvd_process_kill(device->process);
    }
    watch_for_stall(device);
}

static void on_worker_starts(void *context)
{
    struct kvd_device *device = context;

    kvd_ring_reset(&device->rings->jobs, true);
    kvd_ring_reset(&device->rings->done, true);
    device->jobs = (struct kvd_ring_producer){0};
    device->distrusted = false;
    kvd_bell_clear(device->jobs_bell);
    kvd_bell_clear(device->done_bell);
}

static void on_worker_ended(void *context)
{
    struct kvd_device *device = context;

    /* The watch was over the jobs of this worker; the next one begins with none. */
    kvd_timer_stop(device->stall);
    device->watched = false;
    if (!device->distrusted)
        take_done(device);
    kvd_flights_end_all(&device->flights, KVARN_GPU_LOST);
}

kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context)
{
    struct kvd_place place = kvd_device_place(device, job);
    struct kvd_ring_entry entry = {.job = place.offset};

    assert(place.region == KVD_REGION_STAGING);
    if (!serving(device) || !kvd_flights_add(&device->flights, job, done, context, &entry.cookie))
        return KVARN_RETRY;
    if (!kvd_ring_push(&device->rings->jobs, &device->jobs, entry)) {
        /* The ring has as many places as the table: the worker wrote over its index. */
        struct kvd_flight unsent;
        kvd_flights_take(&device->flights, entry.cookie, &unsent);
        distrust(device, "jobs");
        return KVARN_RETRY;
    }
    kvd_deferred_arm(device->flush);
    if (!device->watched)
        watch_for_stall(device);
    return KVARN_OK;
}

/* ---- opening and closing ---- */

static kvarn_status open_memory(struct kvd_device *device, const struct kvd_device_options *options)
{
    uint64_t page = PAGE_BYTES;
    kvarn_status status = kvd_memory_open(&device->staging, "kvarn-staging",
                                          (options->staging_bytes + page - 1) / page * page);

    if (status == KVARN_OK)
        status = kvd_memory_open(&device->pool, "kvarn-pool",
                                 (options->pool_bytes + page - 1) / page * page);
    if (status == KVARN_OK)
        status = kvd_memory_open(&device->ring_memory, "kvarn-rings", KVD_LINK_RINGS_BYTES);
    if (status == KVARN_OK)
        device->rings = (struct kvd_link_rings *)(void *)device->ring_memory.base;
    if (status == KVARN_OK)
        status = kvd_extents_open(&device->extents, device->staging.bytes, KVD_EXTENTS_MAX);
    return status;
}

static kvarn_status open_watches(struct kvd_device *device)
{
    kvarn_status status =
        kvd_watch_open(&device->done_watch, device->loop, device->done_bell, on_done, device);

    if (status == KVARN_OK)
        status = kvd_timer_open(&device->stall, device->loop, on_stall, device);
    if (status == KVARN_OK)
        status = kvd_deferred_open(&device->flush, device->loop, on_flush, device);
    if (status == KVARN_OK)
        kvd_watch_set(device->done_watch, KVD_READABLE);
    return status;
}

static kvarn_status open_process(struct kvd_device *device,
                                 const struct kvd_device_options *options, const char **why)
{
    const struct kvd_process_options process = {
        .loop = device->loop,
        .launch = {.worker_path = options->worker_path,
                   .cpu_mask = options->cpu_mask,
                   .threads = options->threads,
                   .staging_bytes = device->staging.bytes,
                   .pool_bytes = device->pool.bytes,
                   .staging = device->staging.fd,
                   .pool = device->pool.fd,
                   .rings = device->ring_memory.fd,
                   .jobs_bell = device->jobs_bell,
                   .done_bell = device->done_bell},
        .starts = on_worker_starts,
        .ended = on_worker_ended,
        .context = device,
    };

    return kvd_process_open(&device->process, &process, why);
}

kvarn_status kvd_device_open(struct kvd_device **device, struct uv_loop_s *loop,
                             const struct kvd_device_options *options, const char **why)
{
    struct kvd_device *made = calloc(1, sizeof(*made));

    *why = "not enough memory for staging and pool";
    if (made == NULL)
        return KVARN_INTERNAL;
    made->loop = loop;
    made->stall_ms = options->stall_ms != 0 ? options->stall_ms : KVD_WORKER_STALL_MS;
    made->staging.fd = made->pool.fd = made->ring_memory.fd = -1;
    made->jobs_bell = kvd_bell_open();
    made->done_bell = kvd_bell_open();
    kvd_flights_init(&made->flights);

    kvarn_status status = open_memory(made, options);
    if (status == KVARN_OK) {
        *why = "no descriptors left for the device";
        status = open_watches(made);
    }
    if (status == KVARN_OK)
        status = open_process(made, options, why);
    if (status != KVARN_OK) {
        kvd_device_close(&made);
        return status;
    }
    *device = made;
    return KVARN_OK;
}

void kvd_device_close(struct kvd_device **device)
{
    struct kvd_device *closing = *device;

    if (closing == NULL)
        return;
    kvd_process_close(&closing->process);
    kvd_watch_close(&closing->done_watch);
    kvd_timer_close(&closing->stall);
    kvd_deferred_close(&closing->flush);
    if (closing->jobs_bell >= 0)
        close(closing->jobs_bell);
    if (closing->done_bell >= 0)
        close(closing->done_bell);
    kvd_extents_close(&closing->extents);
    kvd_memory_close(&closing->ring_memory);
    kvd_memory_close(&closing->pool);
    kvd_memory_close(&closing->staging);
    free(closing);
    *device = NULL;
}

const char *kvd_device_backend(const struct kvd_device *device)
{
    return kvd_process_hello(device->process)->backend;
}

bool kvd_device_ready(const struct kvd_device *device)
{
    return serving(device);
}

uint32_t kvd_device_wait_ms(const struct kvd_device *device)
{
    return device->distrusted && kvd_process_ready(device->process)
               ? KVD_WORKER_START_MS
               : kvd_process_wait_ms(device->process);
}

uint32_t kvd_device_restarts(const struct kvd_device *device)
{
    return kvd_process_restarts(device->process);
}

/* ---- memory ---- */

uint8_t *kvd_staging_take(struct kvd_device *device, uint64_t bytes)
{
    uint64_t offset;

    return kvd_extents_take(device->extents, bytes, &offset) ? device->staging.base + offset : NULL;
}

void kvd_staging_give(struct kvd_device *device, uint8_t *extent)
{
    kvd_extents_give(device->extents, (uint64_t)(extent - device->staging.base));
}

uint64_t kvd_staging_free_bytes(const struct kvd_device *device)
{
    return kvd_extents_largest_bytes(device->extents);
}

uint64_t kvd_staging_capacity_bytes(const struct kvd_device *device)
{
    return device->staging.bytes;
}

struct kvd_place kvd_device_place(const struct kvd_device *device, const void *at)
{
    uintptr_t address = (uintptr_t)at;
    uintptr_t staging = (uintptr_t)device->staging.base, pool = (uintptr_t)device->pool.base;

    if (address >= staging && address - staging < device->staging.bytes)
        return (struct kvd_place){.region = KVD_REGION_STAGING, .offset = address - staging};
    assert(address >= pool && address - pool < device->pool.bytes);
    return (struct kvd_place){.region = KVD_REGION_POOL, .offset = address - pool};
}

uint8_t *kvd_device_pool(const struct kvd_device *device)
{
    return device->pool.base;
}

void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes)
{
    kvd_memory_zero(&device->pool, offset, bytes);
}
