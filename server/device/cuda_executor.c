#include "server/device/cuda_executor.h"

#include <stdlib.h>
#include <string.h>

#include "server/core/clock.h"
#include "server/device/cuda_exec.h"

bool kvd_cuda_holds_slot(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                         struct kvd_place place, uint32_t kind)
{
    return kvd_cuda_is_slot(place) && kvd_bounds_hold_slot(&executor->bounds, job, place, kind);
}

bool kvd_cuda_upload(struct kvd_cuda_executor *executor, const struct kvd_cuda_tables *tables,
                     uint64_t begin, uint64_t end)
{
    struct kvd_gpu *gpu = executor->gpu;

    return kvd_gpu_did(gpu, "tables",
                       gpu->driver.copy_to_device(tables->address + begin, tables->host + begin,
                                                  end - begin, gpu->stream));
}

bool kvd_cuda_download(struct kvd_cuda_executor *executor, const struct kvd_cuda_tables *tables,
                       uint64_t begin, uint64_t end)
{
    struct kvd_gpu *gpu = executor->gpu;

    return kvd_gpu_did(gpu, "results",
                       gpu->driver.copy_to_host(tables->host + begin, tables->address + begin,
                                                end - begin, gpu->stream));
}

bool kvd_cuda_wait(struct kvd_cuda_executor *executor)
{
    if (!kvd_gpu_wait(executor->gpu))
        return false;
    if (executor->progress != NULL)
        atomic_fetch_add_explicit(executor->progress, 1, memory_order_relaxed);
    return true;
}

/* ---- jobs ---- */

static bool run_group(struct kvd_cuda_executor *executor, uint32_t count)
{
    switch (executor->group[0].copy.op) {
    case KVD_JOB_COMPRESS:
        return kvd_cuda_run_slots(executor, &kvd_cuda_compress, count);
    case KVD_JOB_DECOMPRESS:
        return kvd_cuda_run_slots(executor, &kvd_cuda_decompress, count);
    case KVD_JOB_WRITE_ROWS:
        return kvd_cuda_run_slots(executor, &kvd_cuda_write, count);
    case KVD_JOB_ATTEND:
        return kvd_cuda_run_attend(executor, count);
    case KVD_JOB_COPY:
        return kvd_cuda_run_slots(executor, &kvd_cuda_copy, count);
    case KVD_JOB_DIGEST:
        return kvd_cuda_run_slots(executor, &kvd_cuda_digest, count);
    default: /* ZERO: no other is taken */
        return kvd_cuda_run_zero(executor, count);
    }
}

uint32_t kvd_cuda_executor_run(struct kvd_cuda_executor *executor, const uint64_t *jobs,
                               uint32_t count, kvarn_status *statuses)
{
    uint64_t start = kvd_now_ns();
    uint32_t group = 0, at = 0;
    double planned = 1;

    for (; at < count && group < KVD_RING_ENTRIES; at++) {
        struct kvd_taken job;
        bool taken = kvd_job_take(&job, &executor->bounds, executor->regions.staging, jobs[at]);
        statuses[at] = taken ? KVARN_OK : KVARN_INTERNAL;
        if (!taken)
            continue;
        if (group > 0 && job.copy.op != executor->group[0].copy.op)
            break;
        executor->group[group++] = job;
    }
    if (group == 0)
        return at;
    if (!run_group(executor, group))
        return 0;
    /* a job's share of the group's time, so that the sum over jobs is the time the device worked */
    for (uint32_t i = 0; i < group; i++)
        planned += (double)executor->group[i].planned_ns;
    double scale = (double)(kvd_now_ns() - start) / planned;
    for (uint32_t i = 0; i < group; i++)
        executor->group[i].shared->device_ns =
            (uint64_t)(scale * (double)executor->group[i].planned_ns);
    return at;
}

/* ---- opening and closing ---- */

bool kvd_cuda_tables_open(struct kvd_cuda_tables *tables, struct kvd_gpu *gpu)
{
    void *host = NULL;
    kvd_cu_address address = 0;

    if (!kvd_gpu_did(gpu, "pinned memory for tables",
                     gpu->driver.host_alloc(&host, KVD_CUDA_TABLE_BYTES, 0)))
        return false;
    tables->host = host;
    if (!kvd_gpu_did(gpu, "memory for tables",
                     gpu->driver.memory_alloc(&address, KVD_CUDA_TABLE_BYTES)))
        return false;
    tables->address = address;
    return true;
}

void kvd_cuda_tables_close(struct kvd_cuda_tables *tables, struct kvd_gpu *gpu)
{
    if (!gpu->lost && tables->address != 0)
        gpu->driver.memory_free(tables->address);
    if (!gpu->lost && tables->host != NULL)
        gpu->driver.host_free(tables->host);
    *tables = (struct kvd_cuda_tables){.host = NULL};
}

bool kvd_cuda_executor_open(struct kvd_cuda_executor **executor, struct kvd_gpu *gpu,
                            struct kvd_kernels *kernels)
{
    struct kvd_cuda_executor *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return kvd_gpu_failed(gpu, KVD_LINK_NO_THREADS, "no memory for the executor");
    made->gpu = gpu;
    made->kernels = kernels;
    made->entries = calloc(KVD_CUDA_ENTRIES_MAX, sizeof(*made->entries));
    bool fine = made->entries != NULL ||
                kvd_gpu_failed(gpu, KVD_LINK_NO_THREADS, "no memory for the executor");
    if (!fine || !kvd_cuda_tables_open(&made->tables, gpu) || !kvd_cuda_attends_open(made)) {
        kvd_cuda_executor_close(&made);
        return false;
    }
    *executor = made;
    return true;
}

void kvd_cuda_executor_close(struct kvd_cuda_executor **executor)
{
    struct kvd_cuda_executor *closing = *executor;

    if (closing == NULL)
        return;
    kvd_gpu_settle(closing->gpu);
    kvd_cuda_attends_close(closing);
    kvd_cuda_tables_close(&closing->tables, closing->gpu);
    free(closing->entries);
    free(closing);
    *executor = NULL;
}

void kvd_cuda_executor_use(struct kvd_cuda_executor *executor,
                           const struct kvd_cuda_regions *regions, _Atomic uint32_t *progress)
{
    executor->regions = *regions;
    executor->bounds.bytes[KVD_REGION_STAGING] = regions->staging_bytes;
    executor->bounds.bytes[KVD_REGION_POOL] = regions->pool_bytes;
    executor->progress = progress;
}
