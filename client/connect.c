/* Opening the stream of an address: Unix, TCP (every address of the name in turn), spawn. */
#include "client/transport.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/spawn_daemon.h"

/* Unix sockets have no autotuning: with the default of 208 KiB a payload of megabytes wakes the
 * peer several times as often (IMPORT of 4 MiB: 1.36 ms with 1 MiB, 1.05 ms with 4). The kernel
 * clips this to its own maximum. TCP tunes itself, and would stop if it were told. */
enum { UNIX_BUFFER_BYTES = 4 << 20 };

static kvarn_status timed_out(const struct kvc_address *address, char *why)
{
    snprintf(why, KVC_TRANSPORT_WHY_BYTES,
             "cannot connect to %.300s in time: is the daemon there and not stopped?",
             address->text);
    return KVARN_DEADLINE;
}

static const char *remedy(int error)
{
    switch (error) {
    case ENOENT:
        return "nothing is there: start kvarnd, or name its socket with an address such as "
               "unix:/run/kvarnd/kvarnd.sock or KVARN_ADDRESS";
    case ECONNREFUSED:
        return "no daemon listens there: start kvarnd, or check its listen address";
    case EACCES:
        return "this user may not open the socket: run as the daemon's user or group";
    default:
        return "check the address and that kvarnd runs";
    }
}

static kvarn_status refused(const struct kvc_address *address, int error, char *why)
{
    snprintf(why, KVC_TRANSPORT_WHY_BYTES, "cannot connect to %.300s: %s (%s)", address->text,
             strerror(error), remedy(error));
    return KVARN_PEER_LOST;
}

/* A non-blocking connect, finished by poll. 0 or an errno; ETIMEDOUT when the time is up. */
static int connect_until(int fd, const struct sockaddr *to, socklen_t length, uint64_t deadline_ns)
{
    while (connect(fd, to, length) != 0) {
        if (errno == EAGAIN) { /* a Unix socket whose backlog is full never becomes pollable */
            if (kvc_now_ns() >= deadline_ns)
                return ETIMEDOUT;
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            continue;
        }
        if (errno == EISCONN)
            return 0;
        if (errno != EINPROGRESS && errno != EINTR && errno != EALREADY)
            return errno;
        struct kvc_transport waiting = {.fd = fd};
        if (!kvc_transport_poll(&waiting, POLLOUT, deadline_ns))
            return ETIMEDOUT;
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            return errno;
        return error;
    }
    return 0;
}

static kvarn_status open_unix(struct kvc_transport *transport, const struct kvc_address *address,
                              uint64_t deadline_ns, char *why)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return refused(address, errno, why);
    memcpy(to.sun_path, address->path, strlen(address->path) + 1);
    int error = connect_until(fd, (const struct sockaddr *)&to, sizeof to, deadline_ns);
    if (error) {
        close(fd);
        return error == ETIMEDOUT ? timed_out(address, why) : refused(address, error, why);
    }
    const int bytes = UNIX_BUFFER_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    transport->fd = fd;
    return KVARN_OK;
}

static kvarn_status open_tcp(struct kvc_transport *transport, const struct kvc_address *address,
                             uint64_t deadline_ns, char *why)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(address->host, address->port, &hints, &found);

    if (error) {
        snprintf(why, KVC_TRANSPORT_WHY_BYTES, "cannot connect to %.300s: host \"%.200s\": %s",
                 address->text, address->host, gai_strerror(error));
        return KVARN_PEER_LOST;
    }
    error = ECONNREFUSED;
    for (struct addrinfo *one = found; one; one = one->ai_next) {
        int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            error = errno;
            continue;
        }
        error = connect_until(fd, one->ai_addr, one->ai_addrlen, deadline_ns);
        if (!error) {
            const int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            transport->fd = fd;
            break;
        }
        close(fd);
        if (error == ETIMEDOUT)
            break;
    }
    freeaddrinfo(found);
    if (error == ETIMEDOUT)
        return timed_out(address, why);
    return error ? refused(address, error, why) : KVARN_OK;
}

kvarn_status kvc_transport_open(struct kvc_transport *transport, const struct kvc_address *address,
                                const struct kvc_spawn_options *spawn, uint64_t deadline_ns,
                                char why[KVC_TRANSPORT_WHY_BYTES])
{
    *transport = (struct kvc_transport){.fd = -1};
    why[0] = '\0';
    switch (address->kind) {
    case KVC_ADDRESS_UNIX:
        return open_unix(transport, address, deadline_ns, why);
    case KVC_ADDRESS_TCP:
        return open_tcp(transport, address, deadline_ns, why);
    case KVC_ADDRESS_SPAWN:
        return kvc_spawn_start(spawn->kvarnd_path, spawn->pool, &transport->fd, &transport->child,
                               why, KVC_TRANSPORT_WHY_BYTES);
    }
    return KVARN_INTERNAL;
}
