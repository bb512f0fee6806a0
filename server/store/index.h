/* Key -> block, for one space: open addressing, linear probing, backward-shift removal.
 *
 * Keys come from clients, so they are hashed with a secret of the process (SipHash-1-3): nobody can
 * choose keys that collide. An entry is 16 bytes; growing re-places entries by their stored hash,
 * without touching a key. That growth is the only allocation. */
#ifndef KVD_INDEX_H
#define KVD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

struct kvd_block;

struct kvd_index_entry {
    uint64_t hash;
    struct kvd_block *block; /* NULL = empty */
};

struct kvd_index {
    struct kvd_index_entry *entries;
    size_t capacity; /* 0 or a power of two */
    size_t count;
    uint64_t secret[2];
};

void kvd_index_init(struct kvd_index *index, const uint64_t secret[2]);
void kvd_index_free(struct kvd_index *index); /* blocks are not touched */

/* NULL when there is none. */
struct kvd_block *kvd_index_find(const struct kvd_index *index, const kvarn_key *key);
/* Under block->key. EXISTS when the key is taken, NO_SPACE without memory. */
kvarn_status kvd_index_add(struct kvd_index *index, struct kvd_block *block);
/* The block must be in the index. */
void kvd_index_remove(struct kvd_index *index, struct kvd_block *block);

uint64_t kvd_index_hash(const uint64_t secret[2], const kvarn_key *key);

#endif
