/* Open addressing over seeded hashes. See index.h. */
#include "server/store/index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/block.h"

enum { KVD_INDEX_FIRST = 64, FETCHED = 32 /* keys under way at once */ };

struct sip {
    uint64_t a, b, c, d;
};

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(struct sip *s)
{
    s->a += s->b;
    s->c += s->d;
    s->b = rotate(s->b, 13) ^ s->a;
    s->d = rotate(s->d, 16) ^ s->c;
    s->a = rotate(s->a, 32);
    s->c += s->b;
    s->a += s->d;
    s->b = rotate(s->b, 17) ^ s->c;
    s->d = rotate(s->d, 21) ^ s->a;
    s->c = rotate(s->c, 32);
}

uint64_t kvd_index_hash(const uint64_t secret[2], const kvarn_key *key)
{
    struct sip s = {secret[0] ^ 0x736f6d6570736575u, secret[1] ^ 0x646f72616e646f6du,
                    secret[0] ^ 0x6c7967656e657261u, secret[1] ^ 0x7465646279746573u};
    uint64_t words[KVARN_KEY_BYTES / 8 + 1];

    memcpy(words, key->bytes, KVARN_KEY_BYTES);
    words[KVARN_KEY_BYTES / 8] = (uint64_t)KVARN_KEY_BYTES << 56;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        s.d ^= words[i];
        sip_round(&s);
        s.a ^= words[i];
    }
    s.c ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(&s);
    return s.a ^ s.b ^ s.c ^ s.d;
}

void kvd_index_init(struct kvd_index *index, const uint64_t secret[2],
                    struct kvd_block *const *slabs)
{
    memset(index, 0, sizeof *index);
    index->secret[0] = secret[0];
    index->secret[1] = secret[1];
    index->slabs = slabs;
}

void kvd_index_free(struct kvd_index *index)
{
    free(index->entries);
    index->entries = NULL;
    index->capacity = index->count = 0;
}

static struct kvd_block *block_of(const struct kvd_index *index, struct kvd_index_entry entry)
{
    uint32_t id = entry.block - 1;

    return &index->slabs[id / KVD_BLOCK_SLAB][id % KVD_BLOCK_SLAB];
}

/* Where the key stands, or the empty place where it would. capacity > 0. */
static size_t place_of(const struct kvd_index *index, uint32_t hash, const void *key)
{
    size_t at = hash & (index->capacity - 1);

    while (index->entries[at].block) {
        struct kvd_index_entry entry = index->entries[at];

        if (entry.hash == hash && !memcmp(block_of(index, entry)->key.bytes, key, KVARN_KEY_BYTES))
            break;
        at = (at + 1) & (index->capacity - 1);
    }
    return at;
}

static uint32_t hash_of(const struct kvd_index *index, const kvarn_key *key)
{
    return (uint32_t)kvd_index_hash(index->secret, key);
}

struct kvd_block *kvd_index_find(const struct kvd_index *index, const kvarn_key *key)
{
    struct kvd_index_entry entry;

    if (!index->count)
        return NULL;
    entry = index->entries[place_of(index, hash_of(index, key), key)];
    return entry.block ? block_of(index, entry) : NULL;
}

/* The first block of this hash, its key not compared yet; NULL when there is none. */
static struct kvd_block *candidate(const struct kvd_index *index, uint32_t hash)
{
    for (size_t at = hash & (index->capacity - 1);; at = (at + 1) & (index->capacity - 1)) {
        struct kvd_index_entry entry = index->entries[at];

        if (!entry.block)
            return NULL;
        if (entry.hash == hash)
            return block_of(index, entry);
    }
}

/* Three passes over a few keys: where they would stand, which blocks may be theirs, are they. */
static void find_some(const struct kvd_index *index, const uint8_t *keys, size_t stride,
                      uint32_t count, struct kvd_block **out)
{
    uint32_t hashes[FETCHED];
    kvarn_key key;

    for (uint32_t i = 0; i < count; i++) {
        memcpy(&key, keys + i * stride, sizeof key);
        hashes[i] = hash_of(index, &key);
        __builtin_prefetch(&index->entries[hashes[i] & (index->capacity - 1)]);
    }
    for (uint32_t i = 0; i < count; i++) {
        out[i] = candidate(index, hashes[i]);
        if (!out[i])
            continue;
        __builtin_prefetch(out[i], 1);
        __builtin_prefetch((const uint8_t *)(out[i] + 1) - 1, 1);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *wanted = keys + i * stride;
        struct kvd_index_entry entry;

        if (!out[i] || !memcmp(out[i]->key.bytes, wanted, KVARN_KEY_BYTES))
            continue;
        entry = index->entries[place_of(index, hashes[i], wanted)];
        out[i] = entry.block ? block_of(index, entry) : NULL;
    }
}

void kvd_index_find_many(const struct kvd_index *index, const uint8_t *keys, size_t stride,
                         uint32_t count, struct kvd_block **out)
{
    if (!index->count) {
        memset(out, 0, count * sizeof(struct kvd_block *));
        return;
    }
    for (uint32_t at = 0; at < count; at += FETCHED)
        find_some(index, keys + at * stride, stride,
                  count - at < FETCHED ? count - at : (uint32_t)FETCHED, out + at);
}

static kvarn_status grow(struct kvd_index *index)
{
    size_t capacity = index->capacity ? index->capacity * 2 : KVD_INDEX_FIRST;
    struct kvd_index_entry *entries = calloc(capacity, sizeof *entries);

    if (!entries)
        return KVARN_NO_SPACE;
    for (size_t i = 0; i < index->capacity; i++) {
        struct kvd_index_entry entry = index->entries[i];
        size_t at = entry.hash & (capacity - 1);

        if (!entry.block)
            continue;
        while (entries[at].block)
            at = (at + 1) & (capacity - 1);
        entries[at] = entry;
    }
    free(index->entries);
    index->entries = entries;
    index->capacity = capacity;
    return KVARN_OK;
}

kvarn_status kvd_index_add(struct kvd_index *index, struct kvd_block *block)
{
    uint32_t hash = hash_of(index, &block->key);
    size_t at;

    /* At most 3/4 full: a miss then looks at about 8 entries, one or two cache lines. */
    if (index->count * 4 >= index->capacity * 3 && grow(index) != KVARN_OK)
        return KVARN_NO_SPACE;
    at = place_of(index, hash, block->key.bytes);
    if (index->entries[at].block)
        return KVARN_EXISTS;
    index->entries[at] = (struct kvd_index_entry){hash, block->id + 1};
    index->count++;
    return KVARN_OK;
}

void kvd_index_remove(struct kvd_index *index, struct kvd_block *block)
{
    size_t mask = index->capacity - 1;
    size_t hole = place_of(index, hash_of(index, &block->key), block->key.bytes);
    size_t at = hole;

    assert(index->entries[hole].block == block->id + 1);
    for (;;) {
        size_t home;

        at = (at + 1) & mask;
        if (!index->entries[at].block)
            break;
        home = index->entries[at].hash & mask;
        /* It may fill the hole when its home is not between the hole and itself. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            index->entries[hole] = index->entries[at];
            hole = at;
        }
    }
    index->entries[hole] = (struct kvd_index_entry){0, 0};
    index->count--;
}
