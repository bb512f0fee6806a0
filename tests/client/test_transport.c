/* client/transport: what the daemon said before it closed is read, time limits hold, a break shuts
 * the socket. */
#include "connect_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/transport.h"
#include "fake_daemon.h"

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

/* A session over one end of a pair; the other end is the test. */
struct rig {
    struct kvc_transport transport;
    struct kvc_session *session;
    int peer;
};

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);
    int pair[2];

    if (rig == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    rig->transport = (struct kvc_transport){.fd = pair[0]};
    rig->peer = pair[1];
    rig->session = kvc_session_new("test", 0);
    *state = rig;
    return rig->session != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct rig *rig = *state;

    kvc_transport_close(&rig->transport);
    assert_int_equal(rig->transport.fd, -1);
    kvc_transport_close(&rig->transport);
    if (rig->peer >= 0)
        close(rig->peer);
    kvc_session_free(rig->session);
    free(rig);
    return 0;
}

static void events_follow_what_is_unsent(void **state)
{
    struct rig *rig = *state;
    uint8_t bytes[512];

    assert_int_equal(kvc_transport_events(rig->session), POLLIN | POLLOUT);
    assert_int_equal(kvc_transport_send(&rig->transport, rig->session), KVARN_OK);
    assert_int_equal(kvc_transport_events(rig->session), POLLIN);
    assert_true(recv(rig->peer, bytes, sizeof bytes, MSG_DONTWAIT) >= KVW_HEADER_BYTES);
}

static void polling_ends_at_its_deadline(void **state)
{
    struct rig *rig = *state;
    uint64_t begin = kvc_now_ns();

    assert_false(kvc_transport_poll(&rig->transport, POLLIN, 0)); /* passed long ago */
    assert_false(kvc_transport_poll(&rig->transport, POLLIN, begin + 20000000));
    assert_true(kvc_now_ns() >= begin + 20000000);
    assert_true(kvc_transport_poll(&rig->transport, POLLOUT, 0));
    assert_int_equal(send(rig->peer, "x", 1, MSG_NOSIGNAL), 1);
    assert_true(kvc_transport_poll(&rig->transport, POLLIN, UINT64_MAX));
}

static void the_end_of_the_peer_breaks_the_session(void **state)
{
    struct rig *rig = *state;

    close(rig->peer);
    rig->peer = -1;
    assert_int_equal(kvc_transport_pump(&rig->transport, rig->session), KVARN_PEER_LOST);
    assert_non_null(strstr(rig->session->why, "closed the connection"));
}

/* Sending into a closed connection is not the news: what the peer said before it is. */
static void words_before_the_end_are_read(void **state)
{
    struct rig *rig = *state;
    const char garbage[KVW_HEADER_BYTES] = "no frame at all";

    assert_int_equal(send(rig->peer, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
    close(rig->peer);
    rig->peer = -1;
    assert_int_equal(kvc_transport_send(&rig->transport, rig->session), KVARN_OK);
    assert_int_equal(kvc_transport_pump(&rig->transport, rig->session), KVARN_BAD_FRAME);
    assert_non_null(strstr(rig->session->why, "broke the protocol"));
}

/* A peer that broke the protocol sees the end at once, though the client is not closed yet. */
static void a_break_shuts_the_socket(void **state)
{
    struct rig *rig = *state;
    const char garbage[KVW_HEADER_BYTES] = "no frame at all";
    uint8_t bytes[512];
    ssize_t got;

    assert_int_equal(send(rig->peer, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
    assert_int_equal(kvc_transport_pump(&rig->transport, rig->session), KVARN_BAD_FRAME);
    while ((got = recv(rig->peer, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) /* HELLO */
        continue;
    assert_int_equal(got, 0);
}

#define RIG(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_faults),     RIG(events_follow_what_is_unsent),
        RIG(polling_ends_at_its_deadline),  RIG(the_end_of_the_peer_breaks_the_session),
        RIG(words_before_the_end_are_read), RIG(a_break_shuts_the_socket),
    };
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
