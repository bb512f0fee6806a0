/* S3-FIFO and LRU over the same queues. See evict.h. */
#include "server/store/evict.h"

#include <assert.h>
#include <string.h>

#include "server/store/block.h"
#include "server/store/index.h"

enum {
    /* The small queue is a quarter: the tenth that is usual loses conversations that pause, since
     * their blocks are first asked for again after a while (tests/bench/bench_evict.c). */
    SMALL_SHARE = 4,
    PROMOTED_AT = 2, /* uses that lead from the small queue to the main one */
    USES_MAX = 3     /* more are not counted */
};

void kvd_evict_init(struct kvd_evict *evict, enum kvd_evict_policy policy, const uint64_t secret[2])
{
    memset(evict, 0, sizeof *evict);
    evict->policy = policy;
    evict->secret[0] = secret[0];
    evict->secret[1] = secret[1];
}

void kvd_evict_free(struct kvd_evict *evict)
{
    for (uint32_t i = 0; i < evict->used; i++)
        kvd_ghosts_free(&evict->groups[i].ghosts);
}

/* ---- groups */

static void close_list(struct kvd_evict *evict, uint32_t list)
{
    struct kvd_evict_group *group;

    if (!evict->group_of[list])
        return;
    group = &evict->groups[evict->group_of[list] - 1];
    evict->group_of[list] = 0;
    if (--group->lists)
        return;
    assert(!group->queues[KVD_QUEUE_SMALL].count && !group->queues[KVD_QUEUE_MAIN].count);
    kvd_ghosts_free(&group->ghosts);
}

void kvd_evict_list_set(struct kvd_evict *evict, uint32_t list, uint32_t owner, uint64_t slot_bytes)
{
    uint32_t chosen = KVD_EVICT_LISTS;

    close_list(evict, list);
    if (!slot_bytes)
        return;
    for (uint32_t i = 0; i < evict->used; i++) {
        const struct kvd_evict_group *group = &evict->groups[i];

        if (group->lists && group->owner == owner && group->slot_bytes == slot_bytes) {
            chosen = i;
            break;
        }
        if (!group->lists && chosen == KVD_EVICT_LISTS)
            chosen = i;
    }
    if (chosen == KVD_EVICT_LISTS)
        chosen = evict->used++; /* never more groups than lists */
    evict->groups[chosen].owner = owner;
    evict->groups[chosen].slot_bytes = slot_bytes;
    evict->groups[chosen].lists++;
    evict->group_of[list] = (uint16_t)(chosen + 1);
}

static struct kvd_evict_group *group_of(struct kvd_evict *evict, const struct kvd_block *block)
{
    assert(evict->group_of[block->list]);
    return &evict->groups[evict->group_of[block->list] - 1];
}

/* ---- queues */

static void push(struct kvd_evict *evict, struct kvd_block *block, enum kvd_evict_queue queue)
{
    struct kvd_evict_order *at = &group_of(evict, block)->queues[queue];

    block->queue = (uint8_t)queue;
    block->queued = true;
    block->used_at = ++evict->clock;
    block->newer = NULL;
    block->older = at->newest;
    if (at->newest)
        at->newest->newer = block;
    else
        at->oldest = block;
    at->newest = block;
    at->count++;
}

static void unlink_block(struct kvd_evict *evict, struct kvd_block *block)
{
    struct kvd_evict_order *at = &group_of(evict, block)->queues[block->queue];

    assert(block->queued);
    if (block->older)
        block->older->newer = block->newer;
    else
        at->oldest = block->newer;
    if (block->newer)
        block->newer->older = block->older;
    else
        at->newest = block->older;
    at->count--;
    block->queued = false;
    block->older = block->newer = NULL;
}

/* Of the key in its list: shards of one model have the same keys. */
static uint64_t hash_of(const struct kvd_evict *evict, const struct kvd_block *block)
{
    uint64_t hash =
        kvd_index_hash(evict->secret, &block->key) + block->list * UINT64_C(0x9E3779B97F4A7C15);

    return hash ? hash : 1;
}

void kvd_evict_add(struct kvd_evict *evict, uint32_t list, struct kvd_block *block)
{
    assert(!block->listed);
    block->list = (uint16_t)list;
    block->listed = true;
    evict->listed++;
    if (block->queued)
        return; /* it kept its place while it was referenced */
    if (evict->policy == KVD_EVICT_LRU)
        block->queue = KVD_QUEUE_MAIN;
    else if (block->queue == KVD_QUEUE_NONE)
        block->queue = kvd_ghosts_take(&group_of(evict, block)->ghosts, hash_of(evict, block))
                           ? KVD_QUEUE_MAIN
                           : KVD_QUEUE_SMALL;
    push(evict, block, (enum kvd_evict_queue)block->queue);
}

void kvd_evict_use(struct kvd_evict *evict, struct kvd_block *block)
{
    if (evict->policy == KVD_EVICT_LRU && block->queued) {
        unlink_block(evict, block);
        push(evict, block, KVD_QUEUE_MAIN);
    }
    if (block->uses < USES_MAX)
        block->uses++;
}

void kvd_evict_hold(struct kvd_evict *evict, struct kvd_block *block)
{
    assert(block->listed);
    block->listed = false;
    evict->listed--;
    if (evict->policy == KVD_EVICT_LRU)
        unlink_block(evict, block);
}

void kvd_evict_remove(struct kvd_evict *evict, struct kvd_block *block)
{
    if (block->listed)
        evict->listed--;
    block->listed = false;
    if (block->queued)
        unlink_block(evict, block);
}

/* ---- the choice */

static struct kvd_block *give_up(struct kvd_evict *evict, struct kvd_block *block)
{
    kvd_evict_remove(evict, block);
    return block;
}

/* One step of S3-FIFO at the old end of a queue: the block that goes, or NULL when the one that
 * stood there stays. */
static struct kvd_block *step(struct kvd_evict *evict, struct kvd_evict_group *group,
                              enum kvd_evict_queue queue)
{
    struct kvd_block *block = group->queues[queue].oldest;

    unlink_block(evict, block);
    if (!block->listed)
        return NULL; /* referenced: it comes back with its last reference */
    if (queue == KVD_QUEUE_SMALL && block->uses >= PROMOTED_AT) {
        block->uses = 0;
        push(evict, block, KVD_QUEUE_MAIN);
        return NULL;
    }
    if (queue == KVD_QUEUE_MAIN && block->uses) {
        block->uses--;
        push(evict, block, KVD_QUEUE_MAIN);
        return NULL;
    }
    if (queue == KVD_QUEUE_SMALL)
        kvd_ghosts_add(&group->ghosts, hash_of(evict, block), group->queues[KVD_QUEUE_MAIN].count);
    return give_up(evict, block);
}

static struct kvd_block *choose_from(struct kvd_evict *evict, struct kvd_evict_group *group)
{
    struct kvd_evict_order *small = &group->queues[KVD_QUEUE_SMALL];
    struct kvd_evict_order *main = &group->queues[KVD_QUEUE_MAIN];
    struct kvd_block *block = NULL;

    if (evict->policy == KVD_EVICT_LRU)
        return main->oldest ? give_up(evict, main->oldest) : NULL;
    while (!block && (small->count || main->count)) {
        uint64_t all = (uint64_t)small->count + main->count;
        bool from_small = !main->count || (uint64_t)small->count * SMALL_SHARE > all;

        block = step(evict, group, from_small ? KVD_QUEUE_SMALL : KVD_QUEUE_MAIN);
    }
    return block;
}

/* When the group's candidate was queued; UINT64_MAX when there is none. */
static uint64_t age_of(const struct kvd_evict_group *group)
{
    uint64_t age = UINT64_MAX;

    for (int queue = KVD_QUEUE_SMALL; queue <= KVD_QUEUE_MAIN; queue++) {
        const struct kvd_block *block = group->queues[queue].oldest;

        if (block && block->used_at < age)
            age = block->used_at;
    }
    return age;
}

/* The owner's group to take from: that of the wanted size (wanted), or the oldest of the others. */
static struct kvd_evict_group *find(struct kvd_evict *evict, uint32_t owner, uint64_t slot_bytes,
                                    bool wanted)
{
    struct kvd_evict_group *best = NULL;
    uint64_t age = UINT64_MAX;

    for (uint32_t i = 0; i < evict->used; i++) {
        struct kvd_evict_group *group = &evict->groups[i];

        if (!group->lists || group->owner != owner || (group->slot_bytes == slot_bytes) != wanted)
            continue;
        if (age_of(group) < age) {
            age = age_of(group);
            best = group;
        }
    }
    return best;
}

struct kvd_block *kvd_evict_choose(struct kvd_evict *evict, uint32_t owner, uint64_t slot_bytes)
{
    for (int wanted = 1; wanted >= 0; wanted--) {
        struct kvd_evict_group *group;

        /* A group that gave nothing is empty now: its blocks were referenced. */
        while ((group = find(evict, owner, slot_bytes, wanted)) != NULL) {
            struct kvd_block *block = choose_from(evict, group);

            if (block)
                return block;
        }
    }
    return NULL;
}
