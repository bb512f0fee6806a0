/* A block: one slot of its space's pool, what it holds, and who needs it.
 *
 * A block is FILLING until its job is done, then READY; only READY blocks are visible under their
 * key. References keep the bytes: requests in flight, sequences and leases hold one each. Without
 * references a block stays as long as it is indexed (it is then what eviction may take); a block
 * that is not indexed goes with its last reference. Descriptors stand in slabs and never move;
 * slabs are the only memory taken on the way, one malloc per KVD_BLOCK_SLAB blocks. Loop thread
 * only. */
#ifndef KVD_BLOCK_H
#define KVD_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

struct kvd_space;
struct kvd_counts;
struct kvd_events;
struct kvd_evict;

enum kvd_block_state { KVD_BLOCK_FREE, KVD_BLOCK_FILLING, KVD_BLOCK_READY };

struct kvd_block {
    kvarn_key key;
    struct kvd_space *space;
    struct kvd_block *older, *newer; /* eviction queue; newer also chains free descriptors */
    uint64_t offset;                 /* of the slot in the space's pool */
    uint64_t used_at;                /* eviction clock, when it was queued */
    uint32_t id;                     /* place in the slabs */
    uint32_t references;
    uint32_t digest; /* CRC-32C over the slot; valid when READY and has_digest */
    uint8_t kind;    /* kvarn_block_kind */
    uint8_t state;   /* kvd_block_state */
    uint8_t queue;   /* kvd_evict_queue, of its last place */
    uint8_t uses;    /* since then, as far as they are counted */
    uint16_t list;   /* in the eviction's sense */
    bool indexed, has_digest;
    bool listed;  /* may be evicted */
    bool queued;  /* stands in its queue; a referenced block may, with S3-FIFO */
    bool pinned;  /* holds one of the references */
    bool corrupt; /* a digest did not match: no longer served, not even to its sequences */
    bool demoted; /* the disk tier had it, or could not take it: not offered again */
};

enum { KVD_BLOCK_SLAB = 4096, KVD_BLOCK_SLABS = 4096 }; /* at most 16 Mi blocks */

struct kvd_blocks {
    struct kvd_evict *evict;
    struct kvd_counts *counts; /* of tenants, for all that is made of blocks; NULL: no bounds */
    struct kvd_events *events; /* told what is stored and removed; may be NULL */
    struct kvd_block *slabs[KVD_BLOCK_SLABS];
    struct kvd_block *free;
    uint32_t made; /* descriptors handed out so far */
    uint64_t live; /* not FREE */
    uint64_t evictions;
    uint64_t pinned;
    /* told when a claimed block stops filling, for whoever waits for its key; may be NULL */
    void (*settled)(void *context);
    void *settled_context;
};

void kvd_blocks_init(struct kvd_blocks *blocks, struct kvd_evict *evict);
void kvd_blocks_free(
    struct kvd_blocks *blocks); /* descriptors only; the pools go with their owner */

/* A FILLING block without a key, one reference. Evicts blocks of the space's tenant when its
 * pool, or the tenant's share of it, is full. NO_SPACE, QUOTA, TOO_LARGE (never fits). */
kvarn_status kvd_block_take(struct kvd_blocks *blocks, struct kvd_space *space, uint32_t kind,
                            struct kvd_block **block);

/* Claims a key. OK: *block is FILLING, the caller's, one reference. EXISTS: *block is READY, with a
 * reference. RETRY: someone else is filling it; *block = NULL. Else as take. */
kvarn_status kvd_block_claim(struct kvd_blocks *blocks, struct kvd_space *space,
                             const kvarn_key *key, uint32_t kind, struct kvd_block **block);

/* Claims a key for a block that has none yet (a full sink block). OK: the block is FILLING and
 * indexed until publish or unclaim. EXISTS: *other is READY, with a reference, and the block is as
 * before. RETRY as above, NO_SPACE without memory. */
kvarn_status kvd_block_name(struct kvd_blocks *blocks, struct kvd_block *block,
                            const kvarn_key *key, struct kvd_block **other);
void kvd_block_unclaim(struct kvd_blocks *blocks, struct kvd_block *block);

/* FILLING -> READY. */
void kvd_block_publish(struct kvd_blocks *blocks, struct kvd_block *block, uint32_t digest);

/* The READY block of a key, NULL when there is none. No reference; counts as a use. */
struct kvd_block *kvd_block_find(struct kvd_blocks *blocks, struct kvd_space *space,
                                 const kvarn_key *key);
/* The same for `count` keys that stand `stride` bytes apart, faster than one by one. */
void kvd_block_find_many(struct kvd_blocks *blocks, struct kvd_space *space, const uint8_t *keys,
                         size_t stride, uint32_t count, struct kvd_block **out);

void kvd_block_hold(struct kvd_blocks *blocks, struct kvd_block *block);
/* Gives one reference back. A FILLING block that was claimed loses its key with it. */
void kvd_block_release(struct kvd_blocks *blocks, struct kvd_block *block);

/* Pinned, a block stays until it is unpinned, dropped or condemned, whoever comes and goes. QUOTA:
 * its tenant may pin no more; RETRY: nobody may. Unpinning one that is not pinned does nothing. */
kvarn_status kvd_block_pin(struct kvd_blocks *blocks, struct kvd_block *block);
void kvd_block_unpin(struct kvd_blocks *blocks, struct kvd_block *block);

/* Off the index; the bytes go with the last reference, now when there is none. */
void kvd_block_drop(struct kvd_blocks *blocks, struct kvd_block *block);

/* A digest did not match: off the index, and never served again, not even to those who hold it. */
void kvd_block_condemn(struct kvd_blocks *blocks, struct kvd_block *block);

/* By id, for walks over all blocks: NULL past the last id ever made. May be FREE. */
struct kvd_block *kvd_block_at(const struct kvd_blocks *blocks, uint32_t id);

#endif
