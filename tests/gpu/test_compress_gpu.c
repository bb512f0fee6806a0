/* kernels/cuda/compress*: records reconstruct their rows as well as the reference's do, on every
 * shape and kind of data, and on keys and values of real models, where balancing may also end
 * early.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/support/capture.h"
#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "gpu/support/near.h"
#include "gpu/support/record.h"
#include "kernels/cuda/compress_plan.h"
#include "support/tile_case.h"

enum { GAINS = 4, SHAPES = 288, MAX_CASES = TILE_KINDS * GAINS, CAPTURE_TILES = 24 };

static const double gains[GAINS] = {1, 0.05, 20, 1000};
/* What fp16 tiles may add beside any quantiser's error: a unit in the last place. */
static const double unit = 0x1p-10;
/* One tile. Squares in fp16 are no statistic of values whose mean is 30 times their deviation, as V
 * is there: K does not mind. */
static const double tile_limit = 1.03, offset_limit = 2.5;
/* Of so many tiles one may be over its limit beside the reference. It is then compared with what
 * the reference makes of it with the kernel's rounding errors (near.h): a choice of the method may
 * be open to the last digits. */
static const unsigned long open_share = 300;
static const double limit = 1.005; /* all tiles of a kind */
/* What the tight range may change of norms and products beside what the reference does: elements
 * that are all alike have all of fp16's roundings in one direction. */
static const double drift_limit = 1.05, drift_unit = 0x1p-10;

/* Sums over all tiles of a kind, relative to the rows' squares. */
struct total {
    double gpu, reference;
};

static double share(double error, double reference, double norm)
{
    double over = error - norm * unit * unit;

    return over > 0 ? sqrt(over / fmax(reference, norm * 1e-14)) : 0;
}

/* Rows that are not rotated keep their mean in every channel. */
static bool plain(const struct kvk_shape *shape, char side)
{
    return side == 'v' || shape->k_rotated;
}

/* A tile as the GPU made it, as the reference does, and as the reference may. */
struct compared {
    const struct tile_case *c;
    struct record_error error, reference, norm, drift, reference_drift, near, near_drift;
    bool open; /* near has been asked */
};

static unsigned long tiles, open_tiles;

static bool is_far(const struct tile_case *c, char side)
{
    return c->plan.kind == TILE_OFFSET && plain(&c->plan.shape, side);
}

static double of(struct record_error both, char side)
{
    return side == 'v' ? both.v : both.k;
}

static bool side_is_good(const struct compared *t, char side)
{
    bool far = is_far(t->c, side), tight = t->c->plan.shape.range == KVARN_RANGE_TIGHT;
    double reference = of(t->reference, side), drift = of(t->reference_drift, side);

    if (t->open) {
        reference = far ? reference : fmax(reference, of(t->near, side));
        drift = fmax(drift, of(t->near_drift, side));
    }
    if (share(of(t->error, side), reference, of(t->norm, side)) > (far ? offset_limit : tile_limit))
        return false;
    return !tight || of(t->drift, side) <= drift_limit * drift + drift_unit;
}

static void check_side(struct compared *t, char side, struct total *total)
{
    const struct tile_case *c = t->c;
    double error = of(t->error, side), norm = of(t->norm, side);

    if (!side_is_good(t, side) && !t->open) {
        near_reference(&c->plan.shape, c->k, c->v, c->plan.k_stride, c->seed, &t->near,
                       &t->near_drift);
        t->open = true;
        open_tiles++;
    }
    CHECK(side_is_good(t, side),
          "%c: error %.3g of the reference's, %.3g of the most it may be; drift %.3g, the "
          "reference's %.3g, at most %.3g; %s",
          side, share(error, of(t->reference, side), norm), share(error, of(t->near, side), norm),
          of(t->drift, side), of(t->reference_drift, side), of(t->near_drift, side),
          tile_plan_text(&c->plan, c->seed));
    if (norm > 0 && !is_far(c, side)) {
        total->gpu += error / norm;
        total->reference += of(t->reference, side) / norm + unit * unit;
    }
}

static void check_case(const struct tile_case *c, const uint8_t *device, uint64_t fault,
                       struct total totals[2])
{
    const struct kvk_shape *shape = &c->plan.shape;
    size_t stride = c->plan.k_stride;
    uint8_t *record = malloc(c->record_bytes);
    struct compared t = {.c = c};
    struct kvk_fault where;

    if (record == NULL)
        gpu_fail("no memory");
    kvk_record_from_device(shape, record, device);
    t.error = record_error(shape, record, c->k, c->v, stride);
    t.reference = record_reference(shape, c->k, c->v, stride, &t.reference_drift);
    t.drift = record_drift(shape, record, c->k, c->v, stride);
    t.norm = record_norm(shape, c->k, c->v, stride);
    CHECK(fault == KVK_CUDA_NO_FAULT, "fault in %s", tile_plan_text(&c->plan, c->seed));
    CHECK(kvk_cell_check(shape, KVARN_BLOCK_TILE, record, &where) == KVARN_OK, "NaN from %s",
          tile_plan_text(&c->plan, c->seed));
    tiles++;
    check_side(&t, 'k', &totals[0]);
    check_side(&t, 'v', &totals[1]);
    free(record);
}

/* Launches over `count` blocks of one layer and head; records come back to host memory. */
static void run(struct gpu *gpu, const struct kvk_shape *shape, float settle,
                struct kvk_cuda_block *blocks, uint32_t count, uint8_t *records, uint64_t *faults)
{
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint64_t slots = gpu_alloc(gpu, count * bytes), table, faults_at;
    struct kvk_cuda_blocks args = {.shape = *shape,
                                   .layers = 1,
                                   .heads = 1,
                                   .layer_count = 1,
                                   .count = count,
                                   .settle = settle};
    struct kvk_cuda_launch launch = kvk_cuda_compress_launch(&args);

    for (uint32_t i = 0; i < count; i++) {
        blocks[i].slot = slots + i * bytes;
        faults[i] = KVK_CUDA_NO_FAULT;
    }
    args.blocks = table = gpu_put(gpu, blocks, count * sizeof *blocks);
    args.faults = faults_at = gpu_put(gpu, faults, count * sizeof *faults);
    gpu_run(gpu, &launch, &args);
    gpu_read(gpu, records, slots, count * bytes);
    gpu_read(gpu, faults, faults_at, count * sizeof *faults);
    gpu_free(gpu, slots);
    gpu_free(gpu, table);
    gpu_free(gpu, faults_at);
}

static struct tile_case *make_case(const struct kvk_shape *shape, struct rng *rng, uint32_t number)
{
    struct tile_plan plan = {.shape = *shape,
                             .kind = (enum tile_kind)(number % TILE_KINDS),
                             .gain = gains[number / TILE_KINDS]};

    if (rng_below(rng, 2)) {
        plan.k_stride = plan.v_stride = 2 * (size_t)shape->dim + rng_below(rng, 100);
        plan.unaligned = rng_below(rng, 64);
    }
    return tile_case_make(&plan, rng_next(rng));
}

static void check_shape(struct gpu *gpu, struct rng *rng, const struct kvk_shape *shape,
                        uint32_t count, struct total totals[TILE_KINDS][2])
{
    struct tile_case *cases[MAX_CASES];
    struct kvk_cuda_block blocks[MAX_CASES];
    uint64_t rows[2 * MAX_CASES], faults[MAX_CASES];
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint8_t *records = malloc(count * bytes);

    if (records == NULL)
        gpu_fail("no memory");
    for (uint32_t i = 0; i < count; i++) {
        struct tile_case *c = cases[i] = make_case(shape, rng, i);
        size_t matrix = c->plan.k_stride * shape->group;
        size_t words = (matrix + c->plan.unaligned + 3) / 4 * 4;

        /* as far from an aligned address as in host memory */
        rows[2 * i] = gpu_alloc(gpu, words);
        rows[2 * i + 1] = gpu_alloc(gpu, words);
        blocks[i] = (struct kvk_cuda_block){.k = rows[2 * i] + c->plan.unaligned,
                                            .v = rows[2 * i + 1] + c->plan.unaligned,
                                            .token_stride_bytes = c->plan.k_stride,
                                            .kind = KVARN_BLOCK_TILE,
                                            .tokens = shape->group};
        /* words are read whole, so also what lies around the rows is there and written to */
        gpu_poison(gpu, rows[2 * i], words);
        gpu_poison(gpu, rows[2 * i + 1], words);
        gpu_write(gpu, blocks[i].k, c->k, matrix);
        gpu_write(gpu, blocks[i].v, c->v, matrix);
    }
    run(gpu, shape, 0, blocks, count, records, faults);
    for (uint32_t i = 0; i < count; i++) {
        check_case(cases[i], records + i * bytes, faults[i], totals[i % TILE_KINDS]);
        gpu_free(gpu, rows[2 * i]);
        gpu_free(gpu, rows[2 * i + 1]);
        tile_case_free(cases[i]);
    }
    free(records);
}

static struct kvk_shape shape_of(uint32_t number)
{
    static const uint16_t dims[] = {64, 128, 256};

    return (struct kvk_shape){
        .dim = dims[number % 3],
        .group = number / 3 % 2 ? 64 : 128,
        .bits_k = number / 6 % 2 ? 2 : 4,
        .bits_v = number / 12 % 2 ? 4 : 2,
        .dtype = number / 24 % 2 ? KVARN_BF16 : KVARN_F16,
        .balance = number / 48 % 3 ? KVARN_BALANCE_SCALE_FREE : KVARN_BALANCE_PUBLIC,
        .range = number / 48 % 3 == 2 ? KVARN_RANGE_TIGHT : KVARN_RANGE_MINMAX,
        .k_rotated = (number / 144 + number / 24 + number / 6) % 2,
        .v_rotated = (uint8_t)(number / 144),
        .iterations = number % 5 ? 8 : 1 + number % 16};
}

static void check_shapes(struct gpu *gpu, bool small)
{
    static struct total totals[TILE_KINDS][2];
    struct rng rng = rng_make(data_seed("test_compress_gpu"));

    for (uint32_t i = 0; i < SHAPES; i += small ? 23 : 1) {
        struct kvk_shape shape = shape_of(i);

        check_shape(gpu, &rng, &shape, small ? TILE_KINDS : MAX_CASES, totals);
    }
    for (uint32_t kind = 0; kind < TILE_KINDS; kind++) {
        for (int side = 0; side < 2; side++) {
            const struct total *total = &totals[kind][side];
            double ratio = sqrt(total->gpu / fmax(total->reference, 1e-14));

            CHECK(ratio <= limit, "%c of kind %u: error %.4f of the reference's", side ? 'v' : 'k',
                  kind, ratio);
        }
    }
    printf("%lu tiles, %lu compared with the reference's choices\n", tiles, open_tiles);
    CHECK(open_tiles <= 1 + tiles / open_share, "%lu of %lu tiles", open_tiles, tiles);
}

/* Tiles spread over a capture, against the reference with all iterations. */
static void check_capture(struct gpu *gpu, const struct capture *c, const struct kvk_shape *shape,
                          float settle, const char *name)
{
    size_t matrix = capture_matrix_bytes(c), row = (size_t)2 * c->heads * c->dim;
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint64_t k = gpu_put(gpu, c->k, matrix * c->layers), v = gpu_put(gpu, c->v, matrix * c->layers);
    uint32_t groups = c->tokens / shape->group, all = c->layers * c->heads * groups;
    uint8_t *records = malloc(CAPTURE_TILES * bytes), *record = malloc(bytes);
    struct kvk_cuda_block blocks[CAPTURE_TILES];
    uint64_t faults[CAPTURE_TILES];
    size_t at[CAPTURE_TILES];
    struct record_error sum = {0}, reference = {0}, drift = {0}, most = {0};

    if (records == NULL || record == NULL)
        gpu_fail("no memory");
    for (uint32_t i = 0; i < CAPTURE_TILES; i++) {
        uint32_t n = (uint32_t)((uint64_t)i * all / CAPTURE_TILES);

        at[i] = n / (c->heads * groups) * matrix + n / groups % c->heads * 2 * c->dim +
                n % groups * shape->group * row;
        blocks[i] = (struct kvk_cuda_block){.k = k + at[i],
                                            .v = v + at[i],
                                            .token_stride_bytes = row,
                                            .kind = KVARN_BLOCK_TILE,
                                            .tokens = shape->group};
    }
    run(gpu, shape, settle, blocks, CAPTURE_TILES, records, faults);
    for (uint32_t i = 0; i < CAPTURE_TILES; i++) {
        struct record_error e, off,
            r = record_reference(shape, c->k + at[i], c->v + at[i], row, &off);

        kvk_record_from_device(shape, record, records + i * bytes);
        e = record_error(shape, record, c->k + at[i], c->v + at[i], row);
        sum = (struct record_error){sum.k + e.k, sum.v + e.v};
        reference = (struct record_error){reference.k + r.k, reference.v + r.v};
        most = (struct record_error){most.k + off.k, most.v + off.v};
        off = record_drift(shape, record, c->k + at[i], c->v + at[i], row);
        drift = (struct record_error){drift.k + off.k, drift.v + off.v};
    }
    if (shape->range == KVARN_RANGE_TIGHT)
        CHECK(drift.k <= drift_limit * most.k + drift_unit * CAPTURE_TILES &&
                  drift.v <= drift_limit * most.v + drift_unit * CAPTURE_TILES,
              "%s D=%d G=%d K%dV%d: drift %.3g %.3g, the reference's %.3g %.3g", name, shape->dim,
              shape->group, shape->bits_k, shape->bits_v, drift.k / CAPTURE_TILES,
              drift.v / CAPTURE_TILES, most.k / CAPTURE_TILES, most.v / CAPTURE_TILES);
    CHECK(sum.k <= limit * limit * reference.k && sum.v <= limit * limit * reference.v,
          "%s D=%d G=%d K%dV%d balance %d range %d k_rotated %d settle %.2f: error %.4f %.4f of "
          "the reference's",
          name, shape->dim, shape->group, shape->bits_k, shape->bits_v, shape->balance,
          shape->range, shape->k_rotated, (double)settle, sqrt(sum.k / reference.k),
          sqrt(sum.v / reference.v));
    gpu_free(gpu, k);
    gpu_free(gpu, v);
    free(records);
    free(record);
}

static void check_captures(struct gpu *gpu, bool small)
{
    static const char *const names[] = {"smollm2_135m", "gemma3_270m"};
    static const uint8_t bits[3][2] = {{2, 2}, {4, 2}, {4, 4}};
    static const float settles[] = {0, KVK_CUDA_SETTLE};
    struct capture capture;

    for (int n = 0; n < 2; n++) {
        if (!capture_open(&capture, names[n])) {
            printf("capture %s is not here ($KVARN_DATA): not checked\n", names[n]);
            continue;
        }
        for (int i = 0; i < 36; i += small ? 7 : 1) {
            struct kvk_shape shape = {
                .dim = (uint16_t)capture.dim,
                .group = i / 3 % 2 ? 64 : 128,
                .bits_k = bits[i % 3][0],
                .bits_v = bits[i % 3][1],
                .dtype = KVARN_F16,
                .balance = i / 6 % 3 ? KVARN_BALANCE_SCALE_FREE : KVARN_BALANCE_PUBLIC,
                .range = i / 6 % 3 == 2 ? KVARN_RANGE_TIGHT : KVARN_RANGE_MINMAX,
                .k_rotated = (uint8_t)((i / 3 + i / 6) % 2),
                .iterations = 8};

            check_capture(gpu, &capture, &shape, settles[i / 18], names[n]);
        }
        capture_close(&capture);
    }
}

int main(int argc, char **argv)
{
    bool small = check_small(argc, argv);
    struct gpu gpu;

    gpu_open(&gpu);
    check_shapes(&gpu, small);
    check_captures(&gpu, small);
    gpu_close(&gpu);
    return check_done("test_compress_gpu");
}
