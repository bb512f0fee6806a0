/* Life of a block. See block.h. */
#include "server/store/block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/counts.h"
#include "server/store/events.h"
#include "server/store/evict.h"
#include "server/store/index.h"
#include "server/store/pool.h"
#include "server/store/space.h"

void kvd_blocks_init(struct kvd_blocks *blocks, struct kvd_evict *evict)
{
    memset(blocks, 0, sizeof *blocks);
    blocks->evict = evict;
}

void kvd_blocks_free(struct kvd_blocks *blocks)
{
    for (size_t i = 0; i < KVD_BLOCK_SLABS; i++)
        free(blocks->slabs[i]);
    memset(blocks, 0, sizeof *blocks);
}

static struct kvd_block *descriptor(struct kvd_blocks *blocks)
{
    struct kvd_block *block = blocks->free;
    uint32_t slab = blocks->made / KVD_BLOCK_SLAB;

    if (block) {
        blocks->free = block->newer;
        return block;
    }
    if (slab == KVD_BLOCK_SLABS)
        return NULL;
    if (!blocks->slabs[slab])
        blocks->slabs[slab] = calloc(KVD_BLOCK_SLAB, sizeof *block);
    if (!blocks->slabs[slab])
        return NULL;
    block = &blocks->slabs[slab][blocks->made % KVD_BLOCK_SLAB];
    block->id = blocks->made++;
    return block;
}

struct kvd_block *kvd_block_at(const struct kvd_blocks *blocks, uint32_t id)
{
    return id < blocks->made ? &blocks->slabs[id / KVD_BLOCK_SLAB][id % KVD_BLOCK_SLAB] : NULL;
}

static uint64_t *count_of(struct kvd_block *block)
{
    return block->kind == KVARN_BLOCK_TILE ? &block->space->tile_blocks
                                           : &block->space->exact_blocks;
}

/* The bytes go. */
static void give(struct kvd_blocks *blocks, struct kvd_block *block)
{
    uint32_t id = block->id;

    assert(!block->references && !block->indexed && !block->queued);
    kvd_pool_give(block->space->pool, block->offset);
    --*count_of(block);
    memset(block, 0, sizeof *block);
    block->id = id;
    block->newer = blocks->free;
    blocks->free = block;
    blocks->live--;
}

kvarn_status kvd_block_take(struct kvd_blocks *blocks, struct kvd_space *space, uint32_t kind,
                            struct kvd_block **out)
{
    uint64_t bytes = kvd_space_slot_bytes(space, kind), offset;
    struct kvd_block *block, *old;
    kvarn_status status;

    *out = NULL;
    for (;;) {
        status = kvd_pool_take(space->pool, space->tenant, bytes, &offset);
        if (status != KVARN_NO_SPACE && status != KVARN_QUOTA)
            break;
        old = kvd_evict_choose(blocks->evict, kvd_space_owner(space), bytes);
        if (!old)
            return status;
        kvd_block_drop(blocks, old);
        blocks->evictions++;
    }
    if (status != KVARN_OK)
        return status;
    block = descriptor(blocks);
    if (!block) {
        kvd_pool_give(space->pool, offset);
        return KVARN_NO_SPACE;
    }
    block->space = space;
    block->offset = offset;
    block->kind = (uint8_t)kind;
    block->state = KVD_BLOCK_FILLING;
    block->references = 1;
    block->newer = NULL;
    ++*count_of(block);
    blocks->live++;
    *out = block;
    return KVARN_OK;
}

/* What stands under the key: NOT_FOUND, EXISTS (with a reference) or RETRY. */
static kvarn_status taken(struct kvd_blocks *blocks, struct kvd_space *space, const kvarn_key *key,
                          struct kvd_block **other)
{
    struct kvd_block *block = kvd_index_find(&space->index, key);

    *other = NULL;
    if (!block)
        return KVARN_NOT_FOUND;
    if (block->state != KVD_BLOCK_READY)
        return KVARN_RETRY;
    kvd_block_hold(blocks, block);
    *other = block;
    return KVARN_EXISTS;
}

kvarn_status kvd_block_claim(struct kvd_blocks *blocks, struct kvd_space *space,
                             const kvarn_key *key, uint32_t kind, struct kvd_block **block)
{
    kvarn_status status = taken(blocks, space, key, block);
    struct kvd_block *other;

    if (status != KVARN_NOT_FOUND)
        return status;
    status = kvd_block_take(blocks, space, kind, block);
    if (status != KVARN_OK)
        return status;
    status = kvd_block_name(blocks, *block, key, &other);
    if (status != KVARN_OK) {
        kvd_block_release(blocks, *block);
        *block = NULL;
    }
    return status;
}

kvarn_status kvd_block_name(struct kvd_blocks *blocks, struct kvd_block *block,
                            const kvarn_key *key, struct kvd_block **other)
{
    kvarn_status status = taken(blocks, block->space, key, other);

    if (status != KVARN_NOT_FOUND)
        return status;
    assert(!block->indexed);
    block->key = *key;
    status = kvd_index_add(&block->space->index, block);
    if (status != KVARN_OK)
        return status;
    block->indexed = true;
    block->state = KVD_BLOCK_FILLING;
    return KVARN_OK;
}

static void settle(struct kvd_blocks *blocks)
{
    if (blocks->settled)
        blocks->settled(blocks->settled_context);
}

static void tell(struct kvd_blocks *blocks, const struct kvd_block *block, uint32_t type)
{
    const struct kvw_event_row event = {
        .space = block->space->handle, .key = block->key, .type = type, .kind = block->kind};

    /* Of a space that was reset all is known to be gone. */
    if (blocks->events && !block->space->reset)
        kvd_events_add(blocks->events, block->space->tenant, &event);
}

static void unindex(struct kvd_blocks *blocks, struct kvd_block *block)
{
    if (!block->indexed)
        return;
    kvd_index_remove(&block->space->index, block);
    block->indexed = false;
    if (block->state == KVD_BLOCK_READY)
        tell(blocks, block, KVW_EVENT_REMOVED);
}

void kvd_block_unclaim(struct kvd_blocks *blocks, struct kvd_block *block)
{
    assert(block->state == KVD_BLOCK_FILLING && block->references);
    unindex(blocks, block);
    settle(blocks);
}

void kvd_block_publish(struct kvd_blocks *blocks, struct kvd_block *block, uint32_t digest)
{
    assert(block->state == KVD_BLOCK_FILLING);
    block->state = KVD_BLOCK_READY;
    block->digest = digest;
    block->has_digest = true;
    if (!block->indexed)
        return;
    if (block->space->reset) /* meanwhile: nobody may find it */
        unindex(blocks, block);
    else
        tell(blocks, block, KVW_EVENT_STORED);
    settle(blocks);
}

/* What find gives for the block that stands under the key. */
static struct kvd_block *use(struct kvd_blocks *blocks, struct kvd_block *block)
{
    if (!block || block->state != KVD_BLOCK_READY)
        return NULL;
    kvd_evict_use(blocks->evict, block);
    return block;
}

struct kvd_block *kvd_block_find(struct kvd_blocks *blocks, struct kvd_space *space,
                                 const kvarn_key *key)
{
    return use(blocks, kvd_index_find(&space->index, key));
}

void kvd_block_find_many(struct kvd_blocks *blocks, struct kvd_space *space, const uint8_t *keys,
                         size_t stride, uint32_t count, struct kvd_block **out)
{
    kvd_index_find_many(&space->index, keys, stride, count, out);
    for (uint32_t i = 0; i < count; i++)
        out[i] = use(blocks, out[i]);
}

void kvd_block_hold(struct kvd_blocks *blocks, struct kvd_block *block)
{
    assert(block->state != KVD_BLOCK_FREE);
    if (block->listed)
        kvd_evict_hold(blocks->evict, block);
    block->references++;
}

void kvd_block_release(struct kvd_blocks *blocks, struct kvd_block *block)
{
    assert(block->references);
    if (--block->references)
        return;
    if (block->indexed && block->state == KVD_BLOCK_READY) {
        kvd_evict_add(blocks->evict, kvd_space_list(block->space, block->kind), block);
        return;
    }
    if (block->indexed) {
        unindex(blocks, block);
        settle(blocks);
    }
    give(blocks, block);
}

void kvd_block_drop(struct kvd_blocks *blocks, struct kvd_block *block)
{
    unindex(blocks, block);
    kvd_evict_remove(blocks->evict, block);
    if (block->pinned)
        kvd_block_unpin(blocks, block); /* that may have been the last reference */
    else if (!block->references)
        give(blocks, block);
}

kvarn_status kvd_block_pin(struct kvd_blocks *blocks, struct kvd_block *block)
{
    if (block->pinned)
        return KVARN_OK;
    if (blocks->pinned == KVD_PINNED_BLOCKS_MAX)
        return KVARN_RETRY;
    if (blocks->counts &&
        !kvd_counts_take(blocks->counts, block->space->tenant, KVD_COUNTED_PINNED_BLOCKS, 1))
        return KVARN_QUOTA;
    kvd_block_hold(blocks, block);
    block->pinned = true;
    blocks->pinned++;
    return KVARN_OK;
}

void kvd_block_unpin(struct kvd_blocks *blocks, struct kvd_block *block)
{
    if (!block->pinned)
        return;
    block->pinned = false;
    blocks->pinned--;
    if (blocks->counts)
        kvd_counts_give(blocks->counts, block->space->tenant, KVD_COUNTED_PINNED_BLOCKS, 1);
    kvd_block_release(blocks, block);
}

void kvd_block_condemn(struct kvd_blocks *blocks, struct kvd_block *block)
{
    block->corrupt = true;
    if (block->indexed)
        kvd_block_drop(blocks, block);
}
