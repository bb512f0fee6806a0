/* kvarnd as a process, with a stub for its service: addresses, signals, drain, exit codes.
 *
 * The daemon's path is the first argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/wire.h"

static const char *daemon_path;

struct daemon {
    char directory[64], path[96], listen[112];
    pid_t pid;
    int log_fd;
    char log[8192];
    size_t log_bytes;
};

static void start(struct daemon *daemon, const char *const *flags, int keep_fd)
{
    const char *argv[16] = {"kvarnd"};
    int pipes[2], argc = 1;

    while (*flags != NULL)
        argv[argc++] = *flags++;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    daemon->pid = fork();
    assert_true(daemon->pid >= 0);
    if (daemon->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pipes[1], 2);
        if (keep_fd >= 0)
            fcntl(keep_fd, F_SETFD, 0);
        execv(daemon_path, (char **)(uintptr_t)argv);
        _exit(127);
    }
    close(pipes[1]);
    daemon->log_fd = pipes[0];
    daemon->log_bytes = 0;
}

/* Reads the log until it holds `text`. */
static void await(struct daemon *daemon, const char *text)
{
    for (;;) {
        ssize_t got;

        daemon->log[daemon->log_bytes] = '\0';
        if (strstr(daemon->log, text) != NULL)
            return;
        got = read(daemon->log_fd, daemon->log + daemon->log_bytes,
                   sizeof daemon->log - 1 - daemon->log_bytes);
        if (got <= 0)
            fail_msg("the log ended without \"%s\": %s", text, daemon->log);
        daemon->log_bytes += (size_t)got;
    }
}

static int ended(struct daemon *daemon)
{
    int status;

    assert_int_equal(waitpid(daemon->pid, &status, 0), daemon->pid);
    daemon->pid = 0;
    close(daemon->log_fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static int setup(void **state)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);

    if (daemon == NULL)
        return -1;
    strcpy(daemon->directory, "/tmp/kvarnd-front-XXXXXX");
    if (mkdtemp(daemon->directory) == NULL)
        return -1;
    snprintf(daemon->path, sizeof daemon->path, "%s/k.sock", daemon->directory);
    snprintf(daemon->listen, sizeof daemon->listen, "unix:%s", daemon->path);
    *state = daemon;
    return 0;
}

static int teardown(void **state)
{
    struct daemon *daemon = *state;
    int left;

    unsetenv("STUB_HOLD");
    if (daemon->pid > 0) {
        kill(daemon->pid, SIGKILL);
        (void)ended(daemon);
    }
    left = rmdir(daemon->directory); /* it takes everything down that it made */
    free(daemon);
    return left;
}

static int dial(const struct daemon *daemon)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof at.sun_path, "%s", daemon->path);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void ask(int fd, uint8_t op, uint64_t id)
{
    uint8_t head[KVW_HEADER_BYTES];

    kvw_header_pack(head, &(struct kvw_header){.version = 1, .op = op, .request_id = id});
    assert_int_equal(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
}

/* Id of the next reply; 0 at the end of the stream. */
static uint64_t answer(int fd)
{
    uint8_t head[KVW_HEADER_BYTES], metadata[512];
    struct kvw_header header;
    const char *why;
    ssize_t got = recv(fd, head, sizeof head, MSG_WAITALL);

    if (got <= 0)
        return 0;
    assert_int_equal(got, sizeof head);
    assert_int_equal(kvw_header_unpack(&header, head, 0, &why), KVARN_OK);
    assert_true(header.metadata_bytes <= sizeof metadata);
    if (header.metadata_bytes > 0)
        assert_int_equal(recv(fd, metadata, header.metadata_bytes, MSG_WAITALL),
                         header.metadata_bytes);
    return header.request_id;
}

static int greet(const struct daemon *daemon)
{
    int fd = dial(daemon);

    ask(fd, KVW_HELLO, 1);
    assert_int_equal(answer(fd), 1);
    ask(fd, KVW_PING, 2);
    assert_int_equal(answer(fd), 2);
    return fd;
}

static void serves_and_ends_on_sigterm(void **state)
{
    struct daemon *daemon = *state;
    struct stat is;
    int fd;

    setenv("KVARND_POL", "host:1GiB", 1);
    start(daemon, (const char *[]){"--listen", daemon->listen, NULL}, -1);
    await(daemon, "event=listening");
    await(daemon, daemon->listen);
    await(daemon, "event=unknown_variable name=KVARND_POL");
    unsetenv("KVARND_POL");
    fd = greet(daemon);
    kill(daemon->pid, SIGTERM);
    assert_int_equal(answer(fd), 0);
    assert_int_equal(ended(daemon), 0);
    assert_int_equal(stat(daemon->path, &is), -1);
    close(fd);
}

static void what_is_in_flight_finishes(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    start(daemon, (const char *[]){"--listen", daemon->listen, NULL}, -1);
    await(daemon, "event=listening");
    fd = greet(daemon);
    ask(fd, KVW_COMPRESS, 3);
    ask(fd, KVW_PING, 4); /* once it is answered, 3 is in flight or answered too */
    assert_in_range(answer(fd), 3, 4);
    kill(daemon->pid, SIGINT);
    assert_in_range(answer(fd), 3, 4);
    assert_int_equal(answer(fd), 0);
    assert_int_equal(ended(daemon), 0);
    close(fd);
}

/* Half a header or half a payload when the signal comes: the rest is read and answered. */
static void what_is_arriving_is_answered(void **state)
{
    struct daemon *daemon = *state;
    uint8_t frame[KVW_HEADER_BYTES + 1000] = {0};
    const size_t parts[] = {1, KVW_HEADER_BYTES / 2, KVW_HEADER_BYTES, KVW_HEADER_BYTES + 500};

    kvw_header_pack(
        frame,
        &(struct kvw_header){.version = 1, .op = KVW_PING, .request_id = 3, .payload_bytes = 1000});
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int fd, idle;

        start(daemon, (const char *[]){"--listen", daemon->listen, NULL}, -1);
        await(daemon, "event=listening");
        idle = greet(daemon);
        fd = greet(daemon);
        assert_int_equal(send(fd, frame, parts[i], MSG_NOSIGNAL), parts[i]);
        kill(daemon->pid, SIGTERM);
        await(daemon, "event=draining");
        /* Time for a wrong daemon to stop; a right one waits however long it takes. */
        usleep(30000);
        assert_int_equal(send(fd, frame + parts[i], sizeof frame - parts[i], MSG_NOSIGNAL),
                         sizeof frame - parts[i]);
        assert_int_equal(answer(fd), 3);
        assert_int_equal(answer(fd), 0);
        assert_int_equal(answer(idle), 0);
        assert_int_equal(ended(daemon), 0);
        close(idle);
        close(fd);
    }
}

static void the_grace_ends(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    setenv("STUB_HOLD", "1", 1);
    start(daemon, (const char *[]){"--listen", daemon->listen, "--drain-grace", "50", NULL}, -1);
    await(daemon, "event=listening");
    fd = greet(daemon);
    ask(fd, KVW_COMPRESS, 3);
    ask(fd, KVW_PING, 4);
    assert_int_equal(answer(fd), 4);
    kill(daemon->pid, SIGTERM);
    assert_int_equal(answer(fd), 0);
    await(daemon, "the grace time is over");
    assert_int_equal(ended(daemon), 0);
    close(fd);
}

static void a_second_signal_ends_at_once(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    setenv("STUB_HOLD", "1", 1);
    start(daemon, (const char *[]){"--listen", daemon->listen, "--drain-grace", "600000", NULL},
          -1);
    await(daemon, "event=listening");
    fd = greet(daemon);
    ask(fd, KVW_COMPRESS, 3);
    ask(fd, KVW_PING, 4);
    assert_int_equal(answer(fd), 4);
    kill(daemon->pid, SIGTERM);
    await(daemon, "event=draining");
    kill(daemon->pid, SIGTERM);
    await(daemon, "second signal");
    assert_int_equal(ended(daemon), 1);
    close(fd);
}

static void an_inherited_socket_ends_with_its_client(void **state)
{
    struct daemon *daemon = *state;
    char number[16];
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(number, sizeof number, "%d", pair[1]);
    start(daemon, (const char *[]){"--socket-fd", number, "--quiet", NULL}, pair[1]);
    close(pair[1]);
    ask(pair[0], KVW_HELLO, 1);
    assert_int_equal(answer(pair[0]), 1);
    ask(pair[0], KVW_COMPRESS, 2);
    assert_int_equal(answer(pair[0]), 2);
    close(pair[0]);
    assert_int_equal(ended(daemon), 0);
}

static void mistakes_have_exit_codes(void **state)
{
    struct daemon *daemon = *state, other = {0};
    static const char *const wrong[][4] = {
        {"--listen", "tcp:0.0.0.0:7070", NULL},
        {"--listen", "unix:@name", NULL},
        {"--pool", "host:12", NULL},
        {"--bogus", NULL},
        {"--check-config", "--listen", "tcp:8.8.8.8:1", NULL},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        start(daemon, wrong[i], -1);
        assert_int_equal(ended(daemon), 2);
    }
    start(daemon, (const char *[]){"--socket-fd", "977", NULL}, -1);
    assert_int_equal(ended(daemon), 2);
    start(daemon, (const char *[]){"--listen", "unix:/dev/null/k.sock", NULL}, -1);
    await(daemon, "is not a directory");
    assert_int_equal(ended(daemon), 2);
    start(daemon, (const char *[]){"--listen", daemon->listen, NULL}, -1);
    await(daemon, "event=listening");
    start(&other, (const char *[]){"--listen", daemon->listen, NULL}, -1);
    await(&other, "already listening");
    assert_int_equal(ended(&other), 1);
    kill(daemon->pid, SIGTERM);
    assert_int_equal(ended(daemon), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(serves_and_ends_on_sigterm),   TEST(what_is_in_flight_finishes),
        TEST(what_is_arriving_is_answered), TEST(the_grace_ends),
        TEST(a_second_signal_ends_at_once), TEST(an_inherited_socket_ends_with_its_client),
        TEST(mistakes_have_exit_codes),
    };

    if (argc < 2)
        return 2;
    daemon_path = argv[1];
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("front", tests, NULL, NULL);
}
