/* kvarnctl ping: the exit code says whether a daemon answers; the line, how fast. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/histogram.h"

struct options {
    uint64_t count;
    double interval_s;
    bool quiet;
};

static const struct argp_option flags[] = {
    {"count", 'c', "N", 0, "round trips (default 1)", 0},
    {"interval", 'i', "SECONDS", 0, "pause between them (default none)", 0},
    {"quiet", 'q', NULL, 0, "print nothing; the exit code answers", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'c':
        options->count = ctl_number(state, "--count", text, 1, 100000000);
        return 0;
    case 'i':
        options->interval_s = ctl_seconds(state, "--interval", text);
        return 0;
    case 'q':
        options->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void report(const struct ctl *ctl, const struct ctl_histogram *times)
{
    kvarn_server_info info;

    kvarn_client_info(ctl->client, &info);
    if (ctl->format == CTL_TABLE) {
        printf("%s (%s): %llu round trip%s, p50 %.1f us, p99 %.1f us, max %.1f us\n", info.server,
               info.backend, (unsigned long long)times->count, times->count == 1 ? "" : "s",
               (double)ctl_histogram_at(times, 0.5) / 1e3,
               (double)ctl_histogram_at(times, 0.99) / 1e3, (double)times->most / 1e3);
        return;
    }
    ctl_print_one(ctl->format, "ping",
                  json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "server", info.server, "backend",
                            info.backend, "count", (json_int_t)times->count, "min_seconds",
                            (double)times->least / 1e9, "p50_seconds",
                            (double)ctl_histogram_at(times, 0.5) / 1e9, "p99_seconds",
                            (double)ctl_histogram_at(times, 0.99) / 1e9, "max_seconds",
                            (double)times->most / 1e9));
}

int ctl_ping(struct ctl *ctl, int argc, char **argv)
{
    static struct ctl_histogram times;
    struct options options = {.count = 1};
    kvarn_ping_args ping = KVARN_PING_INIT;

    ctl_parse(ctl, flags, parse, &options,
              "Asks the daemon for a sign of life."
              "\v"
              "Examples:\n"
              "  kvarnctl ping -q && echo up\n"
              "  kvarnctl ping -c 1000\n",
              argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    ctl_catch_interrupt();
    for (uint64_t i = 0; i < options.count && !ctl_interrupted; i++) {
        uint64_t begin = now_ns();
        kvarn_status status = kvarn_ping(ctl->client, &ping);
        if (status != KVARN_OK)
            return ctl_fail(ctl, ctl->client, status);
        ctl_histogram_add(&times, now_ns() - begin);
        if (options.interval_s > 0 && i + 1 < options.count)
            ctl_sleep(options.interval_s);
    }
    if (!options.quiet)
        report(ctl, &times);
    return CTL_FINE;
}
