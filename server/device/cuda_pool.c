#include "server/device/cuda_pool.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/device/chunks.h"

enum { CHUNKS_WANTED = 16 /* in a pool too small for 16 full chunks */ };

/* The descriptors of one message. */
struct batch {
    int fds[KVD_LINK_FDS_MAX];
    uint32_t count;
};

static void close_batch(struct batch *batch)
{
    while (batch->count > 0)
        close(batch->fds[--batch->count]);
}

/* Descriptors on their way count against our limit, and a pool may have thousands. */
static void raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit); /* else a large pool is refused below */
    }
}

/* The control socket does not block; the front may be slower than we are. */
static bool wait_for(struct kvd_gpu *gpu, int control, short event)
{
    struct pollfd wait = {.fd = control, .events = event};
    int ready;

    do {
        ready = poll(&wait, 1, KVD_WORKER_HELLO_MS);
    } while (ready < 0 && errno == EINTR);
    return (ready == 1 && (wait.revents & event) != 0) ||
           kvd_gpu_failed(gpu, KVD_LINK_BAD_MEMORY, "kvarnd does not answer");
}

static bool reserve(struct kvd_cuda_pool *pool)
{
    kvd_cu_address address = 0;

    if (!kvd_gpu_did(
            pool->gpu, "addresses for the pool",
            pool->gpu->driver.address_reserve(&address, pool->chunks * pool->chunk_bytes, 0, 0, 0)))
        return false;
    pool->address = address;
    return true;
}

/* The mapping keeps the memory, so our handle of it is not needed any more. */
static bool map_next(struct kvd_cuda_pool *pool, kvd_cu_memory memory)
{
    struct kvd_gpu *gpu = pool->gpu;
    kvd_cu_address at = pool->address + pool->mapped * pool->chunk_bytes;
    bool mapped = kvd_gpu_did(gpu, "mapping the pool",
                              gpu->driver.memory_map(at, pool->chunk_bytes, 0, memory, 0));

    if (!kvd_gpu_did(gpu, "the pool", gpu->driver.memory_release(memory)) || !mapped)
        return false;
    pool->mapped++;
    return true;
}

static bool allow(struct kvd_cuda_pool *pool)
{
    const struct kvd_cu_access access = {
        .location = {.type = KVD_CU_LOCATION_DEVICE, .id = pool->gpu->device},
        .flags = KVD_CU_ACCESS_READ_WRITE};

    return kvd_gpu_did(pool->gpu, "access to the pool",
                       pool->gpu->driver.memory_access(
                           pool->address, pool->chunks * pool->chunk_bytes, &access, 1));
}

static bool send_all(struct kvd_gpu *gpu, int control, uint32_t first, struct batch *batch)
{
    kvarn_status status;

    while ((status = kvd_chunks_send(control, first, batch->fds, batch->count)) == KVARN_RETRY)
        if (!wait_for(gpu, control, POLLOUT))
            return false;
    close_batch(batch);
    return status == KVARN_OK ||
           kvd_gpu_failed(gpu, KVD_LINK_BAD_MEMORY,
                          "the descriptors of the pool cannot be given to kvarnd (open files: see "
                          "ulimit -n)");
}

/* ---- making ---- */

static bool create(struct kvd_cuda_pool *pool, kvd_cu_memory *memory, int *fd)
{
    const struct kvd_cu_memory_properties properties = {
        .type = KVD_CU_ALLOCATION_PINNED,
        .handles = KVD_CU_HANDLE_FD,
        .location = {.type = KVD_CU_LOCATION_DEVICE, .id = pool->gpu->device}};
    struct kvd_gpu *gpu = pool->gpu;
    char what[80];

    snprintf(what, sizeof(what), "a pool of %llu MiB (the GPU gave %llu MiB)",
             (unsigned long long)(pool->chunks * pool->chunk_bytes >> 20),
             (unsigned long long)(pool->mapped * pool->chunk_bytes >> 20));
    if (!kvd_gpu_did(gpu, what,
                     gpu->driver.memory_create(memory, pool->chunk_bytes, &properties, 0)))
        return false;
    if (kvd_gpu_did(gpu, "sharing the pool",
                    gpu->driver.memory_export(fd, *memory, KVD_CU_HANDLE_FD, 0)))
        return true;
    gpu->driver.memory_release(*memory);
    return false;
}

static bool announce(const struct kvd_cuda_pool *pool, int control)
{
    const struct kvd_link_pool message = {
        .kind = KVD_LINK_POOL_MADE, .chunks = pool->chunks, .chunk_bytes = pool->chunk_bytes};

    return send(control, &message, sizeof(message), MSG_NOSIGNAL) == (ssize_t)sizeof(message) ||
           kvd_gpu_failed(pool->gpu, KVD_LINK_BAD_MEMORY, "kvarnd does not listen");
}

static bool make_chunks(struct kvd_cuda_pool *pool, int control)
{
    struct batch batch = {.count = 0};
    bool fine = true;

    while (fine && pool->mapped < pool->chunks) {
        kvd_cu_memory memory;
        fine = create(pool, &memory, &batch.fds[batch.count]);
        if (!fine)
            break;
        batch.count++;
        fine = map_next(pool, memory);
        if (fine && (batch.count == KVD_LINK_FDS_MAX || pool->mapped == pool->chunks))
            fine = send_all(pool->gpu, control, pool->mapped - batch.count, &batch);
    }
    close_batch(&batch);
    return fine;
}

static bool choose_chunks(struct kvd_cuda_pool *pool, uint64_t bytes)
{
    uint64_t wanted = bytes / CHUNKS_WANTED / KVD_CHUNK_ALIGN_BYTES * KVD_CHUNK_ALIGN_BYTES;
    char why[KVD_CUDA_TEXT_BYTES];

    wanted = wanted < KVD_CHUNK_ALIGN_BYTES ? KVD_CHUNK_ALIGN_BYTES : wanted;
    pool->chunk_bytes = wanted < KVD_CHUNK_BYTES ? wanted : KVD_CHUNK_BYTES;
    if (bytes / pool->chunk_bytes > 0 && bytes / pool->chunk_bytes <= KVD_POOL_CHUNKS_MAX) {
        pool->chunks = (uint32_t)(bytes / pool->chunk_bytes);
        return true;
    }
    snprintf(why, sizeof(why), "a pool of %llu bytes is not possible: %llu to %llu are",
             (unsigned long long)bytes, (unsigned long long)KVD_CHUNK_ALIGN_BYTES,
             (unsigned long long)(KVD_POOL_CHUNKS_MAX * KVD_CHUNK_BYTES));
    return kvd_gpu_failed(pool->gpu, KVD_LINK_NO_GPU_MEMORY, why);
}

/* Whoever had the memory before: its bytes are not for our tenants. */
static bool clear(struct kvd_cuda_pool *pool)
{
    struct kvd_gpu *gpu = pool->gpu;

    return kvd_gpu_did(gpu, "zeros in the pool",
                       gpu->driver.set_bytes(pool->address, 0, pool->chunks * pool->chunk_bytes,
                                             gpu->stream)) &&
           kvd_gpu_wait(gpu);
}

bool kvd_cuda_pool_make(struct kvd_cuda_pool *pool, struct kvd_gpu *gpu, uint64_t bytes,
                        int control)
{
    *pool = (struct kvd_cuda_pool){.gpu = gpu};
    raise_limit();
    return choose_chunks(pool, bytes) && reserve(pool) && announce(pool, control) &&
           make_chunks(pool, control) && allow(pool) && clear(pool);
}

/* ---- taking over ---- */

static bool receive(struct kvd_cuda_pool *pool, int control, struct batch *batch)
{
    struct kvd_link_chunks message;
    uint32_t got;
    kvarn_status status;

    do {
        if (!wait_for(pool->gpu, control, POLLIN))
            return false;
        status =
            kvd_chunks_receive(control, &message, sizeof(message), &got, batch->fds, &batch->count);
    } while (status == KVARN_RETRY);
    if (status == KVARN_OK && got == sizeof(message) && message.kind == KVD_LINK_CHUNKS &&
        message.count == batch->count && batch->count > 0 && message.first == pool->mapped &&
        message.count <= pool->chunks - pool->mapped)
        return true;
    close_batch(batch);
    return kvd_gpu_failed(pool->gpu, KVD_LINK_BAD_MEMORY,
                          "kvarnd sent other descriptors than those of the pool");
}

static bool import(struct kvd_cuda_pool *pool, int fd)
{
    kvd_cu_memory memory;

    return kvd_gpu_did(
               pool->gpu, "taking over the pool",
               pool->gpu->driver.memory_import(&memory, (void *)(intptr_t)fd, KVD_CU_HANDLE_FD)) &&
           map_next(pool, memory);
}

static bool take_chunks(struct kvd_cuda_pool *pool, int control)
{
    bool fine = true;

    while (fine && pool->mapped < pool->chunks) {
        struct batch batch = {.count = 0};
        fine = receive(pool, control, &batch);
        for (uint32_t i = 0; fine && i < batch.count; i++)
            fine = import(pool, batch.fds[i]);
        close_batch(&batch);
    }
    return fine;
}

bool kvd_cuda_pool_take(struct kvd_cuda_pool *pool, struct kvd_gpu *gpu, uint32_t chunks,
                        uint64_t chunk_bytes, int control)
{
    *pool = (struct kvd_cuda_pool){.gpu = gpu, .chunk_bytes = chunk_bytes, .chunks = chunks};
    if (chunks == 0 || chunks > KVD_POOL_CHUNKS_MAX || chunk_bytes == 0 ||
        chunk_bytes % KVD_CHUNK_ALIGN_BYTES != 0 || chunk_bytes > KVD_CHUNK_BYTES)
        return kvd_gpu_failed(gpu, KVD_LINK_BAD_MEMORY, "no pool is cut into such chunks");
    raise_limit();
    return reserve(pool) && take_chunks(pool, control) && allow(pool);
}

void kvd_cuda_pool_close(struct kvd_cuda_pool *pool)
{
    if (pool->address != 0 && !pool->gpu->lost) {
        for (uint32_t i = 0; i < pool->mapped; i++)
            pool->gpu->driver.memory_unmap(pool->address + i * pool->chunk_bytes,
                                           pool->chunk_bytes);
        pool->gpu->driver.address_free(pool->address, pool->chunks * pool->chunk_bytes);
    }
    *pool = (struct kvd_cuda_pool){.address = 0};
}
