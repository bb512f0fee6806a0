/* Compress on the GPU: the rows of the README, the other shapes, real captures, digests beside it.
 * GB/s count the fp16 input; inputs take turns so that none is left in the L2 cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/support/bench.h"
#include "gpu/support/capture.h"
#include "gpu/support/data.h"
#include "kernels/cuda/compress_plan.h"
#include "kernels/tile.h"

enum { MAX_ROUNDS = 16, DATA_CELLS = 128 };

struct work {
    const char *what; /* of the name; NULL: random rows */
    struct kvk_shape shape;
    uint32_t cells; /* each K and V: two matrices */
    float settle;
    double reach;
    bool micros, digests, quick;
    const char *peer;
};

/* Rows of all rounds, K and V of a cell side by side, and a slot for each cell. */
struct rounds {
    struct kvk_cuda_blocks args[MAX_ROUNDS];
    bool digests;
};

static void launch(struct gpu *gpu, void *context, uint32_t round)
{
    const struct rounds *rounds = context;
    const struct kvk_cuda_blocks *args = &rounds->args[round];
    struct kvk_cuda_launch compress = kvk_cuda_compress_launch(args),
                           digest = kvk_cuda_digest_launch(args, gpu->multiprocessors);

    gpu_run(gpu, &compress, args);
    if (rounds->digests)
        gpu_run(gpu, &digest, args);
}

static size_t record_bytes(const struct kvk_shape *shape)
{
    return kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
}

/* Rows of DATA_CELLS cells, K then V of each: random, or of a capture. */
static uint8_t *make_data(const struct work *w, const struct capture *capture)
{
    size_t row = 2 * (size_t)w->shape.dim, matrix = row * w->shape.group;
    uint8_t *data = malloc(2 * DATA_CELLS * matrix);
    uint32_t groups, all;

    if (data == NULL)
        gpu_fail("no memory");
    if (capture == NULL) {
        data_rows(data, (kvarn_dtype)w->shape.dtype, (size_t)2 * DATA_CELLS * w->shape.group,
                  w->shape.dim, 1, 17);
        return data;
    }
    groups = capture->tokens / w->shape.group;
    all = groups * capture->heads * capture->layers;
    for (uint32_t i = 0; i < 2 * DATA_CELLS * w->shape.group; i++) {
        uint32_t cell = i / 2 / w->shape.group % all, token = i % w->shape.group;
        uint32_t head = cell % capture->heads, layer = cell / capture->heads % capture->layers;
        const uint8_t *side = i / w->shape.group % 2 ? capture->v : capture->k;
        size_t at = layer * capture_matrix_bytes(capture) +
                    ((size_t)(cell / capture->heads / capture->layers * w->shape.group + token) *
                         capture->heads +
                     head) *
                        row;

        memcpy(data + i * row, side + at, row);
    }
    return data;
}

static struct kvk_cuda_blocks make_round(struct gpu *gpu, const struct work *w, uint64_t rows,
                                         uint64_t slots)
{
    size_t row = 2 * (size_t)w->shape.dim, matrix = row * w->shape.group;
    struct kvk_cuda_block *blocks = calloc(w->cells, sizeof *blocks);
    uint64_t *faults = malloc(w->cells * sizeof *faults);
    struct kvk_cuda_blocks args = {.shape = w->shape,
                                   .layers = 1,
                                   .heads = 1,
                                   .layer_count = 1,
                                   .count = w->cells,
                                   .settle = w->settle};

    if (blocks == NULL || faults == NULL)
        gpu_fail("no memory");
    memset(faults, 0xff, w->cells * sizeof *faults);
    for (uint32_t i = 0; i < w->cells; i++)
        blocks[i] = (struct kvk_cuda_block){.slot = slots + i * record_bytes(&w->shape),
                                            .k = rows + 2 * i * matrix,
                                            .v = rows + (2 * i + 1) * matrix,
                                            .token_stride_bytes = row,
                                            .kind = KVARN_BLOCK_TILE,
                                            .tokens = w->shape.group};
    args.blocks = gpu_put(gpu, blocks, w->cells * sizeof *blocks);
    args.faults = gpu_put(gpu, faults, w->cells * sizeof *faults);
    args.digests = gpu_alloc(gpu, w->cells * sizeof(uint32_t));
    free(blocks);
    free(faults);
    return args;
}

static void measure(struct gpu_bench *bench, const struct work *w, const struct capture *capture)
{
    struct gpu *gpu = &bench->gpu;
    static struct rounds rounds;
    size_t matrix = (size_t)2 * w->shape.dim * w->shape.group, record = record_bytes(&w->shape);
    size_t in = 2 * matrix * w->cells, out = record * w->cells;
    uint32_t count = gpu_rotations(gpu, in + out, MAX_ROUNDS);
    uint8_t *data = make_data(w, capture);
    uint64_t rows = gpu_put_repeated(gpu, in * count, data, 2 * DATA_CELLS * matrix);
    uint64_t slots = gpu_alloc(gpu, out * count);
    char name[160];

    rounds.digests = w->digests;
    for (uint32_t i = 0; i < count; i++)
        rounds.args[i] = make_round(gpu, w, rows + i * in, slots + i * out);
    struct gpu_time time = gpu_time(gpu, launch, &rounds, count, bench->replays);
    snprintf(name, sizeof name, "compress %sK%uV%u D %u G %u%s, %u matrices of %s, %s%s",
             w->shape.range == KVARN_RANGE_TIGHT            ? "tight "
             : w->shape.balance == KVARN_BALANCE_SCALE_FREE ? "scale-free "
                                                            : "",
             w->shape.bits_k, w->shape.bits_v, w->shape.dim, w->shape.group,
             w->shape.k_rotated ? ", not rotated" : "", (unsigned)(2 * w->cells),
             w->what                        ? w->what
             : w->shape.dtype == KVARN_BF16 ? "bf16"
                                            : "fp16",
             w->settle > 0 ? "until settled" : "8 iterations", w->digests ? ", digests" : "");
    gpu_bench_row(bench, &(struct gpu_result){.name = name,
                                              .us = time.us,
                                              .bytes = (double)(in + out),
                                              .counted = w->micros ? 0 : (double)in,
                                              .reach = w->reach,
                                              .peer = w->peer});
    for (uint32_t i = 0; i < count; i++) {
        gpu_free(gpu, rounds.args[i].blocks);
        gpu_free(gpu, rounds.args[i].faults);
        gpu_free(gpu, rounds.args[i].digests);
    }
    gpu_free(gpu, rows);
    gpu_free(gpu, slots);
    free(data);
}

static struct kvk_shape shape_of(uint32_t dim, uint32_t group, uint32_t bits_k, uint32_t bits_v)
{
    return (struct kvk_shape){.dim = (uint16_t)dim,
                              .group = (uint16_t)group,
                              .bits_k = (uint8_t)bits_k,
                              .bits_v = (uint8_t)bits_v,
                              .dtype = KVARN_F16,
                              .balance = KVARN_BALANCE_PUBLIC,
                              .iterations = 8};
}

/* The rows of the README: 9,216 matrices, and one token block of a model of 36 layers and 8 heads.
 */
static void main_rows(struct gpu_bench *bench)
{
    struct work w = {.shape = shape_of(128, 128, 4, 2), .cells = 4608, .reach = 800};

    measure(bench, &w, NULL);
    w.digests = true;
    w.reach = 0;
    measure(bench, &w, NULL);
    w = (struct work){.shape = w.shape, .cells = 288, .reach = 25, .micros = true};
    measure(bench, &w, NULL);
    w.settle = KVK_CUDA_SETTLE;
    measure(bench, &w, NULL);
}

/* The tight range: sums for the other scale beside the codes. */
static void tight_rows(struct gpu_bench *bench)
{
    struct work w = {.shape = shape_of(128, 128, 2, 2), .cells = 4608};

    w.shape.balance = KVARN_BALANCE_SCALE_FREE;
    measure(bench, &w, NULL);
    w.shape.range = KVARN_RANGE_TIGHT;
    measure(bench, &w, NULL);
    w.settle = KVK_CUDA_SETTLE;
    measure(bench, &w, NULL);
    w.shape.k_rotated = w.shape.v_rotated = 1;
    measure(bench, &w, NULL);
}

/* Two heads of 64 side by side, where the row asks for 128 channels: no capture has as many. */
static void capture_rows(struct gpu_bench *bench)
{
    static const char *const names[] = {"smollm2_135m", "gemma3_270m"};
    struct capture capture;

    for (int n = 0; n < 2; n++) {
        if (!capture_open(&capture, names[n]))
            continue;
        for (uint32_t together = 1; together <= (capture.dim == 64 ? 2 : 1); together++) {
            uint32_t dim = capture.dim * together;
            struct capture as = capture;
            struct work w = {.what = together == 2 ? "smollm2_135m in pairs of heads" : names[n],
                             .shape = shape_of(dim, 128, 4, 2),
                             .cells = 4608 * 128 / dim,
                             .settle = KVK_CUDA_SETTLE,
                             .reach = dim == 128 ? 1200 : 0};

            if (together == 2) { /* rows of 6 x 64 channels every two tokens are 3 x 128 */
                as.dim = dim;
                as.tokens /= 2;
            }
            measure(bench, &w, &as);
        }
        capture_close(&capture);
    }
}

static void shape_rows(struct gpu_bench *bench)
{
    static const uint32_t bits[3][2] = {{2, 2}, {4, 2}, {4, 4}};

    for (uint32_t i = 0; i < 18; i++) {
        uint32_t dim = 64u << i / 6, group = i / 3 % 2 ? 64 : 128;
        struct work w = {.shape = shape_of(dim, group, bits[i % 3][0], bits[i % 3][1]),
                         .cells = 4608 * 128 / dim * 128 / group};

        measure(bench, &w, NULL);
    }
    struct work w = {.shape = shape_of(128, 128, 4, 2), .cells = 4608};

    w.shape.dtype = KVARN_BF16;
    w.shape.balance = KVARN_BALANCE_SCALE_FREE;
    measure(bench, &w, NULL);
}

int main(int argc, char **argv)
{
    struct gpu_bench bench;

    gpu_bench_open(&bench, argc, argv);
    main_rows(&bench);
    tight_rows(&bench);
    capture_rows(&bench);
    if (!bench.quick)
        shape_rows(&bench);
    return gpu_bench_close(&bench);
}
