/* Every byte belongs to one node; nodes are linked in address order, so the neighbours of an extent
 * are known when it comes back. Sizes are counted in grains of 64 bytes. */
#include "server/device/staging.h"

#include <assert.h>
#include <stdlib.h>

enum {
    GRAIN_BYTES = 64,
    PER_DOUBLING = 8, /* size classes between one power of two and the next */
    CLASSES = 512,
    NONE = -1
};

struct node {
    uint64_t start, grains;
    int32_t before, after; /* in address order */
    int32_t prev, next;    /* free: in its class; taken: next in its bucket; spare: next spare */
    bool taken;
};

struct kvd_extents {
    uint64_t used_grains;
    uint32_t taken, taken_max, bucket_mask;
    int32_t spare;
    struct node *nodes; /* [2 * taken_max + 1]: between two taken ones at most one is free */
    int32_t *buckets;   /* taken nodes by start */
    int32_t classes[CLASSES];
    uint64_t filled[CLASSES / 64]; /* bit set: the class has a node */
};

/* The class that an extent of so many grains stands in. */
static uint32_t class_of(uint64_t grains)
{
    if (grains < PER_DOUBLING)
        return (uint32_t)grains;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(grains);
    return (log - 3) * PER_DOUBLING + (uint32_t)(grains >> (log - 3));
}
_Static_assert(PER_DOUBLING == 1 << 3, "the shifts by log - 3 keep three bits below the highest");

/* The first class all of whose extents hold so many grains. */
static uint32_t class_holding(uint64_t grains)
{
    uint32_t class = class_of(grains);

    if (grains < PER_DOUBLING)
        return class;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(grains);
    return (grains & ((UINT64_C(1) << (log - 3)) - 1)) == 0 ? class : class + 1;
}

static uint32_t bucket_of(const struct kvd_extents *extents, uint64_t start)
{
    return (uint32_t)((start * UINT64_C(0x9E3779B97F4A7C15)) >> 40) & extents->bucket_mask;
}

static void add_free(struct kvd_extents *extents, int32_t at)
{
    struct node *node = &extents->nodes[at];
    uint32_t class = class_of(node->grains);

    node->taken = false;
    node->prev = NONE;
    node->next = extents->classes[class];
    if (node->next != NONE)
        extents->nodes[node->next].prev = at;
    extents->classes[class] = at;
    extents->filled[class / 64] |= UINT64_C(1) << (class % 64);
}

static void remove_free(struct kvd_extents *extents, int32_t at)
{
    struct node *node = &extents->nodes[at];
    uint32_t class = class_of(node->grains);

    if (node->next != NONE)
        extents->nodes[node->next].prev = node->prev;
    if (node->prev != NONE)
        extents->nodes[node->prev].next = node->next;
    else
        extents->classes[class] = node->next;
    if (extents->classes[class] == NONE)
        extents->filled[class / 64] &= ~(UINT64_C(1) << (class % 64));
}

kvarn_status kvd_extents_open(struct kvd_extents **extents, uint64_t capacity_bytes,
                              uint32_t extents_max)
{
    struct kvd_extents *made;
    uint64_t buckets = 64;
    int32_t nodes = (int32_t)(2 * extents_max + 1);

    assert(extents_max > 0 && extents_max < INT32_MAX / 2);
    if (capacity_bytes < GRAIN_BYTES)
        return KVARN_INTERNAL;
    while (buckets < extents_max)
        buckets *= 2;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return KVARN_INTERNAL;
    made->taken_max = extents_max;
    made->bucket_mask = (uint32_t)(buckets - 1);
    made->nodes = calloc((size_t)nodes, sizeof(*made->nodes));
    made->buckets = calloc(buckets, sizeof(*made->buckets));
    if (made->nodes == NULL || made->buckets == NULL) {
        kvd_extents_close(&made);
        return KVARN_INTERNAL;
    }
    for (uint64_t i = 0; i < buckets; i++)
        made->buckets[i] = NONE;
    for (int32_t i = 0; i < CLASSES; i++)
        made->classes[i] = NONE;
    for (int32_t i = 1; i < nodes; i++)
        made->nodes[i].next = i + 1 < nodes ? i + 1 : NONE;
    made->spare = 1;
    made->nodes[0] =
        (struct node){.grains = capacity_bytes / GRAIN_BYTES, .before = NONE, .after = NONE};
    add_free(made, 0);
    *extents = made;
    return KVARN_OK;
}

void kvd_extents_close(struct kvd_extents **extents)
{
    if (*extents == NULL)
        return;
    free((*extents)->nodes);
    free((*extents)->buckets);
    free(*extents);
    *extents = NULL;
}

/* Any node of the lowest class from this one up that has one. */
static int32_t first_from(const struct kvd_extents *extents, uint32_t class)
{
    uint64_t above = UINT64_MAX << (class % 64);

    for (uint32_t word = class / 64; word < CLASSES / 64; word++) {
        uint64_t bits = extents->filled[word] & above;
        if (bits != 0)
            return extents->classes[word * 64 + (uint32_t)__builtin_ctzll(bits)];
        above = UINT64_MAX;
    }
    return NONE;
}

static int32_t find_free(const struct kvd_extents *extents, uint64_t grains)
{
    int32_t at = first_from(extents, class_holding(grains));

    if (at != NONE)
        return at;
    /* Nothing is surely large enough; an extent of the request's own class may be. */
    for (at = extents->classes[class_of(grains)]; at != NONE; at = extents->nodes[at].next)
        if (extents->nodes[at].grains >= grains)
            return at;
    return NONE;
}

/* Cuts what is too much off the end of a node and makes it a free node. */
static void cut(struct kvd_extents *extents, int32_t at, uint64_t grains)
{
    struct node *node = &extents->nodes[at];
    int32_t rest = extents->spare;

    if (node->grains == grains)
        return;
    assert(rest != NONE);
    extents->spare = extents->nodes[rest].next;
    extents->nodes[rest] = (struct node){.start = node->start + grains,
                                         .grains = node->grains - grains,
                                         .before = at,
                                         .after = node->after};
    if (node->after != NONE)
        extents->nodes[node->after].before = rest;
    node->after = rest;
    node->grains = grains;
    add_free(extents, rest);
}

bool kvd_extents_take(struct kvd_extents *extents, uint64_t bytes, uint64_t *offset)
{
    uint64_t grains = bytes / GRAIN_BYTES + (bytes % GRAIN_BYTES != 0);
    int32_t at;

    if (extents->taken == extents->taken_max)
        return false;
    grains += grains == 0; /* every extent has an address of its own */
    at = find_free(extents, grains);
    if (at == NONE)
        return false;
    remove_free(extents, at);
    cut(extents, at, grains);

    struct node *node = &extents->nodes[at];
    int32_t *bucket = &extents->buckets[bucket_of(extents, node->start)];
    node->taken = true;
    node->next = *bucket;
    *bucket = at;
    extents->taken++;
    extents->used_grains += grains;
    *offset = node->start * GRAIN_BYTES;
    return true;
}

/* Joins a free node with the one after it. */
static void join(struct kvd_extents *extents, int32_t at)
{
    struct node *node = &extents->nodes[at];
    int32_t gone = node->after;

    node->grains += extents->nodes[gone].grains;
    node->after = extents->nodes[gone].after;
    if (node->after != NONE)
        extents->nodes[node->after].before = at;
    extents->nodes[gone].next = extents->spare;
    extents->spare = gone;
}

void kvd_extents_give(struct kvd_extents *extents, uint64_t offset)
{
    int32_t *link = &extents->buckets[bucket_of(extents, offset / GRAIN_BYTES)];

    assert(offset % GRAIN_BYTES == 0);
    while (*link != NONE && extents->nodes[*link].start != offset / GRAIN_BYTES)
        link = &extents->nodes[*link].next;
    assert(*link != NONE); /* not taken, or given twice */

    int32_t at = *link;
    struct node *node = &extents->nodes[at];
    *link = node->next;
    extents->taken--;
    extents->used_grains -= node->grains;
    if (node->after != NONE && !extents->nodes[node->after].taken) {
        remove_free(extents, node->after);
        join(extents, at);
    }
    if (node->before != NONE && !extents->nodes[node->before].taken) {
        at = node->before;
        remove_free(extents, at);
        join(extents, at);
    }
    add_free(extents, at);
}

uint64_t kvd_extents_largest_bytes(const struct kvd_extents *extents)
{
    uint64_t largest = 0;

    if (extents->taken == extents->taken_max)
        return 0;
    for (uint32_t word = CLASSES / 64; word-- > 0;) {
        if (extents->filled[word] == 0)
            continue;
        uint32_t class = word * 64 + 63 - (uint32_t)__builtin_clzll(extents->filled[word]);
        for (int32_t at = extents->classes[class]; at != NONE; at = extents->nodes[at].next)
            if (extents->nodes[at].grains > largest)
                largest = extents->nodes[at].grains;
        break;
    }
    return largest * GRAIN_BYTES;
}

uint64_t kvd_extents_used_bytes(const struct kvd_extents *extents)
{
    return extents->used_grains * GRAIN_BYTES;
}
