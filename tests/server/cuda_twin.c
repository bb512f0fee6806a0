#include "server/cuda_twin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { JOBS_MAX = 256 };

struct cuda_twin *twin_open(uint64_t seed)
{
    struct cuda_twin *t = calloc(1, sizeof(*t));
    kvd_cu_address address, pool;
    void *staging;

    assert_int_equal(setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 0), 0);
    t->f = exec_open(2, seed);
    memset(t->f->pool, 0, EXEC_POOL_BYTES);
    bool fine = kvd_gpu_open(&t->gpu, 0) && kvd_kernels_open(&t->kernels, &t->gpu) &&
                kvd_cuda_executor_open(&t->executor, &t->gpu, t->kernels);
    if (!fine)
        fail_msg("%s", t->gpu.why);
    const struct kvd_cuda_driver *driver = &t->gpu.driver;
    assert_int_equal(driver->host_alloc(&staging, EXEC_STAGING_BYTES, 2), KVD_CU_SUCCESS);
    assert_int_equal(driver->host_address(&address, staging, 0), KVD_CU_SUCCESS);
    assert_int_equal(driver->memory_alloc(&pool, EXEC_POOL_BYTES), KVD_CU_SUCCESS);
    assert_int_equal(driver->set_bytes(pool, 0, EXEC_POOL_BYTES, t->gpu.stream), KVD_CU_SUCCESS);
    assert_true(kvd_gpu_wait(&t->gpu));
    t->regions = (struct kvd_cuda_regions){.staging = staging,
                                           .staging_address = address,
                                           .staging_bytes = EXEC_STAGING_BYTES,
                                           .pool_address = pool,
                                           .pool_bytes = EXEC_POOL_BYTES};
    kvd_cuda_executor_use(t->executor, &t->regions, &t->progress);
    return t;
}

void twin_close(struct cuda_twin *t)
{
    if (t->gpu.failure == KVD_LINK_READY) {
        t->gpu.driver.memory_free(t->regions.pool_address);
        t->gpu.driver.host_free(t->regions.staging);
    }
    kvd_cuda_executor_close(&t->executor);
    kvd_kernels_close(&t->kernels);
    kvd_gpu_close(&t->gpu);
    exec_close(t->f);
    free(t);
}

static void offsets_of(const struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count,
                       uint64_t *offsets)
{
    assert_true(count <= JOBS_MAX);
    for (uint32_t i = 0; i < count; i++)
        offsets[i] = exec_place(t->f, jobs[i]).offset;
}

static void run_cuda(struct cuda_twin *t, const uint64_t *offsets, uint32_t count,
                     kvarn_status *statuses)
{
    for (uint32_t at = 0, ran; at < count; at += ran) {
        ran = kvd_cuda_executor_run(t->executor, offsets + at, count - at, statuses + at);
        if (ran == 0)
            fail_msg("%s", t->gpu.why);
    }
}

void twin_run_cuda(struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count,
                   kvarn_status *statuses)
{
    uint64_t offsets[JOBS_MAX];

    offsets_of(t, jobs, count, offsets);
    memcpy(t->regions.staging, t->f->staging, t->f->staging_used);
    run_cuda(t, offsets, count, statuses);
    memcpy(t->f->staging, t->regions.staging, t->f->staging_used);
}

void twin_run_both(struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count)
{
    kvarn_status cpu[JOBS_MAX], cuda[JOBS_MAX];
    uint64_t offsets[JOBS_MAX];

    offsets_of(t, jobs, count, offsets);
    memcpy(t->regions.staging, t->f->staging, t->f->staging_used);
    for (uint32_t at = 0; at < count;)
        at += kvd_executor_run(t->f->executor, offsets + at, count - at, cpu + at);
    run_cuda(t, offsets, count, cuda);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(cpu[i], cuda[i]);
        jobs[i]->device_ns = 0;
        ((struct kvd_job *)(void *)(t->regions.staging + offsets[i]))->device_ns = 0;
    }
    for (uint64_t i = 0; i < t->f->staging_used; i++)
        if (t->f->staging[i] != t->regions.staging[i])
            fail_msg("byte %llu of staging: CPU %02x, CUDA %02x", (unsigned long long)i,
                     t->f->staging[i], t->regions.staging[i]);
}
