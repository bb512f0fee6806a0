/* The loop's objects: what wakes them, in which turn, and that closing ends them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/core/loop.h"

struct fixture {
    struct uv_loop_s *loop;
    struct kvd_watch *watch;
    struct kvd_child *child;
    struct kvd_timer *timer;
    struct kvd_deferred *deferred, *second;
    int fd;
    unsigned calls, seen, deferred_calls;
    int code, signal;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->loop = kvd_loop_new();
    f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *state = f;
    return f->loop != NULL && f->fd >= 0 ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    kvd_watch_close(&f->watch);
    kvd_child_close(&f->child);
    kvd_timer_close(&f->timer);
    kvd_deferred_close(&f->deferred);
    kvd_deferred_close(&f->second);
    close(f->fd);
    kvd_loop_free(&f->loop);
    assert_null(f->loop);
    free(f);
    return 0;
}

static void ring(int fd)
{
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static void on_event(void *context, unsigned events)
{
    struct fixture *f = context;
    uint64_t count;
    f->calls++;
    f->seen = events;
    (void)!read(f->fd, &count, sizeof(count));
    if (f->deferred != NULL) {
        kvd_deferred_arm(f->deferred);
        kvd_deferred_arm(f->deferred);
        assert_int_equal(f->deferred_calls, 0);
    }
}

static void watch_wakes_and_pauses(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, f->fd, on_event, f), KVARN_OK);
    ring(f->fd);
    kvd_loop_run(f->loop); /* waits for nothing: returns at once */
    assert_int_equal(f->calls, 0);
    kvd_watch_set(f->watch, KVD_READABLE);
    kvd_loop_turn(f->loop);
    assert_int_equal(f->calls, 1);
    assert_int_equal(f->seen, KVD_READABLE);
    kvd_watch_set(f->watch, KVD_READABLE | KVD_WRITABLE);
    kvd_loop_turn(f->loop);
    assert_int_equal(f->seen, KVD_WRITABLE);
}

static void watch_refuses_a_bad_descriptor(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, 1 << 20, on_event, f), KVARN_INTERNAL);
    assert_null(f->watch);
}

static void watch_sees_a_hangup(void **state)
{
    struct fixture *f = *state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, pair[0], on_event, f), KVARN_OK);
    kvd_watch_set(f->watch, KVD_HANGUP);
    close(pair[1]);
    kvd_loop_turn(f->loop);
    assert_true(f->seen & KVD_HANGUP);
    kvd_watch_close(&f->watch);
    close(pair[0]);
}

/* libuv stops to poll at an error. What came before the reset may take more than one turn to read.
 */
static void watch_goes_on_after_a_reset(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    struct linger hard = {1, 0};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), peer, fd;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(peer, (struct sockaddr *)&at, sizeof at), 0);
    fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, fd, on_event, f), KVARN_OK);
    kvd_watch_set(f->watch, KVD_READABLE | KVD_HANGUP);
    assert_int_equal(setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
    close(peer);
    for (unsigned turn = 1; turn <= 3; turn++) {
        kvd_loop_turn(f->loop);
        assert_int_equal(f->calls, turn);
        assert_int_equal(f->seen & (KVD_READABLE | KVD_HANGUP), KVD_READABLE | KVD_HANGUP);
    }
    kvd_watch_close(&f->watch);
    close(fd);
    close(listener);
}

static void on_deferred(void *context)
{
    struct fixture *f = context;
    f->deferred_calls++;
}

static void deferred_runs_once_in_the_same_turn(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(kvd_deferred_open(&f->deferred, f->loop, on_deferred, f), KVARN_OK);
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, f->fd, on_event, f), KVARN_OK);
    kvd_watch_set(f->watch, KVD_READABLE);
    ring(f->fd);
    kvd_loop_turn(f->loop);
    assert_int_equal(f->calls, 1);
    assert_int_equal(f->deferred_calls, 1);
}

static void arm_second(void *context)
{
    struct fixture *f = context;
    f->calls++;
    kvd_deferred_arm(f->second);
}

/* The loop has an event source that never fires: a deferred call that waited for one would hang. */
static void deferred_from_anywhere_does_not_wait(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(kvd_deferred_open(&f->deferred, f->loop, arm_second, f), KVARN_OK);
    assert_int_equal(kvd_deferred_open(&f->second, f->loop, on_deferred, f), KVARN_OK);
    assert_int_equal(kvd_watch_open(&f->watch, f->loop, f->fd, on_event, f), KVARN_OK);
    kvd_watch_set(f->watch, KVD_READABLE);
    kvd_deferred_arm(f->deferred); /* outside of a turn */
    while (f->deferred_calls == 0)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->calls, 1);
    assert_int_equal(f->deferred_calls, 1);
    assert_int_equal(kvd_timer_open(&f->timer, f->loop, arm_second, f), KVARN_OK);
    kvd_timer_start(f->timer, 1, 0);
    while (f->deferred_calls == 1)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->calls, 2);
}

static void close_own_timer(void *context)
{
    struct fixture *f = context;
    f->calls++;
    kvd_timer_close(&f->timer);
}

static void timer_may_close_itself(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(kvd_timer_open(&f->timer, f->loop, close_own_timer, f), KVARN_OK);
    kvd_timer_start(f->timer, 1, 1);
    kvd_loop_run(f->loop);
    assert_int_equal(f->calls, 1);
    assert_null(f->timer);
}

static void timer_waits_as_long_as_told(void **state)
{
    struct fixture *f = *state;
    uint64_t start = kvd_now_ns();
    assert_int_equal(kvd_timer_open(&f->timer, f->loop, close_own_timer, f), KVARN_OK);
    kvd_timer_start(f->timer, 20, 0);
    kvd_timer_stop(f->timer);
    kvd_loop_run(f->loop);
    assert_int_equal(f->calls, 0);
    kvd_timer_start(f->timer, 20, 0);
    kvd_loop_run(f->loop);
    assert_int_equal(f->calls, 1);
    assert_true(kvd_now_ns() - start >= 19000000u);
}

static void on_exit_of_child(void *context, int code, int signal)
{
    struct fixture *f = context;
    f->calls++;
    f->code = code;
    f->signal = signal;
}

static void child_exit_and_signal_are_told_apart(void **state)
{
    struct fixture *f = *state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(7);
    assert_int_equal(kvd_child_open(&f->child, f->loop, pid, on_exit_of_child, f), KVARN_OK);
    kvd_loop_run(f->loop);
    assert_int_equal(f->calls, 1);
    assert_int_equal(f->code, 7);
    assert_int_equal(f->signal, 0);
    kvd_child_signal(f->child, SIGKILL); /* gone: nothing happens */
    kvd_child_close(&f->child);

    pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    assert_int_equal(kvd_child_open(&f->child, f->loop, pid, on_exit_of_child, f), KVARN_OK);
    kvd_child_signal(f->child, SIGKILL);
    kvd_loop_run(f->loop);
    assert_int_equal(f->calls, 2);
    assert_int_equal(f->signal, SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(watch_wakes_and_pauses, setup, teardown),
        cmocka_unit_test_setup_teardown(watch_refuses_a_bad_descriptor, setup, teardown),
        cmocka_unit_test_setup_teardown(watch_sees_a_hangup, setup, teardown),
        cmocka_unit_test_setup_teardown(watch_goes_on_after_a_reset, setup, teardown),
        cmocka_unit_test_setup_teardown(deferred_runs_once_in_the_same_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(deferred_from_anywhere_does_not_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(timer_may_close_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(timer_waits_as_long_as_told, setup, teardown),
        cmocka_unit_test_setup_teardown(child_exit_and_signal_are_told_apart, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
