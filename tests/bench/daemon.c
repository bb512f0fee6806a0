/* A daemon and a bare socket peer for benchmarks; see daemon.h. */
#include "tests/bench/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/row.h"

static void die(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

void bench_must(kvarn_client *client, const char *what, kvarn_status status)
{
    if (status == KVARN_OK || status == KVARN_EXISTS)
        return;
    fprintf(stderr, "bench: %s: %s: %s\n", what, kvarn_status_name(status),
            client != NULL ? kvarn_client_error(client) : "");
    exit(1);
}

/* ../bin/kvarnd from this program's own folder. */
static const char *daemon_path(void)
{
    static char path[4096];
    const char *given = getenv("KVARND");
    ssize_t count = readlink("/proc/self/exe", path, sizeof path - 32);
    char *slash;

    if (given != NULL)
        return given;
    if (count < 0)
        die("readlink");
    path[count] = '\0';
    slash = strrchr(path, '/');
    *slash = '\0';
    slash = strrchr(path, '/');
    strcpy(slash, "/bin/kvarnd");
    return path;
}

void bench_daemon_start(struct bench_daemon *daemon, const char *pool, kvarn_client **client)
{
    char listen[128];
    double begin = bench_seconds();
    kvarn_status status;

    strcpy(daemon->folder, "/tmp/kvarn-bench.XXXXXX");
    if (mkdtemp(daemon->folder) == NULL)
        die("mkdtemp");
    snprintf(daemon->address, sizeof daemon->address, "unix:%s/sock", daemon->folder);
    snprintf(listen, sizeof listen, "%s", daemon->address);
    daemon->pid = fork();
    if (daemon->pid < 0)
        die("fork");
    if (daemon->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        execl(daemon_path(), "kvarnd", "--listen", listen, "--pool", pool, "--quiet", (char *)NULL);
        die(daemon_path());
    }
    for (;;) {
        status = kvarn_connect(client, daemon->address, NULL);
        if (status == KVARN_OK)
            return;
        if (waitpid(daemon->pid, NULL, WNOHANG) != 0 || bench_seconds() - begin > 10.0)
            bench_must(*client, "connect", status);
        kvarn_close(client);
        usleep(2000); /* between attempts to connect, not a wait for anything to be done */
    }
}

void bench_daemon_stop(struct bench_daemon *daemon, kvarn_client **client)
{
    char lock[96];

    kvarn_close(client);
    kill(daemon->pid, SIGTERM);
    waitpid(daemon->pid, NULL, 0);
    snprintf(lock, sizeof lock, "%s/sock.lock", daemon->folder);
    unlink(lock);
    rmdir(daemon->folder);
}

/* ------------------------------------------------------------------ bare socket */

struct exchange {
    uint64_t bytes_in, bytes_out;
};

static int whole(int fd, void *bytes, size_t count, int writing)
{
    for (size_t done = 0; done < count;) {
        char *at = (char *)bytes + done;
        ssize_t n =
            writing ? send(fd, at, count - done, MSG_NOSIGNAL) : recv(fd, at, count - done, 0);

        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

/* As a daemon would: waits in epoll, then reads. The sizes come once, before the first exchange of
 * a kind. */
static void peer_loop(int fd)
{
    int poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    size_t room = 64u << 20;
    char *buffer = malloc(room);
    struct exchange sizes;

    memset(buffer, 1, room);
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    while (epoll_wait(poller, &event, 1, -1) == 1) {
        if (whole(fd, &sizes, sizeof sizes, 0) != 0)
            break;
        if (whole(fd, buffer, sizes.bytes_in, 0) != 0 || whole(fd, buffer, sizes.bytes_out, 1) != 0)
            break;
    }
    _exit(0);
}

void bench_peer_start(struct bench_peer *peer)
{
    int pair[2], bytes = 4 << 20;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        die("socketpair");
    for (int i = 0; i < 2; i++) {
        setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(pair[i], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    peer->pid = fork();
    if (peer->pid < 0)
        die("fork");
    if (peer->pid == 0) {
        close(pair[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        peer_loop(pair[1]);
    }
    close(pair[1]);
    peer->fd = pair[0];
}

double bench_peer_exchange(struct bench_peer *peer, const void *in, size_t bytes_in, void *out,
                           size_t bytes_out)
{
    struct exchange sizes = {bytes_in, bytes_out};
    struct iovec parts[2] = {{&sizes, sizeof sizes}, {(void *)(uintptr_t)in, bytes_in}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    double begin = bench_seconds();
    ssize_t sent = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
    size_t done = sent < (ssize_t)sizeof sizes ? 0 : (size_t)sent - sizeof sizes;

    if (sent < (ssize_t)sizeof sizes ||
        whole(peer->fd, (char *)(uintptr_t)in + done, bytes_in - done, 1) != 0 ||
        whole(peer->fd, out, bytes_out, 0) != 0)
        die("bare socket");
    return bench_seconds() - begin;
}

void bench_peer_stop(struct bench_peer *peer)
{
    close(peer->fd);
    waitpid(peer->pid, NULL, 0);
}
