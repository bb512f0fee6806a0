/* Address forms and the default rule. Pure text work. */
#include "client/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char forms[] =
    "use unix:/path/to/kvarnd.sock, tcp://host:port or spawn: (a private daemon)";

static kvarn_status parse_unix(struct kvc_address *out, const char *path, char *why)
{
    if (strncmp(path, "//", 2) == 0) /* unix:///run/x is the same as unix:/run/x */
        path += 2;
    if (path[0] != '/') {
        snprintf(why, KVC_ADDRESS_WHY_BYTES,
                 "address \"%.200s\": the path after unix: must be absolute, as in "
                 "unix:/run/kvarnd/kvarnd.sock",
                 out->text);
        return KVARN_INVALID_SHAPE;
    }
    size_t length = strlen(path);
    if (length > KVC_UNIX_PATH_MAX_BYTES) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES,
                 "address: the socket path has %zu bytes and a Unix socket takes at most %d: use a "
                 "shorter directory",
                 length, KVC_UNIX_PATH_MAX_BYTES);
        return KVARN_TOO_LARGE;
    }
    memcpy(out->path, path, length + 1);
    out->kind = KVC_ADDRESS_UNIX;
    return KVARN_OK;
}

static kvarn_status parse_port(struct kvc_address *out, const char *port, char *why)
{
    size_t length = strlen(port);
    unsigned value = 0;
    int digits = length > 0 && length <= 5;

    for (size_t i = 0; digits && i < length; i++) {
        digits = port[i] >= '0' && port[i] <= '9';
        value = value * 10 + (unsigned)(port[i] - '0');
    }
    if (!digits || value == 0 || value > 65535) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES,
                 "address \"%.200s\": \"%.20s\" is no port; write a number from 1 to 65535",
                 out->text, port);
        return KVARN_INVALID_SHAPE;
    }
    snprintf(out->port, sizeof out->port, "%u", value);
    return KVARN_OK;
}

static kvarn_status parse_tcp(struct kvc_address *out, const char *rest, char *why)
{
    const char *host = rest, *host_end, *colon;

    if (rest[0] == '[') { /* the brackets keep an IPv6 literal's colons from the port's */
        host = rest + 1;
        host_end = strchr(host, ']');
        if (!host_end) {
            snprintf(why, KVC_ADDRESS_WHY_BYTES,
                     "address \"%.200s\": the bracket of the IPv6 host is not closed; write "
                     "tcp://[::1]:7070",
                     out->text);
            return KVARN_INVALID_SHAPE;
        }
        colon = host_end[1] == ':' ? host_end + 1 : NULL;
    } else {
        colon = strrchr(rest, ':');
        host_end = colon;
        if (colon && memchr(rest, ':', (size_t)(colon - rest))) {
            snprintf(why, KVC_ADDRESS_WHY_BYTES,
                     "address \"%.200s\": an IPv6 host needs brackets; write tcp://[::1]:7070",
                     out->text);
            return KVARN_INVALID_SHAPE;
        }
    }
    if (!colon || host_end == host) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES,
                 "address \"%.200s\": %s missing; write tcp://127.0.0.1:7070", out->text,
                 colon ? "the host is" : "the port is");
        return KVARN_INVALID_SHAPE;
    }
    size_t length = (size_t)(host_end - host);
    if (length > KVC_HOST_MAX_BYTES) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES, "address: the host has %zu bytes, at most %d", length,
                 KVC_HOST_MAX_BYTES);
        return KVARN_TOO_LARGE;
    }
    memcpy(out->host, host, length);
    out->host[length] = '\0';
    out->kind = KVC_ADDRESS_TCP;
    return parse_port(out, colon + 1, why);
}

/* Which text stands for "no address given". Written to room when it has to be put together. */
static const char *default_text(char *room, size_t size)
{
    const char *text = getenv("KVARN_ADDRESS");
    if (text && text[0])
        return text;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime && runtime[0] == '/')
        snprintf(room, size, "unix:%s/kvarnd/kvarnd.sock", runtime);
    else
        snprintf(room, size, "unix:/run/kvarnd/kvarnd.sock");
    return room;
}

kvarn_status kvc_address_parse(struct kvc_address *out, const char *text,
                               char why[KVC_ADDRESS_WHY_BYTES])
{
    char room[KVC_ADDRESS_MAX_BYTES + 2]; /* one more than allowed, so that a cut one is seen */

    memset(out, 0, sizeof *out);
    why[0] = '\0';
    if (!text || !text[0])
        text = default_text(room, sizeof room);
    if (strlen(text) > KVC_ADDRESS_MAX_BYTES) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES, "address: more than %d bytes; %s",
                 KVC_ADDRESS_MAX_BYTES, forms);
        return KVARN_TOO_LARGE;
    }
    memcpy(out->text, text, strlen(text) + 1);
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(out, text + 5, why);
    if (strncmp(text, "tcp:", 4) == 0) /* tcp:host:port is how kvarnd writes it */
        return parse_tcp(out, text + (strncmp(text, "tcp://", 6) == 0 ? 6 : 4), why);
    if (strcmp(text, "spawn:") == 0) {
        out->kind = KVC_ADDRESS_SPAWN;
        return KVARN_OK;
    }
    if (strncmp(text, "tls://", 6) == 0) {
        snprintf(why, KVC_ADDRESS_WHY_BYTES,
                 "address \"%.200s\": this version has no TLS; use unix: or a tunnel to tcp://",
                 text);
        return KVARN_UNSUPPORTED;
    }
    if (text[0] == '/')
        snprintf(why, KVC_ADDRESS_WHY_BYTES, "address \"%.200s\": write unix:%.200s", text, text);
    else
        snprintf(why, KVC_ADDRESS_WHY_BYTES, "address \"%.200s\": no known form; %s", text, forms);
    return KVARN_INVALID_SHAPE;
}
