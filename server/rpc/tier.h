/* The disk tier: what moves between pools and store/disk.h, in the background.
 *
 * Down: every stored block is written to disk once, in the order of the walk over the descriptors,
 * within the bandwidth; so evicting a block of a pool, or ending the daemon, loses nothing that has
 * been written. PERSIST (persist.c) writes at once, marks the block as one that the quota may not
 * take, and is answered when it is synced. Up: a key that is asked for and stands on disk alone is
 * claimed in its pool and read; who asked is told RETRY, or waits as for a block that another
 * request fills. So the loop never waits for the disk, and a slow disk makes misses, not delays.
 *
 * Both ways go through staging and a COPY job, which checks the digest: pool to staging in
 * canonical order before a byte is written, staging to slot before the block is published. A GPU's
 * pool and the host's are the same here. */
#ifndef KVD_TIER_H
#define KVD_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

struct kvd_service;
struct kvd_space;
struct kvd_disk_tier;
struct kvd_work;

/* *tier = NULL when the service's options name no folder. *why lives until the next call. */
kvarn_status kvd_tier_open(struct kvd_disk_tier **tier, struct kvd_service *service,
                           const char **why);
/* kvd_files was closed before, so nothing is in flight; what is not written yet is left. */
void kvd_tier_close(struct kvd_disk_tier **tier);
/* With kvd_service_tick. */
void kvd_tier_tick(struct kvd_disk_tier *tier);

/* All of these work without a tier: nothing is on disk then. */

/* A key that the space's index does not have. NOT_FOUND: nor does the disk. RETRY: it is being
 * loaded, or will be when it is asked for again. NO_SPACE, QUOTA: its pool is full of what is in
 * use. */
kvarn_status kvd_tier_fetch(struct kvd_service *service, struct kvd_space *space,
                            const kvarn_key *key);
/* Makes the READY block of an item persistent. OK: it is. RETRY: not now; ask again when something
 * has settled. EXISTS: the item's status will be set, and waiters woken, when it is decided. */
kvarn_status kvd_tier_persist(struct kvd_work *work, uint32_t item);
/* Everything of the work's tenant that was on disk at the mark: first its key, then its segments.
 * Called until it is OK; *keyless is the caller's, false at first. As persist, with item 0. */
uint64_t kvd_tier_mark(const struct kvd_service *service);
kvarn_status kvd_tier_erase(struct kvd_work *work, uint64_t mark, bool *keyless);
/* The work does not wait any more. */
void kvd_tier_detach(struct kvd_work *work);
/* Off the disk; true when it was there. */
bool kvd_tier_drop(struct kvd_service *service, struct kvd_space *space, const kvarn_key *key);
/* All blocks of a space; shards: and of the model's other shards. */
void kvd_tier_forget(struct kvd_service *service, struct kvd_space *space, bool shards);
/* Writes down in which epochs all models are, so that no later daemon finds a block of before a
 * RESET. As persist: OK without a disk; EXISTS: item 0 will be told. */
kvarn_status kvd_tier_epochs(struct kvd_work *work);

/* Figures for STATS; all zero without a tier. */
struct kvd_tier_figures {
    uint64_t capacity_bytes, used_bytes, blocks, stored, loaded, failed, evictions;
    uint64_t quarantined, damaged, moves;
};
struct kvd_tier_figures kvd_tier_figures(const struct kvd_service *service);

#endif
