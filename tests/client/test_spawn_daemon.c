/* client/spawn_daemon: a spawned daemon gets clean descriptors, serves, and leaves no process
 * behind.
 *
 * This program is its own kvarnd: run with --socket-fd it serves the pretended daemon there. */
#include "connect_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "peer.h"

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
        cmocka_unit_test(spawned_daemon_serves_and_ends),
        cmocka_unit_test(spawned_daemon_gets_clean_descriptors),
        cmocka_unit_test(stubborn_daemon_is_ended),
        cmocka_unit_test(spawned_daemon_that_dies),
        cmocka_unit_test(forked_copies_do_not_hold_the_daemon),
    };

    if (argc == 6 && strcmp(argv[1], "--socket-fd") == 0 && strcmp(argv[3], "--pool") == 0 &&
        strcmp(argv[5], "--quiet") == 0)
        return be_daemon(atoi(argv[2]), argv[4]);
    return cmocka_run_group_tests_name("spawn_daemon", tests, NULL, NULL);
}
