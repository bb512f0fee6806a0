/* Room on disk: slots, segments, the quota, and what recovery finds. See disk.h. */
#include <stdlib.h>
#include <string.h>

#include "server/store/disk.h"
#include "server/store/disk_index.h"

enum { SEGMENT_SHARE = 128, SEGMENT_LEAST_BYTES = 1 << 20, EVICT_AT_ONCE = 8 };

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

/* Its blocks are not found any more; the file goes as a whole. */
void kvd_disk_drop(struct kvd_disk *disk, struct kvd_disk_segment *segment)
{
    for (uint32_t i = 0; i < segment->header.slots; i++) {
        struct kvd_disk_record *record = &segment->records[i];

        if (record->state != KVD_DISK_READY)
            continue;
        kvd_disk_index_remove(disk, record);
        kvd_disk_unlink(disk, record);
        record->state = KVD_DISK_FREE;
    }
    segment->live = segment->persistent = 0;
    segment->dropping = true;
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
    kvd_disk_drop(disk, oldest);
    return true;
}

void kvd_disk_forget(struct kvd_disk *disk, uint32_t space, bool shards)
{
    const struct kvd_disk_identity *mine = &disk->spaces[space].identity;

    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *segment = &disk->segments[i];
        const struct kvd_disk_identity *its = &segment->header.identity;

        if (!segment->used || segment->dropping || segment->making ||
            (segment->space != space &&
             !(shards && strcmp(its->tenant, mine->tenant) == 0 &&
               memcmp(its->fingerprint, mine->fingerprint, sizeof mine->fingerprint) == 0)))
            continue;
        if (!segment->busy && !segment->clearing) {
            kvd_disk_drop(disk, segment);
            continue;
        }
        for (uint32_t slot = 0; slot < segment->header.slots; slot++)
            if (segment->records[slot].state == KVD_DISK_READY)
                kvd_disk_remove(disk, &segment->records[slot]);
    }
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
        kvd_disk_set_free(&segment->records[i]);
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
        kvd_disk_to_be_cleared(disk, record);
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
