/* kvarnctl bench: options, connections, report. */
#include "client/ctl/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[BENCH_OPS] = {"ping",   "compress", "decompress",
                                                "attend", "lookup",   "import"};

enum { KEY_TIME = 256, KEY_WARMUP, KEY_LAYERS, KEY_KV, KEY_Q, KEY_DIM, KEY_PRESET, KEY_SEED };

static const struct argp_option flags[] = {
    {"op", 'p', "OP", 0, "ping, compress, decompress, attend, lookup or import (default ping)", 0},
    {"clients", 'n', "N", 0, "connections, one call in flight on each (default 1)", 0},
    {"requests", 'r', "N", 0, "how many (default 1000, with --time no limit)", 0},
    {"time", KEY_TIME, "SECONDS", 0, "for how long", 0},
    {"warmup", KEY_WARMUP, "N", 0, "requests before the clock starts (default 10)", 0},
    {"context", 'x', "TOKENS", 0, "tokens of one request, whole blocks (default 1024)", 1},
    {"layers", KEY_LAYERS, "N", 0, "(default 4)", 1},
    {"kv-heads", KEY_KV, "N", 0, "(default 8)", 1},
    {"q-heads", KEY_Q, "N", 0, "attend (default 32)", 1},
    {"dim", KEY_DIM, "N", 0, "64, 128 or 256 (default 128)", 1},
    {"preset", KEY_PRESET, "NAME", 0, "how it is stored (default kvarn_k2v2_g128)", 1},
    {"seed", KEY_SEED, "N", 0, "of the random rows (default 1)", 1},
    {0},
};

static error_t parse_op(struct bench_options *options, const char *text, struct argp_state *state)
{
    for (int i = 0; i < BENCH_OPS; i++) {
        if (strcmp(text, op_names[i]) == 0) {
            options->op = (enum bench_op)i;
            return 0;
        }
    }
    argp_error(state, "--op: \"%s\" is not ping, compress, decompress, attend, lookup or import",
               text);
    return 0;
}

static error_t parse_shape(int key, char *text, struct argp_state *state)
{
    struct bench_options *options = state->input;

    switch (key) {
    case 'x':
        options->context = (uint32_t)ctl_number(state, "--context", text, 1, 262144);
        return 0;
    case KEY_LAYERS:
        options->layers = (uint32_t)ctl_number(state, "--layers", text, 1, 1024);
        return 0;
    case KEY_KV:
        options->kv_heads = (uint32_t)ctl_number(state, "--kv-heads", text, 1, 1024);
        return 0;
    case KEY_Q:
        options->q_heads = (uint32_t)ctl_number(state, "--q-heads", text, 1, 16384);
        return 0;
    case KEY_DIM:
        options->head_dim = (uint32_t)ctl_number(state, "--dim", text, 1, KVARN_MAX_HEAD_DIM);
        return 0;
    case KEY_PRESET:
        options->preset = text;
        if (!kvarn_preset_find(text))
            argp_error(state, "--preset: no preset \"%s\"; kvarn_k2v2_g128 is one", text);
        return 0;
    case KEY_SEED:
        options->seed = ctl_number(state, "--seed", text, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct bench_options *options = state->input;

    switch (key) {
    case 'p':
        return parse_op(options, text, state);
    case 'n':
        options->clients = (uint32_t)ctl_number(state, "--clients", text, 1, 1024);
        return 0;
    case 'r':
        options->requests = ctl_number(state, "--requests", text, 1, UINT64_MAX / 2);
        return 0;
    case KEY_TIME:
        options->time_s = ctl_seconds(state, "--time", text);
        return 0;
    case KEY_WARMUP:
        options->warmup = ctl_number(state, "--warmup", text, 0, UINT64_MAX / 2);
        return 0;
    case ARGP_KEY_END:
        if (options->q_heads % options->kv_heads != 0 && options->op == BENCH_ATTEND)
            argp_error(state, "--q-heads: %u is no multiple of --kv-heads %u", options->q_heads,
                       options->kv_heads);
        return 0;
    default:
        return parse_shape(key, text, state);
    }
}

/* ---- report */

static json_t *result_object(const struct bench_work *work, const struct bench_result *result)
{
    const struct bench_options *options = work->options;
    double rate = result->seconds > 0 ? (double)result->done / result->seconds : 0;
    static const struct {
        const char *name;
        double share;
    } shares[] = {{"p50_seconds", 0.5},
                  {"p90_seconds", 0.9},
                  {"p99_seconds", 0.99},
                  {"p999_seconds", 0.999},
                  {"max_seconds", 1}};
    double device = result->done ? (double)result->device_ns / 1e9 / (double)result->done : 0;
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f}",
                  "op", op_names[options->op], "clients", (json_int_t)options->clients, "layers",
                  (json_int_t)options->layers, "kv_heads", (json_int_t)options->kv_heads, "q_heads",
                  (json_int_t)options->q_heads, "head_dim", (json_int_t)options->head_dim,
                  "context", (json_int_t)work->blocks * work->group, "preset", options->preset,
                  "requests", (json_int_t)result->done, "failed", (json_int_t)result->failed,
                  "seconds", result->seconds, "requests_per_second", rate, "tokens_per_second",
                  rate * (double)bench_work_tokens(work), "payload_gb_per_second",
                  rate * (double)bench_work_bytes(work) / 1e9, "device_mean_seconds", device);

    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        json_object_set_new(
            object, shares[i].name,
            json_real((double)ctl_histogram_at(&result->times, shares[i].share) / 1e9));
    return object;
}

static void print_time(const char *name, double ns)
{
    if (ns < 1e6)
        printf("  %s %.1f us", name, ns / 1e3);
    else
        printf("  %s %.2f ms", name, ns / 1e6);
}

static void report_table(const struct bench_work *work, const struct bench_result *result)
{
    const struct bench_options *options = work->options;
    const struct ctl_histogram *times = &result->times;
    double rate = result->seconds > 0 ? (double)result->done / result->seconds : 0;

    printf("%s, %u connection%s", op_names[options->op], options->clients,
           options->clients == 1 ? "" : "s");
    if (options->op != BENCH_PING)
        printf(", %s, %u tokens x %u layers x %u kv heads x %u", options->preset,
               work->blocks * work->group, options->layers, options->kv_heads, options->head_dim);
    printf("\nrequests    %llu in %.2f s, %llu failed\n", (unsigned long long)result->done,
           result->seconds, (unsigned long long)result->failed);
    printf("throughput  %.1f requests/s", rate);
    if (options->op != BENCH_PING)
        printf(", %.4g tokens/s, %.3f GB/s of payload", rate * (double)bench_work_tokens(work),
               rate * (double)bench_work_bytes(work) / 1e9);
    printf("\nlatency   ");
    print_time("p50", (double)ctl_histogram_at(times, 0.5));
    print_time("p90", (double)ctl_histogram_at(times, 0.9));
    print_time("p99", (double)ctl_histogram_at(times, 0.99));
    print_time("p99.9", (double)ctl_histogram_at(times, 0.999));
    print_time("max", (double)times->most);
    if (result->done > 0 && result->device_ns > 0)
        print_time(" device mean", (double)result->device_ns / (double)result->done);
    putchar('\n');
}

/* ---- running */

static int open_clients(struct ctl *ctl, const struct bench_work *work,
                        struct bench_client *clients)
{
    for (uint32_t i = 0; i < work->options->clients; i++) {
        if (i == 0) { /* main closes this one */
            int code = ctl_connect(ctl);
            if (code != CTL_FINE)
                return code;
            clients[0].client = ctl->client;
            ctl->client = NULL;
        } else if (ctl_open(ctl, &clients[i].client) != KVARN_OK) {
            fprintf(stderr, "kvarnctl bench: connection %u: %s\n", i + 1,
                    kvarn_client_error(clients[i].client));
            return CTL_NO_CONNECTION;
        }
        kvarn_status status = bench_client_open(work, &clients[i]);
        if (status != KVARN_OK)
            return ctl_fail(ctl, clients[i].client, status);
    }
    return CTL_FINE;
}

/* Takes away what was stored, over a new connection when the first one is lost. */
static void clean_up(struct ctl *ctl, struct bench_work *work, struct bench_client *first,
                     bool again)
{
    struct bench_client fresh = {0};

    if (kvarn_client_fd(first->client) >= 0) {
        bench_work_remove(work, first, again);
        return;
    }
    if (work->options->op == BENCH_PING || (ctl->address && strcmp(ctl->address, "spawn:") == 0))
        return; /* nothing was stored, or it went with the private daemon */
    if (ctl_open(ctl, &fresh.client) == KVARN_OK && bench_client_open(work, &fresh) == KVARN_OK)
        bench_work_remove(work, &fresh, again);
    else
        fprintf(stderr,
                "kvarnctl bench: the connection is lost and so what was stored for the measurement "
                "stays in the daemon until it is evicted\n");
    bench_client_close(&fresh);
}

/* What one metric says; 0 when the daemon does not show it to this client. */
static double metric_of(kvarn_client *client, const char *name)
{
    static kvarn_metric metrics[256];
    kvarn_stats_args args = KVARN_STATS_INIT;

    args.metrics = metrics;
    args.capacity = sizeof metrics / sizeof metrics[0];
    if (kvarn_stats(client, &args) != KVARN_OK)
        return 0;
    for (size_t i = 0; i < args.count && i < args.capacity; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    return 0;
}

/* False, and a sentence, when the context is larger than the whole pool. */
static bool fits(const struct bench_work *work, const struct bench_client *client)
{
    double needs = (double)bench_work_pool_bytes(work, client), has;

    if (needs <= 0)
        return true;
    has = metric_of(client->client, "kvarn_pool_capacity_bytes");
    if (has <= 0 || needs <= has)
        return true;
    fprintf(stderr,
            "kvarnctl bench: the context needs %.1f MiB, the pool has %.1f MiB: a smaller "
            "--context, fewer --layers or a larger pool\n",
            needs / 0x1p20, has / 0x1p20);
    return false;
}

static int store_failed(const struct bench_work *work, const struct bench_client *client,
                        kvarn_status status)
{
    if (status == KVARN_CANCELLED && ctl_interrupted)
        return CTL_INTERRUPTED;
    if (status == KVARN_NO_SPACE)
        fprintf(stderr,
                "kvarnctl bench: storing the context: not every block found room; it needs %.1f "
                "MiB of the pool: a smaller --context, or a larger pool (%s)\n",
                (double)bench_work_pool_bytes(work, client) / 0x1p20, kvarn_status_name(status));
    else
        fprintf(stderr, "kvarnctl bench: storing the context: %s (%s)\n",
                kvarn_client_error(client->client), kvarn_status_name(status));
    return ctl_exit_of(status);
}

static int no_memory(void)
{
    fprintf(stderr, "kvarnctl bench: out of memory for these shapes\n");
    return CTL_FAILED;
}

static int measure(struct ctl *ctl, struct bench_work *work, struct bench_client *clients,
                   struct bench_result *result)
{
    if (!fits(work, &clients[0]))
        return CTL_FULL;
    if (!bench_work_fill(work))
        return no_memory();
    ctl_catch_interrupt(); /* from here on something is stored */
    kvarn_status status = bench_work_store(work, &clients[0]);
    if (status != KVARN_OK) {
        int code = store_failed(work, &clients[0], status);
        clean_up(ctl, work, &clients[0], true);
        return code;
    }
    bench_run(work, clients, result);
    clean_up(ctl, work, &clients[0], result->failed > 0);
    if (result->done == 0 && result->failed == 0 && ctl_interrupted) {
        fprintf(stderr, "kvarnctl bench: interrupted before the measurement had a result\n");
        return CTL_INTERRUPTED;
    }
    if (ctl->format == CTL_TABLE && (result->done > 0 || result->failed == 0))
        report_table(work, result);
    else if (ctl->format != CTL_TABLE)
        ctl_print_one(ctl->format, "bench", result_object(work, result));
    if (result->failed > 0) {
        fprintf(stderr, "kvarnctl bench: %llu request%s failed; the first: %s (%s)\n",
                (unsigned long long)result->failed, result->failed == 1 ? "" : "s", result->failure,
                kvarn_status_name(result->first_failure));
        return ctl_exit_of(result->first_failure);
    }
    return CTL_FINE;
}

int ctl_bench(struct ctl *ctl, int argc, char **argv)
{
    static struct bench_result result;
    struct bench_options options = {.op = BENCH_PING,
                                    .clients = 1,
                                    .warmup = 10,
                                    .layers = 4,
                                    .kv_heads = 8,
                                    .q_heads = 32,
                                    .head_dim = 128,
                                    .context = 1024,
                                    .preset = "kvarn_k2v2_g128",
                                    .seed = 1};
    struct bench_work work = {0};

    ctl_parse(
        ctl, flags, parse, &options,
        "Measures one operation: throughput, and latency as the client sees it. Every --op but "
        "ping stores blocks of random rows in the daemon's pool, beside what is there: a "
        "pool without room evicts blocks of other clients for them. They are dropped at the "
        "end, also after a failure or ^C; what was evicted does not come back. --context is "
        "what one request stores, gives back, looks up or reads, rounded up to whole "
        "blocks."
        "\v"
        "Examples:\n"
        "  kvarnctl bench --op ping --clients 4 --time 5\n"
        "  kvarnctl bench --op attend --context 8192 --requests 2000 -o json\n"
        "  kvarnctl -a spawn: bench --op compress --preset kvarn_k4v4_g128\n",
        argc, argv);
    if (options.requests == 0 && options.time_s <= 0)
        options.requests = 1000;
    struct bench_client *clients = calloc(options.clients, sizeof *clients);
    int code;
    uint32_t group = kvarn_preset_find(options.preset)->group;
    if (options.op != BENCH_PING && options.context % group != 0)
        fprintf(stderr, "kvarnctl bench: --context %u is rounded up to %u: whole blocks of %u\n",
                options.context, (options.context / group + 1) * group, group);
    if (clients && bench_work_make(&work, &options)) {
        code = open_clients(ctl, &work, clients);
        if (code == CTL_FINE)
            code = measure(ctl, &work, clients, &result);
    } else {
        code = no_memory();
    }
    for (uint32_t i = 0; clients && i < options.clients; i++)
        bench_client_close(&clients[i]);
    free(clients);
    bench_work_free(&work);
    return code;
}
