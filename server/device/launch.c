/* posix_spawn, because a fork would have to copy what describes the mappings of a large front. */
#include "server/device/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/device/link.h"

enum { INHERITED = KVD_LINK_FDS_END - KVD_LINK_STAGING };

/* Copies of what the worker inherits, above the numbers it will get: a dup2 in the child then never
 * lands on a descriptor that a later dup2 still needs. */
static kvarn_status lift(const int *from, int *lifted)
{
    for (int i = 0; i < INHERITED; i++)
        lifted[i] = -1;
    for (int i = 0; i < INHERITED; i++) {
        if (from[i] < 0)
            continue;
        lifted[i] = fcntl(from[i], F_DUPFD_CLOEXEC, KVD_LINK_FDS_END);
        if (lifted[i] < 0)
            return KVARN_INTERNAL;
    }
    return KVARN_OK;
}

static int set_actions(posix_spawn_file_actions_t *actions, const int *lifted)
{
    int error = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDWR, 0);

    if (error == 0)
        error = posix_spawn_file_actions_adddup2(actions, 0, 1);
    for (int i = 0; i < INHERITED && error == 0; i++)
        if (lifted[i] >= 0)
            error = posix_spawn_file_actions_adddup2(actions, lifted[i], KVD_LINK_STAGING + i);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(actions, KVD_LINK_FDS_END);
    return error;
}

/* Signal mask and handling as at the start of a program, whatever the front has set. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setsigmask(attributes, &none);
    if (error == 0)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    if (error == 0)
        error =
            posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return error;
}

enum { WORDS_MAX = 24, NUMBER_MAX = 32 };

/* A worker's command line. */
struct words {
    const char *at[WORDS_MAX];
    char numbers[WORDS_MAX][NUMBER_MAX];
    int count;
};

static void add(struct words *words, const char *name, const char *value)
{
    words->at[words->count++] = name;
    words->at[words->count++] = value;
}

static void add_number(struct words *words, const char *name, const char *before, uint64_t value)
{
    char *text = words->numbers[words->count];

    snprintf(text, NUMBER_MAX, "%s%" PRIu64, before, value);
    add(words, name, text);
}

static void add_gpu(struct words *words, const struct kvd_launch *launch)
{
    add_number(words, "--device", "cuda:", launch->number);
    if (launch->pool_chunks != 0) {
        add_number(words, "--pool-chunks", "", launch->pool_chunks);
        add_number(words, "--chunk-bytes", "", launch->chunk_bytes);
    } else if (launch->pool_bytes != 0) {
        add_number(words, "--pool-bytes", "", launch->pool_bytes);
    } else {
        add_number(words, "--pool-percent", "", launch->pool_percent);
    }
}

static void say(struct words *words, const struct kvd_launch *launch)
{
    *words = (struct words){.at = {"kvarn-worker"}, .count = 1};
    add_number(words, "--staging-bytes", "", launch->staging_bytes);
    add_number(words, "--parent", "", (uint64_t)getpid());
    if (launch->gpu) {
        add_gpu(words, launch);
        return;
    }
    add_number(words, "--pool-bytes", "", launch->pool_bytes);
    add_number(words, "--threads", "", launch->threads);
    add(words, "--cpu", launch->cpu_mask != NULL ? launch->cpu_mask : "");
}

static int spawn_worker(const struct kvd_launch *launch, const int *lifted, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    struct words words; /* a NULL follows the last */

    say(&words, launch);
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    error = set_actions(&actions, lifted);
    if (error == 0)
        error = set_attributes(&attributes);
    if (error == 0) /* argv is not written to; its type predates const */
        error = posix_spawn(pid, launch->worker_path, &actions, &attributes,
                            (char *const *)(uintptr_t)words.at, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

kvarn_status kvd_launch_start(const struct kvd_launch *launch, pid_t *pid, int *control,
                              const char **why)
{
    int pair[2], lifted[INHERITED], error = -1;

    *why = "no descriptors left to start the worker";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return KVARN_INTERNAL;
    /* in the order of kvd_link_fd */
    const int from[INHERITED] = {launch->staging,   launch->pool,      launch->rings,
                                 launch->jobs_bell, launch->done_bell, pair[1]};
    if (lift(from, lifted) == KVARN_OK) {
        *why = "the worker program cannot be run";
        error = spawn_worker(launch, lifted, pid);
    }
    for (int i = 0; i < INHERITED; i++)
        if (lifted[i] >= 0)
            close(lifted[i]);
    close(pair[1]);
    if (error != 0) {
        close(pair[0]);
        return KVARN_INTERNAL;
    }
    *control = pair[0];
    return KVARN_OK;
}

void kvd_launch_end(pid_t pid, int grace_ms)
{
    int pidfd = pidfd_open(pid, 0);

    if (pidfd >= 0) {
        struct pollfd wait = {.fd = pidfd, .events = POLLIN};
        if (poll(&wait, 1, grace_ms) != 1) /* a signal shortens the grace, no harm */
            kill(pid, SIGKILL);
        close(pidfd);
    } else {
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}
