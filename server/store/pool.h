/* Slots of a pool: which bytes of it hold which block. Arithmetic and bookkeeping only, no memory
 * access.
 *
 * A chunk holds whole slots of one size and one tenant; it goes back to the free set when its last
 * slot does, and its owner is told (so that the pages are zeroed before anyone else gets them).
 * Loop thread only. */
#ifndef KVD_POOL_H
#define KVD_POOL_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

struct kvd_pool;

/* Called when a chunk is free again: bytes [offset, offset + bytes) may hold old data. */
typedef void (*kvd_pool_wipe)(void *context, uint64_t offset, uint64_t bytes);

/* unit_bytes: chunks begin and end at multiples of it, so that memory which is made in pieces of
 * this size never holds two tenants in one; 0 = as fits the capacity. TOO_LARGE: no unit fits. */
kvarn_status kvd_pool_open(struct kvd_pool **pool, uint64_t capacity_bytes, uint64_t unit_bytes,
                           kvd_pool_wipe wipe, void *context);
void kvd_pool_close(struct kvd_pool **pool);

/* What a tenant's chunks take together: at most `maximum` bytes, and `guaranteed` ones are there
 * for it whatever others want. TOO_LARGE when the guarantees of all are more than the pool. */
kvarn_status kvd_pool_quota(struct kvd_pool *pool, uint32_t tenant, uint64_t guaranteed_bytes,
                            uint64_t maximum_bytes);
uint64_t kvd_pool_tenant_bytes(const struct kvd_pool *pool, uint32_t tenant);      /* in chunks */
uint64_t kvd_pool_tenant_used_bytes(const struct kvd_pool *pool, uint32_t tenant); /* in slots */
/* The most that its chunks may take: its maximum, and not what others are guaranteed. */
uint64_t kvd_pool_tenant_most_bytes(const struct kvd_pool *pool, uint32_t tenant);

/* Gives a slot of slot_bytes (128-byte aligned offset in the pool). NO_SPACE when no chunk has
 * room, QUOTA when another chunk would be more than the tenant may have or than others are owed;
 * TOO_LARGE when a slot never fits. */
kvarn_status kvd_pool_take(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes,
                           uint64_t *offset);
void kvd_pool_give(struct kvd_pool *pool, uint64_t offset);

/* Empty chunks then stay with their tenant and class until they are wanted elsewhere or trimmed:
 * wiping gives pages back to the system, and having them again costs more than filling them (IMPORT
 * after DROP was half as fast). */
void kvd_pool_linger(struct kvd_pool *pool);
/* To be called every 10 ms or so: frees one chunk that has been empty for the last `calls` calls.
 */
void kvd_pool_trim(struct kvd_pool *pool, uint32_t calls);

uint64_t kvd_pool_capacity_bytes(const struct kvd_pool *pool);
uint64_t kvd_pool_used_bytes(const struct kvd_pool *pool);     /* in slots taken */
uint64_t kvd_pool_reserved_bytes(const struct kvd_pool *pool); /* in chunks that are not free */

#endif
