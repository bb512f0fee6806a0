/* The hop: PING, IMPORT and COMPRESS through kvarnd's Unix socket beside a bare socket in the same
 * run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvarn/client.h>

#include "tests/bench/cpus.h"
#include "tests/bench/daemon.h"
#include "tests/bench/row.h"

enum { GROUP = 128, DIM = 128, LAYERS = 4, HEADS = 8, FRAME_BYTES = 48 };

struct bench {
    kvarn_client *client;
    struct bench_peer peer;
    kvarn_space_options space;
    int rounds;
    uint16_t *rows; /* K then V of `blocks` blocks, f16 */
    size_t blocks, rows_bytes;
};

static void bench_ping(struct bench *bench)
{
    enum { BURST = 100 };
    int bursts = bench->rounds * 4;
    unsigned long count = (unsigned long)bursts * BURST;
    double *ping = calloc(count, sizeof *ping), *bare = calloc(count, sizeof *bare);
    uint8_t frame[FRAME_BYTES] = {0};
    kvarn_ping_args args = KVARN_PING_INIT;

    /* Alternating bursts, so that both see the same machine. */
    for (int b = 0; b < bursts; b++) {
        for (int i = 0; i < BURST; i++) {
            double begin = bench_seconds();

            bench_must(bench->client, "ping", kvarn_ping(bench->client, &args));
            ping[b * BURST + i] = bench_seconds() - begin;
        }
        for (int i = 0; i < BURST; i++)
            bare[b * BURST + i] =
                bench_peer_exchange(&bench->peer, frame, sizeof frame, frame, sizeof frame);
    }
    for (int p = 0; p < 2; p++) {
        double share = p == 0 ? 0.5 : 0.99;

        bench_row_print(&(struct bench_row){
            .name = p == 0 ? "PING p50 against a bare Unix-socket round trip"
                           : "PING p99 against a bare Unix-socket round trip",
            .unit = "us",
            .value = 1e6 * bench_percentile(ping, count, share),
            .baseline = 1e6 * bench_percentile(bare, count, share),
            .direction = p == 0 ? '<' : 0,
            .reach = 1.5,
        });
    }
    free(ping);
    free(bare);
}

static void name_keys(kvarn_key *keys, size_t count, uint32_t round)
{
    memset(keys, 0, count * sizeof *keys);
    for (size_t i = 0; i < count; i++) {
        memcpy(keys[i].bytes, &round, sizeof round);
        memcpy(keys[i].bytes + 8, &i, sizeof i);
    }
}

static void drop(struct bench *bench, const kvarn_key *keys, size_t count)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    args.space = bench->space.space;
    args.keys = keys;
    args.count = count;
    bench_must(bench->client, "drop", kvarn_drop(bench->client, &args));
}

/* One COMPRESS of all blocks; total seconds, and those of the device worker. */
static double compress_once(struct bench *bench, const kvarn_key *keys, double *device)
{
    kvarn_compress_args args = KVARN_COMPRESS_INIT;
    kvarn_call *call = NULL;
    double begin = bench_seconds(), seconds;

    args.space = bench->space.space;
    args.keys = keys;
    args.count = bench->blocks;
    args.k = bench->rows;
    args.v = bench->rows + bench->rows_bytes / 4;
    bench_must(bench->client, "compress", kvarn_compress_start(bench->client, &args, &call));
    bench_must(bench->client, "compress", kvarn_call_wait(call, -1));
    seconds = bench_seconds() - begin;
    *device = 1e-9 * (double)kvarn_call_device_ns(call);
    kvarn_call_free(&call);
    return seconds;
}

static void bench_compress(struct bench *bench)
{
    kvarn_key keys[16];
    unsigned long count = (unsigned long)bench->rounds;
    double *total = calloc(count, sizeof *total), *bound = calloc(count, sizeof *bound);
    double *kernel = calloc(count, sizeof *kernel);
    uint8_t answer[64];

    for (unsigned long i = 0; i < count; i++) {
        double device;

        name_keys(keys, bench->blocks, (uint32_t)i);
        total[i] = compress_once(bench, keys, &device);
        kernel[i] = device;
        bound[i] = device + 1.5 * bench_peer_exchange(&bench->peer, bench->rows, bench->rows_bytes,
                                                      answer, sizeof answer);
        drop(bench, keys, bench->blocks);
    }
    bench_row_print(&(struct bench_row){
        .name = "COMPRESS against its kernel's time + 1.5x the bare transfer",
        .unit = "ms",
        .value = 1e3 * bench_percentile(total, count, 0.5),
        .baseline = 1e3 * bench_percentile(bound, count, 0.5),
        .direction = '<',
        .reach = 1.0,
    });
    bench_row_print(&(struct bench_row){
        .name = "COMPRESS, device worker alone",
        .unit = "ms",
        .value = 1e3 * bench_percentile(kernel, count, 0.5),
    });
    free(total);
    free(bound);
    free(kernel);
}

static void bench_import(struct bench *bench)
{
    enum { BLOCKS = 13 }; /* 13 blocks of 4 layers, 8 heads, 9,728 bytes = 4 MiB less 147 KiB */
    kvarn_key keys[BLOCKS];
    kvarn_block_result blocks[BLOCKS];
    size_t bytes = BLOCKS * bench->space.tile_block_bytes;
    uint8_t *records = malloc(bytes), answer[64];
    unsigned long count = (unsigned long)bench->rounds;
    double *import = calloc(count, sizeof *import), *bare = calloc(count, sizeof *bare), device;
    kvarn_export_args get = KVARN_EXPORT_INIT;
    size_t stored = bench->blocks;

    bench->blocks = BLOCKS;
    name_keys(keys, BLOCKS, UINT32_MAX);
    compress_once(bench, keys, &device);
    get.space = bench->space.space;
    get.keys = keys;
    get.count = BLOCKS;
    get.bytes = records;
    get.bytes_capacity = bytes;
    get.results = blocks;
    bench_must(bench->client, "export", kvarn_export(bench->client, &get));
    for (unsigned long i = 0; i < count; i++) {
        kvarn_import_args put = KVARN_IMPORT_INIT;
        double begin;

        drop(bench, keys, BLOCKS);
        put.space = bench->space.space;
        put.keys = keys;
        put.blocks = blocks;
        put.count = BLOCKS;
        put.bytes = records;
        put.bytes_count = bytes;
        put.origin = &get.origin;
        begin = bench_seconds();
        bench_must(bench->client, "import", kvarn_import_blocks(bench->client, &put));
        import[i] = (double)bytes / (bench_seconds() - begin) / 1e6;
        bare[i] = (double)bytes /
                  bench_peer_exchange(&bench->peer, records, bytes, answer, sizeof answer) / 1e6;
    }
    bench_row_print(&(struct bench_row){
        .name = "IMPORT of 4 MiB of records against the bare Unix socket",
        .unit = "MB/s",
        .value = bench_percentile(import, count, 0.5),
        .baseline = bench_percentile(bare, count, 0.5),
        .direction = '>',
        .reach = 0.7,
    });
    bench->blocks = stored;
    free(records);
    free(import);
    free(bare);
}

/* What a caller pays who finds nothing: LOOKUP of a prompt's keys before it computes all of it. The
 * baseline is a hundredth of that prefill: 8,192 tokens of a model of 8 billion weights, 2
 * operations a weight and token, at 400 TFLOP/s (two fifths of what an H100 does in bf16): 329 ms.
 */
static void bench_miss(struct bench *bench)
{
    enum { KEYS = 8192 / GROUP };
    const double prefill_us = 2.0 * 8e9 * 8192 / 400e12 * 1e6;
    unsigned long count = (unsigned long)bench->rounds * 10;
    double *miss = calloc(count, sizeof *miss);
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_key keys[KEYS];

    args.space = bench->space.space;
    args.keys = keys;
    args.count = KEYS;
    args.lease_ms = 1000;
    for (unsigned long i = 0; i < count; i++) {
        double begin;

        name_keys(keys, KEYS, 1000000 + (uint32_t)i);
        begin = bench_seconds();
        bench_must(bench->client, "lookup", kvarn_lookup(bench->client, &args));
        miss[i] = 1e6 * (bench_seconds() - begin);
    }
    bench_row_print(&(struct bench_row){
        .name = "LOOKUP of 64 absent keys p99, against 1 % of the prefill it did not save",
        .unit = "us",
        .value = bench_percentile(miss, count, 0.99),
        .baseline = prefill_us / 100,
        .direction = '<',
        .reach = 1.0,
    });
    free(miss);
}

/* Normal-looking f16 rows: any bits will do, as long as they are finite and not all equal. */
static void fill_rows(struct bench *bench)
{
    uint64_t state = 88172645463325252ull;

    for (size_t i = 0; i < bench->rows_bytes / 2; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bench->rows[i] = (uint16_t)(0x3000u + (state & 0x8bffu));
    }
}

/* Client, daemon and bare peer on one CPU: what the code itself costs. */
static void bench_one_cpu(struct bench *bench)
{
    struct bench_daemon daemon;

    bench_cpus_one();
    bench_peer_start(&bench->peer);
    bench_daemon_start(&daemon, "host:64MiB", &bench->client);
    bench_ping(bench);
    bench_daemon_stop(&daemon, &bench->client);
    bench_peer_stop(&bench->peer);
    bench_cpus_all();
}

static void open_space(struct bench *bench)
{
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;

    space.model = "bench";
    space.layers = LAYERS;
    space.kv_heads = HEADS;
    space.head_dim = DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k2v2_g128";
    bench->space = space;
    bench_must(bench->client, "open space", kvarn_open_space(bench->client, &bench->space));
    bench->rows_bytes = bench->blocks * GROUP * LAYERS * HEADS * DIM * 4;
    bench->rows = malloc(bench->rows_bytes);
    fill_rows(bench);
}

int main(int count, char **values)
{
    struct bench bench = {.rounds = 100, .blocks = 16};
    struct bench_daemon daemon;

    if (count > 1 && strcmp(values[1], "--quick") == 0)
        bench.rounds = 20;
    bench_one_cpu(&bench);
    bench_peer_start(&bench.peer);
    bench_daemon_start(&daemon, "host:512MiB", &bench.client);
    open_space(&bench);
    bench_miss(&bench);
    bench_import(&bench);
    bench_compress(&bench);

    free(bench.rows);
    bench_daemon_stop(&daemon, &bench.client);
    bench_peer_stop(&bench.peer);
    return 0;
}
