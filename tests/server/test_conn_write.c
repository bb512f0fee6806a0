/* net/conn_write: replies that are read late, slowly or never. */
#include "conn_rig.h"

static void ten_thousand_pings_read_late(void **state)
{
    struct rig *rig = *state;
    enum { PINGS = 10000 };
    static uint8_t bytes[PINGS * 64];
    static uint8_t seen[PINGS + 2];
    size_t whole = 0, sent = 0, answers = 0;
    int fd = join(rig);

    hello(rig, fd);
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < PINGS; i++)
        whole += ping_frame(bytes + whole, i + 2);
    while (answers < PINGS) {
        struct kvw_header header;
        kvarn_status status;
        uint64_t echo;
        ssize_t got = 0;

        do { /* as much as goes in, before a single answer is read */
            if (sent < whole)
                got = send(fd, bytes + sent, whole - sent, MSG_NOSIGNAL);
            if (got > 0)
                sent += (size_t)got;
            settle(rig);
        } while (sent < whole && got > 0);
        (void)drink(rig, fd);
        while (take_reply(rig, &header, &status, &echo)) {
            assert_int_equal(status, KVARN_OK);
            assert_int_equal(echo, header.request_id * 3);
            assert_in_range(header.request_id, 2, PINGS + 1);
            assert_int_equal(seen[header.request_id], 0);
            seen[header.request_id] = 1;
            answers++;
        }
    }
    assert_true(rig->service.used_max <= KVD_IN_FLIGHT_MAX);
    assert_int_equal(rig->service.runs, PINGS + 1);
    close(fd);
}

static void unanswered_requests_are_bounded(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    uint32_t released = 0;
    int fd = join(rig);

    hello(rig, fd);
    for (uint64_t i = 0; i < 200; i++)
        put(fd, bytes, frame(bytes, KVW_COMPRESS, i + 2, NULL, 0, 0, 0));
    settle(rig);
    assert_int_equal(rig->service.used, KVD_IN_FLIGHT_MAX);
    while (released < 200) {
        released += stub_release(&rig->service);
        settle(rig);
        (void)drink(rig, fd);
        assert_true(rig->service.used <= KVD_IN_FLIGHT_MAX);
    }
    for (uint64_t i = 0; i < 200; i++)
        expect(rig, fd, i + 2, KVARN_OK);
    assert_int_equal(rig->service.used, 0);
    close(fd);
}

static void who_never_reads_is_held_and_cut(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    uint64_t id = 2;
    int fd = join(rig);

    hello(rig, fd);
    rig->service.reply_bytes = 2u << 20;
    for (; id < 2000; id++) {
        size_t whole = frame(bytes, KVW_STATS, id, NULL, 0, 0, 0);

        if (send(fd, bytes, whole, MSG_NOSIGNAL) != (ssize_t)whole)
            break;
        settle(rig);
    }
    /* 32 MiB of unsent replies is where reading stops */
    assert_in_range(rig->service.used, 2, 18);
    assert_true(metric(rig, KVD_METRIC_READS_PAUSED) >= 1);
    pass_ms(rig, KVD_WRITE_TIMEOUT_MS - 1);
    assert_int_equal(kvd_conns_count(rig->conns), 1);
    pass_ms(rig, 2);
    settle(rig);
    assert_int_equal(kvd_conns_count(rig->conns), 0);
    assert_int_equal(rig->service.used, 0);
    assert_int_equal(rig->service.gones, 1);
    assert_true(metric(rig, KVD_METRIC_CUT_WRITE_TIMEOUT) == 1);
    close(fd);
}

static void a_slow_reader_gets_every_byte(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    struct kvw_header header;
    kvarn_status status;
    uint64_t echo, answers = 0;
    int fd = join(rig);

    hello(rig, fd);
    rig->service.reply_bytes = (3u << 20) + 17;
    for (uint64_t id = 2; id < 6; id++)
        put(fd, bytes, frame(bytes, KVW_STATS, id, NULL, 0, 0, 0));
    while (answers < 4) {
        ssize_t got;

        settle(rig);
        got = recv(fd, rig->reply + rig->reply_bytes, 70000, 0);
        assert_true(got > 0);
        rig->reply_bytes += (size_t)got;
        pass_ms(rig, 2000); /* slow, but moving */
        while (take_reply(rig, &header, &status, &echo)) {
            assert_int_equal(header.request_id, answers + 2);
            assert_int_equal(header.payload_bytes, (3u << 20) + 17);
            answers++;
        }
    }
    assert_int_equal(rig->service.used, 0);
    close(fd);
}

/* A socket that holds two answers and a client that takes one every four seconds: far fewer bytes
 * than progress asks for, but answers that go out whole are progress too. */
static void small_answers_taken_slowly_are_progress(void **state)
{
    static const struct kvd_identity who = {.tenant = 7, .same_uid = true, .local = true};
    struct rig *rig = *state;
    const int tiny = 1;
    uint8_t bytes[64];
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &tiny, sizeof tiny), 0);
    assert_int_equal(kvd_conns_adopt(rig->conns, pair[1], &who), KVARN_OK);
    hello(rig, pair[0]);
    rig->service.reply_bytes = 3000;
    for (uint64_t id = 2; id < 22; id++)
        put(pair[0], bytes, frame(bytes, KVW_STATS, id, NULL, 0, 0, 0));
    for (uint64_t id = 2; id < 22; id++) {
        struct kvw_header header;
        kvarn_status status;
        uint64_t echo;

        while (!take_reply(rig, &header, &status, &echo)) {
            ssize_t got;

            settle(rig);
            got = recv(pair[0], rig->reply + rig->reply_bytes, 1000, 0);
            assert_true(got > 0);
            rig->reply_bytes += (size_t)got;
        }
        assert_int_equal(header.request_id, id);
        pass_ms(rig, 4000);
    }
    assert_true(metric(rig, KVD_METRIC_CUT_WRITE_TIMEOUT) == 0);
    close(pair[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ten_thousand_pings_read_late),
        TEST(unanswered_requests_are_bounded),
        TEST(who_never_reads_is_held_and_cut),
        TEST(a_slow_reader_gets_every_byte),
        TEST(small_answers_taken_slowly_are_progress),
    };

    return conn_rig_run("conn_write", tests, sizeof tests / sizeof tests[0]);
}
