/* Linear probing, backward-shift removal, at most three quarters full. */
#include "server/store/disk_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/index.h"

enum { LEAST = 1024 };

static uint64_t hash_of(const struct kvd_disk *disk, uint32_t space, const kvarn_key *key)
{
    return kvd_index_hash(disk->secret, key) + (space + 1) * 0x9e3779b97f4a7c15u;
}

/* Where it stands, or the empty place where it would. */
static uint64_t seek(const struct kvd_disk *disk, uint64_t hash, uint32_t space,
                     const kvarn_key *key)
{
    uint64_t mask = disk->index_capacity - 1, at = hash & mask;

    for (; disk->index[at].record; at = (at + 1) & mask) {
        const struct kvd_disk_record *record = disk->index[at].record;

        if (disk->index[at].hash == hash && record->segment->space == space &&
            memcmp(record->entry.key.bytes, key->bytes, KVARN_KEY_BYTES) == 0)
            break;
    }
    return at;
}

struct kvd_disk_record *kvd_disk_index_find(const struct kvd_disk *disk, uint32_t space,
                                            const kvarn_key *key)
{
    if (!disk->count)
        return NULL;
    return disk->index[seek(disk, hash_of(disk, space, key), space, key)].record;
}

static bool grow(struct kvd_disk *disk)
{
    uint64_t capacity = disk->index_capacity ? disk->index_capacity * 2 : LEAST;
    struct kvd_disk_slot *larger = calloc(capacity, sizeof *larger);

    if (!larger)
        return false;
    for (uint64_t i = 0; i < disk->index_capacity; i++) {
        uint64_t at = disk->index[i].hash & (capacity - 1);

        if (!disk->index[i].record)
            continue;
        while (larger[at].record)
            at = (at + 1) & (capacity - 1);
        larger[at] = disk->index[i];
    }
    free(disk->index);
    disk->index = larger;
    disk->index_capacity = capacity;
    return true;
}

kvarn_status kvd_disk_index_add(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    uint64_t hash = hash_of(disk, record->segment->space, &record->entry.key), at;

    if (disk->count * 4 >= disk->index_capacity * 3 && !grow(disk))
        return KVARN_NO_SPACE;
    at = seek(disk, hash, record->segment->space, &record->entry.key);
    if (disk->index[at].record)
        return KVARN_EXISTS;
    disk->index[at] = (struct kvd_disk_slot){hash, record};
    disk->count++;
    return KVARN_OK;
}

void kvd_disk_index_remove(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    uint64_t mask = disk->index_capacity - 1;
    uint64_t hole = seek(disk, hash_of(disk, record->segment->space, &record->entry.key),
                         record->segment->space, &record->entry.key);

    assert(disk->index[hole].record == record);
    for (uint64_t at = (hole + 1) & mask; disk->index[at].record; at = (at + 1) & mask) {
        uint64_t home = disk->index[at].hash & mask;

        /* it may move into the hole unless its home lies behind it */
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        disk->index[hole] = disk->index[at];
        hole = at;
    }
    disk->index[hole].record = NULL;
    disk->count--;
}
