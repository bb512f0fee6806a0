/* libuv handles behind the objects of loop.h. Each object owns its handles and is freed in the last
 * close callback, never before: libuv touches a closing handle until then. */
#include "server/core/loop.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

struct kvd_watch {
    uv_poll_t poll;
    kvd_watch_call call;
    void *context;
    int wanted;
};

struct kvd_child {
    uv_poll_t poll;
    int pidfd;
    bool gone;
    kvd_child_call call;
    void *context;
};

struct kvd_timer {
    uv_timer_t timer;
    kvd_timer_call call;
    void *context;
};

/* A check handle runs right after the events of a turn. The idle handle does nothing but keep the
 * turn from waiting: without it, a call armed by a timer or by another deferred call would sit
 * until the next event. */
struct kvd_deferred {
    uv_check_t check;
    uv_idle_t idle;
    bool armed;
    unsigned open_handles;
    kvd_deferred_call call;
    void *context;
};

/* ---- loop ---- */

struct uv_loop_s *kvd_loop_new(void)
{
    uv_loop_t *loop = malloc(sizeof(*loop));

    if (loop != NULL && uv_loop_init(loop) != 0) {
        free(loop);
        loop = NULL;
    }
    return loop;
}

void kvd_loop_free(struct uv_loop_s **loop)
{
    if (*loop == NULL)
        return;
    /* A close takes one turn; a close inside a close callback takes one more. */
    int busy = uv_loop_close(*loop);
    for (int turn = 0; busy != 0 && turn < 8; turn++) {
        uv_run(*loop, UV_RUN_NOWAIT);
        busy = uv_loop_close(*loop);
    }
    assert(busy == 0); /* somebody left an object open */
    free(*loop);
    *loop = NULL;
}

void kvd_loop_run(struct uv_loop_s *loop)
{
    uv_run(loop, UV_RUN_DEFAULT);
}

void kvd_loop_turn(struct uv_loop_s *loop)
{
    uv_run(loop, UV_RUN_ONCE);
}

void kvd_loop_stop(struct uv_loop_s *loop)
{
    uv_stop(loop);
}

/* ---- descriptors ---- */

static void free_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void watch_event(uv_poll_t *poll, int status, int events);

static void poll_wanted(struct kvd_watch *watch)
{
    int error = watch->wanted != 0 ? uv_poll_start(&watch->poll, watch->wanted, watch_event)
                                   : uv_poll_stop(&watch->poll);

    assert(error == 0); /* fails for a handle that is being closed, and ours is not */
    (void)error;
}

static void watch_event(uv_poll_t *poll, int status, int events)
{
    struct kvd_watch *watch = poll->data;
    unsigned seen = 0;

    if (status < 0) /* libuv stops to poll at an error; we are level-triggered all the same */
        poll_wanted(watch);
    if (status < 0 || (events & UV_READABLE))
        seen |= KVD_READABLE;
    if (status < 0 || (events & UV_WRITABLE))
        seen |= KVD_WRITABLE;
    if (status < 0 || (events & UV_DISCONNECT))
        seen |= KVD_HANGUP;
    watch->call(watch->context, seen);
}

kvarn_status kvd_watch_open(struct kvd_watch **watch, struct uv_loop_s *loop, int fd,
                            kvd_watch_call call, void *context)
{
    struct kvd_watch *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return KVARN_INTERNAL;
    made->call = call;
    made->context = context;
    if (uv_poll_init(loop, &made->poll, fd) != 0) {
        free(made);
        return KVARN_INTERNAL;
    }
    made->poll.data = made;
    *watch = made;
    return KVARN_OK;
}

void kvd_watch_set(struct kvd_watch *watch, unsigned events)
{
    int wanted = 0;

    if (events & KVD_READABLE)
        wanted |= UV_READABLE;
    if (events & KVD_WRITABLE)
        wanted |= UV_WRITABLE;
    if (events & KVD_HANGUP)
        wanted |= UV_DISCONNECT;
    watch->wanted = wanted;
    poll_wanted(watch);
}

void kvd_watch_close(struct kvd_watch **watch)
{
    if (*watch == NULL)
        return;
    uv_close((uv_handle_t *)&(*watch)->poll, free_closed);
    *watch = NULL;
}

/* ---- children ---- */

static void child_event(uv_poll_t *poll, int status, int events)
{
    struct kvd_child *child = poll->data;
    siginfo_t info = {0};

    (void)status;
    (void)events;
    if (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
        return;
    uv_poll_stop(poll);
    child->gone = true;
    bool by_itself = info.si_code == CLD_EXITED;
    child->call(child->context, by_itself ? info.si_status : 0, by_itself ? 0 : info.si_status);
}

kvarn_status kvd_child_open(struct kvd_child **child, struct uv_loop_s *loop, pid_t pid,
                            kvd_child_call call, void *context)
{
    struct kvd_child *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return KVARN_INTERNAL;
    made->call = call;
    made->context = context;
    made->pidfd = pidfd_open(pid, 0); /* close-on-exec by itself */
    if (made->pidfd < 0 || uv_poll_init(loop, &made->poll, made->pidfd) != 0) {
        if (made->pidfd >= 0)
            close(made->pidfd);
        free(made);
        return KVARN_INTERNAL;
    }
    made->poll.data = made;
    if (uv_poll_start(&made->poll, UV_READABLE, child_event) != 0) {
        kvd_child_close(&made);
        return KVARN_INTERNAL;
    }
    *child = made;
    return KVARN_OK;
}

void kvd_child_signal(struct kvd_child *child, int signal)
{
    if (!child->gone)
        pidfd_send_signal(child->pidfd, signal, NULL, 0);
}

void kvd_child_close(struct kvd_child **child)
{
    if (*child == NULL)
        return;
    uv_close((uv_handle_t *)&(*child)->poll, free_closed);
    close((*child)->pidfd);
    *child = NULL;
}

/* ---- timers ---- */

static void timer_event(uv_timer_t *handle)
{
    struct kvd_timer *timer = handle->data;

    timer->call(timer->context);
}

kvarn_status kvd_timer_open(struct kvd_timer **timer, struct uv_loop_s *loop, kvd_timer_call call,
                            void *context)
{
    struct kvd_timer *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return KVARN_INTERNAL;
    made->call = call;
    made->context = context;
    uv_timer_init(loop, &made->timer);
    made->timer.data = made;
    *timer = made;
    return KVARN_OK;
}

void kvd_timer_start(struct kvd_timer *timer, uint64_t delay_ms, uint64_t repeat_ms)
{
    /* The loop's clock is that of the turn's start; a long turn would shorten the delay. */
    uv_update_time(timer->timer.loop);
    uv_timer_start(&timer->timer, timer_event, delay_ms, repeat_ms);
}

void kvd_timer_stop(struct kvd_timer *timer)
{
    uv_timer_stop(&timer->timer);
}

void kvd_timer_close(struct kvd_timer **timer)
{
    if (*timer == NULL)
        return;
    uv_close((uv_handle_t *)&(*timer)->timer, free_closed);
    *timer = NULL;
}

/* ---- deferred calls ---- */

static void idle_event(uv_idle_t *handle)
{
    (void)handle;
}

static void check_event(uv_check_t *handle)
{
    struct kvd_deferred *deferred = handle->data;

    deferred->armed = false;
    uv_check_stop(&deferred->check);
    uv_idle_stop(&deferred->idle);
    deferred->call(deferred->context);
}

static void deferred_closed(uv_handle_t *handle)
{
    struct kvd_deferred *deferred = handle->data;

    if (--deferred->open_handles == 0)
        free(deferred);
}

kvarn_status kvd_deferred_open(struct kvd_deferred **deferred, struct uv_loop_s *loop,
                               kvd_deferred_call call, void *context)
{
    struct kvd_deferred *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return KVARN_INTERNAL;
    made->call = call;
    made->context = context;
    uv_check_init(loop, &made->check);
    uv_idle_init(loop, &made->idle);
    made->open_handles = 2;
    made->check.data = made;
    made->idle.data = made;
    *deferred = made;
    return KVARN_OK;
}

void kvd_deferred_arm(struct kvd_deferred *deferred)
{
    if (deferred->armed)
        return;
    deferred->armed = true;
    uv_check_start(&deferred->check, check_event);
    uv_idle_start(&deferred->idle, idle_event);
}

void kvd_deferred_close(struct kvd_deferred **deferred)
{
    if (*deferred == NULL)
        return;
    uv_close((uv_handle_t *)&(*deferred)->check, deferred_closed);
    uv_close((uv_handle_t *)&(*deferred)->idle, deferred_closed);
    *deferred = NULL;
}
