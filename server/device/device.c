/* Shared memory, rings and the table of jobs in flight around one worker process. While no worker
 * is ready a submit is answered RETRY. When one is gone, the answers it left in the ring are taken
 * and all other jobs in flight end as GPU_LOST; both rings start anew with the next worker. */
#include "server/device/device_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/core/log.h"

enum { PAGE_BYTES = 4096 };

static bool serving(const struct kvd_device *device)
{
    return kvd_process_ready(device->process) && !device->distrusted;
}

/* ---- jobs ---- */

/* A ring that makes no sense was written by a worker gone wild: the front believes nothing more of
 * it. Its jobs end when it has. */
static void distrust(struct kvd_device *device, const char *ring)
{
    kvd_log(KVD_LOG_ERROR, "worker_ring_broken", kvd_text("device", device->name),
            kvd_text("ring", ring), kvd_number("jobs_in_flight", device->flights.in_flight));
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
        if (device->distrusted) /* by what this job answered */
            return;
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

    if (serving(device) && device->wipes != NULL)
        (void)kvd_wipes_flush(device->wipes); /* else before the next job */
    if (serving(device) && kvd_ring_publish(&device->rings->jobs, &device->jobs))
        kvd_bell_ring(device->jobs_bell);
}

static bool busy(void *context)
{
    const struct kvd_device *device = context;

    return device->flights.in_flight > 0;
}

/* Jobs that ended, and the worker's own word. */
static uint64_t moved(void *context)
{
    const struct kvd_device *device = context;

    return device->ended << 32 |
           atomic_load_explicit(&device->rings->progress, memory_order_relaxed);
}

static void on_stall(void *context)
{
    struct kvd_device *device = context;

    kvd_log(KVD_LOG_ERROR, "worker_stalled", kvd_text("device", device->name),
            kvd_number("jobs_in_flight", device->flights.in_flight));
    kvd_process_kill(device->process);
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

static void on_worker_ready(void *context)
{
    struct kvd_device *device = context;

    kvd_deferred_arm(device->flush); /* zeros that were asked for meanwhile or were lost */
    if (device->restarted != NULL)
        device->restarted(device->restarted_context);
}

static void on_worker_ended(void *context)
{
    struct kvd_device *device = context;

    /* The watch was over the jobs of this worker; the next one begins with none. */
    kvd_stall_rest(device->stall);
    if (!device->distrusted)
        take_done(device);
    kvd_flights_end_all(&device->flights, KVARN_GPU_LOST);
}

static kvarn_status queue(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
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
    kvd_stall_watch(device->stall);
    return KVARN_OK;
}

kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context)
{
    if (!serving(device) || (device->wipes != NULL && kvd_wipes_flush(device->wipes) != KVARN_OK))
        return KVARN_RETRY;
    return queue(device, job, done, context);
}

/* A worker that does not do what it must: all that it answers from now on counts as lost. */
static void on_wipe_failed(struct kvd_device *device)
{
    kvd_log(KVD_LOG_ERROR, "pool_not_zeroed", kvd_text("device", device->name));
    device->distrusted = true;
    kvd_process_kill(device->process);
}

/* ---- opening and closing ---- */

static kvarn_status open_memory(struct kvd_device *device, const struct kvd_device_options *options)
{
    uint64_t page = PAGE_BYTES;
    kvarn_status status = kvd_memory_open(&device->staging, "kvarn-staging",
                                          (options->staging_bytes + page - 1) / page * page);

    if (status == KVARN_OK && !device->gpu)
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

static kvarn_status open_watches(struct kvd_device *device,
                                 const struct kvd_device_options *options)
{
    const struct kvd_stall_options stall = {.loop = device->loop,
                                            .stall_ms = options->stall_ms != 0 ? options->stall_ms
                                                        : options->gpu         ? KVD_GPU_STALL_MS
                                                                       : KVD_WORKER_STALL_MS,
                                            .busy = busy,
                                            .moved = moved,
                                            .stalled = on_stall,
                                            .context = device};
    kvarn_status status =
        kvd_watch_open(&device->done_watch, device->loop, device->done_bell, on_done, device);

    if (status == KVARN_OK)
        status = kvd_stall_open(&device->stall, &stall);
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
        .name = device->name,
        .gpu_pool = device->gpu ? &device->gpu_pool : NULL,
        .launch = {.worker_path = options->worker_path,
                   .cpu_mask = options->cpu_mask,
                   .threads = options->threads,
                   .staging_bytes = device->staging.bytes,
                   .pool_bytes = device->gpu ? options->pool_bytes : device->pool.bytes,
                   .gpu = device->gpu,
                   .number = options->number,
                   .pool_percent = options->pool_percent,
                   .staging = device->staging.fd,
                   .pool = device->pool.fd,
                   .rings = device->ring_memory.fd,
                   .jobs_bell = device->jobs_bell,
                   .done_bell = device->done_bell},
        .starts = on_worker_starts,
        .ready = on_worker_ready,
        .ended = on_worker_ended,
        .context = device,
    };

    return kvd_process_open(&device->process, &process, why);
}

static kvarn_status open_wipes(struct kvd_device *device)
{
    const struct kvd_wipes_options options = {.device = device,
                                              .unit_bytes = device->gpu_pool.chunk_bytes,
                                              .pool_bytes = kvd_device_pool_bytes(device),
                                              .queue = queue,
                                              .failed = on_wipe_failed};

    return device->gpu ? kvd_wipes_open(&device->wipes, &options) : KVARN_OK;
}

kvarn_status kvd_device_open(struct kvd_device **device, struct uv_loop_s *loop,
                             const struct kvd_device_options *options, const char **why)
{
    struct kvd_device *made = calloc(1, sizeof(*made));

    *why = "not enough memory for staging and pool";
    if (made == NULL)
        return KVARN_INTERNAL;
    made->loop = loop;
    made->gpu = options->gpu;
    if (options->gpu)
        snprintf(made->name, sizeof(made->name), "cuda:%u", options->number);
    else
        snprintf(made->name, sizeof(made->name), "host");
    made->staging.fd = made->pool.fd = made->ring_memory.fd = -1;
    made->jobs_bell = kvd_bell_open();
    made->done_bell = kvd_bell_open();
    kvd_flights_init(&made->flights);

    errno = 0;
    kvarn_status status = open_memory(made, options);
    if (status == KVARN_OK || errno == EMFILE || errno == ENFILE)
        *why = "no descriptors left for the device";
    if (status == KVARN_OK)
        status = open_watches(made, options);
    if (status == KVARN_OK)
        status = open_process(made, options, why);
    if (status == KVARN_OK && open_wipes(made) != KVARN_OK) {
        *why = "not enough memory";
        status = KVARN_INTERNAL;
    }
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
    kvd_stall_close(&closing->stall);
    kvd_deferred_close(&closing->flush);
    if (closing->jobs_bell >= 0)
        close(closing->jobs_bell);
    if (closing->done_bell >= 0)
        close(closing->done_bell);
    kvd_wipes_close(&closing->wipes);
    kvd_gpu_pool_close(&closing->gpu_pool);
    kvd_extents_close(&closing->extents);
    kvd_memory_close(&closing->ring_memory);
    kvd_memory_close(&closing->pool);
    kvd_memory_close(&closing->staging);
    free(closing);
    *device = NULL;
}

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
