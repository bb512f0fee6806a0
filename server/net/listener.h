/* Where clients come in: Unix sockets, TCP on loopback, or one socket that was inherited.
 *
 * A Unix socket stands in a directory of ours alone and is guarded by a lock file beside it, so
 * that a dead daemon's socket is replaced and a live one's never. TCP beyond loopback is refused:
 * there is no TLS yet. Loop thread only. */
#ifndef KVD_LISTENER_H
#define KVD_LISTENER_H

#include <stddef.h>
#include <sys/types.h>

#include <kvarn/status.h>

struct uv_loop_s;
struct kvd_conns;
struct kvd_tenants;
struct kvd_listener;

struct kvd_listener_options {
    struct uv_loop_s *loop;
    struct kvd_conns *conns;
    struct kvd_tenants *tenants;
    mode_t socket_mode; /* 0 = 0600 */
    uid_t own_uid;
};

enum { KVD_LISTENER_WHY_MAX = 320 };

/* address: "unix:/path" or "tcp:HOST:PORT", HOST 127.x.y.z, [::1] or localhost, PORT 0 = any. On
 * failure `why` is a sentence for people: DENIED, INVALID_SHAPE (not an address), EXISTS (a live
 * daemon has it) or INTERNAL. */
kvarn_status kvd_listener_open(struct kvd_listener **listener, const char *address,
                               const struct kvd_listener_options *options,
                               char why[KVD_LISTENER_WHY_MAX]);
/* Whether the address is one that may be served; opens nothing. */
kvarn_status kvd_listener_check(const char *address, char why[KVD_LISTENER_WHY_MAX]);
/* Stops listening and removes what it made; accepted connections go on. Sets *listener to NULL. */
void kvd_listener_close(struct kvd_listener **listener);

/* As it can be typed: the port is the real one. Valid until close. */
const char *kvd_listener_address(const struct kvd_listener *listener);

/* One connected socket that whoever started us left open. Takes fd. */
kvarn_status kvd_listener_inherit(int fd, const struct kvd_listener_options *options,
                                  char why[KVD_LISTENER_WHY_MAX]);

#endif
