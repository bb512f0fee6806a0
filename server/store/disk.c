/* Tables of the disk tier. See disk.h. */
#include "server/store/disk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/disk_index.h"

enum { SEGMENT_SHARE = 128, SEGMENT_LEAST_BYTES = 1 << 20, EVICT_AT_ONCE = 8 };

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

static void unlink_record(struct kvd_disk *disk, struct kvd_disk_record *record)
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

static void set_free(struct kvd_disk_record *record)
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
        unlink_record(disk, record);
        link_newest(disk, record);
    }
    return record;
}

void kvd_disk_hold(struct kvd_disk_record *record)
{
    if (!record->holds++)
        record->segment->busy++;
}

static void to_be_cleared(struct kvd_disk *disk, struct kvd_disk_record *record)
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
        to_be_cleared(disk, record);
}

void kvd_disk_remove(struct kvd_disk *disk, struct kvd_disk_record *record)
{
    struct kvd_disk_segment *segment = record->segment;

    assert(record->state == KVD_DISK_READY);
    kvd_disk_index_remove(disk, record);
    unlink_record(disk, record);
    segment->live--;
    segment->persistent -= record->entry.persistent;
    segment->clearing++;
    memset(&record->entry, 0, sizeof record->entry);
    record->state = KVD_DISK_CLEARING;
    if (!record->holds)
        to_be_cleared(disk, record);
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
        to_be_cleared(disk, record);
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
    set_free(record);
}

void kvd_disk_forget(struct kvd_disk *disk, uint32_t space)
{
    for (int kind = 0; kind < 2; kind++)
        while (disk->spaces[space].lists[kind].oldest)
            kvd_disk_remove(disk, disk->spaces[space].lists[kind].oldest);
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
    set_free(record);
}

/* ---- room */

static struct kvd_disk_record *free_record(struct kvd_disk *disk, uint32_t space, uint32_t kind,
                                           bool *soon)
{
    *soon = false;
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *segment = &disk->segments[i];

        if (!segment->used || segment->space != space || segment->header.kind != kind ||
            segment->dropping || segment->header.sealed != disk->sealed)
            continue;
        *soon = *soon || segment->making || segment->clearing;
        if (segment->free && !segment->making)
            return segment->free;
    }
    return NULL;
}

/* A new segment's place in the table and in the quota; NULL: it does not fit. */
static struct kvd_disk_segment *plan_segment(struct kvd_disk *disk, uint32_t space, uint32_t kind)
{
    struct kvd_disk_header header = {.identity = disk->spaces[space].identity,
                                     .kind = kind,
                                     .number = disk->number,
                                     .sealed = disk->sealed,
                                     .slots = 1};
    uint64_t wanted = disk->capacity_bytes / SEGMENT_SHARE, one, slots;
    struct kvd_disk_segment *segment;

    memcpy(header.store, disk->store, sizeof header.store);
    if (wanted < SEGMENT_LEAST_BYTES)
        wanted = SEGMENT_LEAST_BYTES;
    one =
        kvd_disk_slot_offset(&header, 1) - kvd_disk_slot_offset(&header, 0) + KVD_DISK_ENTRY_BYTES;
    slots = wanted / one;
    header.slots = (uint32_t)(slots > KVD_DISK_SLOTS_MAX ? KVD_DISK_SLOTS_MAX : slots ? slots : 1);
    if (disk->used_bytes + kvd_disk_file_bytes(&header) > disk->limit_bytes)
        return NULL;
    segment = kvd_disk_adopt(disk, &header, -1);
    if (!segment)
        return NULL;
    segment->making = true;
    segment->used_at = ++disk->clock;
    return segment;
}

/* The oldest blocks of the class that may go. */
static bool evict_some(struct kvd_disk *disk, uint32_t space, uint32_t kind)
{
    struct kvd_disk_record *at = disk->spaces[space].lists[kind - 1].oldest, *newer;
    uint32_t gone = 0;

    for (; at && gone < EVICT_AT_ONCE; at = newer) {
        newer = at->newer;
        if (at->entry.persistent || at->holds)
            continue;
        kvd_disk_remove(disk, at);
        gone++;
    }
    disk->evictions += gone;
    return gone > 0;
}

static bool may_drop(const struct kvd_disk *disk, const struct kvd_disk_segment *segment,
                     uint32_t space)
{
    if (!segment->used || segment->making || segment->dropping || segment->persistent ||
        segment->busy || segment->clearing)
        return false;
    return !segment->live ||
           strcmp(segment->header.identity.tenant, disk->spaces[space].identity.tenant) == 0;
}

/* The segment that was used the longest ago: of this tenant, or an empty one of anybody. */
static bool drop_one(struct kvd_disk *disk, uint32_t space)
{
    struct kvd_disk_segment *oldest = NULL;

    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *at = &disk->segments[i];
        bool emptier = oldest && !at->live && oldest->live;
        bool fuller = oldest && at->live && !oldest->live;

        if (at->dropping)
            return true; /* there will be room */
        if (may_drop(disk, at, space) &&
            (!oldest || emptier || (!fuller && at->used_at < oldest->used_at)))
            oldest = at;
    }
    if (!oldest)
        return false;
    disk->evictions += oldest->live;
    for (uint32_t i = 0; i < oldest->header.slots; i++) {
        struct kvd_disk_record *record = &oldest->records[i];

        if (record->state != KVD_DISK_READY)
            continue;
        kvd_disk_index_remove(disk, record);
        unlink_record(disk, record);
        record->state = KVD_DISK_FREE; /* the file goes as a whole */
    }
    oldest->live = 0;
    oldest->dropping = true;
    return true;
}

kvarn_status kvd_disk_claim(struct kvd_disk *disk, uint32_t space, const kvarn_key *key,
                            uint32_t kind, struct kvd_disk_record **out,
                            struct kvd_disk_segment **make)
{
    bool soon;
    struct kvd_disk_record *record = free_record(disk, space, kind, &soon);

    *out = NULL;
    *make = NULL;
    if (record) {
        record->segment->free = record->newer;
        record->segment->busy++;
        record->newer = NULL;
        record->state = KVD_DISK_FILLING;
        record->entry = (struct kvd_disk_entry){
            .state = KVD_ENTRY_BLOCK, .key = *key, .sequence = disk->sequence++};
        *out = record;
        return KVARN_OK;
    }
    if (soon)
        return KVARN_RETRY;
    *make = plan_segment(disk, space, kind);
    if (*make || evict_some(disk, space, kind) || drop_one(disk, space))
        return KVARN_RETRY;
    return KVARN_NO_SPACE;
}

/* ---- segments */

struct kvd_disk_segment *kvd_disk_adopt(struct kvd_disk *disk, const struct kvd_disk_header *header,
                                        int fd)
{
    struct kvd_disk_segment *segment = NULL;
    uint32_t space;

    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX && !segment; i++)
        if (!disk->segments[i].used)
            segment = &disk->segments[i];
    if (!segment)
        return NULL;
    space = kvd_disk_space(disk, &header->identity);
    if (space == KVD_DISK_SPACES_MAX)
        return NULL;
    *segment = (struct kvd_disk_segment){
        .header = *header, .index = (uint32_t)(segment - disk->segments), .space = space, .fd = fd};
    segment->records = calloc(header->slots, sizeof *segment->records);
    if (!segment->records)
        return NULL;
    segment->used = true;
    for (uint32_t i = header->slots; i-- > 0;) {
        segment->records[i].segment = segment;
        segment->records[i].slot = i;
        set_free(&segment->records[i]);
    }
    disk->used_bytes += kvd_disk_file_bytes(header);
    if (disk->number <= header->number)
        disk->number = header->number + 1;
    return segment;
}

static void take_out_of_free(struct kvd_disk_segment *segment, struct kvd_disk_record *record)
{
    struct kvd_disk_record **at = &segment->free;

    while (*at != record)
        at = &(*at)->newer;
    *at = record->newer;
    record->newer = NULL;
}

kvarn_status kvd_disk_adopt_entry(struct kvd_disk *disk, struct kvd_disk_segment *segment,
                                  uint32_t slot, const struct kvd_disk_entry *entry, bool fine)
{
    struct kvd_disk_record *record = &segment->records[slot], *other;

    if (fine && entry->state == KVD_ENTRY_FREE)
        return KVARN_OK;
    take_out_of_free(segment, record);
    if (disk->sequence <= entry->sequence)
        disk->sequence = entry->sequence + 1;
    if (fine && entry->state == KVD_ENTRY_BAD) {
        record->entry = *entry;
        record->state = KVD_DISK_BAD;
        segment->bad++;
        return KVARN_OK;
    }
    record->state = KVD_DISK_FILLING;
    segment->busy++;
    if (!fine) { /* to be cleared like one that was removed */
        record->state = KVD_DISK_CLEARING;
        segment->busy--;
        segment->clearing++;
        to_be_cleared(disk, record);
        return KVARN_CORRUPT;
    }
    record->entry = *entry;
    other = kvd_disk_index_find(disk, segment->space, &entry->key);
    if (other && other->entry.sequence < entry->sequence)
        kvd_disk_remove(disk, other);
    return kvd_disk_publish(disk, record);
}

void kvd_disk_dropped(struct kvd_disk *disk, struct kvd_disk_segment *segment)
{
    disk->used_bytes -= kvd_disk_file_bytes(&segment->header);
    disk->limit_bytes = disk->capacity_bytes;
    free(segment->records);
    memset(segment, 0, sizeof *segment);
    segment->fd = -1;
}

void kvd_disk_made(struct kvd_disk *disk, struct kvd_disk_segment *segment, bool fine)
{
    segment->making = false;
    if (fine)
        return;
    kvd_disk_dropped(disk, segment);
    /* The file system has no room for it: what there is has to do, until some of it goes. */
    disk->limit_bytes = disk->used_bytes;
}

struct kvd_disk_segment *kvd_disk_drop_next(struct kvd_disk *disk)
{
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *segment = &disk->segments[i];

        if (!segment->used || !segment->dropping || segment->making)
            continue;
        segment->making = true; /* given out once */
        return segment;
    }
    return NULL;
}
