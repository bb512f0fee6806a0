/* Small files of the disk tier's folder. Blocking. Internal to the disk tier. */
#ifndef KVD_DISK_FILE_H
#define KVD_DISK_FILE_H

#include <stdbool.h>
#include <stdint.h>

bool kvd_disk_read_all(int fd, uint8_t *bytes, uint64_t count, uint64_t offset);
bool kvd_disk_write_all(int fd, const uint8_t *bytes, uint64_t count, uint64_t offset);
/* The file `name` holds these bytes, or what it held: written under `unfinished`, synced, renamed,
 * the folder synced. 0 or an errno. */
int kvd_disk_replace(int folder, const char *unfinished, const char *name, const uint8_t *bytes,
                     uint64_t count);

#endif
