/* Decode attention on the GPU, one layer: the rows of the README and what lies beside them. Slots
 * stand in random order; inputs take turns so that none is left in the L2 cache. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/support/attend.h"
#include "gpu/support/bench.h"
#include "gpu/support/data.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum { RECORDS = 64, MAX_ROUNDS = 12, ROUNDS = 10 /* launches a graph */, SINK = 128, TAIL = 128 };

struct work {
    uint32_t count, q_heads, kv_heads, dim, group, bits_k, bits_v, tokens; /* a sequence's */
    bool exact, deterministic; /* sink and tail beside the tiles; the flag */
    double reach;
    const char *peer;
    bool quick; /* runs with --quick too */
};

struct rounds {
    struct gpu_attend attend[MAX_ROUNDS];
    uint32_t count; /* inputs that take turns */
};

static void launch(struct gpu *gpu, void *context, uint32_t round)
{
    const struct rounds *rounds = context;

    gpu_attend_launch(gpu, &rounds->attend[round % rounds->count]);
}

struct pools {
    uint64_t tiles, exact; /* slots of all heads */
    size_t record, cell, slots;
    uint32_t *order; /* of slots */
};

static struct kvk_shape shape_of(const struct work *w)
{
    return (struct kvk_shape){.dim = (uint16_t)w->dim,
                              .group = (uint16_t)w->group,
                              .bits_k = (uint8_t)w->bits_k,
                              .bits_v = (uint8_t)w->bits_v,
                              .dtype = KVARN_F16,
                              .iterations = 8};
}

static void make_pools(struct gpu *gpu, const struct work *w, uint32_t rounds, struct pools *pools)
{
    struct kvk_shape shape = shape_of(w);
    struct rng rng = rng_make(5);
    size_t exact = w->exact ? (size_t)w->count * rounds * (SINK + TAIL) / w->group : 1;

    pools->record = kvk_layout_of(w->dim, w->group, w->bits_k, w->bits_v).bytes;
    pools->cell = (size_t)4 * w->group * w->dim;
    pools->slots = (size_t)w->count * rounds * (w->tokens / w->group);
    pools->order = malloc(pools->slots * sizeof(*pools->order));
    uint8_t *records = malloc(RECORDS * pools->record);
    uint8_t *rows = malloc(pools->cell);
    if (pools->order == NULL || records == NULL || rows == NULL)
        gpu_fail("no memory");
    for (uint32_t i = 0; i < pools->slots; i++)
        pools->order[i] = i;
    for (uint32_t i = (uint32_t)pools->slots - 1; i > 0; i--) {
        uint32_t other = rng_below(&rng, i + 1), swap = pools->order[i];
        pools->order[i] = pools->order[other];
        pools->order[other] = swap;
    }
    data_records(&shape, RECORDS, 3, NULL, records);
    data_normal(rows, KVARN_F16, (size_t)2 * w->group, w->dim, 1, 4);
    pools->tiles = gpu_put_repeated(gpu, pools->slots * w->kv_heads * pools->record, records,
                                    RECORDS * pools->record);
    pools->exact = gpu_put_repeated(gpu, exact * w->kv_heads * pools->cell, rows, pools->cell);
    free(records);
    free(rows);
}

/* Spans of sequence `number` among all rounds': sink, tiles, tail. */
static uint32_t make_spans(const struct work *w, const struct pools *pools, uint32_t number,
                           struct kvk_cuda_span *spans)
{
    uint32_t tiles = w->tokens / w->group, ends = w->exact ? SINK / w->group : 0, count = 0;

    for (uint32_t i = 0; i < tiles + 2 * ends; i++) {
        bool tile = i >= ends && i < tiles + ends;
        size_t slot = tile ? pools->order[(size_t)number * tiles + i - ends]
                           : (size_t)number * 2 * ends + (i < ends ? i : i - tiles);
        spans[count++] =
            (struct kvk_cuda_span){.cell = tile ? pools->tiles + slot * w->kv_heads * pools->record
                                                : pools->exact + slot * w->kv_heads * pools->cell,
                                   .position = i * w->group,
                                   .tokens = (uint16_t)w->group,
                                   .kind = tile ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT};
    }
    return count;
}

static void make_round(struct gpu *gpu, const struct work *w, const struct pools *pools,
                       uint32_t round, uint64_t q, uint64_t out, struct gpu_attend *attend)
{
    size_t row = (size_t)w->q_heads * w->dim;
    struct kvk_cuda_sequence *sequences = calloc(w->count, sizeof(*sequences));
    struct kvk_cuda_span *spans = calloc(w->count * (w->tokens / w->group + 5), sizeof(*spans)),
                         *at = spans;
    const struct kvk_cuda_span **lists = calloc(w->count, sizeof(*lists));
    struct kvk_attend_batch batch = {.shape = shape_of(w),
                                     .kv_heads = w->kv_heads,
                                     .q_heads = w->q_heads,
                                     .count = w->count,
                                     .spans = lists,
                                     .deterministic = w->deterministic};

    if (sequences == NULL || spans == NULL || lists == NULL)
        gpu_fail("no memory");
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t count = make_spans(w, pools, round * w->count + i, at);
        sequences[i] =
            (struct kvk_cuda_sequence){.q = q + 2 * row * i,
                                       .out = out + 2 * row * i,
                                       .lse = out + 2 * row * w->count + (size_t)4 * w->q_heads * i,
                                       .q_token_stride_bytes = 2 * row,
                                       .q_head_stride_bytes = 2 * (size_t)w->dim,
                                       .span_count = count,
                                       .q_tokens = 1,
                                       .limit = count * w->group,
                                       .scale = (float)(1 / sqrt(w->dim)),
                                       .fault = i};
        lists[i] = at;
        at += count + 1;
    }
    gpu_attend_make(gpu, attend, &batch, sequences, KVARN_F16, KVARN_F16);
    free(sequences);
    free(spans);
    free(lists);
}

static void measure(struct gpu_bench *bench, const struct work *w)
{
    struct gpu *gpu = &bench->gpu;
    struct pools pools;
    static struct rounds rounds;
    char name[128];
    size_t row = (size_t)w->q_heads * w->dim * w->count;
    size_t tile_bytes = (size_t)w->count * w->kv_heads * (w->tokens / w->group) *
                        kvk_layout_of(w->dim, w->group, w->bits_k, w->bits_v).bytes;
    size_t bytes = tile_bytes +
                   (w->exact ? (size_t)w->count * w->kv_heads * (SINK + TAIL) * 4 * w->dim : 0) +
                   4 * row;
    uint32_t count = gpu_rotations(gpu, bytes, MAX_ROUNDS);
    uint16_t *q = malloc(2 * row);

    if (q == NULL)
        gpu_fail("no memory");
    data_normal(q, KVARN_F16, row / w->dim, w->dim, 1, 9);
    make_pools(gpu, w, count, &pools);
    uint64_t q_at = gpu_put(gpu, q, 2 * row);
    uint64_t out = gpu_alloc(gpu, 2 * row + (size_t)4 * w->q_heads * w->count);
    for (uint32_t i = 0; i < count; i++)
        make_round(gpu, w, &pools, i, q_at, out, &rounds.attend[i]);
    rounds.count = count;
    struct gpu_time time =
        gpu_time(gpu, launch, &rounds, count > ROUNDS ? count : ROUNDS, bench->replays);
    snprintf(name, sizeof(name), "attend K%uV%u D %u G %u, B %u, Hq %u, Hkv %u, %u tokens%s%s",
             w->bits_k, w->bits_v, w->dim, w->group, w->count, w->q_heads, w->kv_heads, w->tokens,
             w->exact ? ", sink and tail" : "", w->deterministic ? ", deterministic" : "");
    gpu_bench_row(bench, &(struct gpu_result){.name = name,
                                              .us = time.us,
                                              .bytes = (double)bytes,
                                              .reach = w->reach,
                                              .peer = w->peer});
    for (uint32_t i = 0; i < count; i++)
        gpu_attend_free(gpu, &rounds.attend[i]);
    gpu_free(gpu, pools.tiles);
    gpu_free(gpu, pools.exact);
    gpu_free(gpu, q_at);
    gpu_free(gpu, out);
    free(pools.order);
    free(q);
}

/* Rows of one shape: plain, with sink and tail, deterministic. */
static void three(struct gpu_bench *bench, struct work w)
{
    if (bench->quick && !w.quick)
        return;
    measure(bench, &w);
    w.reach = 0;
    w.peer = NULL;
    if (bench->quick)
        return;
    w.deterministic = true;
    measure(bench, &w);
    w.deterministic = false;
    w.exact = true;
    measure(bench, &w);
}

int main(int argc, char **argv)
{
    /* the same over an fp16 cache */
    static const char one[] = "torch cudnn fp16 B=1 Hq=32 Hkv=8 D=128 32k";
    static const char sixteen[] = "torch cudnn fp16 B=16 Hq=32 Hkv=8 D=128 16k";
    static const char sixty_four[] = "torch cudnn fp16 B=64 Hq=32 Hkv=8 D=128 16k";
    static const char long_context[] = "torch cudnn fp16 B=16 Hq=64 Hkv=8 D=128 32k";
    static const struct work works[] = {
        {1, 32, 8, 128, 128, 4, 2, 32768, false, false, 14, one, true},
        {1, 32, 8, 128, 128, 2, 2, 32768, false, false, 0, one, true},
        {16, 32, 8, 128, 128, 4, 2, 16384, false, false, 60, sixteen, true},
        {16, 32, 8, 128, 128, 2, 2, 16384, false, false, 46, sixteen, true},
        {64, 32, 8, 128, 128, 4, 2, 16384, false, false, 222, sixty_four, true},
        {64, 32, 8, 128, 128, 2, 2, 16384, false, false, 175, sixty_four, true},
        {16, 64, 8, 128, 128, 4, 2, 32768, false, false, 114, long_context, true},
        {16, 64, 8, 128, 128, 2, 2, 32768, false, false, 88, long_context, true},
        {16, 32, 8, 128, 128, 4, 4, 16384, false, false, 0, NULL, false},
        {16, 32, 8, 128, 64, 4, 2, 16384, false, false, 0, NULL, false},
        {16, 32, 8, 128, 64, 2, 2, 16384, false, false, 0, NULL, false},
        {16, 8, 8, 128, 128, 2, 2, 16384, false, false, 0, NULL, false},
        {16, 128, 8, 128, 128, 2, 2, 16384, false, false, 0, NULL, false},
        {16, 128, 8, 128, 128, 4, 2, 16384, false, false, 0, NULL, false},
        {16, 32, 8, 64, 128, 2, 2, 32768, false, false, 0, NULL, false},
        {16, 32, 8, 64, 128, 4, 2, 32768, false, false, 0, NULL, false},
        {16, 32, 8, 64, 64, 2, 2, 32768, false, false, 0, NULL, false},
        {16, 16, 4, 256, 128, 2, 2, 16384, false, false, 0, NULL, false},
        {16, 16, 4, 256, 128, 4, 2, 16384, false, false, 0, NULL, false},
        {16, 16, 4, 256, 128, 4, 4, 16384, false, false, 0, NULL, false},
    };
    struct gpu_bench bench;

    gpu_bench_open(&bench, argc, argv);
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++)
        three(&bench, works[i]);
    return gpu_bench_close(&bench);
}
