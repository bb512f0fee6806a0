/* (space, key) -> record, of all segments together; as index.h. Internal to the disk tier. */
#ifndef KVD_DISK_INDEX_H
#define KVD_DISK_INDEX_H

#include "server/store/disk.h"

struct kvd_disk_record *kvd_disk_index_find(const struct kvd_disk *disk, uint32_t space,
                                            const kvarn_key *key);
/* EXISTS, NO_SPACE without memory. */
kvarn_status kvd_disk_index_add(struct kvd_disk *disk, struct kvd_disk_record *record);
void kvd_disk_index_remove(struct kvd_disk *disk, struct kvd_disk_record *record);

/* Of disk.c, for disk_room.c. */
void kvd_disk_unlink(struct kvd_disk *disk, struct kvd_disk_record *record);
void kvd_disk_set_free(struct kvd_disk_record *record);
void kvd_disk_to_be_cleared(struct kvd_disk *disk, struct kvd_disk_record *record);

#endif
