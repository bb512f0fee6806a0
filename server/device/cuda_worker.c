/* The self-test comes before the pool: a GPU that computes nonsense is given none. */
#include "server/device/cuda_worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/log.h"
#include "server/device/cuda_executor.h"
#include "server/device/cuda_gpu.h"
#include "server/device/cuda_kernels.h"
#include "server/device/cuda_pool.h"
#include "server/device/cuda_selftest.h"

struct kvd_cuda_worker {
    struct kvd_gpu gpu;
    struct kvd_kernels *kernels;
    struct kvd_cuda_executor *executor;
    struct kvd_cuda_pool pool;
    uint8_t *registered; /* staging that the GPU maps; NULL: not yet */
};

static bool open_pool(struct kvd_cuda_worker *worker, const struct kvd_cuda_worker_options *options,
                      uint64_t free_bytes)
{
    uint64_t bytes = options->pool_bytes;

    if (options->pool_chunks > 0)
        return kvd_cuda_pool_take(&worker->pool, &worker->gpu, options->pool_chunks,
                                  options->chunk_bytes, KVD_LINK_CONTROL);
    if (options->pool_percent > 0)
        bytes = free_bytes / 100 * options->pool_percent;
    return kvd_cuda_pool_make(&worker->pool, &worker->gpu, bytes, KVD_LINK_CONTROL);
}

static bool open_staging(struct kvd_cuda_worker *worker, const struct kvd_memory *staging,
                         kvd_cu_address *address)
{
    struct kvd_gpu *gpu = &worker->gpu;

    if (!kvd_gpu_did(gpu, "mapping kvarnd's staging memory (locked pages: see ulimit -l)",
                     gpu->driver.host_register(staging->base, staging->bytes,
                                               KVD_CU_HOST_REGISTER_PORTABLE |
                                                   KVD_CU_HOST_REGISTER_DEVICE_MAP)))
        return false;
    worker->registered = staging->base;
    return kvd_gpu_did(gpu, "the address of staging",
                       gpu->driver.host_address(address, staging->base, 0));
}

static bool open_all(struct kvd_cuda_worker *worker, const struct kvd_cuda_worker_options *options)
{
    struct kvd_gpu *gpu = &worker->gpu;
    size_t free_bytes = 0, total_bytes = 0;
    kvd_cu_address staging = 0;

    if (!kvd_gpu_open(gpu, options->device) ||
        !kvd_gpu_did(gpu, "free memory", gpu->driver.memory_info(&free_bytes, &total_bytes)) ||
        !kvd_kernels_open(&worker->kernels, gpu) ||
        !kvd_cuda_executor_open(&worker->executor, gpu, worker->kernels) ||
        !kvd_cuda_selftest(worker->executor, gpu) || !open_pool(worker, options, free_bytes) ||
        !open_staging(worker, options->staging, &staging))
        return false;
    const struct kvd_cuda_regions regions = {.staging = options->staging->base,
                                             .staging_address = staging,
                                             .staging_bytes = options->staging->bytes,
                                             .pool_address = worker->pool.address,
                                             .pool_bytes =
                                                 worker->pool.chunks * worker->pool.chunk_bytes};
    kvd_cuda_executor_use(worker->executor, &regions, options->progress);
    return true;
}

bool kvd_cuda_worker_open(struct kvd_cuda_worker **worker,
                          const struct kvd_cuda_worker_options *options,
                          struct kvd_link_hello *hello)
{
    struct kvd_cuda_worker *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        hello->refusal = KVD_LINK_NO_THREADS;
        return false;
    }
    if (!open_all(made, options)) {
        hello->refusal = made->gpu.failure;
        snprintf(hello->text, sizeof(hello->text), "%s", made->gpu.why);
        kvd_cuda_worker_close(&made);
        return false;
    }
    hello->refusal = KVD_LINK_READY;
    snprintf(hello->backend, sizeof(hello->backend), "cuda/sm_%u", made->gpu.capability);
    *worker = made;
    return true;
}

void kvd_cuda_worker_close(struct kvd_cuda_worker **worker)
{
    struct kvd_cuda_worker *closing = *worker;

    if (closing == NULL)
        return;
    kvd_cuda_executor_close(&closing->executor);
    kvd_kernels_close(&closing->kernels);
    if (closing->registered != NULL && !closing->gpu.lost)
        closing->gpu.driver.host_unregister(closing->registered);
    kvd_cuda_pool_close(&closing->pool);
    kvd_gpu_close(&closing->gpu);
    free(closing);
    *worker = NULL;
}

uint32_t kvd_cuda_worker_run(struct kvd_cuda_worker *worker, const uint64_t *jobs, uint32_t count,
                             kvarn_status *statuses)
{
    uint32_t ran = kvd_cuda_executor_run(worker->executor, jobs, count, statuses);

    if (ran == 0)
        kvd_log(KVD_LOG_ERROR, "gpu_lost", kvd_text("why", worker->gpu.why));
    return ran;
}
