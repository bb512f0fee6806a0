/* One move of the disk tier, and what tier.c, tier_store.c and tier_load.c share. Internal to them.
 *
 * A move is a chain of steps, each begun in the last one's end: a job of the device, a file
 * operation, or a sync that it shares with all moves of that segment which wait for one. */
#ifndef KVD_TIER_MOVE_H
#define KVD_TIER_MOVE_H

#include "server/core/files.h"
#include "server/rpc/tier.h"
#include "server/rpc/work.h"
#include "server/store/disk.h"
#include "server/store/disk_dir.h"
#include "server/store/disk_keys.h"

enum {
    KVD_MOVES_MAX = 64,
    KVD_MOVES_BACKGROUND = 8, /* of them, blocks on their way down that nobody asked for */
    KVD_MOVES_SPARE = 8,      /* left for clearing, making and dropping */
};

struct kvd_move;
typedef void (*kvd_move_step)(struct kvd_move *move, int failed);

struct kvd_move {
    struct kvd_disk_tier *tier;
    bool used, background;
    bool cancelled; /* STORE: dropped meanwhile */
    struct kvd_disk_record *record;
    struct kvd_disk_segment *segment;
    struct kvd_disk_entry entry; /* as written, or as read */
    struct kvd_service_device *home;
    uint8_t *extent, *bytes; /* staging: the job, then the block */
    uint64_t count;
    struct kvd_job *job;
    struct kvd_block *block; /* LOAD: FILLING, ours. STORE: looked at, not held */
    uint32_t block_id;
    uint64_t block_offset;
    kvarn_status checked; /* by the COPY job */
    struct kvd_file_op op;
    kvd_move_step then;
    struct kvd_move *sync_next;
    struct kvd_work *owner; /* who asked for it; NULL: nobody waits */
    uint32_t item;
    uint8_t page[KVD_DISK_ENTRY_BYTES];
    uint8_t secret[KVD_SEAL_KEY_BYTES]; /* of a sealed segment's tenant, until the end */
    struct kvd_disk_secret *row;        /* whose key is being made or erased */
};

struct kvd_sync {
    struct kvd_disk_tier *tier;
    uint32_t segment;
    bool running;
    struct kvd_file_op op;
    struct kvd_move *waiting, *served;
};

struct kvd_bucket {
    int64_t bytes; /* may be spent; below zero after a large block */
};

struct kvd_disk_tier {
    struct kvd_service *service;
    struct kvd_files *files;
    struct kvd_disk *disk;
    struct kvd_disk_dir dir;
    struct kvd_disk_found found;
    struct kvd_disk_keys keys; /* folder -1: no encryption */
    struct {
        uint64_t handle;
        uint32_t space;
    } spaces[KVD_SPACES_MAX]; /* by space slot */
    struct kvd_move moves[KVD_MOVES_MAX];
    uint32_t move_count, background_count;
    struct kvd_sync syncs[KVD_DISK_SEGMENTS_MAX];
    struct kvd_bucket down, up;
    uint64_t bandwidth, ticked_ns, paused_until_ns, limited_until_ns;
    uint32_t cursor; /* of the walk over the blocks */
    bool saving;     /* epochs are being written: */
    struct kvd_epochs saved;
    bool starved; /* somebody was told RETRY with nothing in flight for it */
    uint64_t stored, loaded, failed;
};

/* ---- moves. NULL: all in use but `spare`. */
struct kvd_move *kvd_move_new(struct kvd_disk_tier *tier, uint32_t spare);
/* Gives back staging and tells the owner; then wakes who waits. */
void kvd_move_end(struct kvd_move *move, kvarn_status status);
/* The space's number on disk; KVD_DISK_SPACES_MAX: none. */
uint32_t kvd_tier_space(struct kvd_disk_tier *tier, const struct kvd_space *space);

/* ---- steps */
void kvd_move_read(struct kvd_move *move, kvd_move_step then);
void kvd_move_write(struct kvd_move *move, kvd_move_step then);
void kvd_move_write_entry(struct kvd_move *move, kvd_move_step then);
void kvd_move_sync(struct kvd_move *move, kvd_move_step then);
void kvd_move_call(struct kvd_move *move, int (*call)(void *move), kvd_move_step then);

/* Staging for a block and its job. RETRY: none now; TOO_LARGE: never. */
kvarn_status kvd_move_staging(struct kvd_move *move, const struct kvd_space *space, uint32_t kind);
/* Queues the COPY of the block between its slot and the staging; `then` finds its outcome in
 * checked. RETRY: not queued. */
kvarn_status kvd_move_copy(struct kvd_move *move, const struct kvd_block *block, bool up,
                           kvd_move_step then);

/* ---- tier_seal.c. Loads the operator's key and looks which segments can be opened. */
kvarn_status kvd_tier_open_keys(struct kvd_disk_tier *tier, char *why);
/* OK: the space's blocks may be stored, and move->secret is set if they are sealed. RETRY: the
 * tenant's key is being made. */
kvarn_status kvd_move_secret(struct kvd_move *move, uint32_t space);
/* The bytes in staging, in place, on a thread. `then` finds failed set when that could not be done.
 */
void kvd_move_seal(struct kvd_move *move, kvd_move_step then);
void kvd_move_unseal(struct kvd_move *move, kvd_move_step then);

/* ---- tier_store.c. What is on its way down does not arrive: of this key, of all (NULL). True:
 * there was some. */
bool kvd_tier_cancel(struct kvd_disk_tier *tier, uint32_t space, const kvarn_key *key);
/* The next block of the walk; false: nothing to do now. */
bool kvd_tier_demote(struct kvd_disk_tier *tier);
kvarn_status kvd_tier_store(struct kvd_disk_tier *tier, struct kvd_block *block, bool persistent,
                            struct kvd_work *owner, uint32_t item);
/* Starts what the tables ask for: clearing, making, dropping. */
void kvd_tier_pump(struct kvd_disk_tier *tier);
void kvd_tier_make(struct kvd_disk_tier *tier, struct kvd_disk_segment *segment);

#endif
