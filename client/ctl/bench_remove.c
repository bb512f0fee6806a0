/* kvarnctl bench takes away what it stored, also what the daemon stores after bench gave up
 * waiting. */
#include "client/ctl/bench.h"

#include <string.h>
#include <time.h>

enum { DROP_BATCH = 1024, DROP_MS = 10000, METRICS_MAX = 256 };
/* Requests without an answer may still be carried out: looks until the daemon is at rest, or, when
 * it does not say (it tells its own user only), until this many looks in a row find nothing. */
enum { LOOK_PAUSE_NS = 50000000, LOOKS_QUIET = 3, LOOKS_MAX = 600 };

/* Drops what there is; gives how many blocks there were. */
static size_t drop_all(struct bench_work *work, struct bench_client *client)
{
    static kvarn_key keys[DROP_BATCH];
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    size_t dropped = 0;

    args.deadline_ms = DROP_MS; /* a short --timeout is for the measurement */
    args.space = client->space;
    args.keys = work->keys;
    args.count = work->blocks;
    if (work->options->op != BENCH_COMPRESS) {
        kvarn_drop(client->client, &args);
        dropped += args.matched;
    }
    args.keys = keys;
    for (uint64_t first = 0; first < work->fresh; first += DROP_BATCH) {
        args.count = 0;
        args.matched = 0;
        for (uint64_t i = first; i < work->fresh && args.count < DROP_BATCH; i++)
            keys[args.count++] = bench_work_key(work, 'f', i);
        if (kvarn_drop(client->client, &args) == KVARN_PEER_LOST)
            return dropped;
        dropped += args.matched;
    }
    return dropped;
}

/* Requests that the daemon works on besides the one that asks; -1 when it does not say. */
static int others_in_flight(struct bench_client *client)
{
    static kvarn_metric metrics[METRICS_MAX];
    kvarn_stats_args args = KVARN_STATS_INIT;

    args.deadline_ms = DROP_MS;
    args.metrics = metrics;
    args.capacity = METRICS_MAX;
    if (kvarn_stats(client->client, &args) != KVARN_OK)
        return -1;
    for (size_t i = 0; i < args.count && i < METRICS_MAX; i++)
        if (strcmp(metrics[i].name, "kvarn_requests_in_flight") == 0)
            return metrics[i].value > 1.0 ? (int)metrics[i].value - 1 : 0;
    return -1;
}

void bench_work_remove(struct bench_work *work, struct bench_client *client, bool again)
{
    const struct timespec pause = {.tv_nsec = LOOK_PAUSE_NS};

    if (work->options->op == BENCH_PING || kvarn_client_fd(client->client) < 0)
        return;
    drop_all(work, client);
    for (int quiet = 0, looks = 0; again && quiet < LOOKS_QUIET && looks < LOOKS_MAX; looks++) {
        int others = others_in_flight(client);
        size_t dropped = drop_all(work, client);

        if (others == 0) /* nothing could come after the drop that followed the look */
            return;
        quiet = others < 0 && dropped == 0 ? quiet + 1 : 0;
        nanosleep(&pause, NULL);
    }
}
