/* Which block goes when there is no room: one that nobody references, of the same owner, which is a
 * tenant in one pool. Nobody's blocks go for the sake of another owner.
 *
 * Two policies behind one interface, chosen at start:
 *
 *   S3-FIFO  a block enters a small queue, a quarter of all. What was used twice by the time it
 *            comes to the old end (who stores a block often uses it once) moves to the main queue,
 *            the rest goes; of those the keys are remembered, and one that comes back enters the
 *            main queue at once. There a block goes around once more for each of its last three
 *            uses. So what nobody reads again only passes through a quarter of the pool, and a use
 *            costs no more than counting it.
 *   LRU      the least recently used.
 *
 * Blocks are put in queues by owner and slot size (a list is a space and kind; lists that share
 * both share their queues). A block of the wanted slot size is preferred, for it makes room at
 * once; others help only when their chunk empties: then the group goes whose candidate is the
 * oldest. Loop thread only. */
#ifndef KVD_EVICT_H
#define KVD_EVICT_H

#include <stddef.h>
#include <stdint.h>

#include "server/core/limits.h"
#include "server/store/ghost.h"

struct kvd_block;

enum kvd_evict_policy { KVD_EVICT_S3FIFO, KVD_EVICT_LRU };
enum kvd_evict_queue { KVD_QUEUE_NONE, KVD_QUEUE_SMALL, KVD_QUEUE_MAIN };
enum { KVD_EVICT_LISTS = KVD_SPACES_MAX * 2 };

struct kvd_evict_order {
    struct kvd_block *oldest, *newest;
    uint32_t count;
};

struct kvd_evict_group {
    uint32_t owner, lists; /* lists = 0: not in use */
    uint64_t slot_bytes;
    struct kvd_evict_order queues[3]; /* [kvd_evict_queue] */
    struct kvd_ghosts ghosts;
};

struct kvd_evict {
    enum kvd_evict_policy policy;
    uint64_t secret[2]; /* of the hashes that are remembered */
    uint64_t clock;
    uint64_t listed;                    /* blocks that may go */
    uint16_t group_of[KVD_EVICT_LISTS]; /* [space slot][kind - 1]: group + 1; 0 = closed */
    struct kvd_evict_group groups[KVD_EVICT_LISTS];
    uint32_t used; /* groups up to here may be in use */
};

void kvd_evict_init(struct kvd_evict *evict, enum kvd_evict_policy policy,
                    const uint64_t secret[2]);
void kvd_evict_free(struct kvd_evict *evict);

/* Opens or (slot_bytes 0) closes a list; it must be empty. */
void kvd_evict_list_set(struct kvd_evict *evict, uint32_t list, uint32_t owner,
                        uint64_t slot_bytes);

/* Nobody references the block any more: it may go. */
void kvd_evict_add(struct kvd_evict *evict, uint32_t list, struct kvd_block *block);
/* It was asked for. */
void kvd_evict_use(struct kvd_evict *evict, struct kvd_block *block);
/* It is referenced again: it may not go. */
void kvd_evict_hold(struct kvd_evict *evict, struct kvd_block *block);
/* It is no longer found by its key; whether it was listed or not. */
void kvd_evict_remove(struct kvd_evict *evict, struct kvd_block *block);

/* The block of this owner to give up, no longer listed; NULL when there is none. */
struct kvd_block *kvd_evict_choose(struct kvd_evict *evict, uint32_t owner, uint64_t slot_bytes);

#endif
