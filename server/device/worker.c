/* Waiting is done in two steps: a look at the ring for a few microseconds, since a batch is often
 * followed by the next, then poll on the doorbell and the control socket. With one CPU the look
 * would only keep the front from running. */
#include "server/device/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

#include "server/core/clock.h"
#include "server/core/log.h"
#include "server/device/cuda_worker.h"
#include "server/device/executor.h"
#include "server/device/job.h"
#include "server/device/link.h"
#include "server/device/region.h"
#include "server/device/team.h"

enum { LOOK_NS = 5000 };

struct worker {
    struct kvd_memory staging, pool, ring_memory;
    struct kvd_link_rings *rings;
    struct kvd_ring_producer done;
    struct kvd_executor *executor; /* one of the two */
    struct kvd_cuda_worker *cuda;
    bool look;
    /* of one drain */
    struct kvd_ring_entry entries[KVD_RING_ENTRIES];
    uint64_t jobs[KVD_RING_ENTRIES];
    kvarn_status statuses[KVD_RING_ENTRIES];
};

static void say_skipped(const char *line)
{
    kvd_log(KVD_LOG_WARN, "kernels_skipped", kvd_text("why", line));
}

static uint32_t open_memory(struct worker *worker, const struct kvd_worker_options *options)
{
    if (kvd_memory_attach(&worker->staging, KVD_LINK_STAGING, options->staging_bytes) != KVARN_OK ||
        (options->device == KVD_WORKER_CPU &&
         kvd_memory_attach(&worker->pool, KVD_LINK_POOL, options->pool_bytes) != KVARN_OK) ||
        kvd_memory_attach(&worker->ring_memory, KVD_LINK_RINGS, KVD_LINK_RINGS_BYTES) != KVARN_OK)
        return KVD_LINK_BAD_MEMORY;
    worker->rings = (struct kvd_link_rings *)(void *)worker->ring_memory.base;
    return KVD_LINK_READY;
}

static uint32_t open_executor(struct worker *worker, const struct kvd_worker_options *options,
                              struct kvd_link_hello *hello)
{
    const struct kvk_table *table = kvk_cpu_best(options->cpu_mask, say_skipped);

    if (table == NULL)
        return KVD_LINK_BAD_CPU;
    const struct kvd_executor_options wanted = {
        .table = table,
        .threads = options->threads,
        .progress = &worker->rings->progress,
        .regions = {[KVD_REGION_STAGING] = {worker->staging.base, worker->staging.bytes},
                    [KVD_REGION_POOL] = {worker->pool.base, worker->pool.bytes}}};
    if (kvd_executor_open(&worker->executor, &wanted) != KVARN_OK)
        return KVD_LINK_NO_THREADS;
    hello->threads = kvd_executor_threads(worker->executor);
    snprintf(hello->backend, sizeof(hello->backend), "cpu/%s", table->name);
    return KVD_LINK_READY;
}

static uint32_t open_cuda(struct worker *worker, const struct kvd_worker_options *options,
                          struct kvd_link_hello *hello)
{
    const struct kvd_cuda_worker_options wanted = {.device = (uint32_t)options->device,
                                                   .pool_percent = options->pool_percent,
                                                   .pool_bytes = options->pool_bytes,
                                                   .pool_chunks = options->pool_chunks,
                                                   .chunk_bytes = options->chunk_bytes,
                                                   .staging = &worker->staging,
                                                   .progress = &worker->rings->progress};

    kvd_cuda_worker_open(&worker->cuda, &wanted, hello);
    return hello->refusal;
}

/* False: the front is gone. */
static bool wait_for_jobs(struct worker *worker)
{
    struct kvd_ring *jobs = &worker->rings->jobs;

    if (worker->look)
        for (uint64_t until = kvd_now_ns() + LOOK_NS; kvd_now_ns() < until; kvd_cpu_pause())
            if (kvd_ring_count(jobs) != 0)
                return true;
    if (!kvd_ring_sleep(jobs))
        return true;
    struct pollfd wait[2] = {{.fd = KVD_LINK_JOBS_BELL, .events = POLLIN},
                             {.fd = KVD_LINK_CONTROL, .events = POLLIN}};
    while (poll(wait, 2, -1) < 0)
        if (errno != EINTR) /* a signal leaves everything as it was; else we cannot wait */
            return false;
    kvd_ring_wake(jobs);
    kvd_bell_clear(KVD_LINK_JOBS_BELL);
    return wait[1].revents == 0;
}

static uint32_t drain(struct worker *worker)
{
    uint32_t count = 0;

    while (count < KVD_RING_ENTRIES &&
           kvd_ring_pop(&worker->rings->jobs, &worker->entries[count])) {
        worker->jobs[count] = worker->entries[count].job;
        count++;
    }
    return count;
}

/* Jobs [first, first + count) of the drain. False: there is no room, though there are as many
 * places as the front has jobs in flight. */
static bool answer(struct worker *worker, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        struct kvd_ring_entry entry = worker->entries[i];
        if (worker->statuses[i] != KVARN_OK)
            entry.job = KVD_LINK_REFUSED;
        if (!kvd_ring_push(&worker->rings->done, &worker->done, entry))
            return false;
    }
    if (kvd_ring_publish(&worker->rings->done, &worker->done))
        kvd_bell_ring(KVD_LINK_DONE_BELL);
    return true;
}

static uint32_t run(struct worker *worker, uint32_t first, uint32_t count)
{
    return worker->cuda != NULL ? kvd_cuda_worker_run(worker->cuda, worker->jobs + first, count,
                                                      worker->statuses + first)
                                : kvd_executor_run(worker->executor, worker->jobs + first, count,
                                                   worker->statuses + first);
}

static kvarn_status serve(struct worker *worker)
{
    for (;;) {
        uint32_t count = drain(worker);
        if (count == 0) {
            if (!wait_for_jobs(worker))
                return KVARN_OK;
            continue;
        }
        /* Short jobs do not wait for the answers of long ones behind them. */
        for (uint32_t at = 0, ran; at < count; at += ran) {
            ran = run(worker, at, count - at);
            if (ran == 0)
                return KVARN_GPU_LOST;
            if (!answer(worker, at, ran)) {
                kvd_log(KVD_LOG_ERROR, "ring_broken", kvd_text("ring", "done"));
                return KVARN_OK;
            }
        }
    }
}

kvarn_status kvd_worker_serve(const struct kvd_worker_options *options)
{
    static struct worker worker; /* large, and one per process */
    struct kvd_link_hello hello = {.kind = KVD_LINK_HELLO};

    worker.staging.fd = worker.pool.fd = worker.ring_memory.fd = -1;
    worker.look = kvd_cpus_available() > 1;
    hello.refusal = open_memory(&worker, options);
    if (hello.refusal == KVD_LINK_READY)
        hello.refusal = options->device == KVD_WORKER_CPU ? open_executor(&worker, options, &hello)
                                                          : open_cuda(&worker, options, &hello);
    kvarn_status status = hello.refusal == KVD_LINK_READY ? KVARN_OK : KVARN_INTERNAL;
    bool told =
        send(KVD_LINK_CONTROL, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello);
    if (told && status == KVARN_OK)
        status = serve(&worker);
    kvd_cuda_worker_close(&worker.cuda);
    kvd_executor_close(&worker.executor);
    kvd_memory_close(&worker.ring_memory);
    kvd_memory_close(&worker.pool);
    kvd_memory_close(&worker.staging);
    return status;
}
