/* The pool is cut into units; a chunk is a run of units that holds slots of one class (tenant and
 * slot size). Free slots of all chunks are bits of one bitmap: a unit owns as many bits as it could
 * hold smallest slots, and a chunk uses the bits from its first unit on. A second bitmap has a bit
 * for every word of the first that has a free slot. A class lists its chunks that have one, so take
 * and give look at one chunk, and at a few words in it. All memory is taken in open. */
#include "server/store/pool.h"

#include <assert.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>

#include "server/core/limits.h"

enum {
    SLOT_MIN_BYTES = 1024,      /* smaller slots take this much */
    UNIT_MIN_BYTES = 64 * 1024, /* 64 smallest slots: one word of the bitmap */
    CHUNKS_WANTED = 16,         /* in a pool too small for 16 full chunks */
    SLOT_ALIGN_BYTES = 128,     /* what kernels on a GPU want */
    WASTE_FINE = 16,            /* a sixteenth of a chunk may be unused */
    WASTE_LOOKS = 4,
    BUCKETS = 1024, /* of the class table; classes are a few per space */
    NONE = -1
};

/* Indexed by the chunk's first unit. */
struct chunk {
    uint64_t slot_bytes;
    int32_t units; /* 0: this unit starts no chunk */
    int32_t class_index;
    uint32_t slots, free_slots;
    uint32_t idle;         /* trims that found it empty */
    bool lingers;          /* empty and kept */
    int32_t before, after; /* in the class's list of chunks with a free slot */
};

/* Lives from its first chunk to its last, so there are never more classes than units. */
struct class
{
    uint64_t slot_bytes;
    uint32_t tenant, chunks;
    int32_t first; /* chunk with a free slot; NONE */
    int32_t next;  /* in its bucket, or in the list of unused classes */
};

struct share {
    uint64_t used, reserved, guaranteed, maximum;
};

struct kvd_pool {
    uint64_t capacity_bytes, unit_bytes, chunk_bytes;
    uint64_t used_bytes, reserved_bytes;
    uint64_t guaranteed_bytes;
    uint64_t owed_bytes; /* guaranteed and not reserved yet, of all tenants */
    struct share shares[KVD_TENANTS_MAX];
    kvd_pool_wipe wipe;
    void *context;
    uint32_t unit_words;
    uint32_t empty_chunks; /* that linger */
    bool linger;
    int32_t units, free_units_from; /* no unit before it is free */
    int32_t unused_class;
    int32_t buckets[BUCKETS];
    struct chunk *chunks;  /* [units] */
    int32_t *owner;        /* [units]: first unit of the chunk it belongs to; NONE = free */
    struct class *classes; /* [units] */
    uint64_t *bits;        /* [units * unit_words]; 1 = free slot */
    uint64_t *words;       /* a bit for each word of bits; 1 = it is not 0 */
};

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

kvarn_status kvd_pool_open(struct kvd_pool **pool, uint64_t capacity_bytes, uint64_t unit_bytes,
                           kvd_pool_wipe wipe, void *context)
{
    uint64_t wanted = capacity_bytes / CHUNKS_WANTED;
    uint64_t small = wanted >= KVD_CHUNK_ALIGN_BYTES ? KVD_CHUNK_ALIGN_BYTES : UNIT_MIN_BYTES;
    uint64_t unit = unit_bytes != 0 ? unit_bytes : small;
    uint64_t units = capacity_bytes / unit;
    struct kvd_pool *made;

    assert(unit % UNIT_MIN_BYTES == 0 && unit / UNIT_MIN_BYTES <= UINT32_MAX);
    if (units == 0 || units > INT32_MAX)
        return KVARN_TOO_LARGE;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return KVARN_INTERNAL;
    *made = (struct kvd_pool){.capacity_bytes = units * unit,
                              .unit_bytes = unit,
                              .chunk_bytes = unit_bytes != 0            ? unit_bytes
                                             : wanted < KVD_CHUNK_BYTES ? wanted
                                                                        : KVD_CHUNK_BYTES,
                              .wipe = wipe,
                              .context = context,
                              .unit_words = (uint32_t)(unit / UNIT_MIN_BYTES),
                              .units = (int32_t)units};
    made->chunks = calloc(units, sizeof(*made->chunks));
    made->owner = calloc(units, sizeof(*made->owner));
    made->classes = calloc(units, sizeof(*made->classes));
    made->bits = calloc(units * made->unit_words, sizeof(*made->bits));
    made->words = calloc(units * made->unit_words / 64 + 1, sizeof(*made->words));
    if (made->chunks == NULL || made->owner == NULL || made->classes == NULL ||
        made->bits == NULL || made->words == NULL) {
        kvd_pool_close(&made);
        return KVARN_INTERNAL;
    }
    for (int32_t i = 0; i < made->units; i++) {
        made->owner[i] = NONE;
        made->classes[i].next = i + 1 < made->units ? i + 1 : NONE;
    }
    for (int32_t i = 0; i < BUCKETS; i++)
        made->buckets[i] = NONE;
    for (uint32_t i = 0; i < KVD_TENANTS_MAX; i++)
        made->shares[i].maximum = UINT64_MAX;
    *pool = made;
    return KVARN_OK;
}

void kvd_pool_close(struct kvd_pool **pool)
{
    if (*pool == NULL)
        return;
    free((*pool)->chunks);
    free((*pool)->owner);
    free((*pool)->classes);
    free((*pool)->bits);
    free((*pool)->words);
    free(*pool);
    *pool = NULL;
}

/* ---- shares ---- */

static uint64_t owed(const struct share *share)
{
    return share->guaranteed > share->reserved ? share->guaranteed - share->reserved : 0;
}

/* A chunk comes or goes. */
static void reserve(struct kvd_pool *pool, uint32_t tenant, int64_t bytes)
{
    struct share *share = &pool->shares[tenant];

    pool->owed_bytes -= owed(share);
    share->reserved = (uint64_t)((int64_t)share->reserved + bytes);
    pool->owed_bytes += owed(share);
    pool->reserved_bytes = (uint64_t)((int64_t)pool->reserved_bytes + bytes);
}

/* Bytes of chunks that the tenant may have besides those that it has. */
static uint64_t allowed(const struct kvd_pool *pool, uint32_t tenant)
{
    const struct share *share = &pool->shares[tenant];
    uint64_t unused = pool->capacity_bytes - pool->reserved_bytes;
    uint64_t others = pool->owed_bytes - owed(share);
    uint64_t own = share->maximum > share->reserved ? share->maximum - share->reserved : 0;

    unused = unused > others ? unused - others : 0;
    return own < unused ? own : unused;
}

kvarn_status kvd_pool_quota(struct kvd_pool *pool, uint32_t tenant, uint64_t guaranteed_bytes,
                            uint64_t maximum_bytes)
{
    struct share *share = &pool->shares[tenant];
    uint64_t all = round_up(guaranteed_bytes, pool->unit_bytes);

    assert(tenant < KVD_TENANTS_MAX);
    if (guaranteed_bytes > pool->capacity_bytes)
        return KVARN_TOO_LARGE;
    for (uint32_t i = 0; i < KVD_TENANTS_MAX; i++)
        all += i != tenant ? pool->shares[i].guaranteed : 0;
    if (all > pool->capacity_bytes)
        return KVARN_TOO_LARGE;
    pool->owed_bytes -= owed(share);
    pool->guaranteed_bytes = all;
    share->guaranteed = round_up(guaranteed_bytes, pool->unit_bytes);
    share->maximum = maximum_bytes;
    pool->owed_bytes += owed(share);
    return KVARN_OK;
}

uint64_t kvd_pool_tenant_bytes(const struct kvd_pool *pool, uint32_t tenant)
{
    return pool->shares[tenant].reserved;
}

uint64_t kvd_pool_tenant_used_bytes(const struct kvd_pool *pool, uint32_t tenant)
{
    return pool->shares[tenant].used;
}

uint64_t kvd_pool_tenant_most_bytes(const struct kvd_pool *pool, uint32_t tenant)
{
    const struct share *share = &pool->shares[tenant];
    uint64_t most = pool->capacity_bytes - (pool->guaranteed_bytes - share->guaranteed);

    return share->maximum < most ? share->maximum : most;
}

/* ---- classes ---- */

static int32_t *bucket_of(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes)
{
    uint64_t mixed =
        (slot_bytes / SLOT_ALIGN_BYTES + ((uint64_t)tenant << 40)) * UINT64_C(0x9E3779B97F4A7C15);

    return &pool->buckets[mixed >> 54];
}
_Static_assert(BUCKETS == 1 << (64 - 54), "the shift above takes all buckets");

static int32_t find_class(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes)
{
    int32_t index = *bucket_of(pool, tenant, slot_bytes);

    while (index != NONE &&
           (pool->classes[index].tenant != tenant || pool->classes[index].slot_bytes != slot_bytes))
        index = pool->classes[index].next;
    return index;
}

static int32_t add_class(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes)
{
    int32_t *bucket = bucket_of(pool, tenant, slot_bytes);
    int32_t index = pool->unused_class;

    assert(index != NONE);
    struct class *class = &pool->classes[index];
    pool->unused_class = class->next;
    *class =
        (struct class){.slot_bytes = slot_bytes, .tenant = tenant, .first = NONE, .next = *bucket};
    *bucket = index;
    return index;
}

static void drop_class(struct kvd_pool *pool, int32_t index)
{
    struct class *class = &pool->classes[index];
    int32_t *link = bucket_of(pool, class->tenant, class->slot_bytes);

    while (*link != index)
        link = &pool->classes[*link].next;
    *link = class->next;
    class->next = pool->unused_class;
    pool->unused_class = index;
}

static void link_chunk(struct kvd_pool *pool, int32_t at)
{
    struct chunk *chunk = &pool->chunks[at];
    struct class *class = &pool->classes[chunk->class_index];

    chunk->before = NONE;
    chunk->after = class->first;
    if (class->first != NONE)
        pool->chunks[class->first].before = at;
    class->first = at;
}

static void unlink_chunk(struct kvd_pool *pool, int32_t at)
{
    struct chunk *chunk = &pool->chunks[at];

    if (chunk->before != NONE)
        pool->chunks[chunk->before].after = chunk->after;
    else
        pool->classes[chunk->class_index].first = chunk->after;
    if (chunk->after != NONE)
        pool->chunks[chunk->after].before = chunk->before;
}

/* ---- chunks ---- */

/* The first run of `wanted` free units, or else the longest of at least `least`. Gives its length,
 * 0 when there is none. */
static int32_t find_run(struct kvd_pool *pool, int32_t wanted, int32_t least, int32_t *start)
{
    int32_t best = 0, at = pool->free_units_from;

    while (at < pool->units && pool->owner[at] != NONE)
        at += pool->chunks[at].units;
    pool->free_units_from = at;
    while (at < pool->units) {
        if (pool->owner[at] != NONE) {
            at += pool->chunks[at].units;
            continue;
        }
        int32_t run = 1;
        while (run < wanted && at + run < pool->units && pool->owner[at + run] == NONE)
            run++;
        if (run > best && run >= least) {
            best = run;
            *start = at;
        }
        if (run == wanted)
            return run;
        at += run;
    }
    return best;
}

static void set_word(struct kvd_pool *pool, uint64_t word, uint64_t bits)
{
    uint64_t bit = UINT64_C(1) << (word % 64);

    pool->bits[word] = bits;
    if (bits != 0)
        pool->words[word / 64] |= bit;
    else
        pool->words[word / 64] &= ~bit;
}

static void set_bits(struct kvd_pool *pool, uint64_t word, uint32_t count)
{
    for (; count >= 64; count -= 64)
        set_word(pool, word++, UINT64_MAX);
    if (count > 0)
        set_word(pool, word, (UINT64_C(1) << count) - 1);
}

/* The first word from `word` on that has a free slot; there is one. */
static uint64_t word_with_free(const struct kvd_pool *pool, uint64_t word)
{
    uint64_t at = word / 64, found = pool->words[at] & UINT64_MAX << (word % 64);

    while (found == 0)
        found = pool->words[++at];
    return at * 64 + (uint64_t)__builtin_ctzll(found);
}

static void drop_chunk(struct kvd_pool *pool, int32_t at)
{
    struct chunk *chunk = &pool->chunks[at];
    int32_t units = chunk->units, class_index = chunk->class_index;
    uint64_t bytes = (uint64_t)units * pool->unit_bytes;
    uint64_t word = (uint64_t)at * pool->unit_words;

    unlink_chunk(pool, at);
    reserve(pool, pool->classes[class_index].tenant, -(int64_t)bytes);
    if (--pool->classes[class_index].chunks == 0)
        drop_class(pool, class_index);
    for (uint32_t i = 0; i < (uint32_t)units * pool->unit_words; i++)
        set_word(pool, word + i, 0);
    chunk->units = 0;
    if (chunk->lingers)
        pool->empty_chunks--;
    chunk->lingers = false;
    for (int32_t i = 0; i < units; i++)
        pool->owner[at + i] = NONE;
    if (at < pool->free_units_from)
        pool->free_units_from = at;
    if (pool->wipe != NULL)
        pool->wipe(pool->context, (uint64_t)at * pool->unit_bytes, bytes);
}

/* All chunks that linger; somebody needs their units. */
static void drop_empty(struct kvd_pool *pool)
{
    for (int32_t at = 0; at < pool->units; at++)
        if (pool->chunks[at].lingers)
            drop_chunk(pool, at);
}

/* Units of a chunk: of as many whole slots as fit the pool's chunk size, at least one. With large
 * units that may leave much of the last one unused: then up to WASTE_LOOKS times as many, if more
 * of them are used. */
static int32_t chunk_units(const struct kvd_pool *pool, uint64_t slot_bytes)
{
    uint64_t fit = pool->chunk_bytes / slot_bytes;
    uint64_t full = (fit > 0 ? fit : 1) * slot_bytes, unit = pool->unit_bytes;
    uint64_t least = round_up(full, unit) / unit, best = least;

    for (uint64_t units = least; units <= least * WASTE_LOOKS; units++) {
        uint64_t unused = units * unit % slot_bytes, unused_best = best * unit % slot_bytes;

        if (unused_best <= best * unit / WASTE_FINE)
            break;
        if (unused * best < unused_best * units)
            best = units;
    }
    return (int32_t)best;
}

/* Where a chunk of the tenant may stand, of `wanted` units or fewer, at least `least`: its length,
 * 0 when there is none. */
static int32_t place_chunk(struct kvd_pool *pool, uint32_t tenant, int32_t wanted, int32_t least,
                           int32_t *at, kvarn_status *status)
{
    uint64_t units = allowed(pool, tenant) / pool->unit_bytes;

    *status = units < (uint64_t)least && pool->capacity_bytes - pool->reserved_bytes >=
                                             (uint64_t)least * pool->unit_bytes
                  ? KVARN_QUOTA
                  : KVARN_NO_SPACE;
    if (units < (uint64_t)least)
        return 0;
    return find_run(pool, units < (uint64_t)wanted ? (int32_t)units : wanted, least, at);
}

/* Makes a chunk for the class of slot_bytes; a smaller one when only a shorter run of units is
 * left, or allowed. */
static kvarn_status add_chunk(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes,
                              int32_t *class_index)
{
    int32_t wanted = chunk_units(pool, slot_bytes);
    int32_t least = (int32_t)(round_up(slot_bytes, pool->unit_bytes) / pool->unit_bytes);
    kvarn_status status;
    int32_t at = 0, units = place_chunk(pool, tenant, wanted, least, &at, &status);

    if (units == 0 && pool->empty_chunks > 0) {
        drop_empty(pool);
        units = place_chunk(pool, tenant, wanted, least, &at, &status);
        *class_index = find_class(pool, tenant, slot_bytes);
    }
    if (units == 0)
        return status;
    if (*class_index == NONE)
        *class_index = add_class(pool, tenant, slot_bytes);
    pool->classes[*class_index].chunks++;

    struct chunk *chunk = &pool->chunks[at];
    uint32_t slots = (uint32_t)((uint64_t)units * pool->unit_bytes / slot_bytes);
    *chunk = (struct chunk){.slot_bytes = slot_bytes,
                            .units = units,
                            .class_index = *class_index,
                            .slots = slots,
                            .free_slots = slots};
    for (int32_t i = 0; i < units; i++)
        pool->owner[at + i] = at;
    set_bits(pool, (uint64_t)at * pool->unit_words, slots);
    reserve(pool, tenant, (int64_t)((uint64_t)units * pool->unit_bytes));
    link_chunk(pool, at);
    return KVARN_OK;
}

/* ---- slots ---- */

kvarn_status kvd_pool_take(struct kvd_pool *pool, uint32_t tenant, uint64_t slot_bytes,
                           uint64_t *offset)
{
    if (slot_bytes > pool->capacity_bytes)
        return KVARN_TOO_LARGE;
    slot_bytes =
        slot_bytes < SLOT_MIN_BYTES ? SLOT_MIN_BYTES : round_up(slot_bytes, SLOT_ALIGN_BYTES);

    int32_t class_index = find_class(pool, tenant, slot_bytes);
    if (class_index == NONE || pool->classes[class_index].first == NONE) {
        kvarn_status status = add_chunk(pool, tenant, slot_bytes, &class_index);
        if (status != KVARN_OK)
            return status;
    }

    int32_t at = pool->classes[class_index].first;
    struct chunk *chunk = &pool->chunks[at];
    uint64_t first = (uint64_t)at * pool->unit_words;
    uint64_t word = word_with_free(pool, first);
    uint32_t slot = (uint32_t)(word - first) * 64 + (uint32_t)__builtin_ctzll(pool->bits[word]);
    assert(slot < chunk->slots);
    set_word(pool, word, pool->bits[word] & (pool->bits[word] - 1));
    if (chunk->lingers)
        pool->empty_chunks--;
    chunk->lingers = false;
    if (--chunk->free_slots == 0)
        unlink_chunk(pool, at);
    pool->used_bytes += slot_bytes;
    pool->shares[tenant].used += slot_bytes;
    *offset = (uint64_t)at * pool->unit_bytes + slot * slot_bytes;
    return KVARN_OK;
}

void kvd_pool_give(struct kvd_pool *pool, uint64_t offset)
{
    assert(offset < pool->capacity_bytes);
    int32_t at = pool->owner[offset / pool->unit_bytes];
    assert(at != NONE);
    struct chunk *chunk = &pool->chunks[at];
    uint64_t within = offset - (uint64_t)at * pool->unit_bytes;
    uint32_t slot = (uint32_t)(within / chunk->slot_bytes);
    uint64_t word = (uint64_t)at * pool->unit_words + slot / 64;
    uint64_t bit = UINT64_C(1) << (slot % 64);

    assert(within % chunk->slot_bytes == 0 && slot < chunk->slots);
    assert((pool->bits[word] & bit) == 0); /* given twice */
    set_word(pool, word, pool->bits[word] | bit);
    pool->used_bytes -= chunk->slot_bytes;
    pool->shares[pool->classes[chunk->class_index].tenant].used -= chunk->slot_bytes;
    if (chunk->free_slots++ == 0)
        link_chunk(pool, at);
    if (chunk->free_slots < chunk->slots)
        return;
    if (!pool->linger) {
        drop_chunk(pool, at);
        return;
    }
    chunk->idle = 0;
    chunk->lingers = true;
    pool->empty_chunks++;
}

void kvd_pool_linger(struct kvd_pool *pool)
{
    pool->linger = true;
}

void kvd_pool_trim(struct kvd_pool *pool, uint32_t calls)
{
    bool dropped = false;

    if (pool->empty_chunks == 0)
        return;
    for (int32_t at = 0; at < pool->units; at++) {
        struct chunk *chunk = &pool->chunks[at];

        if (!chunk->lingers || chunk->idle++ < calls || dropped)
            continue;
        drop_chunk(pool, at);
        dropped = true;
    }
}

uint64_t kvd_pool_capacity_bytes(const struct kvd_pool *pool)
{
    return pool->capacity_bytes;
}

uint64_t kvd_pool_used_bytes(const struct kvd_pool *pool)
{
    return pool->used_bytes;
}

uint64_t kvd_pool_reserved_bytes(const struct kvd_pool *pool)
{
    return pool->reserved_bytes;
}
