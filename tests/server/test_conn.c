/* net/conn over socket pairs, with a stub service and a clock that the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/arena.h"
#include "proto/codec.h"
#include "server/net/conn.h"
#include "stub_service.h"

enum { CLIENTS_MAX = 4 };

struct rig {
    struct uv_loop_s *loop;
    struct kvd_deferred *nudge;
    struct kvd_conns *conns;
    struct kvd_metrics *metrics;
    struct kvd_service service;
    uint64_t now_ns;
    uint8_t *reply; /* bytes of frames that came, not yet taken */
    size_t reply_bytes;
    int fds; /* open descriptors at the start */
};

static uint64_t rig_now(void *context)
{
    return ((struct rig *)context)->now_ns;
}

static int open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static void nothing(void *context)
{
    (void)context;
}

/* Turns of the loop until nothing more happens. An armed call keeps a turn from waiting. */
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
    rig->fds = open_fds();
    rig->now_ns = 1000000000;
    rig->loop = kvd_loop_new();
    rig->reply = malloc(8u << 20);
    stub_open(&rig->service);
    if (rig->loop == NULL || kvd_metrics_open(&rig->metrics) != KVARN_OK ||
        kvd_deferred_open(&rig->nudge, rig->loop, nothing, NULL) != KVARN_OK)
        return -1;
    *state = rig;
    return kvd_conns_open(&rig->conns, &(struct kvd_conns_options){.loop = rig->loop,
                                                                   .service = &rig->service,
                                                                   .metrics = rig->metrics,
                                                                   .connections_max = CLIENTS_MAX,
                                                                   .payload_max_bytes = 8u << 20,
                                                                   .now_ns = rig_now,
                                                                   .context = rig}) == KVARN_OK
               ? 0
               : -1;
}

static int rig_teardown(void **state)
{
    struct rig *rig = *state;
    int fds;

    kvd_conns_end(rig->conns);
    stub_release(&rig->service);
    assert_int_equal(kvd_conns_open_requests(rig->conns), 0);
    kvd_conns_close(&rig->conns);
    kvd_deferred_close(&rig->nudge);
    kvd_loop_free(&rig->loop);
    stub_close(&rig->service);
    assert_true(kvd_metrics_get(rig->metrics, KVD_METRIC_CONNECTIONS) == 0);
    assert_true(kvd_metrics_get(rig->metrics, KVD_METRIC_REQUESTS_OPEN) == 0);
    kvd_metrics_close(&rig->metrics);
    free(rig->reply);
    fds = open_fds();
    assert_int_equal(fds, rig->fds);
    free(rig);
    return 0;
}

static int join(struct rig *rig)
{
    int pair[2];
    static const struct kvd_identity who = {.tenant = 7, .same_uid = true, .local = true};

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(kvd_conns_adopt(rig->conns, pair[1], &who), KVARN_OK);
    return pair[0];
}

/* ---- frames */

static size_t frame(uint8_t *out, uint8_t op, uint64_t id, const void *metadata, size_t bytes,
                    uint64_t payload_bytes, uint32_t deadline_us)
{
    kvw_header_pack(out, &(struct kvw_header){.version = KVW_VERSION_MAX,
                                              .op = op,
                                              .request_id = id,
                                              .metadata_bytes = (uint32_t)bytes,
                                              .payload_bytes = payload_bytes,
                                              .deadline_us = deadline_us});
    if (bytes > 0)
        memcpy(out + KVW_HEADER_BYTES, metadata, bytes);
    return KVW_HEADER_BYTES + bytes;
}

static size_t ping_frame(uint8_t *out, uint64_t id)
{
    uint8_t metadata[32];
    size_t bytes = kvw_ping_encode(metadata, sizeof metadata, &(struct kvw_ping){.echo = id * 3});

    return frame(out, KVW_PING, id, metadata, bytes, 0, 0);
}

static void put(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

/* Reads what is there. False at the end of the stream. */
static bool drink(struct rig *rig, int fd)
{
    for (;;) {
        ssize_t got = recv(fd, rig->reply + rig->reply_bytes, (8u << 20) - rig->reply_bytes, 0);

        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0)
            return false;
        rig->reply_bytes += (size_t)got;
    }
}

/* Takes one reply frame out of what was read; false when none is whole. */
static bool take_reply(struct rig *rig, struct kvw_header *header, kvarn_status *status,
                       uint64_t *echo)
{
    struct kvw_arena arena;
    uint8_t memory[8192];
    struct kvw_ping_reply reply;
    const char *why;
    size_t whole;

    if (rig->reply_bytes < KVW_HEADER_BYTES)
        return false;
    assert_int_equal(kvw_header_unpack(header, rig->reply, UINT64_MAX, &why), KVARN_OK);
    assert_int_equal(header->flags, KVW_FLAG_REPLY);
    whole = KVW_HEADER_BYTES + header->metadata_bytes + header->payload_bytes;
    if (rig->reply_bytes < whole)
        return false;
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(kvw_ping_reply_decode(&reply, rig->reply + KVW_HEADER_BYTES,
                                           header->metadata_bytes, &arena, &why),
                     KVARN_OK);
    *status = reply.result.status;
    *echo = reply.echo;
    for (uint64_t i = 0; i < header->payload_bytes; i++) {
        uint64_t at = i % (1u << 20);

        if (rig->reply[KVW_HEADER_BYTES + header->metadata_bytes + i] !=
            (uint8_t)(at * 31 + (at >> 8)))
            fail_msg("payload byte %llu is wrong", (unsigned long long)i);
    }
    memmove(rig->reply, rig->reply + whole, rig->reply_bytes - whole);
    rig->reply_bytes -= whole;
    return true;
}

static void expect(struct rig *rig, int fd, uint64_t id, kvarn_status want)
{
    struct kvw_header header;
    kvarn_status status;
    uint64_t echo;

    settle(rig);
    (void)drink(rig, fd);
    assert_true(take_reply(rig, &header, &status, &echo));
    assert_int_equal(header.request_id, id);
    assert_int_equal(status, want);
    if (header.op == KVW_PING && want == KVARN_OK)
        assert_int_equal(echo, id * 3);
}

static void expect_nothing(struct rig *rig, int fd)
{
    settle(rig);
    assert_true(drink(rig, fd));
    assert_int_equal(rig->reply_bytes, 0);
}

static void expect_end(struct rig *rig, int fd)
{
    settle(rig);
    assert_false(drink(rig, fd));
    assert_int_equal(rig->reply_bytes, 0);
    close(fd);
}

static void hello(struct rig *rig, int fd)
{
    uint8_t bytes[64];

    put(fd, bytes, frame(bytes, KVW_HELLO, 1, NULL, 0, 0, 0));
    expect(rig, fd, 1, KVARN_OK);
}

static void ping(struct rig *rig, int fd, uint64_t id)
{
    uint8_t bytes[64];

    put(fd, bytes, ping_frame(bytes, id));
    expect(rig, fd, id, KVARN_OK);
}

static double metric(struct rig *rig, enum kvd_metric which)
{
    return kvd_metrics_get(rig->metrics, which);
}

static void pass_ms(struct rig *rig, uint64_t ms)
{
    rig->now_ns += ms * 1000000;
    kvd_conns_tick(rig->conns);
}

/* ---- framing */

static void frames_cut_at_every_byte(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[128];
    size_t whole = frame(bytes, KVW_HELLO, 1, NULL, 0, 0, 0);

    whole += ping_frame(bytes + whole, 2);
    whole += frame(bytes + whole, KVW_COMPRESS, 3, NULL, 0, 8, 0);
    memset(bytes + whole, 5, 8);
    whole += 8;
    for (size_t cut = 0; cut < whole; cut++) {
        int fd = join(rig);

        if (cut > 0)
            put(fd, bytes, cut);
        close(fd);
        settle(rig);
        assert_int_equal(kvd_conns_count(rig->conns), 0);
        assert_int_equal(rig->service.used, 0);
    }
}

static void byte_by_byte(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[128];
    size_t whole;
    int fd = join(rig);

    hello(rig, fd);
    whole = ping_frame(bytes, 2);
    whole += frame(bytes + whole, KVW_COMPRESS, 3, "", 0, 8, 0);
    memset(bytes + whole, 5, 8);
    whole += 8;
    for (size_t i = 0; i < whole; i++) {
        put(fd, bytes + i, 1);
        settle(rig);
    }
    expect(rig, fd, 2, KVARN_OK);
    assert_int_equal(rig->service.payload_sum, 40);
    stub_release(&rig->service);
    expect(rig, fd, 3, KVARN_OK);
    close(fd);
}

/* The same stream in pieces of any size gives the same answers. */
static void pieces_of_any_size(void **state)
{
    struct rig *rig = *state;
    static uint8_t bytes[32768];
    uint32_t seed = 7;

    for (int round = 0; round < 300; round++) {
        uint64_t sum = rig->service.payload_sum, want = 0;
        size_t whole = frame(bytes, KVW_HELLO, 1, NULL, 0, 0, 0), sent = 0;
        int fd = join(rig);

        for (uint64_t id = 2; id < 12; id++) {
            whole += ping_frame(bytes + whole, id);
            whole += frame(bytes + whole, KVW_COMPRESS, id + 100, NULL, 0, id * 199, 0);
            memset(bytes + whole, (int)id, id * 199);
            want += id * id * 199;
            whole += id * 199;
        }
        while (sent < whole) {
            size_t piece;

            seed = seed * 1664525u + 1013904223u;
            piece = 1 + (seed >> 8) % (1u << (seed >> 28));
            if (piece > whole - sent)
                piece = whole - sent;
            put(fd, bytes + sent, piece);
            sent += piece;
            settle(rig);
        }
        expect(rig, fd, 1, KVARN_OK);
        for (uint64_t id = 2; id < 12; id++)
            expect(rig, fd, id, KVARN_OK);
        assert_int_equal(rig->service.payload_sum - sum, want);
        assert_int_equal(stub_release(&rig->service), 10);
        close(fd);
        settle(rig);
    }
}

static void large_payloads_arrive_whole(void **state)
{
    struct rig *rig = *state;
    enum { BYTES = 5 << 20 };
    uint8_t head[64], *payload = malloc(BYTES + 64);
    uint64_t sum = 0;
    size_t sent = 0, all;
    int fd = join(rig);

    assert_non_null(payload);
    hello(rig, fd);
    for (size_t i = 0; i < BYTES; i++) {
        payload[i] = (uint8_t)(i * 7 + (i >> 9));
        sum += payload[i];
    }
    all = BYTES + ping_frame(payload + BYTES, 9);
    put(fd, head, frame(head, KVW_COMPRESS, 2, NULL, 0, BYTES, 0));
    while (sent < all) {
        ssize_t got = send(fd, payload + sent, all - sent, MSG_NOSIGNAL);

        if (got > 0)
            sent += (size_t)got;
        settle(rig);
    }
    expect(rig, fd, 9, KVARN_OK);
    assert_int_equal(rig->service.payload_sum, sum);
    stub_release(&rig->service);
    expect(rig, fd, 2, KVARN_OK);
    free(payload);
    close(fd);
}

static void unwanted_payloads_are_thrown_away(void **state)
{
    struct rig *rig = *state;
    enum { BYTES = 300000 };
    uint8_t head[64], *payload = calloc(1, BYTES);
    size_t sent = 0;
    int fd = join(rig);

    assert_non_null(payload);
    hello(rig, fd);
    put(fd, head, frame(head, KVW_LOOKUP, 2, NULL, 0, BYTES, 0));
    while (sent < BYTES) {
        ssize_t got = send(fd, payload + sent, BYTES - sent, MSG_NOSIGNAL);

        if (got > 0)
            sent += (size_t)got;
        settle(rig);
    }
    expect(rig, fd, 2, KVARN_UNSUPPORTED);
    ping(rig, fd, 3);
    free(payload);
    close(fd);
}

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

static void lost_framing_is_answered_once(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    frame(bytes, KVW_PING, 5, NULL, 0, UINT64_MAX, 0);
    put(fd, bytes, KVW_HEADER_BYTES);
    expect(rig, fd, 5, KVARN_TOO_LARGE);
    expect_end(rig, fd);

    fd = join(rig);
    hello(rig, fd);
    put(fd, "GET ", 4);
    expect(rig, fd, 0, KVARN_BAD_FRAME);
    expect_end(rig, fd);
    assert_true(metric(rig, KVD_METRIC_CUT_BROKEN) == 2);
}

/* ---- order */

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

/* ---- bounds */

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

static void shortage_of_requests_is_waited_out(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int a = join(rig), b = join(rig);

    hello(rig, a);
    hello(rig, b);
    rig->service.requests_max = 1;
    put(a, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 0, 0));
    settle(rig);
    put(b, bytes, ping_frame(bytes, 3));
    expect_nothing(rig, b);
    stub_release(&rig->service);
    expect(rig, a, 2, KVARN_OK);
    expect(rig, b, 3, KVARN_OK);
    close(a);
    close(b);
}

static void shortage_of_staging_is_waited_out(void **state)
{
    struct rig *rig = *state;
    static uint8_t payload[1000];
    uint8_t bytes[64];
    int a = join(rig), b = join(rig), c = join(rig);
    int fds[3] = {a, b, c};

    rig->service.staging_bytes = 1500;
    memset(payload, 1, sizeof payload);
    for (int i = 0; i < 3; i++) {
        hello(rig, fds[i]);
        put(fds[i], bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, sizeof payload, 0));
        put(fds[i], payload, sizeof payload);
        put(fds[i], bytes, ping_frame(bytes, 3));
        settle(rig);
    }
    assert_int_equal(rig->service.runs, 5); /* three hellos, one put, one ping */
    for (int i = 0; i < 3; i++) {           /* in the order they came */
        expect(rig, fds[i], 3, KVARN_OK);
        assert_int_equal(stub_release(&rig->service), 1);
        expect(rig, fds[i], 2, KVARN_OK);
    }
    close(a);
    close(b);
    close(c);
}

/* A large payload that waits is not overtaken by small ones for ever; calls without one pass. */
static void room_is_given_in_order(void **state)
{
    struct rig *rig = *state;
    static uint8_t payload[1000];
    uint8_t bytes[64];
    int a = join(rig), b = join(rig), c = join(rig);

    hello(rig, a);
    hello(rig, b);
    hello(rig, c);
    rig->service.staging_bytes = 1100;
    put(a, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 200, 0));
    put(a, payload, 200);
    settle(rig);
    put(b, bytes, frame(bytes, KVW_COMPRESS, 3, NULL, 0, 1000, 0));
    put(b, payload, 1000);
    settle(rig);
    put(c, bytes, frame(bytes, KVW_COMPRESS, 4, NULL, 0, 200, 0));
    put(c, payload, 200);
    settle(rig);
    put(a, bytes, ping_frame(bytes, 5));
    expect(rig, a, 5, KVARN_OK);
    assert_int_equal(rig->service.used, 2); /* a runs, b has a request and waits, c has none */
    assert_int_equal(stub_release(&rig->service), 1);
    expect(rig, a, 2, KVARN_OK);
    assert_int_equal(stub_release(&rig->service), 1);
    expect(rig, b, 3, KVARN_OK);
    assert_int_equal(stub_release(&rig->service), 1);
    expect(rig, c, 4, KVARN_OK);

    /* the one in front leaves: those behind it need no other sign */
    rig->service.staging_bytes = 500;
    put(b, bytes, frame(bytes, KVW_COMPRESS, 6, NULL, 0, 1000, 0));
    settle(rig);
    put(c, bytes, frame(bytes, KVW_COMPRESS, 7, NULL, 0, 200, 0));
    put(c, payload, 200);
    settle(rig);
    assert_int_equal(stub_release(&rig->service), 0);
    close(b);
    settle(rig);
    assert_int_equal(stub_release(&rig->service), 1);
    expect(rig, c, 7, KVARN_OK);
    close(a);
    close(c);
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

/* ---- time */

static void slow_headers_are_cut(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int quiet = join(rig), slow = join(rig), busy = join(rig);

    hello(rig, slow);
    hello(rig, busy);
    ping_frame(bytes, 2);
    for (int i = 0; i < 10; i++) { /* a byte every half second does not help */
        put(slow, bytes + i, 1);
        settle(rig);
        pass_ms(rig, 499);
    }
    assert_int_equal(kvd_conns_count(rig->conns), 3);
    pass_ms(rig, 20);
    expect_end(rig, slow);
    expect_end(rig, quiet); /* never said HELLO */
    pass_ms(rig, 3600000);
    ping(rig, busy, 2); /* an idle one may stay */
    assert_true(metric(rig, KVD_METRIC_CUT_READ_TIMEOUT) == 2);
    close(busy);
}

static void payloads_must_move(void **state)
{
    struct rig *rig = *state;
    static uint8_t part[70000];
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 1u << 20, UINT32_MAX));
    for (int i = 0; i < 5; i++) {
        put(fd, part, sizeof part);
        settle(rig);
        pass_ms(rig, KVD_PAYLOAD_TIMEOUT_MS - 1);
    }
    assert_int_equal(kvd_conns_count(rig->conns), 1);
    put(fd, part, 100);
    settle(rig);
    pass_ms(rig, 2);
    expect_end(rig, fd);
    assert_int_equal(rig->service.used, 0);
}

static void deadlines_are_answered(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 0, 5000));
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 3, NULL, 0, 0, 0));
    expect_nothing(rig, fd);
    pass_ms(rig, 6);
    expect(rig, fd, 2, KVARN_DEADLINE);
    expect_nothing(rig, fd);
    assert_int_equal(rig->service.used, 2); /* the device still works on it */
    assert_int_equal(stub_release(&rig->service), 2);
    expect(rig, fd, 3, KVARN_OK); /* and not 2 again */
    expect_nothing(rig, fd);
    assert_int_equal(rig->service.used, 0);
    close(fd);
}

static void deadlines_pass_while_waiting_for_room(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64], payload[8] = {0};
    int fd = join(rig);

    hello(rig, fd);
    rig->service.staging_bytes = 0;
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, sizeof payload, 5000));
    put(fd, payload, sizeof payload);
    put(fd, bytes, ping_frame(bytes, 3));
    expect_nothing(rig, fd);
    assert_int_equal(rig->service.waits, 1);
    pass_ms(rig, 6);
    expect(rig, fd, 2, KVARN_DEADLINE);
    expect(rig, fd, 3, KVARN_OK);
    assert_int_equal(rig->service.used, 0);
    close(fd);
}

/* ---- ends */

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

/* ---- descriptors */

static void send_descriptors(int fd, const void *bytes, size_t count, int descriptors)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(64 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, count};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)descriptors * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)descriptors * sizeof(int));
    for (int i = 0; i < descriptors; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &null, sizeof null);
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), count);
    close(null);
}

static void descriptors_are_closed_and_refused(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fds = open_fds();

    for (int i = 0; i < 100; i++) {
        int fd = join(rig);

        hello(rig, fd);
        send_descriptors(fd, bytes, ping_frame(bytes, 2), i % 50 + 1);
        expect(rig, fd, 0, KVARN_DENIED);
        expect_end(rig, fd);
        assert_int_equal(open_fds(), fds);
    }
    assert_true(metric(rig, KVD_METRIC_CUT_DESCRIPTOR) == 100);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(frames_cut_at_every_byte),
        TEST(byte_by_byte),
        TEST(pieces_of_any_size),
        TEST(large_payloads_arrive_whole),
        TEST(unwanted_payloads_are_thrown_away),
        TEST(foreign_protocols_are_closed_at_once),
        TEST(lost_framing_is_answered_once),
        TEST(hello_comes_first),
        TEST(request_ids_are_checked),
        TEST(ten_thousand_pings_read_late),
        TEST(unanswered_requests_are_bounded),
        TEST(who_never_reads_is_held_and_cut),
        TEST(a_slow_reader_gets_every_byte),
        TEST(shortage_of_requests_is_waited_out),
        TEST(shortage_of_staging_is_waited_out),
        TEST(room_is_given_in_order),
        TEST(over_the_limit_is_told_to_retry),
        TEST(slow_headers_are_cut),
        TEST(payloads_must_move),
        TEST(deadlines_are_answered),
        TEST(deadlines_pass_while_waiting_for_room),
        TEST(gone_in_mid_payload),
        TEST(gone_while_the_device_works),
        TEST(descriptors_are_closed_and_refused),
    };
    struct uv_loop_s *first = kvd_loop_new(); /* opens what libuv keeps for the process */

    kvd_loop_free(&first);
    return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
