/* Memory that front and worker share: a sealed memfd and its mapping.
 *
 * The front makes it and keeps it; a worker attaches the descriptor it inherited. Its size can
 * never change, so no process can make another's access fault by truncating it. Kept out of core
 * dumps: it holds prompts. */
#ifndef KVD_REGION_H
#define KVD_REGION_H

#include <stdint.h>

#include <kvarn/status.h>

struct kvd_memory {
    int fd;
    uint8_t *base;
    uint64_t bytes;
};

/* bytes: a multiple of the page size. INTERNAL when the system gives none. */
kvarn_status kvd_memory_open(struct kvd_memory *memory, const char *name, uint64_t bytes);
/* Takes the descriptor. INTERNAL unless it is a memfd of exactly these bytes, sealed. */
kvarn_status kvd_memory_attach(struct kvd_memory *memory, int fd, uint64_t bytes);
/* Unmaps and closes; fine on a zeroed struct with fd = -1 or after a failed open. */
void kvd_memory_close(struct kvd_memory *memory);
/* Gives whole pages back to the system; they read as zero afterwards, in every process. */
void kvd_memory_zero(struct kvd_memory *memory, uint64_t offset, uint64_t bytes);

#endif
