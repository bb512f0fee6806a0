/* The device worker: what a job costs on top of its kernels.
 *
 *   bench_device [--quick]
 *
 * Round trip of an empty job through loop, ring and worker, beside an eventfd handed back and forth
 * between two processes. Then attend, compress, decompress and copy jobs on a worker of one thread,
 * beside the same kernels called in a loop in this process; and with as many threads as CPUs. Of
 * the rounds of a job the 10th percentile counts: the machine may have other things to do. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/cpus.h"
#include "bench/row.h"
#include "kernels/tile.h"
#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/device/device.h"
#include "support/rng.h"

enum { DIM = 128, GROUP = 128, LAYERS = 4, HEADS = 8, ROW = DIM * 2, GQA = 4 };
enum { TILES = 256, CONTEXT = TILES * GROUP };
static const struct kvk_shape shape = {.dim = DIM,
                                       .group = GROUP,
                                       .bits_k = 2,
                                       .bits_v = 2,
                                       .dtype = KVARN_F16,
                                       .iterations = KVARN_DEFAULT_ITERATIONS};

static struct uv_loop_s *loop;
static struct kvd_device *device;
static uint64_t record_bytes, slot_bytes;
static uint8_t *rows; /* K then V of one block: [layer][token][head][dim] */
static unsigned rounds = 200, failed;
static int done;

#define ROWS_BYTES ((uint64_t)LAYERS * GROUP * HEADS * ROW)

static void *must(void *at)
{
    if (at == NULL) {
        fprintf(stderr, "bench_device: no staging\n");
        exit(1);
    }
    return at;
}

static void on_done(void *context, struct kvd_job *job, kvarn_status status)
{
    (void)context;
    failed += status != KVARN_OK || job->status != KVARN_OK;
    done = 1;
}

static double run(struct kvd_job *job)
{
    double start = bench_seconds();
    done = 0;
    failed += kvd_device_submit(device, job, on_done, NULL) != KVARN_OK;
    while (!done && !failed)
        kvd_loop_turn(loop);
    return bench_seconds() - start;
}

static struct kvd_job *new_job(uint32_t op, uint32_t count, size_t entry_bytes, size_t tail_bytes)
{
    size_t bytes = sizeof(struct kvd_job) + count * entry_bytes + tail_bytes;
    struct kvd_job *job = must(kvd_staging_take(device, bytes));
    memset(job, 0, bytes);
    job->op = op;
    job->count = count;
    job->shape = shape;
    job->layers = LAYERS;
    job->heads = HEADS;
    job->layer_count = LAYERS;
    job->job_bytes = bytes;
    return job;
}

static double seconds_of(struct kvd_job *job, unsigned count)
{
    double times[1000];
    for (unsigned i = 0; i < count; i++)
        times[i] = run(job);
    return bench_percentile(times, count, 0.1);
}

static void open_device(uint32_t threads)
{
    struct kvd_device_options options = {.worker_path = KVARN_WORKER,
                                         .pool_bytes = 128 << 20,
                                         .staging_bytes = 128 << 20,
                                         .threads = threads};
    const char *why = NULL;

    loop = kvd_loop_new();
    if (kvd_device_open(&device, loop, &options, &why) != KVARN_OK) {
        fprintf(stderr, "bench_device: %s\n", why);
        exit(1);
    }
    struct rng rng = rng_make(7);
    rows = must(kvd_staging_take(device, 2 * ROWS_BYTES));
    for (uint64_t i = 0; i < ROWS_BYTES; i++) {
        uint64_t r = rng_next(&rng);
        uint16_t bits = (uint16_t)((r & 0x83ff) | (13u + (r >> 16) % 3) << 10);
        memcpy(rows + 2 * i, &bits, 2);
    }
}

static void close_device(void)
{
    kvd_device_close(&device);
    kvd_loop_free(&loop);
}

/* ---- round trip ---- */

static double eventfd_round_trip(unsigned count)
{
    int there = eventfd(0, 0), back = eventfd(0, 0);
    double times[1000];
    uint64_t one = 1;
    pid_t child = fork();

    if (child == 0) {
        for (;;) {
            struct pollfd wait = {.fd = there, .events = POLLIN};
            if (poll(&wait, 1, -1) != 1 || read(there, &one, sizeof(one)) != sizeof(one) ||
                one > 1 || write(back, &one, sizeof(one)) != sizeof(one))
                _exit(0);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        double start = bench_seconds();
        struct pollfd wait = {.fd = back, .events = POLLIN};
        failed += write(there, &one, sizeof(one)) != sizeof(one);
        failed += poll(&wait, 1, -1) != 1 || read(back, &one, sizeof(one)) != sizeof(one);
        times[i] = bench_seconds() - start;
    }
    one = 2;
    failed += write(there, &one, sizeof(one)) != sizeof(one);
    waitpid(child, NULL, 0);
    close(there);
    close(back);
    return bench_percentile(times, count, 0.5);
}

static void bench_round_trip(void)
{
    double times[1000], baseline = eventfd_round_trip(1000);
    struct kvd_job *job = new_job(KVD_JOB_DIGEST, 0, 0, 0);

    seconds_of(job, 100);
    for (unsigned i = 0; i < 1000; i++)
        times[i] = run(job);
    bench_row_print(&(struct bench_row){
        "empty job to the worker and back p50, against an eventfd hand-over", "us",
        1e6 * bench_percentile(times, 1000, 0.5), 1e6 * baseline, '<', 3.0});
    bench_row_print(&(struct bench_row){"empty job to the worker and back p99", "us",
                                        1e6 * bench_percentile(times, 1000, 0.99), 0, 0, 0});
    kvd_staging_give(device, (uint8_t *)job);
}

/* ---- jobs ---- */

static struct kvd_job *compress_job(uint32_t kind)
{
    struct kvd_job *job = new_job(KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
    *(struct kvd_put *)(job + 1) = (struct kvd_put){
        .k = kvd_device_place(device, rows),
        .v = kvd_device_place(device, rows + ROWS_BYTES),
        .strides = {.layer = (uint64_t)GROUP * HEADS * ROW, .token = HEADS * ROW, .head = ROW},
        .slot = {KVD_REGION_POOL, 0, 0},
        .kind = kind};
    return job;
}

static struct kvd_job *decompress_job(uint8_t *to)
{
    struct kvd_job *job = new_job(KVD_JOB_DECOMPRESS, 1, sizeof(struct kvd_get), 0);
    *(struct kvd_get *)(job + 1) = (struct kvd_get){
        .slot = {KVD_REGION_POOL, 0, 0},
        .kind = KVARN_BLOCK_TILE,
        .k = kvd_device_place(device, to),
        .v = kvd_device_place(device, to + ROWS_BYTES),
        .strides = {.layer = (uint64_t)GROUP * HEADS * ROW, .token = HEADS * ROW, .head = ROW}};
    return job;
}

/* One sequence, all tiles of layer 0, one query token. */
static struct kvd_job *attend_job(uint8_t *q, uint8_t *out)
{
    struct kvd_job *job =
        new_job(KVD_JOB_ATTEND, 1, sizeof(struct kvd_attend), TILES * sizeof(struct kvd_job_span));
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
    struct kvd_job_span *spans = (struct kvd_job_span *)(attend + 1);

    job->layer_count = 1;
    for (uint32_t i = 0; i < TILES; i++)
        spans[i] = (struct kvd_job_span){.slot = {KVD_REGION_POOL, 0, i * slot_bytes},
                                         .kind = KVARN_BLOCK_TILE,
                                         .position = i * GROUP,
                                         .tokens = GROUP};
    *attend = (struct kvd_attend){.q = kvd_device_place(device, q),
                                  .out = kvd_device_place(device, out),
                                  .lse = kvd_device_place(device, out + HEADS * GQA * DIM * 4),
                                  .q_tokens = 1,
                                  .q_heads = HEADS * GQA,
                                  .q_dtype = KVARN_F16,
                                  .out_dtype = KVARN_F16,
                                  .scale = 0.088f,
                                  .limit = CONTEXT,
                                  .spans_offset = sizeof(*job) + sizeof(*attend),
                                  .span_count = TILES};
    return job;
}

/* ---- the same work without a device ---- */

static double kernel_seconds(const struct kvk_table *table, uint32_t op, const uint8_t *q,
                             uint8_t *to)
{
    static uint8_t record[1 << 16];
    static float out[GQA * DIM], lse[GQA];
    static struct kvk_span spans[TILES];
    void *scratch = aligned_alloc(64, 16 << 20);
    const uint8_t *pool = kvd_device_pool(device);
    double times[1000];
    unsigned count = rounds;

    for (unsigned round = 0; round < count; round++) {
        double start = bench_seconds();
        for (uint64_t unit = 0; unit < (uint64_t)(op == KVD_JOB_ATTEND ? 1 : LAYERS) * HEADS;
             unit++) {
            uint64_t at = unit / HEADS * GROUP * HEADS * ROW + unit % HEADS * ROW;
            if (op == KVD_JOB_COMPRESS)
                failed +=
                    table->compress(&(struct kvk_compress){.shape = shape,
                                                           .k = rows + at,
                                                           .v = rows + ROWS_BYTES + at,
                                                           .k_token_stride_bytes = HEADS * ROW,
                                                           .v_token_stride_bytes = HEADS * ROW,
                                                           .record = record,
                                                           .scratch = scratch}) != KVARN_OK;
            if (op == KVD_JOB_DECOMPRESS)
                failed +=
                    table->decompress(&(struct kvk_decompress){.shape = shape,
                                                               .record = pool + unit * record_bytes,
                                                               .k = to + at,
                                                               .v = to + ROWS_BYTES + at,
                                                               .k_token_stride_bytes = HEADS * ROW,
                                                               .v_token_stride_bytes = HEADS * ROW,
                                                               .scratch = scratch}) != KVARN_OK;
            if (op == KVD_JOB_ATTEND) {
                for (uint32_t i = 0; i < TILES; i++)
                    spans[i] =
                        (struct kvk_span){.kind = KVARN_BLOCK_TILE,
                                          .position = i * GROUP,
                                          .tokens = GROUP,
                                          .data = pool + i * slot_bytes + unit * record_bytes};
                failed += table->attend(&(struct kvk_attend){.shape = shape,
                                                             .q = q + unit * GQA * ROW,
                                                             .q_dtype = KVARN_F16,
                                                             .q_tokens = 1,
                                                             .q_heads = GQA,
                                                             .q_token_stride_bytes = GQA * ROW,
                                                             .q_head_stride_bytes = ROW,
                                                             .scale = 0.088f,
                                                             .limit = CONTEXT,
                                                             .spans = spans,
                                                             .span_count = TILES,
                                                             .out = out,
                                                             .lse = lse,
                                                             .scratch = scratch}) != KVARN_OK;
            }
        }
        times[round] = bench_seconds() - start;
    }
    free(scratch);
    return bench_percentile(times, count, 0.1);
}

static void fill_pool(void)
{
    struct kvd_job *job = compress_job(KVARN_BLOCK_TILE);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    for (uint32_t i = 0; i < TILES; i++) {
        put->slot.offset = i * slot_bytes;
        run(job);
        failed += put->status != KVARN_OK;
    }
    kvd_staging_give(device, (uint8_t *)job);
}

static void row_of(const char *name, uint32_t threads, double seconds, double baseline,
                   double reach)
{
    char text[112];
    snprintf(text, sizeof(text), "worker, %s job on %u thread%s, against its kernels", name,
             threads, threads == 1 ? "" : "s");
    bench_row_print(
        &(struct bench_row){text, "us", 1e6 * seconds, 1e6 * baseline, reach > 0 ? '<' : 0, reach});
}

static void bench_jobs(const struct kvk_table *table, uint32_t threads)
{
    uint8_t *to = must(kvd_staging_take(device, 2 * ROWS_BYTES));
    uint8_t *q = rows, *out = to;
    /* one thread: at most a tenth on top of the kernels and a round trip */
    double reach = threads == 1 ? 1.15 : 0;
    struct kvd_job *jobs[] = {compress_job(KVARN_BLOCK_TILE), decompress_job(to),
                              attend_job(q, out)};
    const char *names[] = {"compress", "decompress", "attend"};

    fill_pool();
    for (int i = 0; i < 3; i++) {
        double baseline = kernel_seconds(table, jobs[i]->op, q, to);
        row_of(names[i], threads, seconds_of(jobs[i], rounds), baseline, reach);
        kvd_staging_give(device, (uint8_t *)jobs[i]);
    }
    struct kvd_job *exact = compress_job(KVARN_BLOCK_EXACT);
    row_of("store_exact", threads, seconds_of(exact, rounds), 0, 0);
}

int main(int argc, char **argv)
{
    const struct kvk_table *table = kvk_cpu_best(getenv("KVARN_CPU"), NULL);

    if (argc > 1 && strcmp(argv[1], "--quick") == 0)
        rounds = 50;
    if (table == NULL)
        return 2;
    kvd_log_set_level(KVD_LOG_ERROR);
    record_bytes = kvk_layout_of(DIM, GROUP, 2, 2).bytes;
    slot_bytes = record_bytes * LAYERS * HEADS;
    for (uint32_t threads = 1; threads <= 2; threads++) {
        if (threads == 1)
            bench_cpus_one();
        open_device(threads == 1 ? 1 : 0);
        if (threads == 1)
            bench_round_trip();
        bench_jobs(table, threads == 1 ? 1 : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
        close_device();
        bench_cpus_all();
    }
    if (failed)
        fprintf(stderr, "bench_device: %u failures\n", failed);
    return failed != 0;
}
