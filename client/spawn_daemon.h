/* A private kvarnd on one end of a socket pair: it ends when the other end closes. (Not spawn.h:
 * this folder is on the include path, and would hide the system's.) */
#ifndef KVC_SPAWN_DAEMON_H
#define KVC_SPAWN_DAEMON_H

#include <stddef.h>
#include <sys/types.h>

#include <kvarn/status.h>

/* Starts `kvarnd --socket-fd 3 --pool POOL --quiet`. path NULL: kvarnd beside this library or
 * program, in ../bin of there, then on PATH. Gives the descriptor (non-blocking, close-on-exec) and
 * the child, to be reaped. NOT_FOUND or INTERNAL with why filled. */
kvarn_status kvc_spawn_start(const char *path, const char *pool, int *fd, pid_t *child, char *why,
                             size_t why_bytes);

/* Waits for the child, whose socket is closed already; terminates, then kills it when it stays. */
void kvc_spawn_reap(pid_t child);

#endif
