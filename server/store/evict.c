/* Least recently used, per owner. See evict.h. */
#include "server/store/evict.h"

#include <assert.h>

#include "server/store/block.h"

void kvd_evict_list_set(struct kvd_evict *evict, uint32_t list, uint32_t owner, uint64_t slot_bytes)
{
    struct kvd_evict_list *at = &evict->lists[list];

    assert(!at->oldest);
    at->owner = owner;
    at->slot_bytes = slot_bytes;
    if (evict->used <= list)
        evict->used = list + 1;
}

void kvd_evict_add(struct kvd_evict *evict, uint32_t list, struct kvd_block *block)
{
    struct kvd_evict_list *at = &evict->lists[list];

    assert(!block->listed);
    block->listed = true;
    block->used_at = ++evict->clock;
    block->newer = NULL;
    block->older = at->newest;
    if (at->newest)
        at->newest->newer = block;
    else
        at->oldest = block;
    at->newest = block;
    evict->listed++;
}

void kvd_evict_remove(struct kvd_evict *evict, uint32_t list, struct kvd_block *block)
{
    struct kvd_evict_list *at = &evict->lists[list];

    assert(block->listed);
    if (block->older)
        block->older->newer = block->newer;
    else
        at->oldest = block->newer;
    if (block->newer)
        block->newer->older = block->older;
    else
        at->newest = block->older;
    block->listed = false;
    block->older = block->newer = NULL;
    evict->listed--;
}

struct kvd_block *kvd_evict_choose(const struct kvd_evict *evict, uint32_t owner,
                                   uint64_t slot_bytes)
{
    struct kvd_block *same = NULL, *other = NULL;

    for (uint32_t i = 0; i < evict->used; i++) {
        const struct kvd_evict_list *list = &evict->lists[i];
        struct kvd_block **best = list->slot_bytes == slot_bytes ? &same : &other;

        if (list->owner != owner || !list->oldest)
            continue;
        if (!*best || list->oldest->used_at < (*best)->used_at)
            *best = list->oldest;
    }
    return same ? same : other;
}
