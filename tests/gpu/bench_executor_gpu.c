/* Jobs as the worker does them: from the offset of a job in staging to its answer there, tables,
 * launches and waiting included. What a kernel takes by itself is in its own benchmark; the rest of
 * a row here is the host link and what the executor costs. */
#include <stdlib.h>
#include <string.h>

#include "bench/row.h"
#include "gpu/support/bench.h"
#include "server/core/clock.h"
#include "server/device/bounds.h"
#include "server/device/cuda_executor.h"
#include "server/device/region.h"

enum {
    HEADS = 8,
    Q_HEADS = 32,
    LAYERS = 36,
    RUNS_MAX = 101,
    JOB_BYTES = 8 << 20,
    STAGING_BYTES = 256 << 20
};

#define POOL_BYTES (UINT64_C(8) << 30)

static const struct kvk_shape shape = {
    .dim = 128, .group = 128, .bits_k = 4, .bits_v = 2, .dtype = KVARN_F16, .iterations = 8};

struct world {
    struct kvd_gpu gpu;
    struct kvd_kernels *kernels;
    struct kvd_cuda_executor *executor;
    struct kvd_memory staging;
    struct kvd_cuda_regions regions;
    uint32_t runs;
};

static void must(const struct world *world, bool done)
{
    if (!done)
        gpu_fail("%s", world->gpu.why);
}

/* Rows everywhere behind the job: fp16 between 1/4 and 4. */
static void fill(uint8_t *rows, uint64_t bytes)
{
    uint64_t state = 88172645463325252u;

    for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint16_t bits = (uint16_t)((state & 0x83ff) | (13u + (state >> 16 & 3)) << 10);
        memcpy(rows + i, &bits, 2);
    }
}

static void open_world(struct world *world, uint32_t runs)
{
    kvd_cu_address staging = 0, pool = 0;

    *world = (struct world){.runs = runs};
    must(world, kvd_gpu_open(&world->gpu, 0) && kvd_kernels_open(&world->kernels, &world->gpu) &&
                    kvd_cuda_executor_open(&world->executor, &world->gpu, world->kernels));
    const struct kvd_cuda_driver *driver = &world->gpu.driver;
    if (kvd_memory_open(&world->staging, "bench", STAGING_BYTES) != KVARN_OK)
        gpu_fail("no memory for staging");
    must(world, kvd_gpu_did(&world->gpu, "staging",
                            driver->host_register(world->staging.base, STAGING_BYTES, 3)) &&
                    kvd_gpu_did(&world->gpu, "staging",
                                driver->host_address(&staging, world->staging.base, 0)) &&
                    kvd_gpu_did(&world->gpu, "pool", driver->memory_alloc(&pool, POOL_BYTES)));
    world->regions = (struct kvd_cuda_regions){.staging = world->staging.base,
                                               .staging_address = staging,
                                               .staging_bytes = STAGING_BYTES,
                                               .pool_address = pool,
                                               .pool_bytes = POOL_BYTES};
    kvd_cuda_executor_use(world->executor, &world->regions, NULL);
    fill(world->staging.base + JOB_BYTES, STAGING_BYTES - JOB_BYTES);
}

static struct kvd_place in_staging(uint64_t offset)
{
    return (struct kvd_place){.region = KVD_REGION_STAGING, .offset = JOB_BYTES + offset};
}

static struct kvd_place in_pool(uint64_t offset)
{
    return (struct kvd_place){.region = KVD_REGION_POOL, .offset = offset};
}

static void *job_of(struct world *world, uint32_t op, uint32_t layers, uint32_t count,
                    size_t entry_bytes, size_t tail_bytes)
{
    struct kvd_job *job = (struct kvd_job *)(void *)world->staging.base;

    *job = (struct kvd_job){.op = op,
                            .count = count,
                            .shape = shape,
                            .layers = layers,
                            .heads = HEADS,
                            .layer_count = layers,
                            .job_bytes = sizeof(*job) + count * entry_bytes + tail_bytes};
    if (job->job_bytes > JOB_BYTES)
        gpu_fail("a job of %llu bytes", (unsigned long long)job->job_bytes);
    return job + 1;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Microseconds of the job that stands in staging, and what its last entry says. */
static double time_of(struct world *world, const uint32_t *status)
{
    double us[RUNS_MAX];
    const uint64_t offset = 0;
    kvarn_status answer;

    for (uint32_t i = 0; i < world->runs; i++) {
        uint64_t start = kvd_now_ns();
        must(world, kvd_cuda_executor_run(world->executor, &offset, 1, &answer) == 1);
        us[i] = (double)(kvd_now_ns() - start) * 1e-3;
        if (answer != KVARN_OK || *status != KVARN_OK)
            gpu_fail("job %d, entry %u", (int)answer, *status);
    }
    qsort(us, world->runs, sizeof(us[0]), compare);
    return us[world->runs / 2];
}

static const struct kvd_strides strides = {
    .layer = UINT64_C(256) * HEADS * 128, .token = UINT64_C(256) * HEADS, .head = 256};

static uint64_t rows_bytes(uint32_t layers)
{
    return strides.layer * layers;
}

static uint64_t slot_bytes(uint32_t layers, uint32_t kind)
{
    return kvd_cell_bytes(&shape, kind) * layers * HEADS;
}

static double put(struct world *world, uint32_t layers, uint32_t blocks, uint32_t kind,
                  uint64_t slots)
{
    struct kvd_put *entry = job_of(world, KVD_JOB_COMPRESS, layers, blocks, sizeof(*entry), 0);

    for (uint32_t i = 0; i < blocks; i++)
        entry[i] = (struct kvd_put){.k = in_staging(2 * i * rows_bytes(layers)),
                                    .v = in_staging((2 * i + 1) * rows_bytes(layers)),
                                    .strides = strides,
                                    .slot = in_pool(slots + i * slot_bytes(layers, kind)),
                                    .kind = kind};
    return time_of(world, &entry[blocks - 1].status);
}

static double get(struct world *world, uint32_t layers, uint32_t blocks)
{
    struct kvd_get *entry = job_of(world, KVD_JOB_DECOMPRESS, layers, blocks, sizeof(*entry), 0);

    for (uint32_t i = 0; i < blocks; i++)
        entry[i] = (struct kvd_get){
            .slot = in_pool(i * slot_bytes(layers, KVARN_BLOCK_TILE)),
            .kind = KVARN_BLOCK_TILE,
            .k = in_staging((UINT64_C(96) << 20) + 2 * i * rows_bytes(layers)),
            .v = in_staging((UINT64_C(96) << 20) + (2 * i + 1) * rows_bytes(layers)),
            .strides = strides};
    return time_of(world, &entry[blocks - 1].status);
}

static double copy(struct world *world, uint32_t layers, uint32_t blocks, bool in)
{
    uint64_t bytes = slot_bytes(layers, KVARN_BLOCK_TILE);
    struct kvd_copy *entry = job_of(world, KVD_JOB_COPY, layers, blocks, sizeof(*entry), 0);

    for (uint32_t i = 0; i < blocks; i++) {
        struct kvd_place slot = in_pool(i * bytes), rows = in_staging(i * bytes);
        entry[i] = (struct kvd_copy){.dst = in ? slot : rows,
                                     .src = in ? rows : slot,
                                     .bytes = bytes,
                                     .kind = KVARN_BLOCK_TILE};
    }
    return time_of(world, &entry[blocks - 1].status);
}

static double digest(struct world *world, uint32_t layers, uint32_t blocks)
{
    uint64_t bytes = slot_bytes(layers, KVARN_BLOCK_TILE);
    struct kvd_copy *entry = job_of(world, KVD_JOB_DIGEST, layers, blocks, sizeof(*entry), 0);

    for (uint32_t i = 0; i < blocks; i++)
        entry[i] =
            (struct kvd_copy){.src = in_pool(i * bytes), .bytes = bytes, .kind = KVARN_BLOCK_TILE};
    return time_of(world, &entry[blocks - 1].status);
}

/* One token of each of `count` sequences into one layer. */
static double write_rows(struct world *world, uint32_t count)
{
    struct kvd_write *entry = job_of(world, KVD_JOB_WRITE_ROWS, LAYERS, count, sizeof(*entry), 0);

    ((struct kvd_job *)(void *)world->staging.base)->layer_count = 1;
    for (uint32_t i = 0; i < count; i++)
        entry[i] = (struct kvd_write){.k = in_staging(i * UINT64_C(4096)),
                                      .v = in_staging(i * UINT64_C(4096) + 2048),
                                      .strides = strides,
                                      .slot = in_pool(i * slot_bytes(LAYERS, KVARN_BLOCK_EXACT)),
                                      .first_token = 5,
                                      .tokens = 1};
    return time_of(world, &entry[count - 1].status);
}

/* Sequences of `tokens` tokens in tiles; the slots are of one layer. */
static double attend(struct world *world, uint32_t count, uint32_t tokens)
{
    uint32_t tiles = tokens / shape.group;
    struct kvd_attend *entry = job_of(world, KVD_JOB_ATTEND, 1, count, sizeof(*entry),
                                      (size_t)count * tiles * sizeof(struct kvd_job_span));
    struct kvd_job_span *spans = (struct kvd_job_span *)(void *)(entry + count);
    uint64_t slot = slot_bytes(1, KVARN_BLOCK_TILE), row = (uint64_t)Q_HEADS * shape.dim * 2;

    for (uint32_t i = 0; i < count; i++) {
        entry[i] =
            (struct kvd_attend){.q = in_staging(i * row),
                                .out = in_staging((UINT64_C(64) << 20) + i * row),
                                .lse = in_staging((UINT64_C(128) << 20) + i * UINT64_C(256)),
                                .q_tokens = 1,
                                .q_heads = Q_HEADS,
                                .q_dtype = KVARN_F16,
                                .out_dtype = KVARN_F16,
                                .scale = 0.05f,
                                .limit = tokens,
                                .spans_offset = sizeof(struct kvd_job) + count * sizeof(*entry) +
                                                (uint64_t)i * tiles * sizeof(*spans),
                                .span_count = tiles};
        for (uint32_t t = 0; t < tiles; t++)
            spans[i * tiles + t] =
                (struct kvd_job_span){.slot = in_pool(((uint64_t)i * tiles + t) * slot),
                                      .kind = KVARN_BLOCK_TILE,
                                      .position = t * shape.group,
                                      .tokens = shape.group};
    }
    return time_of(world, &entry[count - 1].status);
}

/* Records for 64 sequences of 16k tokens in one layer. */
static void fill_pool(struct world *world)
{
    for (uint32_t i = 0; i < 8192; i += 64)
        put(world, 1, 64, KVARN_BLOCK_TILE, i * slot_bytes(1, KVARN_BLOCK_TILE));
}

static void row_us(struct gpu_bench *bench, const char *name, double us)
{
    gpu_bench_row(bench, &(struct gpu_result){.name = name, .us = us});
}

static void row_gbs(struct gpu_bench *bench, const char *name, double us, uint64_t bytes)
{
    gpu_bench_row(bench, &(struct gpu_result){.name = name, .us = us, .counted = (double)bytes});
}

int main(int argc, char **argv)
{
    static struct world world;
    struct gpu_bench bench;
    uint32_t runs;

    gpu_bench_open(&bench, argc, argv);
    runs = bench.quick ? 21 : RUNS_MAX;
    open_world(&world, 1);
    fill_pool(&world);
    world.runs = runs;
    row_us(&bench, "job ATTEND, 1 sequence of 1k tokens", attend(&world, 1, 1024));
    row_us(&bench, "job ATTEND, 1 sequence of 16k tokens", attend(&world, 1, 16384));
    row_us(&bench, "job ATTEND, 16 sequences of 16k tokens", attend(&world, 16, 16384));
    row_us(&bench, "job ATTEND, 64 sequences of 16k tokens", attend(&world, 64, 16384));
    row_us(&bench, "job WRITE_ROWS, 64 sequences, 1 token, 1 layer", write_rows(&world, 64));
    row_us(&bench, "job COMPRESS, 1 block of 36 layers",
           put(&world, LAYERS, 1, KVARN_BLOCK_TILE, 0));
    row_gbs(&bench, "job COMPRESS, 4 blocks of 36 layers",
            put(&world, LAYERS, 4, KVARN_BLOCK_TILE, 0), 8 * rows_bytes(LAYERS));
    row_gbs(&bench, "job COMPRESS (exact), 4 blocks of 36 layers",
            put(&world, LAYERS, 4, KVARN_BLOCK_EXACT, UINT64_C(1) << 30), 8 * rows_bytes(LAYERS));
    row_gbs(&bench, "job DECOMPRESS, 4 blocks of 36 layers", get(&world, LAYERS, 4),
            8 * rows_bytes(LAYERS));
    row_gbs(&bench, "job COPY out, 16 blocks of 36 layers", copy(&world, LAYERS, 16, false),
            16 * slot_bytes(LAYERS, KVARN_BLOCK_TILE));
    row_gbs(&bench, "job COPY in, 16 blocks of 36 layers", copy(&world, LAYERS, 16, true),
            16 * slot_bytes(LAYERS, KVARN_BLOCK_TILE));
    row_gbs(&bench, "job DIGEST, 1024 blocks of 36 layers", digest(&world, LAYERS, 1024),
            1024 * slot_bytes(LAYERS, KVARN_BLOCK_TILE));
    return gpu_bench_close(&bench);
}
