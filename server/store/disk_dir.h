/* The folder of the disk tier: opening, recovery, and the steps that touch names in it.
 *
 * Blocking. Open and close are called when the daemon starts and ends; make and drop on a thread of
 * core/files.h: they read the segment's header and write its descriptor, nothing else of the
 * tables. See disk.h for what stands where. */
#ifndef KVD_DISK_DIR_H
#define KVD_DISK_DIR_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/store/disk.h"

enum { KVD_DISK_WHY_MAX = 384, KVD_DISK_QUARANTINE_MAX = 64 /* files kept there */ };

struct kvd_disk_dir {
    int fd, lock;
};

/* What recovery found. */
struct kvd_disk_found {
    uint64_t segments, blocks;
    uint64_t quarantined;     /* files */
    uint64_t entries_damaged; /* their slots are free again */
};

/* Makes the folder when there is none, locks it and fills the tables from its files. DENIED: it is
 * open to others. RETRY: another daemon has it. INTERNAL: what the system says. why (at least
 * KVD_DISK_WHY_MAX bytes) says which and how to mend it. */
kvarn_status kvd_disk_dir_open(struct kvd_disk_dir *dir, const char *path, struct kvd_disk *disk,
                               struct kvd_disk_found *found, char *why);
/* Closes the segments' descriptors too. */
void kvd_disk_dir_close(struct kvd_disk_dir *dir, struct kvd_disk *disk);

/* The file of a segment, at its full size, synced under its name. 0 or an errno; then there is no
 * file. */
int kvd_disk_dir_make(const struct kvd_disk_dir *dir, struct kvd_disk_segment *segment);
/* Closes and removes it; the folder is synced. */
int kvd_disk_dir_drop(const struct kvd_disk_dir *dir, struct kvd_disk_segment *segment);

#endif
