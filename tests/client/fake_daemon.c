/* Poll loop of the pretended daemon. */
#include "fake_daemon.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int must(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        abort();
    }
    return result;
}

/* False: the connection is over. */
static bool send_some(struct fake_daemon *daemon, int fd, struct peer *peer)
{
    size_t count = peer->out.count;

    if (atomic_load(&daemon->slow) && count > 1000)
        count = 1000;
    ssize_t sent = send(fd, peer->out.bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0)
        return false;
    memmove(peer->out.bytes, peer->out.bytes + sent, peer->out.count - (size_t)sent);
    peer->out.count -= (size_t)sent;
    return !(peer->ends && peer->out.count == 0);
}

/* False: stop altogether. */
static bool serve(struct fake_daemon *daemon, int fd)
{
    static uint8_t bytes[1 << 16];
    struct peer peer;
    bool alive = true, stop = false;

    peer_init(&peer);
    while (alive && !stop) {
        struct pollfd ready[2] = {{.fd = daemon->wake[0], .events = POLLIN},
                                  {.fd = fd, .events = POLLIN}};
        if (peer.out.count > 0)
            ready[1].events |= POLLOUT;
        must(poll(ready, 2, -1), "poll");
        stop = ready[0].revents != 0;
        peer.fault = (enum peer_fault)atomic_load(&daemon->fault);
        peer.hello_fault = (enum peer_fault)atomic_load(&daemon->hello_fault);
        if (ready[1].revents & POLLIN) {
            size_t most = atomic_load(&daemon->slow) ? 1000 : sizeof bytes;
            ssize_t got = recv(fd, bytes, most, 0);
            alive = got > 0;
            if (alive)
                peer_feed(&peer, bytes, (size_t)got);
            atomic_store(&daemon->payload_sum, peer.payload_sum);
            atomic_store(&daemon->requests, peer.requests);
        } else if (ready[1].revents & POLLOUT) {
            alive = send_some(daemon, fd, &peer);
        } else if (ready[1].revents) {
            alive = false;
        }
        if (peer.ends && peer.out.count == 0)
            alive = false;
    }
    peer_free(&peer);
    close(fd);
    return !stop;
}

static void *run(void *daemon_)
{
    struct fake_daemon *daemon = daemon_;

    for (;;) {
        struct pollfd ready[2] = {{.fd = daemon->wake[0], .events = POLLIN},
                                  {.fd = daemon->listener, .events = POLLIN}};
        must(poll(ready, 2, -1), "poll");
        if (ready[0].revents)
            return NULL;
        int fd = must(accept4(daemon->listener, NULL, NULL, SOCK_CLOEXEC), "accept");
        if (!serve(daemon, fd))
            return NULL;
    }
}

static void listen_tcp(struct fake_daemon *daemon)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;

    daemon->listener = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    must(bind(daemon->listener, (struct sockaddr *)&at, sizeof at), "bind");
    must(getsockname(daemon->listener, (struct sockaddr *)&at, &size), "getsockname");
    snprintf(daemon->address, sizeof daemon->address, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
}

static void listen_unix(struct fake_daemon *daemon)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    snprintf(daemon->directory, sizeof daemon->directory, "/tmp/kvarn-test-XXXXXX");
    if (!mkdtemp(daemon->directory))
        abort();
    snprintf(at.sun_path, sizeof at.sun_path, "%s/s", daemon->directory);
    snprintf(daemon->address, sizeof daemon->address, "unix:%s", at.sun_path);
    daemon->listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    must(bind(daemon->listener, (struct sockaddr *)&at, sizeof at), "bind");
}

void fake_daemon_start(struct fake_daemon *daemon, int tcp)
{
    memset(daemon, 0, sizeof *daemon);
    if (tcp)
        listen_tcp(daemon);
    else
        listen_unix(daemon);
    must(listen(daemon->listener, 8), "listen");
    must(pipe(daemon->wake), "pipe");
    if (pthread_create(&daemon->thread, NULL, run, daemon))
        abort();
}

void fake_daemon_stop(struct fake_daemon *daemon)
{
    must((int)write(daemon->wake[1], "", 1), "write");
    pthread_join(daemon->thread, NULL);
    close(daemon->listener);
    close(daemon->wake[0]);
    close(daemon->wake[1]);
    if (daemon->directory[0]) {
        unlink(daemon->address + strlen("unix:"));
        rmdir(daemon->directory);
    }
}
