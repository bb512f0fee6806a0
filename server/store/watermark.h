/* Room before it is needed: a tenant that has filled more than the high mark of what it may have in
 * a pool gives up blocks in the background, a few with every tick, until it is at the low mark. So
 * a put, or a block that comes back from disk, finds a free slot. Loop thread only. */
#ifndef KVD_WATERMARK_H
#define KVD_WATERMARK_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/limits.h"

struct kvd_blocks;
struct kvd_pool;

struct kvd_watermark {
    uint32_t high, low; /* percent of what a tenant may have; high = 0: nothing is given up ahead */
    bool falling[KVD_DEVICES_MAX]
                [KVD_TENANTS_MAX]; /* above the low mark since it was at the high */
};

/* One step for all tenants of a device's pool. Gives how many blocks went. */
uint32_t kvd_watermark_step(struct kvd_watermark *watermark, struct kvd_blocks *blocks,
                            const struct kvd_pool *pool, uint32_t device);

#endif
