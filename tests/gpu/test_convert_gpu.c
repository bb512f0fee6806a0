/* kernels/cuda/convert.cu and read.cu: digests, canonical bytes, device order, what is not finite,
 * and rows, against convert_ref.c, digest.c and cell.c. */
#include <stdlib.h>
#include <string.h>

#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum { BLOCKS = 5, LAYERS = 3, HEADS = 2, BEGIN = 1, CELLS = LAYERS * HEADS };
enum { FIRST = BEGIN * HEADS, TAKEN = CELLS - FIRST, GUARD = 64, FAULTS = 3 };

/* Blocks of both kinds in turns, in device memory and here. */
struct scene {
    struct gpu *gpu;
    struct kvk_shape shape;
    size_t cell[BLOCKS], pitch; /* bytes of a cell; from one block to the next */
    uint8_t *canonical;         /* [BLOCKS][pitch]: all cells */
    uint8_t *device;            /* the same in device order */
    uint64_t slots, outside;    /* outside: [BLOCKS][pitch + 2 GUARD] */
    struct kvk_cuda_block blocks[BLOCKS];
    uint64_t table, digests, faults;
};

static uint32_t kind_of(uint32_t block)
{
    return block % 2 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        gpu_fail("no memory");
    return memory;
}

/* No NaN, no infinity where there are numbers. */
static void random_numbers(struct rng *rng, uint8_t *to, size_t bytes, uint32_t dtype)
{
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half = (uint16_t)rng_next(rng);

        kvk_u16_store(to + i, kvk_half_is_finite(half, (kvarn_dtype)dtype) ? half : half & 0x83ff);
    }
}

static void random_cell(const struct kvk_shape *shape, struct rng *rng, uint32_t kind,
                        uint8_t *canonical, uint8_t *device, size_t bytes)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);

    if (kind == KVARN_BLOCK_EXACT) {
        random_numbers(rng, canonical, bytes, shape->dtype);
        memcpy(device, canonical, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        canonical[i] = (uint8_t)rng_next(rng);
    random_numbers(rng, canonical + at.k_step, at.v_codes - at.k_step, KVARN_F16);
    random_numbers(rng, canonical + at.v_channel, at.bytes - at.v_channel, KVARN_F16);
    kvk_device_from_record(shape, device, canonical);
}

static void open_scene(struct scene *scene, struct gpu *gpu, struct rng *rng,
                       const struct kvk_shape *shape)
{
    size_t record = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    size_t exact = (size_t)shape->dim * shape->group * 4;

    *scene = (struct scene){.gpu = gpu, .shape = *shape, .pitch = CELLS * exact};
    scene->canonical = room(BLOCKS * scene->pitch);
    scene->device = room(BLOCKS * scene->pitch);
    memset(scene->device, 0xff, BLOCKS * scene->pitch);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        scene->cell[i] = kind_of(i) == KVARN_BLOCK_TILE ? record : exact;
        for (uint32_t cell = 0; cell < CELLS; cell++) {
            size_t at = i * scene->pitch + cell * scene->cell[i];

            random_cell(shape, rng, kind_of(i), scene->canonical + at, scene->device + at,
                        scene->cell[i]);
        }
    }
    scene->slots = gpu_alloc(gpu, BLOCKS * scene->pitch);
    scene->outside = gpu_alloc(gpu, BLOCKS * (scene->pitch + 2 * GUARD));
    scene->table = gpu_alloc(gpu, sizeof scene->blocks);
    scene->digests = gpu_alloc(gpu, BLOCKS * TAKEN * sizeof(uint32_t));
    scene->faults = gpu_alloc(gpu, BLOCKS * sizeof(uint64_t));
}

static void close_scene(struct scene *scene)
{
    gpu_free(scene->gpu, scene->slots);
    gpu_free(scene->gpu, scene->outside);
    gpu_free(scene->gpu, scene->table);
    gpu_free(scene->gpu, scene->digests);
    gpu_free(scene->gpu, scene->faults);
    free(scene->canonical);
    free(scene->device);
}

static size_t outside_at(const struct scene *scene, uint32_t block, size_t shift)
{
    return block * (scene->pitch + 2 * GUARD) + GUARD + shift;
}

typedef struct kvk_cuda_launch (*describe)(const struct kvk_cuda_blocks *args, uint32_t processors);

/* Canonical bytes of block i lie GUARD + shift bytes into its place outside. */
static void run(struct scene *scene, describe op, size_t shift)
{
    struct kvk_cuda_blocks args = {.shape = scene->shape,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .layer_begin = BEGIN,
                                   .layer_count = LAYERS - BEGIN,
                                   .count = BLOCKS,
                                   .blocks = scene->table,
                                   .faults = scene->faults,
                                   .digests = scene->digests};
    struct kvk_cuda_launch launch = op(&args, scene->gpu->multiprocessors);

    for (uint32_t i = 0; i < BLOCKS; i++)
        scene->blocks[i] =
            (struct kvk_cuda_block){.slot = scene->slots + i * scene->pitch,
                                    .k = scene->outside + outside_at(scene, i, shift),
                                    .kind = kind_of(i)};
    gpu_write(scene->gpu, scene->table, scene->blocks, sizeof scene->blocks);
    gpu_poison(scene->gpu, scene->digests, BLOCKS * TAKEN * sizeof(uint32_t));
    gpu_poison(scene->gpu, scene->faults, BLOCKS * sizeof(uint64_t)); /* KVK_CUDA_NO_FAULT */
    gpu_launch(scene->gpu, launch.name, launch.grid, launch.block, launch.shared_bytes, &args);
}

static void check_digests(struct scene *scene, const char *name)
{
    uint32_t got[BLOCKS * TAKEN];

    gpu_read(scene->gpu, got, scene->digests, sizeof got);
    for (uint32_t i = 0; i < BLOCKS * TAKEN; i++) {
        size_t bytes = scene->cell[i / TAKEN];
        const uint8_t *cell =
            scene->canonical + i / TAKEN * scene->pitch + (FIRST + i % TAKEN) * bytes;

        CHECK(got[i] == kvk_digest(0, cell, bytes), "%s: digest %08x of cell %u: D=%d G=%d K%dV%d",
              name, got[i], i, scene->shape.dim, scene->shape.group, scene->shape.bits_k,
              scene->shape.bits_v);
    }
}

static void check_export(struct scene *scene, size_t shift)
{
    size_t bytes = BLOCKS * (scene->pitch + 2 * GUARD);
    uint8_t *expected = room(bytes), *got = room(bytes);

    memset(expected, 0xff, bytes);
    gpu_poison(scene->gpu, scene->outside, bytes);
    run(scene, kvk_cuda_export_launch, shift);
    gpu_read(scene->gpu, got, scene->outside, bytes);
    for (uint32_t i = 0; i < BLOCKS; i++)
        memcpy(expected + outside_at(scene, i, shift),
               scene->canonical + i * scene->pitch + FIRST * scene->cell[i],
               TAKEN * scene->cell[i]);
    CHECK(memcmp(got, expected, bytes) == 0, "export, shift %zu: D=%d G=%d K%dV%d", shift,
          scene->shape.dim, scene->shape.group, scene->shape.bits_k, scene->shape.bits_v);
    check_digests(scene, "export");
    free(expected);
    free(got);
}

/* The taken cells of canonical as they are, to where import finds them. */
static void place_outside(struct scene *scene, size_t shift)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        gpu_write(scene->gpu, scene->outside + outside_at(scene, i, shift),
                  scene->canonical + i * scene->pitch + FIRST * scene->cell[i],
                  TAKEN * scene->cell[i]);
}

static void check_import(struct scene *scene, size_t shift)
{
    size_t bytes = BLOCKS * scene->pitch;
    uint8_t *expected = room(bytes), *got = room(bytes);
    uint64_t faults[BLOCKS];

    memset(expected, 0xff, bytes);
    gpu_poison(scene->gpu, scene->slots, bytes);
    place_outside(scene, shift);
    run(scene, kvk_cuda_import_launch, shift);
    gpu_read(scene->gpu, got, scene->slots, bytes);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        size_t at = i * scene->pitch + FIRST * scene->cell[i];

        memcpy(expected + at, scene->device + at, TAKEN * scene->cell[i]);
    }
    CHECK(memcmp(got, expected, bytes) == 0, "import, shift %zu: D=%d G=%d K%dV%d", shift,
          scene->shape.dim, scene->shape.group, scene->shape.bits_k, scene->shape.bits_v);
    check_digests(scene, "import");
    gpu_read(scene->gpu, faults, scene->faults, sizeof faults);
    for (uint32_t i = 0; i < BLOCKS; i++)
        CHECK(faults[i] == KVK_CUDA_NO_FAULT, "block %u", i);
    free(expected);
    free(got);
}

/* A place of the cell where a number is, and its name. */
static uint64_t name_place(const struct scene *scene, struct rng *rng, uint32_t block,
                           uint32_t cell, size_t *at)
{
    const struct kvk_shape *shape = &scene->shape;
    struct kvk_layout l = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    const size_t vectors[] = {l.k_step, l.k_zero, l.k_token, l.v_channel, l.v_step, l.v_zero};
    uint32_t which = rng_below(rng, 6), channel = rng_below(rng, shape->dim);
    uint32_t token = rng_below(rng, shape->group), tensor = which / 3;

    if (kind_of(block) == KVARN_BLOCK_EXACT) {
        *at = 2 * (((size_t)tensor * shape->group + token) * shape->dim + channel);
        return KVK_CUDA_FAULT(cell, tensor, token, channel);
    }
    if (which == 2 || which >= 4) { /* a scale of the token */
        *at = vectors[which] + 2 * (size_t)token;
        return KVK_CUDA_FAULT(cell, tensor, token, 0);
    }
    *at = vectors[which] + 2 * (size_t)channel;
    return KVK_CUDA_FAULT(cell, tensor, 0, channel);
}

/* NaN and infinity in some cells: the smallest place is named, other blocks are as they were. */
static void check_faults(struct scene *scene, struct rng *rng)
{
    const uint16_t bad[2][4] = {{0x7c00, 0xfc00, 0x7e00, 0x7c01}, {0x7f80, 0xff80, 0x7fc0, 0xff81}};
    uint64_t expected[BLOCKS], got[BLOCKS];

    for (uint32_t i = 0; i < BLOCKS; i++) {
        bool bf16 = kind_of(i) == KVARN_BLOCK_EXACT && scene->shape.dtype == KVARN_BF16;

        expected[i] = KVK_CUDA_NO_FAULT;
        for (uint32_t n = rng_below(rng, FAULTS + 1); n > 0; n--) {
            uint32_t cell = rng_below(rng, TAKEN);
            size_t at;
            uint64_t name = name_place(scene, rng, i, cell, &at);

            kvk_u16_store(scene->canonical + i * scene->pitch + (FIRST + cell) * scene->cell[i] +
                              at,
                          bad[bf16][rng_below(rng, 4)]);
            expected[i] = name < expected[i] ? name : expected[i];
        }
    }
    place_outside(scene, 0);
    run(scene, kvk_cuda_import_launch, 0);
    gpu_read(scene->gpu, got, scene->faults, sizeof got);
    for (uint32_t i = 0; i < BLOCKS; i++)
        CHECK(got[i] == expected[i],
              "block %u: cell %u tensor %u token %u channel %u instead of %u %u %u %u", i,
              KVK_CUDA_FAULT_CELL(got[i]), KVK_CUDA_FAULT_TENSOR(got[i]),
              KVK_CUDA_FAULT_TOKEN(got[i]), KVK_CUDA_FAULT_CHANNEL(got[i]),
              KVK_CUDA_FAULT_CELL(expected[i]), KVK_CUDA_FAULT_TENSOR(expected[i]),
              KVK_CUDA_FAULT_TOKEN(expected[i]), KVK_CUDA_FAULT_CHANNEL(expected[i]));
    check_digests(scene, "import of what is not finite");
}

/* Exact rows [first, +tokens) of every cell, `gap` bytes between rows. */
static void check_read(struct scene *scene, struct rng *rng, size_t gap)
{
    size_t row = 2 * (size_t)scene->shape.dim, stride = row + gap;
    size_t matrix = (size_t)scene->shape.group * stride + 33, bytes = 2 * TAKEN * matrix;
    uint64_t rows = gpu_alloc(scene->gpu, BLOCKS * bytes);
    uint8_t *expected = room(BLOCKS * bytes), *got = room(BLOCKS * bytes);
    struct kvk_cuda_blocks args = {.shape = scene->shape,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .layer_begin = BEGIN,
                                   .layer_count = LAYERS - BEGIN,
                                   .count = BLOCKS,
                                   .blocks = scene->table};

    gpu_poison(scene->gpu, rows, BLOCKS * bytes);
    memset(expected, 0xff, BLOCKS * bytes);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t first = rng_below(rng, scene->shape.group);
        uint32_t tokens = 1 + rng_below(rng, scene->shape.group - first);
        size_t k = i * bytes + gap % 16, v = k + TAKEN * matrix;

        scene->blocks[i] = (struct kvk_cuda_block){.slot = scene->slots + i * scene->pitch,
                                                   .k = rows + k,
                                                   .v = i == 3 ? 0 : rows + v,
                                                   .layer_stride_bytes = HEADS * (matrix - 33),
                                                   .token_stride_bytes = stride,
                                                   .head_stride_bytes = matrix - 33,
                                                   .kind = kind_of(i),
                                                   .first_token = first,
                                                   .tokens = tokens};
        for (uint32_t n = 0; n < TAKEN * tokens && kind_of(i) == KVARN_BLOCK_EXACT; n++) {
            const uint8_t *from = scene->canonical + i * scene->pitch +
                                  (FIRST + n / tokens) * scene->cell[i] +
                                  (first + n % tokens) * row;
            size_t to = n / tokens * (matrix - 33) + n % tokens * stride;

            memcpy(expected + k + to, from, row);
            if (i != 3)
                memcpy(expected + v + to, from + scene->cell[i] / 2, row);
        }
    }
    gpu_write(scene->gpu, scene->table, scene->blocks, sizeof scene->blocks);
    struct kvk_cuda_launch launch = kvk_cuda_read_launch(&args, scene->gpu->multiprocessors);
    gpu_launch(scene->gpu, launch.name, launch.grid, launch.block, launch.shared_bytes, &args);
    gpu_read(scene->gpu, got, rows, BLOCKS * bytes);
    CHECK(memcmp(got, expected, BLOCKS * bytes) == 0, "read, gap %zu: D=%d G=%d", gap,
          scene->shape.dim, scene->shape.group);
    gpu_free(scene->gpu, rows);
    free(expected);
    free(got);
}

static void check_shape(struct gpu *gpu, struct rng *rng, const struct kvk_shape *shape)
{
    struct scene scene;

    open_scene(&scene, gpu, rng, shape);
    gpu_write(gpu, scene.slots, scene.device, BLOCKS * scene.pitch);
    run(&scene, kvk_cuda_digest_launch, 0);
    check_digests(&scene, "digest");
    check_read(&scene, rng, 0);
    check_read(&scene, rng, 48);
    check_read(&scene, rng, 6);
    check_read(&scene, rng, 9);
    check_export(&scene, 0);
    check_export(&scene, 1);
    check_import(&scene, 0);
    check_import(&scene, 3);
    check_faults(&scene, rng);
    close_scene(&scene);
}

int main(int argc, char **argv)
{
    bool small = check_small(argc, argv);
    const uint16_t dims[] = {64, 128, 256};
    struct rng rng = rng_make(data_seed("test_convert_gpu"));
    struct gpu gpu;

    gpu_open(&gpu);
    for (int n = 0; n < 48; n += small ? 7 : 1) {
        struct kvk_shape shape = {.dim = dims[n % 3],
                                  .group = n / 3 % 2 ? 128 : 64,
                                  .bits_k = n / 6 % 2 ? 4 : 2,
                                  .bits_v = n / 12 % 2 ? 4 : 2,
                                  .dtype = n / 24 ? KVARN_BF16 : KVARN_F16,
                                  .iterations = 8};

        check_shape(&gpu, &rng, &shape);
    }
    gpu_close(&gpu);
    return check_done("test_convert_gpu");
}
