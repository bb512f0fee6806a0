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

static void run_daemon(const struct test_daemon *daemon, const char *pool, int port, int ready)
{
    char unix_listen[128], tcp_listen[64], fd[16], placed[64];

    place_pool(pool, placed, sizeof placed);
    snprintf(unix_listen, sizeof unix_listen, "%s", daemon->unix_address);
    snprintf(tcp_listen, sizeof tcp_listen, "tcp:127.0.0.1:%d", port);
    snprintf(fd, sizeof fd, "%d", ready);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(KVARN_BIN_DIR "/kvarnd", "kvarnd", "--listen", unix_listen, "--listen", tcp_listen,
          "--pool", placed, "--threads", "2", "--quiet", "--ready-fd", fd, (char *)NULL);
    fprintf(stderr, "cannot run %s/kvarnd: %s\n", KVARN_BIN_DIR, strerror(errno));
    _exit(127);
}

void test_daemon_start(struct test_daemon *daemon, const char *pool)
{
    const char *temporary = getenv("TMPDIR");
    int ready[2], port = free_port();
    int bytes;
    char byte;

    memset(daemon, 0, sizeof *daemon);
    bytes = snprintf(daemon->folder, sizeof daemon->folder, "%s/kvarn-test.XXXXXX",
                     temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    /* The socket's path has to fit in an address: 108 bytes. */
    assert_true(bytes > 0 && (size_t)bytes < sizeof daemon->folder);
    assert_non_null(mkdtemp(daemon->folder));
    snprintf(daemon->unix_address, sizeof daemon->unix_address, "unix:%s/s", daemon->folder);
    snprintf(daemon->tcp_address, sizeof daemon->tcp_address, "tcp://127.0.0.1:%d", port);
    assert_int_equal(pipe(ready), 0);
    daemon->pid = fork();
    assert_true(daemon->pid >= 0);
    if (daemon->pid == 0) {
        close(ready[0]);
        run_daemon(daemon, pool, port, ready[1]);
    }
    close(ready[1]);
    /* One byte when it serves, end of file when it ended instead. */
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
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
