/* The place of a Unix socket: its directory, its lock, what may stand there already.
 *
 * Files only, no sockets. The lock is held by a descriptor, so it ends with the process whatever
 * happens. */
#ifndef KVD_UNIX_PATH_H
#define KVD_UNIX_PATH_H

#include <stddef.h>
#include <sys/types.h>

#include <kvarn/status.h>

struct kvd_unix_path {
    char path[108]; /* as sun_path holds it */
    char lock_path[116];
    int lock_fd; /* -1 = not locked */
};

/* Whether the path can be that of a socket at all. */
kvarn_status kvd_unix_path_check(const char *path, char *why, size_t why_room);
/* Checks and, where needed, makes the directory (0700); takes the lock; removes the socket of a
 * dead daemon. After OK a socket may be bound at `path`. why: a sentence for people. */
kvarn_status kvd_unix_path_claim(struct kvd_unix_path *it, const char *path, uid_t own_uid,
                                 char *why, size_t why_room);
/* Removes the socket and the lock file. */
void kvd_unix_path_release(struct kvd_unix_path *it);

#endif
