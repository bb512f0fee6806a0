/* Which bytes of the staging memory are in use: extents of any size, 64-byte aligned.
 *
 * Bookkeeping only, no access to the memory. Free extents stand in lists by size class (eight per
 * power of two), so taking looks at one list and giving joins the neighbours: no search. All memory
 * is taken in open; at most extents_max extents are out at a time. One thread. */
#ifndef KVD_STAGING_H
#define KVD_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct kvd_extents;

/* INTERNAL without memory or with a capacity under 64 bytes. */
kvarn_status kvd_extents_open(struct kvd_extents **extents, uint64_t capacity_bytes,
                              uint32_t extents_max);
void kvd_extents_close(struct kvd_extents **extents);

/* False when no free extent is large enough or extents_max are out. */
bool kvd_extents_take(struct kvd_extents *extents, uint64_t bytes, uint64_t *offset);
void kvd_extents_give(struct kvd_extents *extents, uint64_t offset);

/* What a take may ask for now. */
uint64_t kvd_extents_largest_bytes(const struct kvd_extents *extents);
uint64_t kvd_extents_used_bytes(const struct kvd_extents *extents);

#endif
