/* net/conn: who may speak, in which order, and what is left when a client goes. */
#include "conn_rig.h"

#include "server/core/log.h"

static void foreign_protocols_are_closed_at_once(void **state)
{
    struct rig *rig = *state;
    static const char *const first[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01",
                                        "*1\r\n$4\r\nPING", "PRI * HTTP/2.0\r\n", "KVRM"};

    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        int fd = join(rig);

        put(fd, first[i], strlen(first[i]));
        expect_end(rig, fd);
    }
    assert_true(metric(rig, KVD_METRIC_CUT_FOREIGN) == 5);
}

/* Who came, what was refused and why it ended, without the digits of a key. */
static void the_log_tells_of_connections(void **state)
{
    struct rig *rig = *state;
    static char log[65536];
    ssize_t got;
    int ends[2], fd;
    uint8_t bytes[128];

    assert_int_equal(pipe(ends), 0);
    kvd_log_set_fd(ends[1]);
    kvd_log_set_level(KVD_LOG_DEBUG);
    fd = join(rig);
    put(fd, bytes, ping_frame(bytes, 2));
    expect(rig, fd, 2, KVARN_DENIED);
    kvd_slot_note(kvd_slot_take(rig->conns->first, &(struct kvw_header){.op = KVW_LOOKUP}),
                  KVARN_NOT_FOUND, "block 0 (key 0123456789abcdef...) is not stored");
    close(fd);
    settle(rig);
    fd = join(rig);
    put(fd, "GET / HTTP/1.1\r\n\r\n", 18);
    expect_end(rig, fd);
    kvd_log_set_fd(2);
    kvd_log_set_level(KVD_LOG_INFO);
    close(ends[1]);
    got = read(ends[0], log, sizeof log - 1);
    log[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    assert_non_null(strstr(log, "level=debug event=connected conn=1 transport="));
    assert_non_null(strstr(log, "event=refused conn=1 op=PING status=DENIED text=\"HELLO comes"));
    assert_non_null(strstr(log, "block 0 (key *...) is not stored"));
    assert_null(strstr(log, "0123456789"));
    assert_non_null(strstr(log, "event=disconnected conn=1 why=\"the client "));
    assert_non_null(strstr(log, "level=info event=cut_off conn=2 why=\"its first bytes"));
}

static void hello_comes_first(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[128];
    size_t whole;
    int fd = join(rig);

    put(fd, bytes, ping_frame(bytes, 2));
    expect(rig, fd, 2, KVARN_DENIED);
    hello(rig, fd);
    ping(rig, fd, 3);
    close(fd);

    fd = join(rig); /* in one piece with what follows */
    whole = frame(bytes, KVW_HELLO, 1, NULL, 0, 0, 0);
    put(fd, bytes, whole + ping_frame(bytes + whole, 2));
    expect(rig, fd, 1, KVARN_OK);
    expect(rig, fd, 2, KVARN_OK);
    close(fd);
}

static void request_ids_are_checked(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    put(fd, bytes, ping_frame(bytes, 0));
    expect(rig, fd, 0, KVARN_BAD_FRAME);
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 8, NULL, 0, 0, 0));
    expect_nothing(rig, fd);
    put(fd, bytes, ping_frame(bytes, 8));
    expect(rig, fd, 8, KVARN_BAD_FRAME);
    stub_release(&rig->service);
    expect(rig, fd, 8, KVARN_OK);
    ping(rig, fd, 8); /* free again */
    frame(bytes, KVW_PING, 9, NULL, 0, 0, 0);
    bytes[6] |= KVW_FLAG_REPLY;
    put(fd, bytes, KVW_HEADER_BYTES);
    expect(rig, fd, 9, KVARN_BAD_FRAME);
    ping(rig, fd, 10);
    close(fd);
}

static void over_the_limit_is_told_to_retry(void **state)
{
    struct rig *rig = *state;
    int fds[CLIENTS_MAX], pair[2];
    static const struct kvd_identity who = {.local = true};

    for (int i = 0; i < CLIENTS_MAX; i++) {
        fds[i] = join(rig);
        hello(rig, fds[i]);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(kvd_conns_adopt(rig->conns, pair[1], &who), KVARN_RETRY);
    expect(rig, pair[0], 0, KVARN_RETRY);
    expect_end(rig, pair[0]);
    for (int i = 0; i < CLIENTS_MAX; i++) {
        ping(rig, fds[i], 7);
        close(fds[i]);
    }
    settle(rig);
    fds[0] = join(rig);
    hello(rig, fds[0]);
    close(fds[0]);
}

static void gone_in_mid_payload(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64], part[100] = {0};

    for (int i = 0; i < 200; i++) {
        int fd = join(rig);

        hello(rig, fd);
        put(fd, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 4096, 0));
        put(fd, part, sizeof part);
        settle(rig);
        assert_int_equal(rig->service.used, 1);
        close(fd);
        settle(rig);
        assert_int_equal(rig->service.used, 0);
    }
    assert_int_equal(rig->service.gones, 200);
}

static void gone_while_the_device_works(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    for (uint64_t id = 2; id < 100; id++) /* held back, too: the end is noticed all the same */
        put(fd, bytes, frame(bytes, KVW_COMPRESS, id, NULL, 0, 0, 0));
    settle(rig);
    close(fd);
    settle(rig);
    assert_int_equal(kvd_conns_count(rig->conns), 0);
    assert_int_equal(rig->service.used, KVD_IN_FLIGHT_MAX);
    assert_int_equal(kvd_conns_open_requests(rig->conns), KVD_IN_FLIGHT_MAX);
    assert_int_equal(stub_release(&rig->service), KVD_IN_FLIGHT_MAX);
    assert_int_equal(rig->service.used, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(foreign_protocols_are_closed_at_once),
        TEST(the_log_tells_of_connections),
        TEST(hello_comes_first),
        TEST(request_ids_are_checked),
        TEST(over_the_limit_is_told_to_retry),
        TEST(gone_in_mid_payload),
        TEST(gone_while_the_device_works),
    };

    return conn_rig_run("conn", tests, sizeof tests / sizeof tests[0]);
}
