/* A GPU's pool as the front keeps it: the descriptors of its chunks and nothing else.
 *
 * The first worker makes the chunks and sends their descriptors; every later one is given them and
 * maps the same memory. The memory lives as long as one descriptor of it is open, so until close.
 * Loop thread only. */
#ifndef KVD_GPU_POOL_H
#define KVD_GPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct kvd_gpu_pool {
    int *fds;              /* [chunks] */
    uint32_t chunks, have; /* announced; those that came */
    uint64_t chunk_bytes;
};

/* A message of the first worker (kvd_link_pool, kvd_link_chunks) and the descriptors that came with
 * it, which this takes over whatever it gives. INTERNAL for anything that makes no sense. */
kvarn_status kvd_gpu_pool_take(struct kvd_gpu_pool *pool, const void *message, uint32_t bytes,
                               const int *fds, uint32_t fd_count);
/* All that was announced is there. */
bool kvd_gpu_pool_complete(const struct kvd_gpu_pool *pool);
/* Sends all descriptors to a worker that was just started. As kvd_chunks_send. */
kvarn_status kvd_gpu_pool_send(const struct kvd_gpu_pool *pool, int control);
/* Fine on a zeroed struct. */
void kvd_gpu_pool_close(struct kvd_gpu_pool *pool);

#endif
