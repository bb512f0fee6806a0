/* kvarnctl stat and drain: the daemon's metrics, and its end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"

enum { METRICS = 256 };

struct stat_options {
    double interval_s;
    uint64_t count;
    const char *match;
};

static const struct argp_option stat_flags[] = {
    {"interval", 'i', "SECONDS", 0, "again and again, with the change per second", 0},
    {"count", 'c', "N", 0, "this many times (default: 1, with -i until ^C)", 0},
    {"match", 'm', "TEXT", 0, "only metrics whose name contains TEXT", 0},
    {0},
};

static error_t parse_stat(int key, char *text, struct argp_state *state)
{
    struct stat_options *options = state->input;

    switch (key) {
    case 'i':
        options->interval_s = ctl_seconds(state, "--interval", text);
        return 0;
    case 'c':
        options->count = ctl_number(state, "--count", text, 1, UINT32_MAX);
        return 0;
    case 'm':
        options->match = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* One reading of all metrics. */
struct reading {
    kvarn_metric metrics[METRICS];
    size_t count;
    double time;
};

static kvarn_status read_metrics(struct ctl *ctl, struct reading *reading)
{
    kvarn_stats_args args = KVARN_STATS_INIT;
    struct timespec now;

    args.metrics = reading->metrics;
    args.capacity = METRICS;
    kvarn_status status = kvarn_stats(ctl->client, &args);
    reading->count = args.count < METRICS ? args.count : METRICS;
    clock_gettime(CLOCK_REALTIME, &now);
    reading->time = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    return status;
}

static const kvarn_metric *find(const struct reading *reading, const char *name)
{
    for (size_t i = 0; i < reading->count; i++)
        if (strcmp(reading->metrics[i].name, name) == 0)
            return &reading->metrics[i];
    return NULL;
}

/* The clock for people, seconds since 1970 for programs. */
static json_t *time_cell(double time, enum ctl_format format)
{
    time_t seconds = (time_t)time;
    struct tm local;
    char text[16];

    if (format != CTL_TABLE || !localtime_r(&seconds, &local))
        return json_real(time);
    strftime(text, sizeof text, "%H:%M:%S", &local);
    return json_string(text);
}

static json_t *number_cell(double value)
{
    if (fabs(value) < 1e15 && value == floor(value))
        return json_integer((json_int_t)value);              /* counters, with all their digits */
    return isfinite(value) ? json_real(value) : json_null(); /* JSON has no infinity */
}

/* before NULL: the first reading, without a change per second. */
static json_t *rows_of(const struct reading *now, const struct reading *before, const char *match,
                       bool with_time, enum ctl_format format)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < now->count; i++) {
        const kvarn_metric *metric = &now->metrics[i];
        if (match && !strstr(metric->name, match))
            continue;
        json_t *row = json_object();
        if (with_time)
            json_object_set_new(row, "time", time_cell(now->time, format));
        json_object_set_new(row, "name", json_string(metric->name));
        json_object_set_new(row, "value", number_cell(metric->value));
        const kvarn_metric *old = before ? find(before, metric->name) : NULL;
        if (old && now->time > before->time)
            json_object_set_new(
                row, "per_second",
                number_cell((metric->value - old->value) / (now->time - before->time)));
        else if (with_time)
            json_object_set_new(row, "per_second", json_null());
        json_array_append_new(rows, row);
    }
    return rows;
}

/* The daemon gives its own figures to its own user alone. */
static bool daemon_wide(const struct reading *reading)
{
    return find(reading, "kvarn_pool_capacity_bytes") != NULL;
}

static const char hidden[] = "figures of the whole daemon (pool, requests, device) are shown to "
                             "its own user on its Unix socket alone";

static int no_match(const struct reading *reading, const char *match)
{
    fprintf(stderr,
            "kvarnctl stat: no metric's name contains \"%s\"; kvarnctl stat lists them%s%s\n",
            match, daemon_wide(reading) ? "" : "; ", daemon_wide(reading) ? "" : hidden);
    return CTL_NOT_FOUND;
}

static void print_reading(const struct ctl *ctl, const struct reading *now, json_t *rows,
                          bool first, bool repeated)
{
    if (ctl->format == CTL_JSON) {
        ctl_print_json(json_pack("{s:f, s:o}", "time", now->time, "metrics", rows));
        return;
    }
    if (ctl->format == CTL_TABLE && repeated && !first)
        putchar('\n');
    ctl_print_rows(ctl->format, rows, first || ctl->format == CTL_TABLE);
    json_decref(rows);
}

int ctl_stat(struct ctl *ctl, int argc, char **argv)
{
    static struct reading readings[2];
    struct stat_options options = {0};

    ctl_parse(ctl, stat_flags, parse_stat, &options,
              "Shows the daemon's metrics; those of the whole daemon to its own user alone. JSON "
              "is one document per reading; CSV has one row per "
              "reading and metric."
              "\v"
              "Examples:\n"
              "  kvarnctl stat\n"
              "  kvarnctl stat -i 1 -m requests\n"
              "  kvarnctl stat -i 10 -c 6 -o csv > minute.csv\n",
              argc, argv);
    bool repeated = options.interval_s > 0;
    if (options.count == 0)
        options.count = repeated ? UINT64_MAX : 1;
    if (options.interval_s <= 0)
        options.interval_s = 1;
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    ctl_catch_interrupt();
    for (uint64_t i = 0; i < options.count && !ctl_interrupted; i++) {
        struct reading *now = &readings[i % 2], *before = i > 0 ? &readings[(i + 1) % 2] : NULL;
        kvarn_status status = read_metrics(ctl, now);
        if (status != KVARN_OK)
            return ctl_fail(ctl, ctl->client, status);
        json_t *rows =
            rows_of(now, before, options.match, repeated && ctl->format != CTL_JSON, ctl->format);
        if (options.match && json_array_size(rows) == 0) {
            json_decref(rows);
            return no_match(now, options.match);
        }
        print_reading(ctl, now, rows, i == 0, repeated);
        if (i == 0 && !options.match && !daemon_wide(now))
            fprintf(stderr, "kvarnctl stat: %s\n", hidden);
        if (i + 1 < options.count)
            ctl_sleep(options.interval_s);
    }
    return CTL_FINE;
}

/* ---- drain */

static const struct argp_option drain_flags[] = {
    {"grace", 'g', "SECONDS", 0, "for what runs to finish (default: the daemon's)", 0},
    {0},
};

static error_t parse_drain(int key, char *text, struct argp_state *state)
{
    if (key != 'g')
        return ARGP_ERR_UNKNOWN;
    *(uint32_t *)state->input = (uint32_t)(ctl_seconds(state, "--grace", text) * 1000);
    return 0;
}

int ctl_drain(struct ctl *ctl, int argc, char **argv)
{
    kvarn_drain_args drain = KVARN_DRAIN_INIT;

    ctl_parse(ctl, drain_flags, parse_drain, &drain.grace_ms,
              "The daemon refuses new work, finishes what it has, and ends. Same user only."
              "\v"
              "Examples:\n"
              "  kvarnctl drain\n"
              "  kvarnctl drain --grace 30\n",
              argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_status status = kvarn_drain(ctl->client, &drain);
    if (status != KVARN_OK)
        return ctl_fail(ctl, ctl->client, status);
    if (ctl->format == CTL_TABLE)
        puts("draining");
    else
        ctl_print_one(ctl->format, "drain", json_pack("{s:s}", "result", "OK"));
    return CTL_FINE;
}
