/* Where a daemon is: "unix:/path", "tcp://host:port" (or "tcp:host:port"), "spawn:", or the
 * default.
 *
 * Parsing only: no name is looked up and no file is touched here. A refused address comes with a
 * sentence that says what was wrong and what to write instead. */
#ifndef KVC_ADDRESS_H
#define KVC_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

enum kvc_address_kind { KVC_ADDRESS_UNIX, KVC_ADDRESS_TCP, KVC_ADDRESS_SPAWN };

enum {
    KVC_UNIX_PATH_MAX_BYTES = 107, /* sockaddr_un.sun_path less its NUL */
    KVC_HOST_MAX_BYTES = 253,      /* longest DNS name */
    KVC_ADDRESS_MAX_BYTES = 300,
    KVC_ADDRESS_WHY_BYTES = 512
};

struct kvc_address {
    enum kvc_address_kind kind;
    char path[KVC_UNIX_PATH_MAX_BYTES + 1];
    char host[KVC_HOST_MAX_BYTES + 1];    /* without the brackets of an IPv6 literal */
    char port[6];                         /* "1".."65535" */
    char text[KVC_ADDRESS_MAX_BYTES + 1]; /* as given, for messages */
};

/* text NULL or "": $KVARN_ADDRESS, then unix:$XDG_RUNTIME_DIR/kvarnd/kvarnd.sock, then
 * unix:/run/kvarnd/kvarnd.sock. INVALID_SHAPE, TOO_LARGE or UNSUPPORTED with why filled. */
kvarn_status kvc_address_parse(struct kvc_address *out, const char *text,
                               char why[KVC_ADDRESS_WHY_BYTES]);

#endif
