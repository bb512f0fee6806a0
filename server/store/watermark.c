/* See watermark.h. */
#include "server/store/watermark.h"

#include "server/store/block.h"
#include "server/store/evict.h"
#include "server/store/pool.h"
#include "server/store/space.h"

enum { STEP = 64 /* blocks of one tenant in one step: some ten microseconds */ };

static uint32_t fall(const struct kvd_watermark *watermark, struct kvd_blocks *blocks,
                     const struct kvd_pool *pool, uint32_t owner, uint32_t tenant)
{
    uint64_t low = kvd_pool_tenant_most_bytes(pool, tenant) / 100 * watermark->low;
    uint32_t gone = 0;

    while (gone < STEP && kvd_pool_tenant_used_bytes(pool, tenant) > low) {
        struct kvd_block *block = kvd_evict_choose(blocks->evict, owner, 0);

        if (!block)
            break;
        kvd_block_drop(blocks, block);
        blocks->evictions++;
        gone++;
    }
    return gone;
}

uint32_t kvd_watermark_step(struct kvd_watermark *watermark, struct kvd_blocks *blocks,
                            const struct kvd_pool *pool, uint32_t device)
{
    uint32_t gone = 0;

    for (uint32_t tenant = 0; watermark->high && tenant < KVD_TENANTS_MAX; tenant++) {
        uint64_t used = kvd_pool_tenant_used_bytes(pool, tenant);
        uint64_t most = kvd_pool_tenant_most_bytes(pool, tenant);
        bool *falling = &watermark->falling[device][tenant];
        uint32_t step;

        if (used > most / 100 * watermark->high)
            *falling = used > 0;
        if (!*falling)
            continue;
        step = fall(watermark, blocks, pool, kvd_owner_of(tenant, device), tenant);
        *falling = step == STEP;
        gone += step;
    }
    return gone;
}
