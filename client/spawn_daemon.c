/* Starting and ending the private kvarnd of "spawn:".
 *
 * posix_spawn, not fork: the application may have threads and gigabytes of mapped memory. The child
 * gets nothing but its socket and standard error, a clean signal state, and a process group of its
 * own, so that ^C in a terminal reaches the application, which then ends the child by closing. */
#include "client/spawn_daemon.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHILD_FD = 3,
    PATH_BYTES = 4096,
    PAIR_BUFFER_BYTES = 4 << 20, /* as for any Unix socket, see connect.c */
    END_MS = 3000,               /* for the child to end by itself after its socket closed */
    TERM_MS = 2000               /* and after SIGTERM */
};

/* The directory of the object that holds this code: the shared library, or the program that the
 * static one was linked into. */
static bool own_directory(char *out, size_t size)
{
    Dl_info info;

    if (!dladdr((const void *)(uintptr_t)kvc_spawn_start, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!slash)
        return false;
    int length = snprintf(out, size, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    return length >= 0 && (size_t)length < size;
}

/* The name to run; with a slash when it was found beside us, bare for PATH to decide. */
static const char *find_program(char *room, size_t size)
{
    static const char *const beside[] = {"kvarnd", "../bin/kvarnd"};
    char directory[PATH_BYTES];

    if (own_directory(directory, sizeof directory)) {
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
            int length = snprintf(room, size, "%s/%s", directory, beside[i]);
            if (length >= 0 && (size_t)length < size && access(room, X_OK) == 0)
                return room;
        }
    }
    return "kvarnd";
}

static int set_actions(posix_spawn_file_actions_t *actions, int socket_fd)
{
    int error = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
    if (!error) /* standard output belongs to the application's own results */
        error = posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0);
    if (!error) /* dup2 onto itself clears close-on-exec here */
        error = posix_spawn_file_actions_adddup2(actions, socket_fd, CHILD_FD);
    if (!error)
        error = posix_spawn_file_actions_addclosefrom_np(actions, CHILD_FD + 1);
    return error;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setflags(
        attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    if (!error)
        error = posix_spawnattr_setsigmask(attributes, &none);
    if (!error)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    if (!error)
        error = posix_spawnattr_setpgroup(attributes, 0);
    return error;
}

static int run(const char *program, const char *pool, int socket_fd, pid_t *child)
{
    char fd_text[12], name[] = "kvarnd", fd_flag[] = "--socket-fd", pool_flag[] = "--pool";
    char quiet[] = "--quiet";
    /* argv has no const form; posix_spawn does not write to it. */
    char *argv[] = {name, fd_flag, fd_text, pool_flag, (char *)(uintptr_t)pool, quiet, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;

    snprintf(fd_text, sizeof fd_text, "%d", CHILD_FD);
    int error = posix_spawn_file_actions_init(&actions);
    if (error)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (!error) {
        error = set_actions(&actions, socket_fd);
        if (!error)
            error = set_attributes(&attributes);
        if (!error)
            error = posix_spawnp(child, program, &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

kvarn_status kvc_spawn_start(const char *path, const char *pool, int *fd, pid_t *child, char *why,
                             size_t why_bytes)
{
    char room[PATH_BYTES + 16];
    const char *program = path ? path : find_program(room, sizeof room);
    const int bytes = PAIR_BUFFER_BYTES;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        snprintf(why, why_bytes, "spawn: no socket pair: %s", strerror(errno));
        return KVARN_INTERNAL;
    }
    for (int i = 0; i < 2; i++)
        setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    /* Above 0..2, which the child's own standard descriptors replace first. */
    int error = 0, child_end = fcntl(pair[1], F_DUPFD_CLOEXEC, CHILD_FD);
    if (child_end < 0 || fcntl(pair[0], F_SETFL, O_NONBLOCK) != 0)
        error = errno;
    close(pair[1]);
    if (!error)
        error = run(program, pool, child_end, child);
    if (child_end >= 0)
        close(child_end);
    if (error) {
        close(pair[0]);
        snprintf(why, why_bytes,
                 "spawn: cannot run \"%.300s\": %s (put kvarnd on PATH or set kvarnd_path)",
                 program, strerror(error));
        return error == ENOENT || error == EACCES ? KVARN_NOT_FOUND : KVARN_INTERNAL;
    }
    *fd = pair[0];
    return KVARN_OK;
}

/* True when the child is gone, or is not ours to wait for (the application reaps every child). */
static bool gone_within(pid_t child, int limit_ms)
{
    long pause_us = 200;

    for (long waited_us = 0; waited_us <= limit_ms * 1000L; waited_us += pause_us) {
        pid_t got = waitpid(child, NULL, WNOHANG);
        if (got == child || (got < 0 && errno != EINTR))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
        if (pause_us < 10000)
            pause_us *= 2;
    }
    return false;
}

void kvc_spawn_reap(pid_t child)
{
    if (gone_within(child, END_MS))
        return;
    kill(child, SIGTERM);
    if (gone_within(child, TERM_MS))
        return;
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
}
