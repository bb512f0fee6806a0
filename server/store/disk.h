/* The disk tier's tables: which blocks stand in which slot of which segment file.
 *
 * Files. A folder (0700, locked by one daemon) holds `store` (the store's random number), segment
 * files `seg-NUMBER` (disk_format.h), `epochs` (disk_epochs.h), `quarantine/` and, with encryption,
 * `keys/`. A segment holds blocks of one space and kind, so of one tenant; its slots are used again
 * one by one, so there is nothing to compact. It is made as `seg-NUMBER.tmp` at its full size (a
 * full disk is met there and nowhere else), synced, renamed, and the folder synced.
 *
 * Publish. A block's bytes are written to a free slot and synced, then its entry is written and
 * synced; only then is it found here and may be acknowledged. A slot is free when its cleared entry
 * has been synced. So after a cut at any moment an entry either is not there or is that of bytes
 * that are. Removing a block takes it out of the tables at once and clears its entry soon after; a
 * cut in between brings it back, which is the same block.
 *
 * Recovery (disk_dir.h) reads headers and tables, not slots: a block's bytes are checked by digest
 * (and, sealed, by their tag) when they are first loaded, as at every move. What is no segment of
 * ours, or a damaged one, goes to quarantine; an entry that is no entry is a free slot; a block
 * that does not match is BAD in its entry and not found again. None of it ends the daemon.
 *
 * Quota. Segment files together stay below the capacity. When it is reached, the least recently
 * used blocks of the same space and kind make room, then whole segments of the same tenant, never a
 * block that was acknowledged as persistent: those go with DROP alone.
 *
 * This file and disk.c do no I/O: what has to be written is told to the caller, which moves the
 * bytes (rpc/tier.h). Loop thread only; a segment's descriptor and header may be read by others
 * while one of its records is held. */
#ifndef KVD_DISK_H
#define KVD_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/core/limits.h"
#include "server/store/disk_format.h"
#include "server/store/epochs.h"

enum kvd_disk_state {
    KVD_DISK_FREE,
    KVD_DISK_FILLING,
    KVD_DISK_READY,
    KVD_DISK_CLEARING, /* removed; its entry is still to be cleared */
    KVD_DISK_BAD
};

struct kvd_disk_segment;

struct kvd_disk_record {
    struct kvd_disk_entry entry;
    struct kvd_disk_segment *segment;
    struct kvd_disk_record *older, *newer; /* READY: use; FREE and CLEARING: newer chains them */
    uint64_t used_at;
    uint32_t slot;
    uint32_t holds; /* moves that read it */
    uint8_t state;  /* kvd_disk_state */
};

struct kvd_disk_segment {
    bool used, making, dropping;
    struct kvd_disk_header header;
    uint32_t index, space;
    int fd;
    struct kvd_disk_record *records; /* [slots] */
    struct kvd_disk_record *free;
    uint32_t live, persistent, busy; /* records READY; persistent of them; FILLING or held */
    uint32_t clearing, bad;
    uint64_t used_at;
};

struct kvd_disk_list {
    struct kvd_disk_record *oldest, *newest;
};

struct kvd_disk_space {
    bool used;
    struct kvd_disk_identity identity;
    struct kvd_disk_list lists[2]; /* [kind - 1] */
};

struct kvd_disk_slot {
    uint64_t hash;
    struct kvd_disk_record *record; /* NULL = empty */
};

struct kvd_disk {
    uint64_t capacity_bytes;
    uint64_t limit_bytes; /* the capacity, or less while the file system is full */
    uint64_t used_bytes;  /* of segment files */
    uint64_t secret[2];
    uint8_t store[KVD_DISK_ID_BYTES];
    bool sealed; /* new segments are */
    struct kvd_disk_segment segments[KVD_DISK_SEGMENTS_MAX];
    struct kvd_disk_space spaces[KVD_DISK_SPACES_MAX];
    struct kvd_disk_slot *index;
    uint64_t index_capacity, count; /* count: of blocks that are found */
    struct kvd_disk_record *clear_first, *clear_last;
    uint64_t clock, sequence, number; /* the next ones */
    uint64_t evictions;
    struct kvd_epochs epochs; /* as they stand in the file, or will when RESET is answered */
    bool unseen;              /* there may be segment files that the tables do not have */
};

/* NULL without memory. */
struct kvd_disk *kvd_disk_new(uint64_t capacity_bytes, const uint64_t secret[2]);
void kvd_disk_free(struct kvd_disk **disk); /* tables only; descriptors are closed */

/* Number of a space, made on first use; KVD_DISK_SPACES_MAX: the table is full. One that holds
 * nothing gives its place. */
uint32_t kvd_disk_space(struct kvd_disk *disk, const struct kvd_disk_identity *identity);

/* Does a segment hold, or may one hold, blocks of the model with this fingerprint of epoch 0? */
bool kvd_disk_holds(const struct kvd_disk *disk, const char *tenant,
                    const uint8_t base[KVARN_FINGERPRINT_BYTES]);

/* READY, or NULL. Counts as a use. */
struct kvd_disk_record *kvd_disk_find(struct kvd_disk *disk, uint32_t space, const kvarn_key *key);

/* A slot for a block that is not found. OK: *record is FILLING. RETRY: a segment has to be made
 * first (*make: this one, which is the caller's to make), or entries to be cleared, or a segment
 * dropped. NO_SPACE: the quota is full of what may not go. */
kvarn_status kvd_disk_claim(struct kvd_disk *disk, uint32_t space, const kvarn_key *key,
                            uint32_t kind, struct kvd_disk_record **record,
                            struct kvd_disk_segment **make);
/* FILLING -> READY, entry.digest, persistent, nonce and tag as they were written. If the key is
 * found by now, the record is removed instead and EXISTS given. NO_SPACE without memory: likewise.
 */
kvarn_status kvd_disk_publish(struct kvd_disk *disk, struct kvd_disk_record *record);
/* Nothing of it was written to the table: the slot is free again. */
void kvd_disk_abandon(struct kvd_disk *disk, struct kvd_disk_record *record);
void kvd_disk_hold(struct kvd_disk_record *record);
void kvd_disk_release(struct kvd_disk *disk, struct kvd_disk_record *record);
/* Not found any more; its entry waits to be cleared. */
void kvd_disk_remove(struct kvd_disk *disk, struct kvd_disk_record *record);
/* Its bytes are not what they were: the same, and the slot is not used again. */
void kvd_disk_condemn(struct kvd_disk *disk, struct kvd_disk_record *record);
/* READY: from now on it stays until it is dropped. */
void kvd_disk_keep(struct kvd_disk_record *record);
/* Everything of a space; shards: of its model's other shards too. Segments that nobody uses go as a
 * whole. */
void kvd_disk_forget(struct kvd_disk *disk, uint32_t space, bool shards);

/* A segment that nobody moves anything of: its blocks are not found any more, its file goes. */
void kvd_disk_drop(struct kvd_disk *disk, struct kvd_disk_segment *segment);

/* The next record whose entry has to be written as it now stands (FREE or BAD); its holder calls
 * cleared once that is synced. NULL: none. */
struct kvd_disk_record *kvd_disk_clear_next(struct kvd_disk *disk);
void kvd_disk_cleared(struct kvd_disk *disk, struct kvd_disk_record *record);

/* The outcome of making the segment that claim gave. */
void kvd_disk_made(struct kvd_disk *disk, struct kvd_disk_segment *segment, bool fine);
/* The next segment whose file has to go; then dropped. NULL: none. */
struct kvd_disk_segment *kvd_disk_drop_next(struct kvd_disk *disk);
void kvd_disk_dropped(struct kvd_disk *disk, struct kvd_disk_segment *segment);

/* ---- for recovery. A segment with this header and descriptor; NULL when there is no room. */
struct kvd_disk_segment *kvd_disk_adopt(struct kvd_disk *disk, const struct kvd_disk_header *header,
                                        int fd);
/* What the table says of a slot; fine: it was an entry. */
kvarn_status kvd_disk_adopt_entry(struct kvd_disk *disk, struct kvd_disk_segment *segment,
                                  uint32_t slot, const struct kvd_disk_entry *entry, bool fine);

#endif
