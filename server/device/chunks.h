/* The messages of the control socket that carry descriptors of a CUDA pool's chunks, both ends. */
#ifndef KVD_CHUNKS_H
#define KVD_CHUNKS_H

#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/link.h"

/* One message with the descriptors of chunks [first, first + count), count <= KVD_LINK_FDS_MAX;
 * they stay the caller's. RETRY when a non-blocking socket has no room now, INTERNAL when the other
 * end is gone or the system lets no more descriptors travel. */
kvarn_status kvd_chunks_send(int control, uint32_t first, const int *fds, uint32_t count);

/* One message of at most `bytes` bytes; `got` is how many came, 0 at the end of the socket. Its
 * descriptors (close-on-exec) go to fds, which has KVD_LINK_FDS_MAX places, and are the caller's.
 * RETRY when there is none now, INTERNAL when it was cut or the socket fails. */
kvarn_status kvd_chunks_receive(int control, void *message, uint32_t bytes, uint32_t *got, int *fds,
                                uint32_t *fd_count);

#endif
