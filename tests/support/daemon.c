/* A real kvarnd for an end-to-end test; see daemon.h. */
#include "tests/support/daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

enum { ARGUMENTS_MOST = 32 };

/* errors: the child's standard error; -1: as ours. */
static void run_daemon(const struct test_daemon *daemon, const char *const *more, int port,
                       int ready, int errors)
{
    char tcp_listen[64], fd[16];
    const char *values[ARGUMENTS_MOST] = {"kvarnd",   "--listen",   daemon->unix_address,
                                          "--listen", tcp_listen,   "--threads",
                                          "2",        "--ready-fd", fd};
    size_t count = 9;

    snprintf(tcp_listen, sizeof tcp_listen, "tcp:127.0.0.1:%d", port);
    snprintf(fd, sizeof fd, "%d", ready);
    while (*more != NULL && count < ARGUMENTS_MOST - 1)
        values[count++] = *more++;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (errors >= 0)
        dup2(errors, STDERR_FILENO);
    /* execv writes to none of them; its type predates const */
    execv(KVARN_BIN_DIR "/kvarnd", (char *const *)(uintptr_t)values);
    fprintf(stderr, "cannot run %s/kvarnd: %s\n", KVARN_BIN_DIR, strerror(errno));
    _exit(127);
}

static void make_folder(struct test_daemon *daemon, int port)
{
    const char *temporary = getenv("TMPDIR");
    int bytes;

    memset(daemon, 0, sizeof *daemon);
    bytes = snprintf(daemon->folder, sizeof daemon->folder, "%s/kvarn-test.XXXXXX",
                     temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    /* The socket's path has to fit in an address: 108 bytes. */
    assert_true(bytes > 0 && (size_t)bytes < sizeof daemon->folder);
    assert_non_null(mkdtemp(daemon->folder));
    snprintf(daemon->unix_address, sizeof daemon->unix_address, "unix:%s/s", daemon->folder);
    snprintf(daemon->tcp_address, sizeof daemon->tcp_address, "tcp://127.0.0.1:%d", port);
}

/* True when it says that it serves: one byte; the end of the file when it ended instead. */
static bool start(struct test_daemon *daemon, const char *const *more, int errors)
{
    int ready[2], port = free_port();
    char byte;

    make_folder(daemon, port);
    assert_int_equal(pipe(ready), 0);
    daemon->pid = fork();
    assert_true(daemon->pid >= 0);
    if (daemon->pid == 0) {
        close(ready[0]);
        run_daemon(daemon, more, port, ready[1], errors);
    }
    close(ready[1]);
    bool serves = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return serves;
}

void test_daemon_start_with(struct test_daemon *daemon, const char *const *more)
{
    assert_true(start(daemon, more, -1));
}

/* "host:48MiB" on the device that the environment names: the same tests on a GPU. */
static void place_pool(const char *pool, char *text, size_t room)
{
    const char *device = getenv("KVARN_TEST_DEVICE"), *size = strchr(pool, ':');

    assert_non_null(size);
    if (device == NULL)
        snprintf(text, room, "%s", pool);
    else
        snprintf(text, room, "%s%s", device, size);
}

void test_daemon_start(struct test_daemon *daemon, const char *pool)
{
    char placed[64];
    const char *const more[] = {"--quiet", "--pool", placed, NULL};

    place_pool(pool, placed, sizeof placed);
    test_daemon_start_with(daemon, more);
}

bool test_daemon_try(struct test_daemon *daemon, const char *const *more, char *text, size_t room,
                     int *code)
{
    FILE *errors = tmpfile();
    int status = -1;

    assert_non_null(errors);
    bool serves = start(daemon, more, fileno(errors));
    if (!serves) {
        assert_int_equal(waitpid(daemon->pid, &status, 0), daemon->pid);
        assert_true(WIFEXITED(status));
        *code = WEXITSTATUS(status);
        test_daemon_clean(daemon);
    }
    rewind(errors);
    text[fread(text, 1, room - 1, errors)] = '\0';
    fclose(errors);
    return serves;
}

int test_daemon_stop(struct test_daemon *daemon)
{
    pid_t children[16];
    size_t count = test_children(daemon->pid, children, 16);
    struct stat state;
    char path[128];
    int status = -1;

    assert_int_equal(kill(daemon->pid, SIGTERM), 0);
    assert_int_equal(waitpid(daemon->pid, &status, 0), daemon->pid);
    snprintf(path, sizeof path, "%s/s", daemon->folder);
    assert_int_equal(stat(path, &state), -1);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(kill(children[i], 0), -1);
    test_daemon_clean(daemon);
    return status;
}

void test_daemon_clean(const struct test_daemon *daemon)
{
    char path[128];

    snprintf(path, sizeof path, "%s/s.lock", daemon->folder);
    unlink(path);
    assert_int_equal(rmdir(daemon->folder), 0);
}

/* Parent of a process, from the fourth field of its stat file; 0 when it is gone. */
static pid_t parent_of(const char *process)
{
    char path[300], line[512], state;
    FILE *file;
    int parent = 0;
    char *name_end;

    snprintf(path, sizeof path, "/proc/%s/stat", process);
    file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL && (name_end = strrchr(line, ')')) != NULL &&
        sscanf(name_end + 1, " %c %d", &state, &parent) != 2)
        parent = 0;
    fclose(file);
    return parent;
}

size_t test_children(pid_t parent, pid_t *children, size_t room)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;

    assert_non_null(processes);
    while ((entry = readdir(processes)) != NULL && count < room) {
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9' &&
            parent_of(entry->d_name) == parent)
            children[count++] = (pid_t)strtol(entry->d_name, NULL, 10);
    }
    closedir(processes);
    return count;
}
