/* client/connect: what connecting says when it fails, and that no descriptor stays open. */
#include "connect_rig.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connecting_fails),
        cmocka_unit_test(full_backlog),
    };
    return cmocka_run_group_tests_name("connect", tests, NULL, NULL);
}
