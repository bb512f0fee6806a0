/* Which block goes when a pool is full: the least recently used one of the same owner, which is a
 * tenant in one pool.
 *
 * Blocks that nobody references stand in lists, one per space and kind (so all blocks of a list
 * have one slot size), oldest first. A block of the wanted slot size is preferred, for it makes
 * room at once; others help only when their chunk empties. Smarter policies come behind this
 * interface. */
#ifndef KVD_EVICT_H
#define KVD_EVICT_H

#include <stddef.h>
#include <stdint.h>

#include "server/core/limits.h"

struct kvd_block;

struct kvd_evict_list {
    uint32_t owner;
    uint64_t slot_bytes; /* 0 = the list is not in use */
    struct kvd_block *oldest, *newest;
};

struct kvd_evict {
    uint64_t clock;
    uint64_t listed;                                 /* blocks in all lists */
    struct kvd_evict_list lists[KVD_SPACES_MAX * 2]; /* [space slot][kind - 1] */
    uint32_t used;                                   /* lists up to here may be in use */
};

/* Opens or (slot_bytes 0) closes a list; it must be empty. */
void kvd_evict_list_set(struct kvd_evict *evict, uint32_t list, uint32_t owner,
                        uint64_t slot_bytes);

/* Puts a block at the young end. */
void kvd_evict_add(struct kvd_evict *evict, uint32_t list, struct kvd_block *block);
void kvd_evict_remove(struct kvd_evict *evict, uint32_t list, struct kvd_block *block);

/* The block of this owner to give up, still in its list; NULL when there is none. */
struct kvd_block *kvd_evict_choose(const struct kvd_evict *evict, uint32_t owner,
                                   uint64_t slot_bytes);

#endif
