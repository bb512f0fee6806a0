/* The closed loop of kvarnctl bench: every connection has one call in flight, one poll for all. */
#include "client/ctl/bench.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TICK_MS = 100 }; /* how often deadlines and ^C are looked at while nothing comes */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct run {
    struct bench_work *work;
    struct bench_client *clients;
    struct bench_result *result;
    uint64_t started, limit; /* of requests; limit UINT64_MAX = by time */
    uint64_t end_ns;         /* nothing starts after it */
    bool recorded;           /* false while warming up */
};

static void fail(struct run *run, kvarn_status status, const char *text)
{
    struct bench_result *result = run->result;

    if (result->first_failure == KVARN_OK) {
        result->first_failure = status;
        snprintf(result->failure, sizeof result->failure, "%s", text);
    }
    result->failed++;
}

/* Starts the next request of one connection, unless there is none left. */
static void start(struct run *run, struct bench_client *client)
{
    client->begin_ns = now_ns();
    if (run->started >= run->limit || client->begin_ns >= run->end_ns || ctl_interrupted)
        return;
    run->started++;
    kvarn_status status = bench_work_start(run->work, client);
    if (status != KVARN_OK)
        fail(run, status, kvarn_client_error(client->client));
}

/* Takes a finished call. */
static void finish(struct run *run, struct bench_client *client)
{
    uint64_t took = now_ns() - client->begin_ns;
    kvarn_status status = kvarn_call_status(client->call);

    if (kvarn_status_class_of(status) != KVARN_CLASS_SUCCESS) {
        const char *text = kvarn_call_text(client->call);
        fail(run, status, text[0] ? text : kvarn_status_text(status));
    } else if (run->recorded) {
        ctl_histogram_add(&run->result->times, took);
        run->result->device_ns += kvarn_call_device_ns(client->call);
        run->result->done++;
    }
    kvarn_call_free(&client->call);
    start(run, client);
}

/* Until no call is in flight. */
static void loop(struct run *run, struct pollfd *fds)
{
    const uint32_t count = run->work->options->clients;

    for (uint32_t i = 0; i < count; i++)
        start(run, &run->clients[i]);
    for (;;) {
        uint32_t busy = 0;
        for (uint32_t i = 0; i < count; i++) {
            struct bench_client *client = &run->clients[i];
            bool open = client->call != NULL;
            fds[i] = (struct pollfd){.fd = open ? kvarn_client_fd(client->client) : -1,
                                     .events = kvarn_client_events(client->client)};
            busy += open;
        }
        if (busy == 0)
            return;
        int ready = poll(fds, count, TICK_MS);
        if (ready < 0 && errno != EINTR)
            return;
        for (uint32_t i = 0; i < count; i++) {
            struct bench_client *client = &run->clients[i];
            if (!client->call || (ready > 0 && !fds[i].revents && fds[i].fd >= 0))
                continue;
            kvarn_client_process(client->client);
            if (kvarn_call_done(client->call))
                finish(run, client);
        }
    }
}

void bench_run(struct bench_work *work, struct bench_client *clients, struct bench_result *result)
{
    const struct bench_options *options = work->options;
    struct pollfd *fds = calloc(options->clients, sizeof *fds);
    struct run run = {.work = work,
                      .clients = clients,
                      .result = result,
                      .limit = options->warmup,
                      .end_ns = UINT64_MAX};

    if (!fds)
        return;
    loop(&run, fds);
    /* What fails while warming up will not get better. */
    if (result->failed > 0 || ctl_interrupted) {
        free(fds);
        return;
    }
    run.recorded = true;
    run.started = 0;
    run.limit = options->requests ? options->requests : UINT64_MAX;
    uint64_t begin = now_ns();
    if (options->time_s > 0)
        run.end_ns = begin + (uint64_t)(options->time_s * 1e9);
    loop(&run, fds);
    result->seconds = (double)(now_ns() - begin) / 1e9;
    free(fds);
}
