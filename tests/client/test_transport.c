/* client/connect, transport, spawn_daemon: what connecting says when it fails, and that a spawned
 * daemon leaves no process and no descriptor behind.
 *
 * This program is its own kvarnd: run with --socket-fd it serves the pretended daemon there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "fake_daemon.h"

static int count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void fails(const char *address, const kvarn_connect_options *options, kvarn_status status,
                  const char *hint)
{
    kvarn_client *client = NULL;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_server_info info;
    kvarn_status got = kvarn_connect(&client, address, options);

    if (got != status)
        fail_msg("%s: %s, not %s: %s", address, kvarn_status_name(got), kvarn_status_name(status),
                 kvarn_client_error(client));
    assert_non_null(client);
    if (!strstr(kvarn_client_error(client), hint))
        fail_msg("\"%s\" does not say \"%s\"", kvarn_client_error(client), hint);
    assert_int_equal(kvarn_client_fd(client), -1);
    assert_int_equal(kvarn_client_process(client), KVARN_PEER_LOST);
    assert_int_equal(kvarn_ping(client, &ping), KVARN_PEER_LOST);
    assert_int_equal(kvarn_client_info(client, &info), KVARN_PEER_LOST);
    assert_string_equal(info.server, "");
    kvarn_close(&client);
    assert_null(client);
}

static void connecting_fails(void **state)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    char address[64];
    int before = count_fds();

    (void)state;
    fails("unix:/nonexistent/x", NULL, KVARN_PEER_LOST, "start kvarnd");
    fails("unix:/dev/null", NULL, KVARN_PEER_LOST, "no daemon listens");
    fails("tcp://127.0.0.1:1", NULL, KVARN_PEER_LOST, "no daemon listens");
    fails("nonsense", NULL, KVARN_INVALID_SHAPE, "unix:");
    options.kvarnd_path = "/nonexistent/kvarnd";
    fails("spawn:", &options, KVARN_NOT_FOUND, "kvarnd_path");
    options.size = 8;
    fails("spawn:", &options, KVARN_INVALID_SHAPE, "KVARN_CONNECT_OPTIONS_INIT");
    options.size = sizeof options;

    /* A listener that never accepts nor answers. */
    int mute = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(mute, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(mute, 1), 0);
    getsockname(mute, (struct sockaddr *)&at, &size);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    options.connect_timeout_ms = 50;
    fails(address, &options, KVARN_DEADLINE, "HELLO");
    close(mute);
    assert_int_equal(kvarn_connect(NULL, NULL, NULL), KVARN_INVALID_SHAPE);
    assert_int_equal(count_fds(), before);
}

static void full_backlog(void **state)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char address[128];
    int held[8];

    (void)state;
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/kvarn-test-backlog-%d", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", at.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 0), 0);
    for (size_t i = 0; i < 8; i++) {
        held[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(held[i], (struct sockaddr *)&at, sizeof at);
    }
    options.connect_timeout_ms = 50;
    fails(address, &options, KVARN_DEADLINE, "in time");
    for (size_t i = 0; i < 8; i++)
        close(held[i]);
    close(listener);
    unlink(at.sun_path);
}

static void hello_faults(void **state)
{
    const struct {
        enum peer_fault fault;
        kvarn_status status;
        const char *hint;
    } cases[] = {
        {PEER_REFUSES, KVARN_DENIED, "not you"},
        {PEER_WRONG_VERSION, KVARN_UNSUPPORTED, "version"},
        {PEER_CUT, KVARN_PEER_LOST, "closed"},
        {PEER_BAD_MAGIC, KVARN_BAD_FRAME, "magic"},
    };
    struct fake_daemon daemon;

    (void)state;
    fake_daemon_start(&daemon, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        atomic_store(&daemon.hello_fault, cases[i].fault);
        fails(daemon.address, NULL, cases[i].status, cases[i].hint);
    }
    fake_daemon_stop(&daemon);
}

/* ---- spawn */

static void no_child_is_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static kvarn_client *spawn(const char *pool)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;
    kvarn_client *client = NULL;

    options.kvarnd_path = "/proc/self/exe";
    options.spawn_pool = pool;
    if (kvarn_connect(&client, "spawn:", &options) != KVARN_OK)
        fail_msg("%s", kvarn_client_error(client));
    return client;
}

static void spawned_daemon_serves_and_ends(void **state)
{
    kvarn_ping_args ping = KVARN_PING_INIT;
    int before = count_fds();

    (void)state;
    for (int i = 0; i < 5; i++) {
        kvarn_client *client = spawn(NULL);
        assert_int_equal(kvarn_ping(client, &ping), KVARN_OK);
        kvarn_close(&client);
        no_child_is_left();
    }
    assert_int_equal(count_fds(), before);
}

static void spawned_daemon_gets_clean_descriptors(void **state)
{
    int leak = open("/dev/null", O_RDONLY); /* without close-on-exec */

    (void)state;
    kvarn_client *client =
        spawn("check-fds"); /* the child ends with 9 when it sees more than 0..3 */
    kvarn_close(&client);
    close(leak);
    no_child_is_left();
}

static void stubborn_daemon_is_ended(void **state)
{
    struct timespec begin, end;

    (void)state;
    kvarn_client *client = spawn("stubborn");
    clock_gettime(CLOCK_MONOTONIC, &begin);
    kvarn_close(&client);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_in_range(end.tv_sec - begin.tv_sec, 2, 20);
    no_child_is_left();
}

static void spawned_daemon_that_dies(void **state)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;

    (void)state;
    options.kvarnd_path = "/bin/false";
    fails("spawn:", &options, KVARN_PEER_LOST, "ended before");
    no_child_is_left();
}

/* A child forked by the application keeps a copy of the socket; close must end the daemon anyway.
 */
static void forked_copies_do_not_hold_the_daemon(void **state)
{
    (void)state;
    kvarn_client *client = spawn(NULL);
    pid_t copy = fork();
    if (copy == 0) {
        pause();
        _exit(0);
    }
    kvarn_close(&client);
    kill(copy, SIGKILL);
    assert_int_equal(waitpid(copy, NULL, 0), copy);
    no_child_is_left();
}

static int be_daemon(int fd, const char *pool)
{
    struct peer peer;
    static uint8_t bytes[65536];
    ssize_t got;

    if (strcmp(pool, "check-fds") == 0) {
        for (int other = 4; other < 100; other++)
            if (fcntl(other, F_GETFD) >= 0)
                return 9;
    }
    peer_init(&peer);
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        peer_feed(&peer, bytes, (size_t)got);
        for (size_t at = 0; at < peer.out.count;) {
            ssize_t sent = send(fd, peer.out.bytes + at, peer.out.count - at, MSG_NOSIGNAL);
            if (sent < 0)
                return 1;
            at += (size_t)sent;
        }
        peer.out.count = 0;
    }
    peer_free(&peer);
    if (strcmp(pool, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connecting_fails),
        cmocka_unit_test(full_backlog),
        cmocka_unit_test(hello_faults),
        cmocka_unit_test(spawned_daemon_serves_and_ends),
        cmocka_unit_test(spawned_daemon_gets_clean_descriptors),
        cmocka_unit_test(stubborn_daemon_is_ended),
        cmocka_unit_test(spawned_daemon_that_dies),
        cmocka_unit_test(forked_copies_do_not_hold_the_daemon),
    };

    if (argc == 6 && strcmp(argv[1], "--socket-fd") == 0 && strcmp(argv[3], "--pool") == 0 &&
        strcmp(argv[5], "--quiet") == 0)
        return be_daemon(atoi(argv[2]), argv[4]);
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
