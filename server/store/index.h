/* Key -> block, for one space: open addressing, linear probing, backward-shift removal.
 *
 * Keys come from clients, so they are hashed with a secret of the process and the space
 * (SipHash-1-3): nobody can choose keys that collide. An entry is 8 bytes, half of the hash and the
 * block's number in the slabs; with its key (in the descriptor) a block takes at most 54 bytes.
 * Growing re-places entries by their stored half, without touching a key. That growth is the only
 * allocation. */
#ifndef KVD_INDEX_H
#define KVD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

struct kvd_block;

struct kvd_index_entry {
    uint32_t hash;
    uint32_t block; /* id + 1; 0 = empty */
};

struct kvd_index {
    struct kvd_index_entry *entries;
    struct kvd_block *const *slabs; /* block `id` is slabs[id / KVD_BLOCK_SLAB] + id % that */
    size_t capacity;                /* 0 or a power of two */
    size_t count;
    uint64_t secret[2];
};

/* slabs: kvd_blocks.slabs, which stays. */
void kvd_index_init(struct kvd_index *index, const uint64_t secret[2],
                    struct kvd_block *const *slabs);
void kvd_index_free(struct kvd_index *index); /* blocks are not touched */

/* NULL when there is none. */
struct kvd_block *kvd_index_find(const struct kvd_index *index, const kvarn_key *key);
/* The same for `count` keys, `stride` bytes apart and at any alignment: what they will read is
 * fetched ahead, so that a table larger than the caches costs one wait for many keys. */
void kvd_index_find_many(const struct kvd_index *index, const uint8_t *keys, size_t stride,
                         uint32_t count, struct kvd_block **out);
/* Under block->key. EXISTS when the key is taken, NO_SPACE without memory. */
kvarn_status kvd_index_add(struct kvd_index *index, struct kvd_block *block);
/* The block must be in the index. */
void kvd_index_remove(struct kvd_index *index, struct kvd_block *block);

uint64_t kvd_index_hash(const uint64_t secret[2], const kvarn_key *key);

#endif
