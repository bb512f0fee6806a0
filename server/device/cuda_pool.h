/* A CUDA pool as the worker sees it: one range of addresses, chunks of physical memory behind it.
 *
 * The memory belongs to whoever holds the descriptors of the chunks, and that is the front: a pool
 * is made once, by the first worker, and taken over by the next ones. */
#ifndef KVD_CUDA_POOL_H
#define KVD_CUDA_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "server/device/cuda_gpu.h"

struct kvd_cuda_pool {
    struct kvd_gpu *gpu;
    uint64_t address; /* 0: none */
    uint64_t chunk_bytes;
    uint32_t chunks, mapped;
};

/* Makes a pool of so many bytes, rounded down to whole chunks, and sends POOL and the descriptors
 * to the front. False: the GPU's failure says why. */
bool kvd_cuda_pool_make(struct kvd_cuda_pool *pool, struct kvd_gpu *gpu, uint64_t bytes,
                        int control);
/* Receives the descriptors of a pool that was made before, and maps it. */
bool kvd_cuda_pool_take(struct kvd_cuda_pool *pool, struct kvd_gpu *gpu, uint32_t chunks,
                        uint64_t chunk_bytes, int control);
/* Unmaps; the memory stays. Fine on a zeroed struct. */
void kvd_cuda_pool_close(struct kvd_cuda_pool *pool);

#endif
