/* A signal's handler writes to an eventfd; everything else happens on the loop. */
#include "server/net/drain.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/net/conn.h"
#include "server/rpc/service.h"

struct kvd_drain {
    struct kvd_drain_options options;
    struct kvd_watch *signals;
    struct kvd_timer *grace;
    struct kvd_deferred *look; /* after a connection or request ended: are we through? */
    bool begun, signalled;
};

static int signal_fd = -1; /* what the handler may touch */

/* Without waiting and without order: the kernel takes back memory and sockets, the worker ends when
 * it sees that its ring's other end is gone. */
static _Noreturn void end_at_once(struct kvd_drain *drain, const char *why, int code)
{
    kvd_log(KVD_LOG_WARN, "ended_at_once", kvd_text("reason", why),
            kvd_number("requests", kvd_conns_open_requests(drain->options.conns)));
    drain->options.close_doors(drain->options.context);
    _exit(code);
}

void kvd_drain_begin(struct kvd_drain *drain, uint32_t grace_ms)
{
    if (drain->begun)
        return;
    if (grace_ms == 0)
        grace_ms = drain->options.grace_ms;
    drain->begun = true;
    kvd_log(KVD_LOG_INFO, "draining", kvd_number("grace_ms", grace_ms),
            kvd_number("requests", kvd_conns_open_requests(drain->options.conns)));
    drain->options.close_doors(drain->options.context);
    kvd_service_drain(drain->options.service);
    kvd_timer_start(drain->grace, grace_ms, 0);
    kvd_deferred_arm(drain->look);
}

static void on_grace(void *context)
{
    struct kvd_drain *drain = context;

    kvd_conns_end(drain->options.conns);
    if (kvd_conns_open_requests(drain->options.conns) > 0)
        end_at_once(drain, "the grace time is over", EXIT_SUCCESS);
    kvd_loop_stop(drain->options.loop);
}

static void on_look(void *context)
{
    struct kvd_drain *drain = context;

    if (drain->options.with_last && kvd_conns_count(drain->options.conns) == 0)
        kvd_drain_begin(drain, 0);
    if (!drain->begun || !kvd_conns_quiet(drain->options.conns))
        return;
    kvd_conns_end(drain->options.conns);
    kvd_loop_stop(drain->options.loop);
}

void kvd_drain_look(struct kvd_drain *drain)
{
    if (drain->begun || drain->options.with_last)
        kvd_deferred_arm(drain->look);
}

static void handle_signal(int number)
{
    uint64_t one = 1;
    int kept = errno;

    (void)number;
    (void)!write(signal_fd, &one, sizeof one);
    errno = kept;
}

static void on_signal(void *context, unsigned events)
{
    struct kvd_drain *drain = context;
    uint64_t count;

    (void)events;
    if (read(signal_fd, &count, sizeof count) != sizeof count)
        return;
    if (drain->signalled || count > 1)
        end_at_once(drain, "second signal", EXIT_FAILURE);
    drain->signalled = true; /* the first one, also when a client's DRAIN came before it */
    kvd_drain_begin(drain, 0);
}

static kvarn_status open_signals(struct kvd_drain *drain)
{
    struct sigaction action = {.sa_handler = handle_signal, .sa_flags = SA_RESTART};

    signal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (signal_fd < 0 || kvd_watch_open(&drain->signals, drain->options.loop, signal_fd, on_signal,
                                        drain) != KVARN_OK)
        return KVARN_INTERNAL;
    kvd_watch_set(drain->signals, KVD_READABLE);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL); /* the terminal went; there is no reload yet */
    signal(SIGPIPE, SIG_IGN);
    return KVARN_OK;
}

kvarn_status kvd_drain_open(struct kvd_drain **drain, const struct kvd_drain_options *options)
{
    struct kvd_drain *made = calloc(1, sizeof *made);

    if (made == NULL)
        return KVARN_INTERNAL;
    made->options = *options;
    if (kvd_timer_open(&made->grace, options->loop, on_grace, made) != KVARN_OK ||
        kvd_deferred_open(&made->look, options->loop, on_look, made) != KVARN_OK ||
        open_signals(made) != KVARN_OK) {
        kvd_drain_close(&made);
        return KVARN_INTERNAL;
    }
    *drain = made;
    return KVARN_OK;
}

void kvd_drain_close(struct kvd_drain **drain)
{
    struct kvd_drain *closing = *drain;

    if (closing == NULL)
        return;
    kvd_watch_close(&closing->signals);
    kvd_deferred_close(&closing->look);
    kvd_timer_close(&closing->grace);
    if (signal_fd >= 0)
        close(signal_fd);
    signal_fd = -1;
    free(closing);
    *drain = NULL;
}
