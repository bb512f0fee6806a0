/* Rows into cells: kernels/cuda/write.cu at any strides, first tokens and layers; sealing, which is
 * compress of what was written, bit for bit what compress makes of the same rows elsewhere; and the
 * first value that is not finite, of both. */
#include <stdlib.h>
#include <string.h>

#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "kernels/cuda/compress_plan.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum { BLOCKS = 3, LAYERS = 3, HEADS = 2, BEGIN = 1, RUN = LAYERS - BEGIN, MAX_FAULTS = 3 };

/* Rows of all blocks, K then V of each, with gaps when strides are odd. */
struct rows {
    size_t token, head, layer, matrix, bytes;
    uint32_t shift; /* of the first byte from an aligned address */
    uint8_t *host;
    uint64_t device;
};

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        gpu_fail("no memory");
    return memory;
}

static size_t row_at(const struct rows *rows, uint32_t block, int is_v, uint32_t layer,
                     uint32_t head, uint32_t token)
{
    return rows->shift + (2 * block + (uint32_t)is_v) * rows->matrix + layer * rows->layer +
           head * rows->head + token * rows->token;
}

static void make_rows(struct gpu *gpu, const struct kvk_shape *shape, uint32_t odd, struct rng *rng,
                      struct rows *rows)
{
    size_t row = 2 * (size_t)shape->dim;

    rows->shift = odd;
    rows->head = row + odd;
    rows->token = rows->head * HEADS + odd;
    rows->layer = rows->token * shape->group;
    rows->matrix = rows->layer * RUN;
    rows->bytes = rows->shift + rows->matrix * 2 * BLOCKS;
    rows->host = room(rows->bytes);
    memset(rows->host, 0x11, rows->bytes);
    for (uint32_t i = 0; i < 2 * BLOCKS * RUN * HEADS * shape->group; i++) {
        uint32_t token = i % shape->group, cell = i / shape->group;
        size_t at = row_at(rows, cell / (2 * RUN * HEADS), cell / (RUN * HEADS) % 2,
                           cell / HEADS % RUN, cell % HEADS, token);

        data_rows(rows->host + at, (kvarn_dtype)shape->dtype, 1, shape->dim, 1, rng_next(rng));
    }
    rows->device = gpu_put(gpu, rows->host, rows->bytes);
}

static void free_rows(struct gpu *gpu, struct rows *rows)
{
    gpu_free(gpu, rows->device);
    free(rows->host);
}

static size_t cell_bytes(const struct kvk_shape *shape, uint32_t kind)
{
    return kind == KVARN_BLOCK_TILE
               ? kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes
               : (size_t)4 * shape->dim * shape->group;
}

/* A block whose rows are those of `rows`, from token `first` on. */
static struct kvk_cuda_block block_of(const struct rows *rows, uint32_t number, uint64_t slots,
                                      size_t slot, uint32_t kind, uint32_t first, uint32_t tokens)
{
    return (struct kvk_cuda_block){.slot = slots + number * slot,
                                   .k = rows->device + row_at(rows, number, 0, 0, 0, first),
                                   .v = rows->device + row_at(rows, number, 1, 0, 0, first),
                                   .layer_stride_bytes = rows->layer,
                                   .token_stride_bytes = rows->token,
                                   .head_stride_bytes = rows->head,
                                   .kind = kind,
                                   .first_token = first,
                                   .tokens = tokens};
}

/* Compress or write over BLOCKS blocks; faults come back. */
static void run(struct gpu *gpu, const struct kvk_shape *shape, bool compress,
                const struct kvk_cuda_block *blocks, uint64_t faults[BLOCKS])
{
    uint64_t none[BLOCKS] = {KVK_CUDA_NO_FAULT, KVK_CUDA_NO_FAULT, KVK_CUDA_NO_FAULT};
    uint64_t table = gpu_put(gpu, blocks, BLOCKS * sizeof *blocks);
    uint64_t faults_at = gpu_put(gpu, none, sizeof none);
    struct kvk_cuda_blocks args = {.shape = *shape,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .layer_begin = BEGIN,
                                   .layer_count = RUN,
                                   .count = BLOCKS,
                                   .blocks = table,
                                   .faults = faults_at};
    struct kvk_cuda_launch launch =
        compress ? kvk_cuda_compress_launch(&args) : kvk_cuda_write_launch(&args);

    gpu_run(gpu, &launch, &args);
    gpu_read(gpu, faults, faults_at, sizeof none);
    gpu_free(gpu, table);
    gpu_free(gpu, faults_at);
}

/* Some rows of exact cells; block 1 is of the other kind and is left alone. */
static void check_write(struct gpu *gpu, const struct kvk_shape *shape, uint32_t odd,
                        struct rng *rng)
{
    size_t row = 2 * (size_t)shape->dim, cell = cell_bytes(shape, KVARN_BLOCK_EXACT);
    size_t slot = LAYERS * HEADS * cell, all = BLOCKS * slot;
    uint8_t *expected = room(all), *got = room(all);
    uint64_t slots = gpu_alloc(gpu, all), faults[BLOCKS];
    struct kvk_cuda_block blocks[BLOCKS];
    struct rows rows;

    make_rows(gpu, shape, odd, rng, &rows);
    gpu_poison(gpu, slots, all);
    memset(expected, 0xff, all);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint32_t first = rng_below(rng, shape->group);
        uint32_t tokens = 1 + rng_below(rng, shape->group - first);

        blocks[b] = block_of(&rows, b, slots, slot, b == 1 ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT,
                             first, tokens);
        for (uint32_t i = 0; b != 1 && i < 2 * RUN * HEADS * tokens; i++) {
            uint32_t token = first + i % tokens, head = i / tokens % HEADS;
            uint32_t layer = i / tokens / HEADS % RUN, is_v = i / tokens / HEADS / RUN;

            memcpy(expected + b * slot + ((BEGIN + layer) * HEADS + head) * cell +
                       (is_v * shape->group + token) * row,
                   rows.host + row_at(&rows, b, (int)is_v, layer, head, token), row);
        }
    }
    run(gpu, shape, false, blocks, faults);
    gpu_read(gpu, got, slots, all);
    CHECK(memcmp(got, expected, all) == 0, "write D=%d G=%d odd %u", shape->dim, shape->group, odd);
    for (uint32_t b = 0; b < BLOCKS; b++)
        CHECK(faults[b] == KVK_CUDA_NO_FAULT, "write D=%d block %u", shape->dim, b);
    free_rows(gpu, &rows);
    gpu_free(gpu, slots);
    free(expected);
    free(got);
}

/* Records of rows where they lie, and of the exact cells that they were written to. */
static void check_seal(struct gpu *gpu, const struct kvk_shape *shape, uint32_t odd,
                       struct rng *rng)
{
    size_t exact = cell_bytes(shape, KVARN_BLOCK_EXACT),
           record = cell_bytes(shape, KVARN_BLOCK_TILE);
    size_t exact_slot = LAYERS * HEADS * exact, slot = LAYERS * HEADS * record;
    uint8_t *direct = room(BLOCKS * slot), *sealed = room(BLOCKS * slot);
    uint64_t exact_at = gpu_alloc(gpu, BLOCKS * exact_slot), at = gpu_alloc(gpu, BLOCKS * slot);
    struct kvk_cuda_block blocks[BLOCKS], tails[BLOCKS];
    uint64_t faults[BLOCKS];
    struct rows rows;

    make_rows(gpu, shape, odd, rng, &rows);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        tails[b] = block_of(&rows, b, exact_at, exact_slot, KVARN_BLOCK_EXACT, 0, shape->group);
        blocks[b] = block_of(&rows, b, at, slot, KVARN_BLOCK_TILE, 0, shape->group);
    }
    gpu_poison(gpu, at, BLOCKS * slot);
    run(gpu, shape, true, blocks, faults);
    gpu_read(gpu, direct, at, BLOCKS * slot);
    run(gpu, shape, false, tails, faults);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        /* rows of layer BEGIN are the first of the launch */
        blocks[b].k = tails[b].slot + (uint64_t)BEGIN * HEADS * exact;
        blocks[b].v = blocks[b].k + exact / 2;
        blocks[b].token_stride_bytes = 2 * (uint64_t)shape->dim;
        blocks[b].head_stride_bytes = exact;
        blocks[b].layer_stride_bytes = HEADS * exact;
    }
    gpu_poison(gpu, at, BLOCKS * slot);
    run(gpu, shape, true, blocks, faults);
    gpu_read(gpu, sealed, at, BLOCKS * slot);
    CHECK(memcmp(direct, sealed, BLOCKS * slot) == 0,
          "seal D=%d G=%d odd %u range %d rotated %d,%d", shape->dim, shape->group, odd,
          shape->range, shape->k_rotated, shape->v_rotated);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (size_t i = 0; i < BEGIN * HEADS * record; i++)
            CHECK(sealed[b * slot + i] == 0xff, "layer before the first, block %u", b);
    }
    free_rows(gpu, &rows);
    gpu_free(gpu, exact_at);
    gpu_free(gpu, at);
    free(direct);
    free(sealed);
}

/* NaN and infinities at random places; the smallest place of each block is reported. */
static void check_faults(struct gpu *gpu, const struct kvk_shape *shape, uint32_t odd,
                         bool compress, struct rng *rng)
{
    static const uint16_t half[] = {0x7c00, 0xfc00, 0x7e01}, bf16[] = {0x7f80, 0xff80, 0x7fc1};
    uint32_t kind = compress ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT;
    size_t slot = LAYERS * HEADS * cell_bytes(shape, kind);
    uint64_t slots = gpu_alloc(gpu, BLOCKS * slot), faults[BLOCKS], expected[BLOCKS];
    struct kvk_cuda_block blocks[BLOCKS];
    struct rows rows;

    make_rows(gpu, shape, odd, rng, &rows);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        blocks[b] = block_of(&rows, b, slots, slot, kind, 0, shape->group);
        expected[b] = KVK_CUDA_NO_FAULT;
        for (uint32_t i = 0; i < b * MAX_FAULTS / 2; i++) {
            uint32_t cell = rng_below(rng, RUN * HEADS), is_v = rng_below(rng, 2);
            uint32_t token = rng_below(rng, shape->group), channel = rng_below(rng, shape->dim);
            uint64_t fault = KVK_CUDA_FAULT(cell, is_v, token, channel);
            uint16_t x = (shape->dtype == KVARN_BF16 ? bf16 : half)[rng_below(rng, 3)];

            memcpy(rows.host + 2 * (size_t)channel +
                       row_at(&rows, b, (int)is_v, cell / HEADS, cell % HEADS, token),
                   &x, sizeof x);
            expected[b] = fault < expected[b] ? fault : expected[b];
        }
    }
    gpu_write(gpu, rows.device, rows.host, rows.bytes);
    run(gpu, shape, compress, blocks, faults);
    for (uint32_t b = 0; b < BLOCKS; b++)
        CHECK(faults[b] == expected[b], "%s D=%d G=%d dtype %d odd %u: %llx, not %llx",
              compress ? "compress" : "write", shape->dim, shape->group, shape->dtype, odd,
              (unsigned long long)faults[b], (unsigned long long)expected[b]);
    free_rows(gpu, &rows);
    gpu_free(gpu, slots);
}

int main(int argc, char **argv)
{
    static const uint16_t dims[] = {64, 128, 256};
    static const uint32_t odds[] = {0, 2, 5};
    bool small = check_small(argc, argv);
    struct rng rng = rng_make(data_seed("test_rows_gpu"));
    struct gpu gpu;

    gpu_open(&gpu);
    for (uint32_t i = 0; i < 72; i += small ? 17 : 1) {
        struct kvk_shape shape = {.dim = dims[i % 3],
                                  .group = i / 3 % 2 ? 64 : 128,
                                  .bits_k = i / 6 % 2 ? 4 : 2,
                                  .bits_v = i / 12 % 2 ? 4 : 2,
                                  .dtype = i / 24 % 2 ? KVARN_BF16 : KVARN_F16,
                                  .balance = KVARN_BALANCE_PUBLIC,
                                  .range = i / 12 % 2 ? KVARN_RANGE_TIGHT : KVARN_RANGE_MINMAX,
                                  .k_rotated = i / 6 % 4 == 1,
                                  .v_rotated = i / 24 == 2,
                                  .iterations = 3};
        uint32_t odd = odds[rng_below(&rng, 3)];

        check_write(&gpu, &shape, odd, &rng);
        check_seal(&gpu, &shape, odd, &rng);
        check_faults(&gpu, &shape, odd, true, &rng);
        check_faults(&gpu, &shape, odd, false, &rng);
    }
    gpu_close(&gpu);
    return check_done("test_rows_gpu");
}
