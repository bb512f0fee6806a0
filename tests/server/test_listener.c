/* net/listener: what may be listened on, whose socket stands there already, who comes in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/frame.h"
#include "server/core/log.h"
#include "server/net/conn.h"
#include "server/net/listener.h"
#include "server/store/tenant.h"
#include "stub_service.h"

struct rig {
    struct uv_loop_s *loop;
    struct kvd_deferred *nudge;
    struct kvd_metrics *metrics;
    struct kvd_tenants *tenants;
    struct kvd_conns *conns;
    struct kvd_service service;
    struct kvd_listener_options options;
    char directory[64], path[96], address[112], why[KVD_LISTENER_WHY_MAX];
};

static void nothing(void *context)
{
    (void)context;
}

static void settle(struct rig *rig)
{
    for (int i = 0; i < 4; i++) {
        kvd_deferred_arm(rig->nudge);
        kvd_loop_turn(rig->loop);
    }
}

static int rig_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    if (rig == NULL)
        return -1;
    *state = rig;
    strcpy(rig->directory, "/tmp/kvarnd-listen-XXXXXX");
    if (mkdtemp(rig->directory) == NULL)
        return -1;
    snprintf(rig->path, sizeof rig->path, "%s/k.sock", rig->directory);
    snprintf(rig->address, sizeof rig->address, "unix:%s", rig->path);
    rig->loop = kvd_loop_new();
    stub_open(&rig->service);
    if (rig->loop == NULL || kvd_metrics_open(&rig->metrics) != KVARN_OK ||
        kvd_tenants_open(&rig->tenants, geteuid()) != KVARN_OK ||
        kvd_deferred_open(&rig->nudge, rig->loop, nothing, NULL) != KVARN_OK ||
        kvd_conns_open(&rig->conns, &(struct kvd_conns_options){.loop = rig->loop,
                                                                .service = &rig->service,
                                                                .metrics = rig->metrics}) !=
            KVARN_OK)
        return -1;
    rig->options = (struct kvd_listener_options){
        .loop = rig->loop, .conns = rig->conns, .tenants = rig->tenants, .own_uid = geteuid()};
    return 0;
}

static int rig_teardown(void **state)
{
    struct rig *rig = *state;
    char command[128];

    kvd_conns_end(rig->conns);
    kvd_conns_close(&rig->conns);
    kvd_deferred_close(&rig->nudge);
    kvd_loop_free(&rig->loop);
    kvd_tenants_close(&rig->tenants);
    kvd_metrics_close(&rig->metrics);
    stub_close(&rig->service);
    snprintf(command, sizeof command, "rm -rf %s", rig->directory);
    assert_int_equal(system(command), 0);
    free(rig);
    return 0;
}

static struct kvd_listener *open_it(struct rig *rig, const char *address)
{
    struct kvd_listener *listener;

    if (kvd_listener_open(&listener, address, &rig->options, rig->why) != KVARN_OK)
        fail_msg("%s", rig->why);
    return listener;
}

static void refuses(struct rig *rig, const char *address, kvarn_status status, const char *says)
{
    struct kvd_listener *listener;
    kvarn_status got = kvd_listener_open(&listener, address, &rig->options, rig->why);

    assert_null(listener);
    if (got != status || strstr(rig->why, says) == NULL)
        fail_msg("%s: %d %s", address, (int)got, rig->why);
}

static int dial(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* HELLO there and back. */
static void greet(struct rig *rig, int fd)
{
    uint8_t frame[256];
    struct kvw_header header = {.version = 1, .op = KVW_HELLO, .request_id = 1};
    const char *why;

    kvw_header_pack(frame, &header);
    assert_int_equal(send(fd, frame, KVW_HEADER_BYTES, MSG_NOSIGNAL), KVW_HEADER_BYTES);
    settle(rig);
    assert_true(recv(fd, frame, sizeof frame, MSG_DONTWAIT) >= KVW_HEADER_BYTES);
    assert_int_equal(kvw_header_unpack(&header, frame, 0, &why), KVARN_OK);
    assert_int_equal(header.request_id, 1);
}

/* ---- Unix sockets */

static void a_socket_is_private_and_removed(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener = open_it(rig, rig->address);
    struct stat is;
    int fd;

    assert_string_equal(kvd_listener_address(listener), rig->address);
    assert_int_equal(stat(rig->path, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0600);
    fd = dial(rig->path);
    settle(rig);
    greet(rig, fd);
    assert_int_equal(rig->conns->first->identity.tenant, KVD_TENANT_DEFAULT);
    assert_true(rig->conns->first->identity.same_uid);
    kvd_listener_close(&listener);
    assert_int_equal(stat(rig->path, &is), -1);
    assert_int_equal(rmdir(rig->directory), 0); /* nothing else is left */
    close(fd);
}

static void the_mode_is_the_operators(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener;
    mode_t old = umask(0);
    struct stat is;
    char log[512];
    ssize_t got;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    kvd_log_set_fd(ends[1]);
    kvd_log_set_level(KVD_LOG_WARN);
    rig->options.socket_mode = 0660; /* of no use: the folder's is 0700, and that is said */
    listener = open_it(rig, rig->address);
    kvd_log_set_level(KVD_LOG_ERROR);
    kvd_log_set_fd(2);
    close(ends[1]);
    got = read(ends[0], log, sizeof log - 1);
    close(ends[0]);
    log[got > 0 ? got : 0] = '\0';
    assert_non_null(strstr(log, "level=warn event=folder_closed"));
    assert_int_equal(stat(rig->path, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0660);
    kvd_listener_close(&listener);
    umask(old);
}

/* Another user comes in only where the operator opened the way, and is somebody else. */
static void another_user_is_another_tenant(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener;
    int pipes[2], status;
    pid_t child;
    char byte = 0;

    if (geteuid() != 0)
        skip();
    rig->options.socket_mode = 0666;
    assert_int_equal(chmod(rig->directory, 0755), 0);
    listener = open_it(rig, rig->address);
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    if (child == 0) {
        int fd = setuid(65532) == 0 ? dial(rig->path) : -1;

        byte = fd >= 0 ? 'y' : 'n';
        (void)!write(pipes[1], &byte, 1);
        close(pipes[1]);
        _exit(fd < 0 || recv(fd, &byte, 1, 0) != 0); /* until the daemon closes it */
    }
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    settle(rig);
    assert_non_null(rig->conns->first);
    assert_false(rig->conns->first->identity.same_uid);
    assert_string_equal(kvd_tenants_name(rig->tenants, rig->conns->first->identity.tenant),
                        "uid-65532");
    kvd_conns_end(rig->conns);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipes[0]);
    close(pipes[1]);
    kvd_listener_close(&listener);
}

static void a_dead_daemons_socket_is_replaced(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener;
    pid_t child = fork();
    int status, fd;

    if (child == 0) { /* dies without taking anything down */
        (void)kvd_listener_open(&listener, rig->address, &rig->options, rig->why);
        _exit(listener == NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(dial(rig->path), -1);
    listener = open_it(rig, rig->address);
    fd = dial(rig->path);
    assert_true(fd >= 0);
    settle(rig);
    greet(rig, fd);
    close(fd);
    kvd_listener_close(&listener);
}

static void a_live_daemons_socket_is_not(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener = open_it(rig, rig->address);
    char says[32];
    int fd;

    snprintf(says, sizeof says, "pid %ld", (long)getpid());
    refuses(rig, rig->address, KVARN_EXISTS, says);
    fd = dial(rig->path); /* and it still serves */
    assert_true(fd >= 0);
    settle(rig);
    greet(rig, fd);
    close(fd);
    kvd_listener_close(&listener);
    listener = open_it(rig, rig->address);
    kvd_listener_close(&listener);
}

static void paths_that_cannot_be(void **state)
{
    struct rig *rig = *state;
    char address[200];

    refuses(rig, "unix:@kvarnd", KVARN_INVALID_SHAPE, "absolute");
    refuses(rig, "unix:", KVARN_INVALID_SHAPE, "absolute");
    refuses(rig, "unix:k.sock", KVARN_INVALID_SHAPE, "absolute");
    refuses(rig, "ftp:x", KVARN_INVALID_SHAPE, "neither");
    snprintf(address, sizeof address, "unix:%s/%0*d", rig->directory,
             108 - 1 - (int)strlen(rig->directory), 0);
    assert_int_equal(strlen(address), 5 + 108);
    refuses(rig, address, KVARN_INVALID_SHAPE, "108 bytes");
    address[strlen(address) - 1] = '\0'; /* 107 is right */
    assert_int_equal(kvd_listener_check(address, rig->why), KVARN_OK);
    {
        struct kvd_listener *listener = open_it(rig, address);
        int fd = dial(address + 5);

        assert_true(fd >= 0);
        close(fd);
        kvd_listener_close(&listener);
    }
}

/* ---- TCP */

static void tcp_stays_on_loopback(void **state)
{
    struct rig *rig = *state;
    static const char *const denied[] = {
        "tcp:0.0.0.0:7070",   "tcp:[::]:7070", "tcp:10.0.0.1:7070", "tcp:192.168.1.1:0",
        "tcp:example.org:80", "tcp:::1:80",    "tcp::80",           "tcp:[::ffff:1.2.3.4]:80"};
    static const char *const wrong[] = {
        "tcp:127.0.0.1",   "tcp:127.0.0.1:",   "tcp:127.0.0.1:65536",
        "tcp:127.0.0.1:x", "tcp:127.0.0.1:-1", "tcp:"};

    for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++)
        refuses(rig, denied[i], KVARN_DENIED, "no TLS yet");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuses(rig, wrong[i], KVARN_INVALID_SHAPE, "HOST:PORT");
}

static void tcp_clients_are_a_tenant_of_their_own(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener = open_it(rig, "tcp:localhost:0");
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const char *colon = strrchr(kvd_listener_address(listener), ':');
    unsigned long port = strtoul(colon + 1, NULL, 10);

    assert_in_range(port, 1, 65535);
    at.sin_port = htons((uint16_t)port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    settle(rig);
    greet(rig, fd);
    assert_false(rig->conns->first->identity.same_uid);
    assert_string_equal(kvd_tenants_name(rig->tenants, rig->conns->first->identity.tenant),
                        "tcp-loopback");
    close(fd);
    kvd_listener_close(&listener);
}

/* ---- shortage */

static void without_descriptors_clients_are_told(void **state)
{
    struct rig *rig = *state;
    struct kvd_listener *listener = open_it(rig, rig->address);
    struct rlimit old, tight;
    uint8_t head[KVW_HEADER_BYTES];
    int waiting = dial(rig->path), filler[64], count = 0, again;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = old;
    tight.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    while (count < 64 && (filler[count] = dup(waiting)) >= 0)
        count++;
    settle(rig);
    assert_int_equal(kvd_conns_count(rig->conns), 0);
    assert_int_equal(recv(waiting, head, sizeof head, MSG_DONTWAIT), sizeof head);
    while (count > 0)
        close(filler[--count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    again = dial(rig->path);
    settle(rig);
    greet(rig, again);
    close(again);
    close(waiting);
    kvd_listener_close(&listener);
}

static void an_inherited_socket_is_served(void **state)
{
    struct rig *rig = *state;
    int pair[2], pipes[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(kvd_listener_inherit(pair[1], &rig->options, rig->why), KVARN_OK);
    greet(rig, pair[0]);
    close(pair[0]);
    settle(rig);
    assert_int_equal(kvd_conns_count(rig->conns), 0);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(kvd_listener_inherit(pipes[0], &rig->options, rig->why), KVARN_INVALID_SHAPE);
    close(pipes[0]);
    close(pipes[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_socket_is_private_and_removed),
        TEST(the_mode_is_the_operators),
        TEST(another_user_is_another_tenant),
        TEST(a_dead_daemons_socket_is_replaced),
        TEST(a_live_daemons_socket_is_not),
        TEST(paths_that_cannot_be),
        TEST(tcp_stays_on_loopback),
        TEST(tcp_clients_are_a_tenant_of_their_own),
        TEST(without_descriptors_clients_are_told),
        TEST(an_inherited_socket_is_served),
    };

    kvd_log_set_level(KVD_LOG_ERROR);
    return cmocka_run_group_tests_name("listener", tests, NULL, NULL);
}
