/* A failure to accept for lack of descriptors must not make the loop spin on the waiting client:
 * one descriptor is kept in reserve, given up to accept him, tell him to retry and let him go. */
#include "server/net/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/net/conn.h"
#include "server/net/unix_path.h"
#include "server/store/tenant.h"

enum { BACKLOG = 256, ACCEPTS_PER_TURN = 16 };

struct kvd_listener {
    struct kvd_listener_options options;
    struct kvd_watch *watch;
    int fd;
    int reserve_fd;
    bool local;
    struct kvd_unix_path place;
    char address[128];
};

/* ---- accepting */

static kvarn_status identify(int fd, const struct kvd_listener_options *options, bool local,
                             struct kvd_identity *who)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    *who = (struct kvd_identity){.local = local};
    if (!local)
        return kvd_tenants_of_loopback(options->tenants, &who->tenant);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return KVARN_DENIED;
    who->same_uid = peer.uid == options->own_uid;
    return kvd_tenants_of_uid(options->tenants, peer.uid, &who->tenant);
}

static void welcome(struct kvd_listener *listener, int fd)
{
    struct kvd_identity who;
    int on = 1;

    if (identify(fd, &listener->options, listener->local, &who) != KVARN_OK) {
        kvd_conns_turn_away(listener->options.conns, fd, "no room for another user; try later");
        return;
    }
    if (!listener->local)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)kvd_conns_adopt(listener->options.conns, fd, &who);
}

static int open_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void turn_away_one(struct kvd_listener *listener)
{
    int fd;

    if (listener->reserve_fd < 0)
        return;
    close(listener->reserve_fd);
    fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        kvd_conns_turn_away(listener->options.conns, fd, "out of descriptors; try again later");
    listener->reserve_fd = open_reserve();
    kvd_log(KVD_LOG_WARN, "descriptors_short",
            kvd_number("connections", kvd_conns_count(listener->options.conns)));
}

static void on_client(void *context, unsigned events)
{
    struct kvd_listener *listener = context;

    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            welcome(listener, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE)
            turn_away_one(listener);
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* ---- opening */

static kvarn_status fail(char *why, const char *doing, const char *address)
{
    snprintf(why, KVD_LISTENER_WHY_MAX, "cannot %s %s: %s", doing, address, strerror(errno));
    return errno == EADDRINUSE ? KVARN_EXISTS : KVARN_INTERNAL;
}

/* A mode for others is of no use behind a folder that they cannot enter. */
static void warn_of_folder(const struct kvd_listener *listener, mode_t mode)
{
    char folder[sizeof listener->place.path];
    char *slash;
    struct stat is;

    memcpy(folder, listener->place.path, sizeof folder);
    slash = strrchr(folder, '/');
    slash[slash == folder ? 1 : 0] = '\0';
    if (stat(folder, &is) != 0 || (((mode & 0060) == 0 || (is.st_mode & 0010) != 0) &&
                                   ((mode & 0006) == 0 || (is.st_mode & 0001) != 0)))
        return;
    kvd_log(KVD_LOG_WARN, "folder_closed", kvd_text("folder", folder),
            kvd_text("note", "--socket-mode lets others in, but the folder's mode does not; "
                             "give them x on the folder"));
}

static kvarn_status open_unix(struct kvd_listener *listener, const char *path, char *why)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    mode_t mode = listener->options.socket_mode == 0 ? 0600 : listener->options.socket_mode;
    mode_t old_umask;
    kvarn_status status;
    int bound;

    status = kvd_unix_path_claim(&listener->place, path, listener->options.own_uid, why,
                                 KVD_LISTENER_WHY_MAX);
    if (status != KVARN_OK)
        return status;
    listener->local = true;
    snprintf(listener->address, sizeof listener->address, "unix:%s", listener->place.path);
    memcpy(at.sun_path, listener->place.path, sizeof at.sun_path);
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0)
        return fail(why, "make a socket for", listener->address);
    old_umask = umask(077);
    bound = bind(listener->fd, (const struct sockaddr *)&at, sizeof at);
    umask(old_umask);
    /* Nobody can connect before listen: the mode is right by then. */
    if (bound != 0 || chmod(listener->place.path, mode) != 0)
        return fail(why, "bind", listener->address);
    warn_of_folder(listener, mode);
    return KVARN_OK;
}

/* "HOST:PORT", "[::1]:PORT". */
static kvarn_status parse_tcp(const char *text, struct sockaddr_storage *at, socklen_t *bytes,
                              char *why)
{
    const char *colon = strrchr(text, ':');
    struct sockaddr_in *v4 = (struct sockaddr_in *)at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;
    char host[64] = "";
    unsigned long port = 65536;
    char *end = NULL;

    memset(at, 0, sizeof *at);
    if (colon != NULL && colon[1] >= '0' && colon[1] <= '9')
        port = strtoul(colon + 1, &end, 10);
    if (port > 65535 || end == NULL || *end != '\0' || (size_t)(colon - text) >= sizeof host) {
        snprintf(why, KVD_LISTENER_WHY_MAX, "tcp:%s is not tcp:HOST:PORT with a port of 0 to 65535",
                 text);
        return KVARN_INVALID_SHAPE;
    }
    memcpy(host, text, (size_t)(colon - text));
    if (strcmp(host, "localhost") == 0)
        strcpy(host, "127.0.0.1");
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *bytes = sizeof *v4;
        if (ntohl(v4->sin_addr.s_addr) >> 24 == 127)
            return KVARN_OK;
    } else if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        host[strlen(host) - 1] = '\0';
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *bytes = sizeof *v6;
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1 &&
            IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr))
            return KVARN_OK;
    }
    snprintf(why, KVD_LISTENER_WHY_MAX,
             "tcp:%s is refused: only 127.x.y.z, [::1] and localhost are served, because there is "
             "no TLS yet and caches are prompts; for another host use an ssh or mTLS tunnel",
             text);
    return KVARN_DENIED;
}

static kvarn_status open_tcp(struct kvd_listener *listener, const char *text, char *why)
{
    struct sockaddr_storage at;
    socklen_t bytes = 0;
    uint16_t port;
    int on = 1;
    kvarn_status status = parse_tcp(text, &at, &bytes, why);

    if (status != KVARN_OK)
        return status;
    snprintf(listener->address, sizeof listener->address, "tcp:%s", text);
    listener->fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0 ||
        setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener->fd, (const struct sockaddr *)&at, bytes) != 0 ||
        getsockname(listener->fd, (struct sockaddr *)&at, &bytes) != 0)
        return fail(why, "bind", listener->address);
    port = at.ss_family == AF_INET ? ((const struct sockaddr_in *)&at)->sin_port
                                   : ((const struct sockaddr_in6 *)&at)->sin6_port;
    snprintf(listener->address, sizeof listener->address, "tcp:%.*s:%u",
             (int)(strrchr(text, ':') - text), text, (unsigned)ntohs(port));
    return KVARN_OK;
}

kvarn_status kvd_listener_check(const char *address, char why[KVD_LISTENER_WHY_MAX])
{
    struct sockaddr_storage at;
    socklen_t bytes;

    if (strncmp(address, "unix:", 5) == 0)
        return kvd_unix_path_check(address + 5, why, KVD_LISTENER_WHY_MAX);
    if (strncmp(address, "tcp:", 4) == 0)
        return parse_tcp(address + 4, &at, &bytes, why);
    snprintf(why, KVD_LISTENER_WHY_MAX, "%s is neither unix:/PATH nor tcp:HOST:PORT", address);
    return KVARN_INVALID_SHAPE;
}

kvarn_status kvd_listener_open(struct kvd_listener **listener, const char *address,
                               const struct kvd_listener_options *options,
                               char why[KVD_LISTENER_WHY_MAX])
{
    struct kvd_listener *made = calloc(1, sizeof *made);
    kvarn_status status;

    *listener = NULL;
    if (made == NULL) {
        snprintf(why, KVD_LISTENER_WHY_MAX, "out of memory");
        return KVARN_INTERNAL;
    }
    made->options = *options;
    made->fd = -1;
    made->place.lock_fd = -1;
    made->reserve_fd = open_reserve();
    if (strncmp(address, "unix:", 5) == 0) {
        status = open_unix(made, address + 5, why);
    } else if (strncmp(address, "tcp:", 4) == 0) {
        status = open_tcp(made, address + 4, why);
    } else {
        status = kvd_listener_check(address, why);
    }
    if (status == KVARN_OK && listen(made->fd, BACKLOG) != 0)
        status = fail(why, "listen at", made->address);
    if (status == KVARN_OK &&
        kvd_watch_open(&made->watch, options->loop, made->fd, on_client, made) != KVARN_OK)
        status = fail(why, "watch", made->address);
    if (status != KVARN_OK) {
        kvd_listener_close(&made);
        return status;
    }
    kvd_watch_set(made->watch, KVD_READABLE);
    *listener = made;
    return KVARN_OK;
}

void kvd_listener_close(struct kvd_listener **listener)
{
    struct kvd_listener *it = *listener;

    if (it == NULL)
        return;
    kvd_watch_close(&it->watch);
    if (it->fd >= 0)
        close(it->fd);
    if (it->reserve_fd >= 0)
        close(it->reserve_fd);
    kvd_unix_path_release(&it->place);
    free(it);
    *listener = NULL;
}

const char *kvd_listener_address(const struct kvd_listener *listener)
{
    return listener->address;
}

kvarn_status kvd_listener_inherit(int fd, const struct kvd_listener_options *options,
                                  char why[KVD_LISTENER_WHY_MAX])
{
    struct sockaddr_storage peer = {0};
    socklen_t bytes = sizeof peer;
    struct kvd_identity who;

    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 || peer.ss_family != AF_UNIX) {
        snprintf(why, KVD_LISTENER_WHY_MAX, "descriptor %d is not a connected Unix socket", fd);
        return KVARN_INVALID_SHAPE;
    }
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (identify(fd, options, true, &who) != KVARN_OK ||
        kvd_conns_adopt(options->conns, fd, &who) != KVARN_OK) {
        snprintf(why, KVD_LISTENER_WHY_MAX, "descriptor %d cannot be served", fd);
        return KVARN_INTERNAL;
    }
    return KVARN_OK;
}
