/* See conn_rig.h. */
#include "conn_rig.h"

static uint64_t rig_now(void *context)
{
    return ((struct rig *)context)->now_ns;
}

int open_fds(void)
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
void settle(struct rig *rig)
{
    for (int i = 0; i < 4; i++) {
        kvd_deferred_arm(rig->nudge);
        kvd_loop_turn(rig->loop);
    }
}

int rig_setup(void **state)
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

int rig_teardown(void **state)
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

int join(struct rig *rig)
{
    int pair[2];
    static const struct kvd_identity who = {.tenant = 7, .same_uid = true, .local = true};

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(kvd_conns_adopt(rig->conns, pair[1], &who), KVARN_OK);
    return pair[0];
}

/* ---- frames */

size_t frame(uint8_t *out, uint8_t op, uint64_t id, const void *metadata, size_t bytes,
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

size_t ping_frame(uint8_t *out, uint64_t id)
{
    uint8_t metadata[32];
    size_t bytes = kvw_ping_encode(metadata, sizeof metadata, &(struct kvw_ping){.echo = id * 3});

    return frame(out, KVW_PING, id, metadata, bytes, 0, 0);
}

void put(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

/* Reads what is there. False at the end of the stream. */
bool drink(struct rig *rig, int fd)
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
bool take_reply(struct rig *rig, struct kvw_header *header, kvarn_status *status, uint64_t *echo)
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

void expect(struct rig *rig, int fd, uint64_t id, kvarn_status want)
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

void expect_nothing(struct rig *rig, int fd)
{
    settle(rig);
    assert_true(drink(rig, fd));
    assert_int_equal(rig->reply_bytes, 0);
}

void expect_end(struct rig *rig, int fd)
{
    settle(rig);
    assert_false(drink(rig, fd));
    assert_int_equal(rig->reply_bytes, 0);
    close(fd);
}

void hello(struct rig *rig, int fd)
{
    uint8_t bytes[64];

    put(fd, bytes, frame(bytes, KVW_HELLO, 1, NULL, 0, 0, 0));
    expect(rig, fd, 1, KVARN_OK);
}

void ping(struct rig *rig, int fd, uint64_t id)
{
    uint8_t bytes[64];

    put(fd, bytes, ping_frame(bytes, id));
    expect(rig, fd, id, KVARN_OK);
}

double metric(struct rig *rig, enum kvd_metric which)
{
    return kvd_metrics_get(rig->metrics, which);
}

void pass_ms(struct rig *rig, uint64_t ms)
{
    rig->now_ns += ms * 1000000;
    kvd_conns_tick(rig->conns);
}

int conn_rig_run(const char *name, const struct CMUnitTest *tests, size_t count)
{
    struct uv_loop_s *first = kvd_loop_new();

    kvd_loop_free(&first);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}
