/* Chunks come in order, so a count says which are there. */
#include "server/device/gpu_pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/device/chunks.h"

static kvarn_status take_pool(struct kvd_gpu_pool *pool, const void *message, uint32_t bytes)
{
    struct kvd_link_pool said;

    if (bytes != sizeof(said) || pool->chunks != 0)
        return KVARN_INTERNAL;
    memcpy(&said, message, sizeof(said));
    if (said.chunks == 0 || said.chunks > KVD_POOL_CHUNKS_MAX || said.chunk_bytes == 0 ||
        said.chunk_bytes % KVD_CHUNK_ALIGN_BYTES != 0 || said.chunk_bytes > KVD_CHUNK_BYTES)
        return KVARN_INTERNAL;
    pool->fds = calloc(said.chunks, sizeof(*pool->fds));
    if (pool->fds == NULL)
        return KVARN_INTERNAL;
    pool->chunks = said.chunks;
    pool->chunk_bytes = said.chunk_bytes;
    return KVARN_OK;
}

static kvarn_status take_chunks(struct kvd_gpu_pool *pool, const void *message, uint32_t bytes,
                                const int *fds, uint32_t fd_count)
{
    struct kvd_link_chunks said;

    if (bytes != sizeof(said))
        return KVARN_INTERNAL;
    memcpy(&said, message, sizeof(said));
    if (said.count != fd_count || said.first != pool->have || fd_count > pool->chunks - pool->have)
        return KVARN_INTERNAL;
    memcpy(pool->fds + pool->have, fds, fd_count * sizeof(*fds));
    pool->have += fd_count;
    return KVARN_OK;
}

kvarn_status kvd_gpu_pool_take(struct kvd_gpu_pool *pool, const void *message, uint32_t bytes,
                               const int *fds, uint32_t fd_count)
{
    uint32_t kind = 0;

    if (bytes >= sizeof(kind))
        memcpy(&kind, message, sizeof(kind));
    kvarn_status status = KVARN_INTERNAL;
    if (kind == KVD_LINK_POOL_MADE && fd_count == 0)
        status = take_pool(pool, message, bytes);
    else if (kind == KVD_LINK_CHUNKS && fd_count > 0)
        status = take_chunks(pool, message, bytes, fds, fd_count);
    for (uint32_t i = 0; status != KVARN_OK && i < fd_count; i++)
        close(fds[i]);
    return status;
}

bool kvd_gpu_pool_complete(const struct kvd_gpu_pool *pool)
{
    return pool->chunks > 0 && pool->have == pool->chunks;
}

/* All at once: so few short messages fit the socket's buffer, whatever its size. */
_Static_assert(KVD_POOL_CHUNKS_MAX <= 32 * KVD_LINK_FDS_MAX, "messages that carry a whole pool");

kvarn_status kvd_gpu_pool_send(const struct kvd_gpu_pool *pool, int control)
{
    kvarn_status status = KVARN_OK;

    for (uint32_t at = 0; at < pool->have && status == KVARN_OK; at += KVD_LINK_FDS_MAX) {
        uint32_t left = pool->have - at;
        status = kvd_chunks_send(control, at, pool->fds + at,
                                 left < KVD_LINK_FDS_MAX ? left : KVD_LINK_FDS_MAX);
    }
    return status;
}

void kvd_gpu_pool_close(struct kvd_gpu_pool *pool)
{
    for (uint32_t i = 0; i < pool->have; i++)
        close(pool->fds[i]);
    free(pool->fds);
    *pool = (struct kvd_gpu_pool){0};
}
