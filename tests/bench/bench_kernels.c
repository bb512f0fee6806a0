/* compress per variant beside the scalar reference; decompress, copies and the digest beside
 * memcpy.
 *
 * compress: one thread, D = G = 128, 8 iterations, microseconds per tile; the candidates take turns
 * inside every round. The others: two threads, each with buffers beyond its caches, GB/s of bytes
 * written (digest: read); memcpy takes turns with them. A row is the 10th percentile of the
 * times of its rounds, so that a busy machine disturbs it less.
 * `--quick`: fewer rounds, smaller buffers. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/row.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum { DIM = 128, GROUP = 128, ROWS = 2 * DIM * GROUP, THREADS = 2, MAX_ROUNDS = 64 };

static const char *const names[] = {"ref", "avx2", "avx512"};
static const uint8_t pairs[][2] = {{2, 2}, {4, 2}, {4, 4}};
static int quick;

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (memory == NULL)
        abort();
    memset(memory, 0, bytes);
    return memory;
}

static struct kvk_shape shape_of(const uint8_t *pair)
{
    return (struct kvk_shape){
        DIM, GROUP, pair[0], pair[1], KVARN_F16, KVARN_BALANCE_PUBLIC, KVARN_RANGE_MINMAX, 0, 0, 8};
}

/* Rows with loud channels and tokens, as keys have. */
static void fill_rows(uint8_t *rows, uint64_t seed)
{
    struct rng rng = rng_make(seed);

    for (uint32_t g = 0; g < GROUP; g++) {
        double loud = g % 40 == 3 ? 8 : 1;

        for (uint32_t d = 0; d < DIM; d++) {
            double x = loud * rng_normal(&rng) + (d % 31 == 5 ? 9 : 0);

            kvk_u16_store(rows + 2 * ((size_t)g * DIM + d), kvk_f16_from_f32((float)x));
        }
    }
}

/* ---- compress, one thread */

struct tile {
    uint8_t *k, *v, *record;
    void *scratch;
};

static struct tile tile_make(uint64_t seed)
{
    static const uint8_t largest[] = {4, 4};
    struct kvk_shape shape = shape_of(largest);
    struct tile tile = {room(ROWS), room(ROWS), room(2 * ROWS), room(kvk_scratch_bytes(&shape))};

    fill_rows(tile.k, seed);
    fill_rows(tile.v, seed + 1);
    return tile;
}

static void compress(const struct kvk_table *table, const uint8_t *pair, kvarn_range range,
                     const struct tile *tile)
{
    struct kvk_compress op = {.shape = shape_of(pair),
                              .k = tile->k,
                              .v = tile->v,
                              .k_token_stride_bytes = 2 * DIM,
                              .v_token_stride_bytes = 2 * DIM,
                              .record = tile->record,
                              .scratch = tile->scratch};

    op.shape.range = (uint8_t)range;
    if (table->compress(&op) != KVARN_OK)
        abort();
}

/* What the tight range costs: the same tile with and without, in turn. */
static int report_tight(const uint8_t *pair)
{
    struct tile tile = tile_make(7);
    double seconds[2][MAX_ROUNDS];
    int rounds = quick ? 9 : 41, ok = 1;

    for (int i = 1; i < 3; i++) {
        const struct kvk_table *table = kvk_cpu_table(names[i]);
        double tight, whole;
        char name[64];

        if (table == NULL)
            continue;
        for (int r = 0; r < rounds; r++) {
            for (int range = 0; range < 2; range++) {
                double start = bench_seconds();

                for (int t = 0; t < 12; t++)
                    compress(table, pair, (kvarn_range)range, &tile);
                seconds[range][r] = (bench_seconds() - start) / 12;
            }
        }
        whole = 1 / bench_percentile(seconds[KVARN_RANGE_MINMAX], (unsigned long)rounds, 0.1);
        tight = 1 / bench_percentile(seconds[KVARN_RANGE_TIGHT], (unsigned long)rounds, 0.1);
        snprintf(name, sizeof(name), "compress tight k%dv%d %s", pair[0], pair[1], names[i]);
        ok &= bench_row_print(&(struct bench_row){name, "tiles/s", tight, whole, '>', 0.85});
    }
    return ok;
}

static int report_compress(const uint8_t *pair)
{
    static const double reach[] = {0, 6, 15};
    struct tile tile = tile_make(7);
    double seconds[3][MAX_ROUNDS];
    int rounds = quick ? 9 : 41, ok = 1;

    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < 3; i++) {
            const struct kvk_table *table = kvk_cpu_table(names[i]);
            int times = i == 0 ? 1 : 12;
            double start = bench_seconds();

            for (int t = 0; t < times && table != NULL; t++)
                compress(table, pair, KVARN_RANGE_MINMAX, &tile);
            seconds[i][r] = (bench_seconds() - start) / times;
        }
    }
    for (int i = 0; i < 3; i++) {
        double tiles = 1 / bench_percentile(seconds[i], (unsigned long)rounds, 0.1);
        double scalar = 1 / bench_percentile(seconds[0], (unsigned long)rounds, 0.1);
        char name[64];

        if (kvk_cpu_table(names[i]) == NULL)
            continue;
        snprintf(name, sizeof(name), "compress k%dv%d %s", pair[0], pair[1], names[i]);
        ok &= bench_row_print(&(struct bench_row){name, "tiles/s", tiles, i > 0 ? scalar : 0,
                                                  i > 0 ? '>' : 0, reach[i]});
    }
    return ok;
}

/* ---- two threads over large buffers */

enum job { JOB_MEMCPY, JOB_DECOMPRESS, JOB_COPY_ROWS, JOB_DIGEST };

struct lane {
    pthread_t thread;
    pthread_barrier_t *gate;
    uint8_t *src, *dst; /* size bytes each */
    size_t size;
    struct tile tile;
    enum job job;
    const struct kvk_table *table;
    const uint8_t *pair;
    int stop;
    uint32_t digest;
};

static void run_job(struct lane *lane)
{
    struct kvk_decompress op = {.record = lane->tile.record,
                                .k_token_stride_bytes = 2 * DIM,
                                .v_token_stride_bytes = 2 * DIM,
                                .scratch = lane->tile.scratch};
    struct kvk_fault fault;

    for (size_t at = 0; at + 2 * ROWS <= lane->size; at += 2 * ROWS) {
        switch (lane->job) {
        case JOB_MEMCPY:
            memcpy(lane->dst + at, lane->src + at, 2 * ROWS);
            break;
        case JOB_DECOMPRESS:
            op.shape = shape_of(lane->pair);
            op.k = lane->dst + at;
            op.v = lane->dst + at + ROWS;
            lane->table->decompress(&op);
            break;
        case JOB_COPY_ROWS:
            kvk_copy_rows(lane->dst + at, 2 * DIM, lane->src + at, 2 * DIM, 2 * GROUP, DIM,
                          KVARN_F16, 'k', &fault);
            break;
        case JOB_DIGEST:
            lane->digest = kvk_digest(lane->digest, lane->src + at, 2 * ROWS);
            break;
        }
    }
}

static void *lane_main(void *arg)
{
    struct lane *lane = arg;

    for (;;) {
        pthread_barrier_wait(lane->gate);
        if (lane->stop)
            return NULL;
        run_job(lane);
        pthread_barrier_wait(lane->gate);
    }
}

static struct lane lanes[THREADS];
static pthread_barrier_t gate;

static double turn(enum job job, const struct kvk_table *table, const uint8_t *pair)
{
    double start;

    for (int i = 0; i < THREADS; i++) {
        lanes[i].job = job;
        lanes[i].table = table;
        lanes[i].pair = pair;
    }
    start = bench_seconds();
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    return (double)lanes[0].size * THREADS / (bench_seconds() - start) * 1e-9;
}

/* GB/s of the job and of memcpy in turns. */
static int report_job(const char *name, enum job job, const struct kvk_table *table,
                      const uint8_t *pair, double reach)
{
    double value[MAX_ROUNDS], baseline[MAX_ROUNDS];
    int rounds = quick ? 5 : 15;

    for (int i = 0; i < THREADS && pair != NULL; i++)
        compress(table, pair, KVARN_RANGE_MINMAX, &lanes[i].tile);
    for (int r = 0; r < rounds; r++) {
        baseline[r] = turn(JOB_MEMCPY, NULL, NULL);
        value[r] = turn(job, table, pair);
    }
    return bench_row_print(&(struct bench_row){
        name, "GB/s", bench_percentile(value, (unsigned long)rounds, 0.9),
        bench_percentile(baseline, (unsigned long)rounds, 0.9), reach > 0 ? '>' : 0, reach});
}

static void lanes_start(void)
{
    pthread_barrier_init(&gate, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        struct lane *lane = &lanes[i];

        lane->gate = &gate;
        lane->size = (size_t)(quick ? 64 : 192) << 20;
        lane->src = room(lane->size);
        lane->dst = room(lane->size);
        for (size_t at = 0; at < lane->size; at += ROWS)
            fill_rows(lane->src + at, at % (8 * ROWS));
        lane->tile = tile_make((uint64_t)i);
        if (pthread_create(&lane->thread, NULL, lane_main, lane) != 0)
            abort();
    }
}

static void lanes_stop(void)
{
    for (int i = 0; i < THREADS; i++)
        lanes[i].stop = 1;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < THREADS; i++)
        pthread_join(lanes[i].thread, NULL);
}

int main(int argc, char **argv)
{
    int ok = 1;

    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    for (size_t p = 0; p < 3; p++)
        ok &= report_compress(pairs[p]);
    ok &= report_tight(pairs[0]);
    lanes_start();
    for (size_t p = 0; p < 3; p++) {
        for (size_t i = 1; i < 3; i++) {
            char name[64];

            if (kvk_cpu_table(names[i]) == NULL)
                continue;
            snprintf(name, sizeof(name), "decompress k%dv%d %s vs memcpy", pairs[p][0], pairs[p][1],
                     names[i]);
            ok &= report_job(name, JOB_DECOMPRESS, kvk_cpu_table(names[i]), pairs[p],
                             i == 2 ? 0.6 : 0);
        }
    }
    ok &= report_job("copy_rows vs memcpy", JOB_COPY_ROWS, &kvk_table_ref, NULL, 0);
    ok &= report_job("digest vs memcpy", JOB_DIGEST, &kvk_table_ref, NULL, 0);
    lanes_stop();
    return ok ? 0 : 1;
}
