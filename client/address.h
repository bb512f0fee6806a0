/* Where a daemon is: "unix:/path", "tcp://host:port" (or "tcp:host:port"), "spawn:", or the
 * default.
 *
 * Parsing only: no name is looked up and no file is touched here. A refused address comes with a
 * sentence that says what was wrong and what to write instead. */
#ifndef KVARN_ADDRESS_H
#define KVARN_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

enum kvarn_address_kind { KVARN_ADDRESS_UNIX, KVARN_ADDRESS_TCP, KVARN_ADDRESS_SPAWN };

enum {
    KVARN_UNIX_PATH_MAX_BYTES = 107, /* sockaddr_un.sun_path less its NUL */
    KVARN_HOST_MAX_BYTES = 253,      /* longest DNS name */
    KVARN_ADDRESS_MAX_BYTES = 300,
    KVARN_ADDRESS_WHY_BYTES = 512
};

struct kvarn_address {
    enum kvarn_address_kind kind;
    char path[KVARN_UNIX_PATH_MAX_BYTES + 1];
    char host[KVARN_HOST_MAX_BYTES + 1];    /* without the brackets of an IPv6 literal */
    char port[6];                           /* "1".."65535" */
    char text[KVARN_ADDRESS_MAX_BYTES + 1]; /* as given, for messages */
};

/* text NULL or "": $KVARN_ADDRESS, then unix:$XDG_RUNTIME_DIR/kvarnd/kvarnd.sock, then
 * unix:/run/kvarnd/kvarnd.sock. INVALID_SHAPE, TOO_LARGE or UNSUPPORTED with why filled. */
kvarn_status kvarn_address_parse(struct kvarn_address *out, const char *text,
                                 char why[KVARN_ADDRESS_WHY_BYTES]);

#endif
