/* Nothing here is called while another start or end is under way: all of it runs on the loop,
 * except the first start, before the loop runs. */
#include "server/device/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/core/log.h"
#include "server/core/loop.h"

enum process_state { PROCESS_STARTING, PROCESS_READY, PROCESS_DOWN };

struct kvd_process {
    struct kvd_process_options options;
    enum process_state state;
    pid_t pid;   /* 0: none */
    int control; /* -1: none */
    struct kvd_watch *control_watch;
    struct kvd_child *child;
    struct kvd_timer *timer; /* STARTING: the greeting's time is up; DOWN: start again */
    struct kvd_link_hello hello;
    uint64_t ready_ns;              /* 0: never was */
    uint64_t start_ns;              /* DOWN: of the next one */
    uint32_t restarts, short_lives; /* short_lives: in a row */
};

static void on_child(void *context, int exit_code, int signal);

static const char *refusal_text(uint32_t refusal)
{
    switch (refusal) {
    case KVD_LINK_BAD_MEMORY:
        return "the worker cannot map the memory it was given";
    case KVD_LINK_BAD_CPU:
        return "unknown CPU variant; ref, avx2 and avx512 are known";
    case KVD_LINK_NO_THREADS:
        return "the worker cannot start its threads";
    default:
        return "the worker's greeting makes no sense";
    }
}

/* Reads the greeting that stands in the control socket. */
static kvarn_status take_hello(struct kvd_process *process, const char **why)
{
    struct kvd_link_hello hello;
    ssize_t got = recv(process->control, &hello, sizeof(hello), MSG_DONTWAIT);

    if (got != (ssize_t)sizeof(hello) || hello.kind != KVD_LINK_HELLO ||
        hello.refusal != KVD_LINK_READY) {
        *why = got == (ssize_t)sizeof(hello) ? refusal_text(hello.refusal)
                                             : "the worker ended before its self-test was done";
        return KVARN_INTERNAL;
    }
    hello.backend[sizeof(hello.backend) - 1] = '\0';
    process->hello = hello;
    process->state = PROCESS_READY;
    process->ready_ns = kvd_now_ns();
    kvd_log(KVD_LOG_INFO, "worker_ready", kvd_text("backend", hello.backend),
            kvd_number("threads", hello.threads), kvd_number("pid", process->pid),
            kvd_number("restarts", process->restarts));
    return KVARN_OK;
}

static void on_control(void *context, unsigned events)
{
    struct kvd_process *process = context;
    const char *why = NULL;

    (void)events;
    /* Once is enough: after the greeting only the end of the process counts, and that comes by its
     * pidfd. */
    kvd_watch_close(&process->control_watch);
    if (take_hello(process, &why) == KVARN_OK) {
        kvd_timer_stop(process->timer);
        return;
    }
    kvd_log(KVD_LOG_ERROR, "worker_refused", kvd_text("why", why), kvd_number("pid", process->pid));
    kvd_process_kill(process);
}

static kvarn_status start(struct kvd_process *process, const char **why)
{
    process->state = PROCESS_STARTING;
    process->options.starts(process->options.context);
    return kvd_launch_start(&process->options.launch, &process->pid, &process->control, why);
}

static kvarn_status watch(struct kvd_process *process)
{
    struct uv_loop_s *loop = process->options.loop;
    kvarn_status status = kvd_child_open(&process->child, loop, process->pid, on_child, process);

    if (status == KVARN_OK && process->state == PROCESS_STARTING) {
        status =
            kvd_watch_open(&process->control_watch, loop, process->control, on_control, process);
        if (status == KVARN_OK)
            kvd_watch_set(process->control_watch, KVD_READABLE);
    }
    return status;
}

static void let_go(struct kvd_process *process)
{
    kvd_child_close(&process->child);
    kvd_watch_close(&process->control_watch);
    if (process->control >= 0)
        close(process->control);
    process->control = -1;
    process->state = PROCESS_DOWN;
}

static void end(struct kvd_process *process, int grace_ms)
{
    let_go(process);
    if (process->pid != 0)
        kvd_launch_end(process->pid, grace_ms);
    process->pid = 0;
}

static void restart_in(struct kvd_process *process, uint64_t delay_ms)
{
    process->start_ns = kvd_now_ns() + delay_ms * 1000000u;
    kvd_timer_start(process->timer, delay_ms, 0);
}

static void restart(struct kvd_process *process)
{
    const char *why = "no descriptors left to watch the worker";

    process->restarts++;
    if (start(process, &why) == KVARN_OK && watch(process) == KVARN_OK) {
        kvd_timer_start(process->timer, KVD_WORKER_HELLO_MS, 0);
        return;
    }
    kvd_log(KVD_LOG_ERROR, "worker_not_started", kvd_text("why", why));
    end(process, 0);
    restart_in(process, KVD_WORKER_DELAY_MAX_MS);
}

static void on_timer(void *context)
{
    struct kvd_process *process = context;

    if (process->state == PROCESS_STARTING) {
        kvd_log(KVD_LOG_ERROR, "worker_silent", kvd_number("pid", process->pid));
        kvd_process_kill(process);
    } else if (process->state == PROCESS_DOWN) {
        restart(process);
    }
}

/* The first end costs no delay, the following ones 100, 200, 400 ms and so on. */
static uint64_t restart_delay_ms(struct kvd_process *process)
{
    uint64_t steady_ns = (uint64_t)KVD_WORKER_STEADY_MS * 1000000u, delay = 0;

    if (process->ready_ns != 0 && kvd_now_ns() - process->ready_ns >= steady_ns)
        process->short_lives = 0;
    if (process->short_lives > 0)
        delay = UINT64_C(50) << (process->short_lives < 16 ? process->short_lives : 16);
    process->short_lives++;
    process->ready_ns = 0;
    return delay < KVD_WORKER_DELAY_MAX_MS ? delay : KVD_WORKER_DELAY_MAX_MS;
}

static void on_child(void *context, int exit_code, int signal)
{
    struct kvd_process *process = context;

    kvd_log(KVD_LOG_ERROR, "worker_gone", kvd_number("pid", process->pid),
            kvd_number("exit_code", exit_code), kvd_number("signal", signal));
    process->pid = 0;
    let_go(process);
    restart_in(process, restart_delay_ms(process));
    process->options.ended(process->options.context);
}

static bool wait_for_hello(int control)
{
    struct pollfd wait = {.fd = control, .events = POLLIN};
    uint64_t until = kvd_now_ns() + (uint64_t)KVD_WORKER_HELLO_MS * 1000000u, now;

    while ((now = kvd_now_ns()) < until) {
        int ready = poll(&wait, 1, (int)((until - now) / 1000000u) + 1);
        if (ready == 1)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
    return false;
}

/* A daemon that cannot compute must not say that it is up, so this one start blocks. */
static kvarn_status first_start(struct kvd_process *process, const char **why)
{
    kvarn_status status = start(process, why);

    if (status != KVARN_OK)
        return status;
    if (!wait_for_hello(process->control)) {
        *why = "the worker's self-test took too long";
        return KVARN_INTERNAL;
    }
    status = take_hello(process, why);
    if (status == KVARN_OK) {
        *why = "no descriptors left to watch the worker";
        status = watch(process);
    }
    return status;
}

kvarn_status kvd_process_open(struct kvd_process **process,
                              const struct kvd_process_options *options, const char **why)
{
    struct kvd_process *made = calloc(1, sizeof(*made));

    *why = "not enough memory for the worker";
    if (made == NULL)
        return KVARN_INTERNAL;
    made->options = *options;
    made->control = -1;
    made->options.launch.worker_path = strdup(options->launch.worker_path);
    made->options.launch.cpu_mask =
        strdup(options->launch.cpu_mask != NULL ? options->launch.cpu_mask : "");
    kvarn_status status = kvd_timer_open(&made->timer, options->loop, on_timer, made);
    if (made->options.launch.worker_path == NULL || made->options.launch.cpu_mask == NULL)
        status = KVARN_INTERNAL;
    if (status == KVARN_OK)
        status = first_start(made, why);
    if (status != KVARN_OK) {
        kvd_process_close(&made);
        return status;
    }
    *process = made;
    return KVARN_OK;
}

void kvd_process_close(struct kvd_process **process)
{
    struct kvd_process *closing = *process;

    if (closing == NULL)
        return;
    end(closing, KVD_WORKER_STOP_MS);
    kvd_timer_close(&closing->timer);
    free((void *)(uintptr_t)closing->options.launch.worker_path);
    free((void *)(uintptr_t)closing->options.launch.cpu_mask);
    free(closing);
    *process = NULL;
}

bool kvd_process_ready(const struct kvd_process *process)
{
    return process->state == PROCESS_READY;
}

const struct kvd_link_hello *kvd_process_hello(const struct kvd_process *process)
{
    return &process->hello;
}

uint32_t kvd_process_wait_ms(const struct kvd_process *process)
{
    uint64_t now = kvd_now_ns();

    if (process->state == PROCESS_READY)
        return 0;
    if (process->state == PROCESS_STARTING || process->start_ns <= now)
        return KVD_WORKER_START_MS;
    return (uint32_t)((process->start_ns - now) / 1000000u) + KVD_WORKER_START_MS;
}

uint32_t kvd_process_restarts(const struct kvd_process *process)
{
    return process->restarts;
}

void kvd_process_kill(struct kvd_process *process)
{
    if (process->child != NULL)
        kvd_child_signal(process->child, SIGKILL);
}
