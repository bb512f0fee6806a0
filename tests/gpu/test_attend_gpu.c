/* Attend on the GPU against float64 over the decoded tokens: every shape and preset, ragged
 * batches, sink and tail, several query tokens, masks, soft cap, types, non-finite queries, the
 * bits of `deterministic`. Records go to the device as it holds them. */
#include <math.h>

#include "gpu/support/attend.h"
#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "support/attend_case.h"

enum { HEADS = 2, MOST = 6, MAX_SPANS = 300 };

/* Of an output row (2-norm) and of its LSE, while scale * sum |q K| is below 8; grows above. */
static const double allowed = 5e-4;
static uint64_t seed;
static struct attend_error worst;

/* A ragged batch: one case for each sequence and kv head, and the same on the device. */
struct batch {
    uint32_t count;
    struct attend_case *cases[MOST][HEADS];
    struct kvk_cuda_span spans[MOST][MAX_SPANS];
    const struct kvk_cuda_span *span_lists[MOST];
    struct kvk_cuda_sequence sequences[MOST];
    uint64_t poison; /* bytes of NaN for what the launch writes nothing to */
};

static size_t cell_bytes(const struct kvk_shape *s, uint32_t kind)
{
    return kind == KVARN_BLOCK_TILE ? kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v).bytes
                                    : (size_t)4 * s->group * s->dim;
}

/* One span of all heads, [head][cell], to the device. Rows past the last are NaN there. */
static uint64_t put_cells(struct gpu *gpu, const struct batch *b, uint32_t sequence, size_t span)
{
    const struct kvk_shape *shape = &b->cases[sequence][0]->op.shape;
    uint32_t kind = b->cases[sequence][0]->spans[span].kind;
    size_t bytes = cell_bytes(shape, kind), row = (size_t)2 * shape->dim;
    uint8_t *cells = malloc(HEADS * bytes);

    if (cells == NULL)
        gpu_fail("no memory");
    memset(cells, 0xff, HEADS * bytes);
    for (int head = 0; head < HEADS; head++) {
        const struct kvk_span *from = &b->cases[sequence][head]->spans[span];
        uint8_t *cell = cells + (size_t)head * bytes;
        if (kind == KVARN_BLOCK_TILE)
            kvk_device_from_record(shape, cell, from->data);
        for (uint32_t t = 0; kind == KVARN_BLOCK_EXACT && t < from->tokens; t++) {
            size_t at = t * from->token_stride_bytes;
            memcpy(cell + t * row, (const uint8_t *)from->data + at, row);
            memcpy(cell + (shape->group + t) * row, (const uint8_t *)from->v + at, row);
        }
    }
    uint64_t at = gpu_put(gpu, cells, HEADS * bytes);
    free(cells);
    return at;
}

/* Queries of all heads, with room between heads and tokens. */
static void put_queries(struct gpu *gpu, struct batch *b, uint32_t sequence)
{
    const struct kvk_attend *op = &b->cases[sequence][0]->op;
    struct kvk_cuda_sequence *s = &b->sequences[sequence];
    size_t element = op->q_dtype == KVARN_F32 ? 4 : 2, row = op->shape.dim * element;
    size_t head_stride = row + 16, token_stride = op->q_heads * HEADS * head_stride + 48;
    uint8_t *q = malloc(op->q_tokens * token_stride);

    if (q == NULL)
        gpu_fail("no memory");
    memset(q, 0xff, op->q_tokens * token_stride);
    for (uint32_t head = 0; head < HEADS; head++) {
        const struct kvk_attend *from = &b->cases[sequence][head]->op;
        for (uint32_t r = 0; r < op->q_tokens * op->q_heads; r++) {
            uint32_t token = r / op->q_heads, h = r % op->q_heads;
            memcpy(q + token * token_stride + (head * op->q_heads + h) * head_stride,
                   (const uint8_t *)from->q + token * from->q_token_stride_bytes +
                       h * from->q_head_stride_bytes,
                   row);
        }
    }
    s->q = gpu_put(gpu, q, op->q_tokens * token_stride);
    s->q_head_stride_bytes = head_stride;
    s->q_token_stride_bytes = token_stride;
    free(q);
}

static void put_sequence(struct gpu *gpu, struct batch *b, uint32_t i)
{
    const struct kvk_attend *op = &b->cases[i][0]->op;
    size_t rows = (size_t)op->q_tokens * op->q_heads * HEADS;

    b->sequences[i] = (struct kvk_cuda_sequence){.out = gpu_alloc(gpu, rows * op->shape.dim * 4),
                                                 .lse = gpu_alloc(gpu, rows * 4),
                                                 .span_count = (uint32_t)op->span_count,
                                                 .q_tokens = op->q_tokens,
                                                 .limit = op->limit,
                                                 .window = op->window,
                                                 .scale = op->scale,
                                                 .soft_cap = op->soft_cap,
                                                 .fault = i};
    for (size_t k = 0; k < op->span_count; k++) {
        b->spans[i][k] = (struct kvk_cuda_span){.cell = put_cells(gpu, b, i, k),
                                                .position = op->spans[k].position,
                                                .tokens = (uint16_t)op->spans[k].tokens,
                                                .kind = (uint16_t)op->spans[k].kind};
    }
    b->span_lists[i] = b->spans[i];
    put_queries(gpu, b, i);
}

static struct batch *make_batch(struct gpu *gpu, const struct attend_plan *plans, uint32_t count)
{
    struct batch *b = calloc(1, sizeof(*b));

    if (b == NULL)
        gpu_fail("no memory");
    b->count = count;
    for (uint32_t i = 0; i < count; i++) {
        for (int head = 0; head < HEADS; head++)
            b->cases[i][head] = attend_case_make(&plans[i], seed++);
        put_sequence(gpu, b, i);
    }
    return b;
}

static void free_batch(struct gpu *gpu, struct batch *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        for (uint32_t k = 0; k < b->sequences[i].span_count; k++)
            gpu_free(gpu, b->spans[i][k].cell);
        gpu_free(gpu, b->sequences[i].q);
        gpu_free(gpu, b->sequences[i].out);
        gpu_free(gpu, b->sequences[i].lse);
        gpu_free(gpu, b->sequences[i].spans);
        for (int head = 0; head < HEADS; head++)
            attend_case_free(b->cases[i][head]);
    }
    free(b);
}

/* Sequences [first, first + count) of the batch in one launch; gives the faults. */
static void launch(struct gpu *gpu, struct batch *b, uint32_t first, uint32_t count,
                   kvarn_dtype out_dtype, bool deterministic, uint32_t processors, uint64_t *faults)
{
    const struct kvk_attend *op = &b->cases[0][0]->op;
    struct kvk_attend_batch plan = {.shape = op->shape,
                                    .kv_heads = HEADS,
                                    .q_heads = HEADS * op->q_heads,
                                    .count = count,
                                    .spans = b->span_lists + first,
                                    .processors = processors,
                                    .deterministic = deterministic};
    struct gpu_attend attend;

    for (uint32_t i = first; i < first + count; i++) {
        gpu_free(gpu, b->sequences[i].spans);
        b->sequences[i].fault = i - first;
    }
    gpu_attend_make(gpu, &attend, &plan, b->sequences + first, op->q_dtype, out_dtype);
    gpu_attend_launch(gpu, &attend);
    gpu_wait(gpu);
    gpu_read(gpu, faults, attend.args.faults, count * sizeof(*faults));
    CHECK(gpu_attend_rests(gpu, &attend), "counters are 0 after a launch");
    gpu_attend_free(gpu, &attend);
}

static float widened(const void *from, size_t index, kvarn_dtype dtype)
{
    float x;

    if (dtype != KVARN_F32)
        return kvk_half_to_f32(kvk_u16_load((const uint8_t *)from + 2 * index), dtype);
    memcpy(&x, (const uint8_t *)from + 4 * index, sizeof(x));
    return x;
}

/* Output and LSE of one sequence and kv head, as attend_case wants them. */
static void read_rows(struct gpu *gpu, const struct batch *b, uint32_t i, uint32_t head,
                      kvarn_dtype dtype, float *out, float *lse)
{
    const struct kvk_attend *op = &b->cases[i][0]->op;
    size_t rows = (size_t)op->q_tokens * op->q_heads * HEADS, dim = op->shape.dim;
    uint8_t *all = malloc(rows * dim * 4);
    float *all_lse = malloc(rows * sizeof(float));

    if (all == NULL || all_lse == NULL)
        gpu_fail("no memory");
    gpu_read(gpu, all, b->sequences[i].out, rows * dim * (dtype == KVARN_F32 ? 4 : 2));
    gpu_read(gpu, all_lse, b->sequences[i].lse, rows * sizeof(float));
    for (uint32_t r = 0; r < op->q_tokens * op->q_heads; r++) {
        size_t from = (r / op->q_heads * HEADS + head) * op->q_heads + r % op->q_heads;
        lse[r] = all_lse[from];
        for (size_t d = 0; d < dim; d++)
            out[r * dim + d] = widened(all, from * dim + d, dtype);
    }
    free(all);
    free(all_lse);
}

static void check_rows(struct gpu *gpu, const struct batch *b, uint32_t i, kvarn_dtype dtype,
                       const char *what)
{
    const struct kvk_attend *op = &b->cases[i][0]->op;
    size_t rows = (size_t)op->q_tokens * op->q_heads;
    float *out = malloc(rows * op->shape.dim * sizeof(float)), *lse = malloc(rows * sizeof(float));
    double rounding = dtype == KVARN_F32 ? 0 : dtype == KVARN_F16 ? 4e-4 : 3e-3;

    if (out == NULL || lse == NULL)
        gpu_fail("no memory");
    for (uint32_t head = 0; head < HEADS; head++) {
        const struct attend_case *c = b->cases[i][head];
        struct attend_error error = {0};
        double grown = fmax(1.0, c->spread / 8);
        read_rows(gpu, b, i, head, dtype, out, lse);
        const char *broken = attend_case_compare(c, out, lse, &error);
        CHECK(broken == NULL && error.out <= allowed * grown + rounding &&
                  error.lse <= allowed * grown,
              "%s, D %u G %u K%uV%u, sequence %u, head %u: %s; output %.3g, lse %.3g, grown %.3g",
              what, op->shape.dim, op->shape.group, op->shape.bits_k, op->shape.bits_v, i, head,
              broken ? broken : "", error.out, error.lse, grown);
        worst.out = fmax(worst.out, dtype == KVARN_F32 ? error.out / grown : 0);
        worst.lse = fmax(worst.lse, error.lse / grown);
    }
    free(out);
    free(lse);
}

static void check_batch(struct gpu *gpu, const struct attend_plan *plans, uint32_t count,
                        kvarn_dtype out_dtype, const char *what)
{
    struct batch *b = make_batch(gpu, plans, count);
    uint64_t faults[MOST];

    /* all of the device, where a warp has a tile at most; few blocks with long lists; one */
    static const uint32_t processors[] = {0, 0, 5, 5, 1};
    for (uint32_t round = 0; round < 5; round++) {
        launch(gpu, b, 0, count, out_dtype, round % 2 == 1, processors[round], faults);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(faults[i] == KVK_CUDA_NO_FAULT, "%s: fault %llx", what,
                  (unsigned long long)faults[i]);
            check_rows(gpu, b, i, out_dtype, what);
        }
    }
    free_batch(gpu, b);
}

static const uint32_t presets[3][2] = {{2, 2}, {4, 2}, {4, 4}};

/* Every kernel, on a ragged batch with sink, tail and a partial tile. */
static void every_shape(struct gpu *gpu)
{
    for (uint32_t dim = 64; dim <= 256; dim *= 2) {
        for (uint32_t group = 64; group <= 128; group *= 2) {
            for (int preset = 0; preset < 3; preset++) {
                for (uint32_t heads = 4; heads <= 8; heads += 4) {
                    struct attend_plan p = {.dim = dim,
                                            .group = group,
                                            .bits_k = presets[preset][0],
                                            .bits_v = presets[preset][1],
                                            .q_heads = heads,
                                            .sink = group,
                                            .k_rotated = ((uint32_t)preset + heads / 4) % 2 != 0};
                    struct attend_plan plans[3] = {p, p, p};
                    plans[0].tiles = 11;
                    plans[0].tail = 29;
                    plans[1].tiles = 2;
                    plans[1].partial = group - 5;
                    plans[2].tail = 1;
                    plans[2].dtype = plans[1].dtype = plans[0].dtype =
                        heads == 4 ? KVARN_F16 : KVARN_BF16;
                    check_batch(gpu, plans, 3, KVARN_F32, heads == 4 ? "shape" : "shape, 8 heads");
                }
            }
        }
    }
}

static void rows_and_types(struct gpu *gpu)
{
    static const uint32_t heads[] = {1, 2, 3, 5, 7, 16, 64};
    static const uint8_t types[] = {KVARN_F16, KVARN_BF16, KVARN_F32};

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct attend_plan p = {
            .bits_k = 4, .q_heads = heads[i], .sink = 128, .tiles = 19, .tail = 100};
        p.q_dtype = types[i % 3];
        check_batch(gpu, &p, 1, types[(i + 1) % 3], "query heads");
    }
    for (uint32_t tokens = 2; tokens <= 9; tokens += 3) {
        struct attend_plan p = {.q_tokens = tokens, .q_heads = 4, .tiles = 5, .tail = tokens};
        check_batch(gpu, &p, 1, KVARN_F32, "query tokens");
        p.limit = 300; /* in the middle of a tile */
        check_batch(gpu, &p, 1, KVARN_F32, "query tokens, limit");
    }
}

static void masks(struct gpu *gpu)
{
    struct attend_plan p = {
        .q_heads = 4, .q_tokens = 2, .sink = 128, .tiles = 20, .partial = 77, .tail = 50};
    struct attend_plan plans[4] = {p, p, p, p};

    plans[0].window = 1000;
    plans[1].soft_cap = 3;
    plans[2].window = 60;
    plans[2].limit = 1000;
    plans[3].limit = 1; /* one token, then two */
    check_batch(gpu, plans, 4, KVARN_F32, "window, soft cap");
    struct attend_plan none = {.q_heads = 4};
    struct attend_plan empty[2] = {none, none};
    check_batch(gpu, empty, 2, KVARN_F32, "nothing to see");
    struct attend_plan zero = {.q_heads = 4, .tiles = 3, .q_gain = -1};
    struct attend_plan rotated = {.q_heads = 4, .tiles = 9, .sink = 64, .v_rotated = 1};
    struct attend_plan loud = {.q_heads = 4, .tiles = 9, .q_gain = 16};
    check_batch(gpu, &zero, 1, KVARN_F32, "zero queries");
    check_batch(gpu, &rotated, 1, KVARN_F32, "V rotated");
    rotated.k_rotated = 1;
    check_batch(gpu, &rotated, 1, KVARN_F32, "K and V rotated");
    check_batch(gpu, &loud, 1, KVARN_F32, "loud queries");
}

/* The same bits alone and in a batch. */
static void deterministic(struct gpu *gpu)
{
    struct attend_plan p = {.q_heads = 4, .sink = 128, .tail = 33};
    struct attend_plan plans[3] = {p, p, p};
    struct batch *b;
    uint64_t faults[MOST];
    size_t bytes = (size_t)HEADS * 4 * 128 * 4;
    uint8_t *alone = malloc(bytes), *together = malloc(bytes);

    if (alone == NULL || together == NULL)
        gpu_fail("no memory");
    plans[0].tiles = 33;
    plans[1].tiles = 50;
    plans[2].tiles = 9;
    b = make_batch(gpu, plans, 3);
    for (uint32_t i = 0; i < 3; i++) {
        launch(gpu, b, i, 1, KVARN_F32, true, 0, faults);
        gpu_read(gpu, alone, b->sequences[i].out, bytes);
        gpu_poison(gpu, b->sequences[i].out, bytes);
        launch(gpu, b, 0, 3, KVARN_F32, true, 3, faults);
        gpu_read(gpu, together, b->sequences[i].out, bytes);
        CHECK(memcmp(alone, together, bytes) == 0, "sequence %u", i);
    }
    free_batch(gpu, b);
    free(alone);
    free(together);
}

/* A NaN in one sequence's query: told, and nobody else's matter. */
static void non_finite(struct gpu *gpu)
{
    struct attend_plan p = {.q_heads = 4, .q_tokens = 2, .tiles = 11, .tail = 20};
    struct attend_plan plans[3] = {p, p, p};
    struct batch *b = make_batch(gpu, plans, 3);
    uint64_t faults[MOST];
    float nan = NAN;

    gpu_write(gpu,
              b->sequences[1].q + b->sequences[1].q_token_stride_bytes +
                  5 * b->sequences[1].q_head_stride_bytes + 77 * sizeof(float),
              &nan, sizeof(nan));
    launch(gpu, b, 0, 3, KVARN_F32, false, 0, faults);
    CHECK(faults[0] == KVK_CUDA_NO_FAULT && faults[2] == KVK_CUDA_NO_FAULT, "others");
    CHECK(faults[1] == KVK_CUDA_FAULT(5, 2, 1, 77), "fault %llx", (unsigned long long)faults[1]);
    check_rows(gpu, b, 0, KVARN_F32, "beside a NaN");
    check_rows(gpu, b, 2, KVARN_F32, "beside a NaN");
    free_batch(gpu, b);
}

int main(int argc, char **argv)
{
    struct gpu gpu;
    bool small = check_small(argc, argv);

    gpu_open(&gpu);
    seed = data_seed("test_attend_gpu");
    if (small) {
        struct attend_plan p = {.q_heads = 4, .sink = 128, .tiles = 5, .tail = 33};
        check_batch(&gpu, &p, 1, KVARN_F32, "small");
        p.q_heads = 8;
        p.dim = 64;
        p.bits_k = 4;
        check_batch(&gpu, &p, 1, KVARN_F16, "small");
    } else {
        every_shape(&gpu);
        rows_and_types(&gpu);
        masks(&gpu);
        deterministic(&gpu);
    }
    non_finite(&gpu);
    printf("largest error: output %.3g, LSE %.3g\n", worst.out, worst.lse);
    gpu_close(&gpu);
    return check_done("test_attend_gpu");
}
