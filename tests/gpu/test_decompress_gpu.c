/* kernels/cuda/decompress.cu: the bits of decompress_ref.c for every shape, at any strides and
 * alignment, in the rows and nowhere else. */
#include <stdlib.h>
#include <string.h>

#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "kernels/variants.h"
#include "support/rng.h"

enum { BLOCKS = 3, LAYERS = 3, HEADS = 2, BEGIN = 1, CELLS = LAYERS * HEADS };
enum { SCRATCH = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM };

enum layout {
    PAGED,     /* the heads of a token side by side */
    DENSE,     /* the tokens of a head side by side */
    EVEN,      /* strides that allow no vector */
    ODD,       /* nor two bytes at a time */
    PARTS,     /* one block without k, one without v */
    WITH_EXACT /* a block of the other kind between */
};
enum { LAYOUTS = WITH_EXACT + 1 };

struct rows {
    size_t layer, token, head, matrix; /* bytes */
};

static struct rows rows_of(const struct kvk_shape *shape, enum layout layout)
{
    size_t row = 2 * (size_t)shape->dim;
    struct rows rows = {.token = row * HEADS, .head = row};

    if (layout == DENSE)
        rows = (struct rows){.token = row, .head = row * shape->group + 48};
    if (layout == EVEN || layout == ODD) {
        rows.token += layout == ODD ? 7 : 6;
        rows.head += layout == ODD ? 3 : 2;
    }
    rows.layer = rows.token * shape->group + rows.head * HEADS;
    rows.matrix = rows.layer * (LAYERS - BEGIN) + 64;
    return rows;
}

/* Any codes; vectors of any sign, normal, subnormal or zero, up to `top` in exponent. */
static void random_record(const struct kvk_shape *shape, struct rng *rng, uint32_t top,
                          uint8_t *record)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);

    for (size_t i = 0; i < at.bytes; i++)
        record[i] = (uint8_t)rng_next(rng);
    for (size_t i = at.k_step; i < at.bytes; i += i + 2 == at.v_codes ? at.v_channel - i : 2)
        kvk_u16_store(record + i, (uint16_t)(rng_below(rng, top << 10) | rng_below(rng, 2) << 15));
}

/* Of a slot of either kind. */
static size_t slot_bytes(const struct kvk_shape *shape)
{
    return (size_t)CELLS * shape->dim * shape->group * 4;
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        gpu_fail("no memory");
    return memory;
}

/* One block: its cells into slots, what the reference makes of them into expected. */
static void make_block(const struct kvk_shape *shape, struct rng *rng, const struct rows *rows,
                       const struct kvk_cuda_block *block, uint8_t *slot, uint8_t *k, uint8_t *v)
{
    static _Alignas(64) float scratch[SCRATCH];
    const uint32_t tops[] = {31, 2, 18, 18};
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint8_t *record = room(bytes);

    for (uint32_t cell = 0; cell < CELLS; cell++) {
        size_t at = (cell / HEADS - BEGIN) * rows->layer + cell % HEADS * rows->head;
        struct kvk_decompress op = {.shape = *shape,
                                    .record = record,
                                    .k_token_stride_bytes = rows->token,
                                    .v_token_stride_bytes = rows->token,
                                    .scratch = scratch};

        random_record(shape, rng, tops[rng_below(rng, 4)], record);
        kvk_device_from_record(shape, slot + cell * bytes, record);
        if (cell / HEADS < BEGIN || block->kind != KVARN_BLOCK_TILE)
            continue;
        op.k = block->k != 0 ? k + at : NULL;
        op.v = block->v != 0 ? v + at : NULL;
        CHECK(kvk_decompress_ref(&op) == KVARN_OK, "reference");
    }
    free(record);
}

static void check_layout(struct gpu *gpu, struct rng *rng, const struct kvk_shape *shape,
                         enum layout layout)
{
    size_t slot = slot_bytes(shape);
    struct rows rows = rows_of(shape, layout);
    size_t bytes = 2 * BLOCKS * rows.matrix, odd = layout == ODD;
    uint8_t *slots = room(BLOCKS * slot), *expected = room(bytes), *got = room(bytes);
    uint64_t slots_at = gpu_alloc(gpu, BLOCKS * slot), rows_at = gpu_alloc(gpu, bytes);
    struct kvk_cuda_block blocks[BLOCKS];

    gpu_poison(gpu, rows_at, bytes);
    memset(expected, 0xff, bytes); /* where nothing is to be written */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        size_t k = 2 * i * rows.matrix + odd, v = k + rows.matrix;

        blocks[i] = (struct kvk_cuda_block){
            .slot = slots_at + i * slot,
            .k = layout == PARTS && i == 0 ? 0 : rows_at + k,
            .v = layout == PARTS && i == 1 ? 0 : rows_at + v,
            .layer_stride_bytes = rows.layer,
            .token_stride_bytes = rows.token,
            .head_stride_bytes = rows.head,
            .kind = layout == WITH_EXACT && i == 1 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE};
        make_block(shape, rng, &rows, &blocks[i], slots + i * slot, expected + k, expected + v);
    }
    gpu_write(gpu, slots_at, slots, BLOCKS * slot);
    uint64_t table = gpu_put(gpu, blocks, sizeof blocks);
    struct kvk_cuda_blocks args = {.shape = *shape,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .layer_begin = BEGIN,
                                   .layer_count = LAYERS - BEGIN,
                                   .count = BLOCKS,
                                   .blocks = table};
    struct kvk_cuda_launch launch = kvk_cuda_decompress_launch(&args, gpu->multiprocessors);
    gpu_launch(gpu, launch.name, launch.grid, launch.block, launch.shared_bytes, &args);
    gpu_read(gpu, got, rows_at, bytes);
    CHECK(memcmp(got, expected, bytes) == 0, "D=%d G=%d K%dV%d dtype %d rotated %d,%d layout %d",
          shape->dim, shape->group, shape->bits_k, shape->bits_v, shape->dtype, shape->k_rotated,
          shape->v_rotated, layout);
    gpu_free(gpu, table);
    gpu_free(gpu, slots_at);
    gpu_free(gpu, rows_at);
    free(slots);
    free(expected);
    free(got);
}

/* More tiles than thread blocks: every one of them takes several, of any kind of block. */
static void check_many(struct gpu *gpu, struct rng *rng, uint16_t dim, uint16_t group)
{
    enum { MANY = 400 };
    const struct kvk_shape shape = {
        .dim = dim, .group = group, .bits_k = 4, .bits_v = 2, .dtype = KVARN_BF16, .iterations = 8};
    struct rows rows = rows_of(&shape, PAGED);
    size_t slot = slot_bytes(&shape), bytes = 2 * rows.matrix;
    uint8_t *cells = room(slot), *expected = room(bytes), *got = room(bytes);
    uint64_t slot_at = gpu_alloc(gpu, slot), rows_at = gpu_alloc(gpu, MANY * bytes);
    struct kvk_cuda_block blocks[MANY];

    gpu_poison(gpu, rows_at, MANY * bytes);
    memset(expected, 0xff, bytes);
    for (uint32_t i = 0; i < MANY; i++)
        blocks[i] =
            (struct kvk_cuda_block){.slot = slot_at,
                                    .k = i % 5 == 1 ? 0 : rows_at + i * bytes,
                                    .v = i % 7 == 1 ? 0 : rows_at + i * bytes + rows.matrix,
                                    .layer_stride_bytes = rows.layer,
                                    .token_stride_bytes = rows.token,
                                    .head_stride_bytes = rows.head,
                                    .kind = i % 3 == 2 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE};
    make_block(&shape, rng, &rows, &blocks[0], cells, expected, expected + rows.matrix);
    gpu_write(gpu, slot_at, cells, slot);
    uint64_t table = gpu_put(gpu, blocks, sizeof blocks);
    struct kvk_cuda_blocks args = {.shape = shape,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .layer_begin = BEGIN,
                                   .layer_count = LAYERS - BEGIN,
                                   .count = MANY,
                                   .blocks = table};
    struct kvk_cuda_launch launch = kvk_cuda_decompress_launch(&args, gpu->multiprocessors);
    CHECK(launch.grid < MANY * (LAYERS - BEGIN) * HEADS, "%u thread blocks", launch.grid);
    gpu_launch(gpu, launch.name, launch.grid, launch.block, launch.shared_bytes, &args);
    for (uint32_t i = 0; i < MANY; i++) {
        gpu_read(gpu, got, rows_at + i * bytes, bytes);
        for (uint32_t v = 0; v < 2; v++) {
            const uint8_t *half = got + v * rows.matrix;
            bool wanted = i % 3 != 2 && i % (v ? 7 : 5) != 1;
            size_t untouched = 0;

            while (untouched < rows.matrix && half[untouched] == 0xff)
                untouched++;
            CHECK(wanted ? memcmp(half, expected + v * rows.matrix, rows.matrix) == 0
                         : untouched == rows.matrix,
                  "D=%d G=%d block %u, %c", dim, group, i, v ? 'v' : 'k');
        }
    }
    gpu_free(gpu, table);
    gpu_free(gpu, slot_at);
    gpu_free(gpu, rows_at);
    free(cells);
    free(expected);
    free(got);
}

int main(int argc, char **argv)
{
    bool small = check_small(argc, argv);
    const uint16_t dims[] = {64, 128, 256};
    struct rng rng = rng_make(data_seed("test_decompress_gpu"));
    struct gpu gpu;

    gpu_open(&gpu);
    for (int n = 0; n < 96; n += small ? 13 : 1) {
        struct kvk_shape shape = {.dim = dims[n % 3],
                                  .group = n / 3 % 2 ? 128 : 64,
                                  .bits_k = n / 6 % 2 ? 4 : 2,
                                  .bits_v = n / 12 % 2 ? 4 : 2,
                                  .dtype = n / 24 % 2 ? KVARN_BF16 : KVARN_F16,
                                  .k_rotated = (n / 48 + n / 24 + n / 6) % 2 != 0,
                                  .v_rotated = n / 48 != 0,
                                  .iterations = 8};

        for (int layout = 0; layout < LAYOUTS; layout++)
            check_layout(&gpu, &rng, &shape, (enum layout)layout);
    }
    for (int n = 0; n < 6; n += small ? 4 : 1)
        check_many(&gpu, &rng, dims[n % 3], n / 3 ? 128 : 64);
    gpu_close(&gpu);
    return check_done("test_decompress_gpu");
}
