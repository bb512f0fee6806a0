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
#include "server/device/chunks.h"

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
    uint64_t start_ns;              /* of the next one, or of the one under way */
    uint32_t restarts, short_lives; /* short_lives: in a row */
    uint32_t silence_ms;            /* a later start that says nothing for so long hangs */
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
    case KVD_LINK_NO_DRIVER:
        return "there is no CUDA driver";
    case KVD_LINK_OLD_DRIVER:
        return "the CUDA driver is too old";
    case KVD_LINK_NO_DEVICE:
        return "there is no such GPU";
    case KVD_LINK_NO_KERNELS:
        return "this build has no kernels for this GPU";
    case KVD_LINK_NO_GPU_MEMORY:
        return "not enough GPU memory";
    case KVD_LINK_BAD_GPU:
        return "the GPU does not work";
    default:
        return "the worker's greeting makes no sense";
    }
}

/* The worker's own words when it has any. They stay until the next refusal. */
static const char *say_refusal(const struct kvd_link_hello *hello)
{
    static char said[sizeof(hello->text)];

    if (hello->text[0] == '\0')
        return refusal_text(hello->refusal);
    memcpy(said, hello->text, sizeof(said));
    said[sizeof(said) - 1] = '\0';
    return said;
}

static kvarn_status refused(const struct kvd_link_hello *hello, const char **why)
{
    bool absent = hello->refusal == KVD_LINK_NO_DRIVER || hello->refusal == KVD_LINK_OLD_DRIVER ||
                  hello->refusal == KVD_LINK_NO_DEVICE || hello->refusal == KVD_LINK_NO_KERNELS;

    *why = say_refusal(hello);
    return absent ? KVARN_UNSUPPORTED : KVARN_INTERNAL;
}

/* Whatever a worker says before it serves. */
union message {
    uint32_t kind;
    struct kvd_link_hello hello;
    struct kvd_link_pool pool;
    struct kvd_link_chunks chunks;
};

static kvarn_status take_hello(struct kvd_process *process, const union message *message,
                               uint32_t bytes, const char **why)
{
    if (bytes != sizeof(message->hello) || message->kind != KVD_LINK_HELLO) {
        *why = bytes == 0 ? "the worker ended before its self-test was done"
                          : "the worker's greeting makes no sense";
        return KVARN_INTERNAL;
    }
    if (message->hello.refusal != KVD_LINK_READY)
        return refused(&message->hello, why);
    process->hello = message->hello;
    process->hello.backend[sizeof(process->hello.backend) - 1] = '\0';
    process->state = PROCESS_READY;
    process->ready_ns = kvd_now_ns();
    kvd_log(KVD_LOG_INFO, "worker_ready", kvd_text("device", process->options.name),
            kvd_text("backend", process->hello.backend),
            kvd_number("threads", process->hello.threads), kvd_number("pid", process->pid),
            kvd_number("restarts", process->restarts));
    return KVARN_OK;
}

/* Reads one message that stands in the control socket. Descriptors are welcome at the first start
 * of a GPU's worker only. RETRY: there is more to come before the worker serves. */
static kvarn_status take_message(struct kvd_process *process, bool first, const char **why)
{
    struct kvd_gpu_pool *pool = process->options.gpu_pool;
    union message message = {.kind = 0};
    int fds[KVD_LINK_FDS_MAX];
    uint32_t bytes, fd_count;
    kvarn_status status =
        kvd_chunks_receive(process->control, &message, sizeof(message), &bytes, fds, &fd_count);

    *why = bytes == 0 ? "the worker ended before its self-test was done"
                      : "no descriptors left for the pool: raise the limit of open files";
    if (status != KVARN_OK)
        return status;
    *why = "the worker's greeting makes no sense";
    if (first && pool != NULL && bytes != 0 && message.kind != KVD_LINK_HELLO)
        return kvd_gpu_pool_take(pool, &message, bytes, fds, fd_count) == KVARN_OK ? KVARN_RETRY
                                                                                   : KVARN_INTERNAL;
    for (uint32_t i = 0; i < fd_count; i++)
        close(fds[i]);
    status = fd_count == 0 ? take_hello(process, &message, bytes, why) : KVARN_INTERNAL;
    if (status == KVARN_OK && pool != NULL && !kvd_gpu_pool_complete(pool)) {
        process->state = PROCESS_STARTING;
        *why = "the worker made no pool";
        return KVARN_INTERNAL;
    }
    return status;
}

static void on_control(void *context, unsigned events)
{
    struct kvd_process *process = context;
    const char *why = NULL;

    (void)events;
    kvarn_status status = take_message(process, false, &why);
    if (status == KVARN_RETRY) /* woken for nothing */
        return;
    /* Once is enough: after the greeting only the end of the process counts, and that comes by its
     * pidfd. */
    kvd_watch_close(&process->control_watch);
    if (status == KVARN_OK) {
        kvd_timer_stop(process->timer);
        process->options.ready(process->options.context);
        return;
    }
    kvd_log(KVD_LOG_ERROR, "worker_refused", kvd_text("device", process->options.name),
            kvd_text("why", why), kvd_number("pid", process->pid));
    kvd_process_kill(process);
}

static kvarn_status start(struct kvd_process *process, const char **why)
{
    process->state = PROCESS_STARTING;
    process->options.starts(process->options.context);
    kvarn_status status =
        kvd_launch_start(&process->options.launch, &process->pid, &process->control, why);
    if (status == KVARN_OK && process->options.launch.pool_chunks != 0) {
        *why = "the descriptors of the pool cannot be sent to the worker";
        status = kvd_gpu_pool_send(process->options.gpu_pool, process->control);
    }
    return status;
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
        kvd_timer_start(process->timer, process->silence_ms, 0);
        return;
    }
    kvd_log(KVD_LOG_ERROR, "worker_not_started", kvd_text("device", process->options.name),
            kvd_text("why", why));
    end(process, 0);
    restart_in(process, KVD_WORKER_DELAY_MAX_MS);
}

static void on_timer(void *context)
{
    struct kvd_process *process = context;

    if (process->state == PROCESS_STARTING) {
        kvd_log(KVD_LOG_ERROR, "worker_silent", kvd_text("device", process->options.name),
                kvd_number("pid", process->pid));
        kvd_process_kill(process);
    } else if (process->state == PROCESS_DOWN) {
        restart(process);
    }
}

/* The first end costs no delay, the following ones 100, 200, 400 ms and so on. */
static uint64_t restart_delay_ms(struct kvd_process *process)
{
    uint64_t steady_ns = (uint64_t)KVD_WORKER_STEADY_MS * 1000000u, delay = 0;
    uint64_t most = process->ready_ns != 0 ? KVD_WORKER_DELAY_SERVED_MS : KVD_WORKER_DELAY_MAX_MS;

    if (process->ready_ns != 0 && kvd_now_ns() - process->ready_ns >= steady_ns)
        process->short_lives = 0;
    if (process->short_lives > 0)
        delay = UINT64_C(50) << (process->short_lives < 16 ? process->short_lives : 16);
    process->short_lives++;
    process->ready_ns = 0;
    return delay < most ? delay : most;
}

static void on_child(void *context, int exit_code, int signal)
{
    struct kvd_process *process = context;

    kvd_log(KVD_LOG_ERROR, "worker_gone", kvd_text("device", process->options.name),
            kvd_number("pid", process->pid), kvd_number("exit_code", exit_code),
            kvd_number("signal", signal));
    process->pid = 0;
    let_go(process);
    restart_in(process, restart_delay_ms(process));
    process->options.ended(process->options.context);
}

static bool wait_for_message(int control, uint64_t until)
{
    struct pollfd wait = {.fd = control, .events = POLLIN};
    uint64_t now;

    while ((now = kvd_now_ns()) < until) {
        int ready = poll(&wait, 1, (int)((until - now) / 1000000u) + 1);
        if (ready == 1)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
    return false;
}

/* The first start says how long a start takes here; a machine under load gets eight times that. */
static uint32_t silence_allowed_ms(uint64_t first_ns)
{
    uint64_t ms = first_ns / 1000000u * 8;

    if (ms < KVD_WORKER_AGAIN_MS)
        return KVD_WORKER_AGAIN_MS;
    return ms < KVD_WORKER_HELLO_MS ? (uint32_t)ms : KVD_WORKER_HELLO_MS;
}

/* A daemon that cannot compute must not say that it is up, so this one start blocks. */
static kvarn_status first_start(struct kvd_process *process, const char **why)
{
    uint64_t begun = kvd_now_ns(), until = begun + (uint64_t)KVD_WORKER_HELLO_MS * 1000000u;
    kvarn_status status = start(process, why);

    if (status != KVARN_OK)
        return status;
    do {
        if (!wait_for_message(process->control, until)) {
            *why = "the worker's self-test took too long";
            return KVARN_INTERNAL;
        }
        status = take_message(process, true, why);
    } while (status == KVARN_RETRY);
    process->silence_ms = silence_allowed_ms(kvd_now_ns() - begun);
    if (status == KVARN_OK) {
        const struct kvd_gpu_pool *pool = process->options.gpu_pool;
        process->options.launch.pool_chunks = pool != NULL ? pool->chunks : 0;
        process->options.launch.chunk_bytes = pool != NULL ? pool->chunk_bytes : 0;
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
    /* from then on it may be there at any moment */
    uint64_t usual_ns = process->start_ns + (uint64_t)KVD_WORKER_START_MS * 1000000u;
    uint32_t left_ms = usual_ns > now ? (uint32_t)((usual_ns - now) / 1000000u) : 0;
    return left_ms > KVD_WORKER_SOON_MS ? left_ms : KVD_WORKER_SOON_MS;
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
