/* net/conn_read: frames in any pieces, payloads wanted and unwanted, shortage, descriptors. */
#include "conn_rig.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(frames_cut_at_every_byte),
        TEST(byte_by_byte),
        TEST(pieces_of_any_size),
        TEST(large_payloads_arrive_whole),
        TEST(unwanted_payloads_are_thrown_away),
        TEST(lost_framing_is_answered_once),
        TEST(shortage_of_requests_is_waited_out),
        TEST(shortage_of_staging_is_waited_out),
        TEST(room_is_given_in_order),
        TEST(descriptors_are_closed_and_refused),
    };

    return conn_rig_run("conn_read", tests, sizeof tests / sizeof tests[0]);
}
