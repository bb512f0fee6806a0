/* net/conn_time: headers and payloads that stop coming, and deadlines of requests. */
#include "conn_rig.h"

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
    assert_int_equal(rig->service.unwanted, 0);
    assert_int_equal(stub_release(&rig->service), 2);
    expect(rig, fd, 3, KVARN_OK); /* and not 2 again */
    assert_int_equal(rig->service.unwanted, 1);
    expect_nothing(rig, fd);
    assert_int_equal(rig->service.used, 0);
    close(fd);
}

static void no_deadline_is_longer_than_the_bound(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[64];
    int fd = join(rig);

    hello(rig, fd);
    put(fd, bytes, frame(bytes, KVW_COMPRESS, 2, NULL, 0, 0, UINT32_MAX));
    expect_nothing(rig, fd);
    pass_ms(rig, KVD_DEADLINE_MAX_MS - 1);
    expect_nothing(rig, fd);
    pass_ms(rig, 2);
    expect(rig, fd, 2, KVARN_DEADLINE);
    assert_int_equal(stub_release(&rig->service), 1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(slow_headers_are_cut),
        TEST(payloads_must_move),
        TEST(deadlines_are_answered),
        TEST(no_deadline_is_longer_than_the_bound),
        TEST(deadlines_pass_while_waiting_for_room),
    };

    return conn_rig_run("conn_time", tests, sizeof tests / sizeof tests[0]);
}
