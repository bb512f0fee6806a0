/* Tables of the disk tier. See disk.h. */
#include "server/store/disk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/disk_index.h"

struct kvd_disk *kvd_disk_new(uint64_t capacity_bytes, const uint64_t secret[2])
{
    struct kvd_disk *disk = calloc(1, sizeof *disk);

    if (!disk)
        return NULL;
    disk->capacity_bytes = disk->limit_bytes = capacity_bytes;
    disk->secret[0] = secret[0];
    disk->secret[1] = secret[1];
    disk->sequence = disk->number = 1;
    return disk;
}

void kvd_disk_free(struct kvd_disk **disk)
{
    if (!*disk)
        return;
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++)
        free((*disk)->segments[i].records);
    free((*disk)->index);
    free(*disk);
    *disk = NULL;
}

/* ---- spaces */

static bool holds_segments(const struct kvd_disk *disk, uint32_t space)
{
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++)
        if (disk->segments[i].used && disk->segments[i].space == space)
            return true;
    return false;
}

uint32_t kvd_disk_space(struct kvd_disk *disk, const struct kvd_disk_identity *identity)
{
    uint32_t room = KVD_DISK_SPACES_MAX;

    for (uint32_t i = 0; i < KVD_DISK_SPACES_MAX; i++) {
        const struct kvd_disk_space *space = &disk->spaces[i];

        if (space->used && memcmp(&space->identity, identity, sizeof *identity) == 0)
            return i;
        if (room == KVD_DISK_SPACES_MAX && !space->used)
            room = i;
    }
    for (uint32_t i = 0; room == KVD_DISK_SPACES_MAX && i < KVD_DISK_SPACES_MAX; i++)
        if (!holds_segments(disk, i))
            room = i;
    if (room < KVD_DISK_SPACES_MAX)
        disk->spaces[room] = (struct kvd_disk_space){.used = true, .identity = *identity};
    return room;
}

bool kvd_disk_holds(const struct kvd_disk *disk, const char *tenant,
                    const uint8_t base[KVARN_FINGERPRINT_BYTES])
{
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        const struct kvd_disk_identity *its = &disk->segments[i].header.identity;

        if (disk->segments[i].used && strcmp(its->tenant, tenant) == 0 &&
            memcmp(its->base, base, sizeof its->base) == 0)
            return true;
    }
    return disk->unseen;
}

/* ---- lists */

static struct kvd_disk_list *list_of(struct kvd_disk *disk, const struct kvd_disk_record *record)
{
    const struct kvd_disk_segment *segment = record->segment;

    return &disk->spaces[segment->space].lists[segment->header.kind - 1];
}

static void link_newest(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_list *list = list_of(disk, record);

    record->used_at = record->segment->used_at = ++disk->clock;
    record->newer = NULL;
    record->older = list->newest;
    if (list->newest)
        list->newest->newer = record;
    else
        list->oldest = record;
    list->newest = record;
}

void kvd_disk_unlink(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_list *list = list_of(disk, record);

    if (record->older)
        record->older->newer = record->newer;
    else
        list->oldest = record->newer;
    if (record->newer)
        record->newer->older = record->older;
    else
        list->newest = record->older;
    record->older = record->newer = NULL;
}

void kvd_disk_set_free(struct kvd_disk_record *record)
{
    struct kvd_disk_segment *segment = record->segment;

    memset(&record->entry, 0, sizeof record->entry);
    record->state = KVD_DISK_FREE;
    record->older = NULL;
    record->newer = segment->free;
    segment->free = record;
}

/* ---- life of a record */

struct kvd_disk_record *kvd_disk_find(struct kvd_disk *disk, uint32_t space, const kvarn_key *key)
{
    struct kvd_disk_record *record = kvd_disk_index_find(disk, space, key);

    if (record) {
        kvd_disk_unlink(disk, record);
        link_newest(disk, record);
    }
    return record;
}

void kvd_disk_hold(struct kvd_disk_record *record)
{
    if (!record->holds++)
        record->segment->busy++;
}

void kvd_disk_to_be_cleared(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    record->older = record->newer = NULL;
    if (disk->clear_last)
        disk->clear_last->newer = record;
    else
        disk->clear_first = record;
    disk->clear_last = record;
}

void kvd_disk_release(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    assert(record->holds);
    if (--record->holds)
        return;
    record->segment->busy--;
    if (record->state == KVD_DISK_CLEARING) /* removed while it was read */
        kvd_disk_to_be_cleared(disk, record);
}

void kvd_disk_remove(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_segment *segment = record->segment;

    assert(record->state == KVD_DISK_READY);
    kvd_disk_index_remove(disk, record);
    kvd_disk_unlink(disk, record);
    segment->live--;
    segment->persistent -= record->entry.persistent;
    segment->clearing++;
    memset(&record->entry, 0, sizeof record->entry);
    record->state = KVD_DISK_CLEARING;
    if (!record->holds)
        kvd_disk_to_be_cleared(disk, record);
}

void kvd_disk_condemn(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    if (record->state == KVD_DISK_READY)
        kvd_disk_remove(disk, record);
    if (record->state == KVD_DISK_CLEARING) {
        record->entry.state = KVD_ENTRY_BAD;
        record->entry.sequence = disk->sequence++;
    }
}

void kvd_disk_keep(struct kvd_disk_record *record)
{
    if (record->entry.persistent)
        return;
    record->entry.persistent = true;
    record->segment->persistent++;
}

kvarn_status kvd_disk_publish(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_segment *segment = record->segment;
    kvarn_status status;

    assert(record->state == KVD_DISK_FILLING);
    status = kvd_disk_index_add(disk, record);
    segment->busy--;
    if (status != KVARN_OK) { /* its entry stands in the file */
        segment->clearing++;
        memset(&record->entry, 0, sizeof record->entry);
        record->state = KVD_DISK_CLEARING;
        kvd_disk_to_be_cleared(disk, record);
        return status;
    }
    record->state = KVD_DISK_READY;
    segment->live++;
    segment->persistent += record->entry.persistent;
    link_newest(disk, record);
    return KVARN_OK;
}

void kvd_disk_abandon(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    (void)disk;
    assert(record->state == KVD_DISK_FILLING);
    record->segment->busy--;
    kvd_disk_set_free(record);
}

struct kvd_disk_record *kvd_disk_clear_next(struct kvd_disk *disk)
{
    struct kvd_disk_record *record = disk->clear_first;

    if (!record)
        return NULL;
    disk->clear_first = record->newer;
    if (!disk->clear_first)
        disk->clear_last = NULL;
    record->newer = NULL;
    record->segment->busy++; /* its file stays until cleared */
    return record;
}

void kvd_disk_cleared(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_segment *segment = record->segment;

    (void)disk;
    segment->busy--;
    segment->clearing--;
    if (record->entry.state == KVD_ENTRY_BAD) {
        segment->bad++;
        record->state = KVD_DISK_BAD;
        return;
    }
    kvd_disk_set_free(record);
}
