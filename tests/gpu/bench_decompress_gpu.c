/* Decompress into pages, digest, export and import: bytes that must be moved against the copy
 * ceiling. */
#include <stdio.h>
#include <stdlib.h>

#include "gpu/support/bench.h"
#include "gpu/support/data.h"
#include "kernels/cuda/launch.h"
#include "kernels/tile.h"

enum { LAYERS = 36, RECORDS = 61, MAX_BLOCKS = 1024 };

struct model {
    uint16_t dim, group;
    uint8_t bits_k, bits_v, dtype, v_rotated;
    uint32_t heads, tokens;
};

/* Slots of random records and pages [layer][token][head][dim] for K and for V. */
struct cache {
    struct kvk_cuda_blocks args;
    struct kvk_cuda_launch launch;
    uint64_t slots, k, v, table, digests, faults;
    double records, rows; /* bytes */
};

static void put_records(struct gpu *gpu, struct cache *cache, size_t record)
{
    uint8_t *device = malloc(RECORDS * record);

    if (device == NULL)
        gpu_fail("no memory");
    data_records(&cache->args.shape, RECORDS, data_seed("bench_decompress_gpu"), NULL, device);
    cache->slots = gpu_put_repeated(gpu, (size_t)cache->records, device, RECORDS * record);
    free(device);
}

/* canonical: room at block.k for the slot's canonical bytes, not pages. */
static void open_cache(struct gpu *gpu, struct cache *cache, const struct model *model,
                       bool canonical)
{
    static struct kvk_cuda_block blocks[MAX_BLOCKS];
    uint32_t count = model->tokens / model->group;
    size_t row = 2 * (size_t)model->dim * model->heads, layer = row * model->tokens;
    size_t record = kvk_layout_of(model->dim, model->group, model->bits_k, model->bits_v).bytes;
    size_t slot = record * LAYERS * model->heads;

    if (count > MAX_BLOCKS)
        gpu_fail("too many blocks");
    *cache = (struct cache){.records = (double)slot * count, .rows = 2.0 * LAYERS * (double)layer};
    cache->args = (struct kvk_cuda_blocks){.shape = {.dim = model->dim,
                                                     .group = model->group,
                                                     .bits_k = model->bits_k,
                                                     .bits_v = model->bits_v,
                                                     .dtype = model->dtype,
                                                     .v_rotated = model->v_rotated,
                                                     .iterations = 8},
                                           .layers = LAYERS,
                                           .heads = model->heads,
                                           .layer_count = LAYERS,
                                           .count = count};
    put_records(gpu, cache, record);
    cache->k = gpu_alloc(gpu, LAYERS * layer);
    cache->v = gpu_alloc(gpu, LAYERS * layer);
    for (uint32_t i = 0; i < count; i++)
        blocks[i] =
            (struct kvk_cuda_block){.slot = cache->slots + i * slot,
                                    .k = cache->k + i * (canonical ? slot : row * model->group),
                                    .v = cache->v + i * row * model->group,
                                    .layer_stride_bytes = layer,
                                    .token_stride_bytes = row,
                                    .head_stride_bytes = 2u * model->dim,
                                    .kind = KVARN_BLOCK_TILE};
    cache->table = cache->args.blocks = gpu_put(gpu, blocks, count * sizeof blocks[0]);
    cache->digests = gpu_alloc(gpu, 4 * (size_t)count * LAYERS * model->heads);
    cache->faults = gpu_alloc(gpu, 8 * (size_t)count);
}

static void close_cache(struct gpu *gpu, struct cache *cache)
{
    gpu_free(gpu, cache->slots);
    gpu_free(gpu, cache->k);
    gpu_free(gpu, cache->v);
    gpu_free(gpu, cache->table);
    gpu_free(gpu, cache->digests);
    gpu_free(gpu, cache->faults);
}

static void launch(struct gpu *gpu, void *context, uint32_t round)
{
    struct cache *cache = context;
    const struct kvk_cuda_launch *l = &cache->launch;

    (void)round;
    gpu_launch(gpu, l->name, l->grid, l->block, l->shared_bytes, &cache->args);
}

static double time_launch(struct gpu_bench *bench, struct cache *cache, uint32_t rounds)
{
    return gpu_time(&bench->gpu, launch, cache, rounds, bench->replays).us;
}

static void decompress(struct gpu_bench *bench, const struct model *model, double reach)
{
    struct cache cache;
    char name[128];

    open_cache(&bench->gpu, &cache, model, false);
    cache.launch = kvk_cuda_decompress_launch(&cache.args, bench->gpu.multiprocessors);
    snprintf(name, sizeof name, "decompress K%dV%d D=%d G=%d %s%s, %u tokens, %u x %d heads",
             model->bits_k, model->bits_v, model->dim, model->group,
             model->dtype == KVARN_BF16 ? "bf16" : "f16", model->v_rotated ? ", V rotated" : "",
             model->tokens, LAYERS, (int)model->heads);
    gpu_bench_row(bench, &(struct gpu_result){.name = name,
                                              .us = time_launch(bench, &cache, 1),
                                              .bytes = cache.records + cache.rows,
                                              .reach = reach});
    close_cache(&bench->gpu, &cache);
}

/* Bytes a second are those of the cells. */
static void convert(struct gpu_bench *bench, const struct model *model)
{
    const struct {
        const char *name;
        struct kvk_cuda_launch (*describe)(const struct kvk_cuda_blocks *, uint32_t);
        double moves, reach;
    } ways[] = {{"digest", kvk_cuda_digest_launch, 1, 1000},
                {"export", kvk_cuda_export_launch, 2, 0},
                {"import", kvk_cuda_import_launch, 2, 0}};
    struct cache cache;
    char name[128];

    open_cache(&bench->gpu, &cache, model, true);
    cache.args.digests = cache.digests;
    cache.args.faults = cache.faults;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        cache.launch = ways[i].describe(&cache.args, bench->gpu.multiprocessors);
        snprintf(name, sizeof name, "%s K%dV%d D=%d G=%d, %u tokens, %u x %d heads", ways[i].name,
                 model->bits_k, model->bits_v, model->dim, model->group, model->tokens, LAYERS,
                 (int)model->heads);
        gpu_bench_row(bench, &(struct gpu_result){.name = name,
                                                  .us = time_launch(bench, &cache, 1),
                                                  .bytes = ways[i].moves * cache.records,
                                                  .counted = cache.records,
                                                  .reach = ways[i].reach});
    }
    close_cache(&bench->gpu, &cache);
}

int main(int argc, char **argv)
{
    const struct model qwen3_8b = {128, 128, 4, 2, KVARN_BF16, 0, 8, 32768},
                       others[] = {{128, 128, 2, 2, KVARN_BF16, 0, 8, 32768},
                                   {128, 128, 4, 4, KVARN_BF16, 0, 8, 32768},
                                   {128, 128, 4, 2, KVARN_F16, 0, 8, 32768},
                                   {128, 128, 4, 2, KVARN_BF16, 1, 8, 32768},
                                   {128, 64, 4, 2, KVARN_BF16, 0, 8, 32768},
                                   {64, 128, 4, 2, KVARN_BF16, 0, 8, 65536},
                                   {64, 64, 4, 2, KVARN_BF16, 0, 8, 65536},
                                   {256, 128, 4, 2, KVARN_BF16, 0, 8, 16384},
                                   {256, 64, 4, 2, KVARN_BF16, 0, 8, 16384},
                                   {128, 128, 4, 2, KVARN_BF16, 0, 8, 128}};
    struct gpu_bench bench;

    gpu_bench_open(&bench, argc, argv);
    decompress(&bench, &qwen3_8b, 1600);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !bench.quick; i++)
        decompress(&bench, &others[i], 0);
    convert(&bench, &qwen3_8b);
    return gpu_bench_close(&bench);
}
