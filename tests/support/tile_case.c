/* See tile_case.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/half.h"
#include "support/tile_case.h"

enum { GUARD = 64 };

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (memory == NULL)
        abort();
    memset(memory, 0xa5, bytes);
    return memory;
}

uint64_t tile_seed(const char *test)
{
    struct timespec now;
    uint64_t seed;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = rng_seed((uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec);
    printf("%s: KVARN_SEED=%llu\n", test, (unsigned long long)seed);
    return seed;
}

struct tile_plan tile_plan_random(struct rng *rng)
{
    static const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128},
                          iterations[] = {1, 2, 8, 16};
    static const double gains[] = {0.01, 0.05, 0.3, 1, 1, 1, 7, 100};
    struct tile_plan plan = {0};
    size_t row;

    plan.shape.dim = dims[rng_below(rng, 3)];
    plan.shape.group = groups[rng_below(rng, 2)];
    plan.shape.bits_k = rng_below(rng, 2) ? 4 : 2;
    plan.shape.bits_v = rng_below(rng, 2) ? 4 : 2;
    plan.shape.dtype = rng_below(rng, 2) ? KVARN_BF16 : KVARN_F16;
    plan.shape.balance = (uint8_t)rng_below(rng, 2);
    plan.shape.range = (uint8_t)rng_below(rng, 2);
    plan.shape.k_rotated = rng_below(rng, 4) == 0;
    plan.shape.v_rotated = (uint8_t)rng_below(rng, 2);
    plan.shape.iterations = iterations[rng_below(rng, 4)];
    plan.kind = rng_below(rng, 3) ? TILE_OUTLIERS : (enum tile_kind)rng_below(rng, TILE_KINDS);
    plan.gain = gains[rng_below(rng, 8)];
    row = 2 * (size_t)plan.shape.dim;
    if (rng_below(rng, 2)) {
        plan.k_stride = row + rng_below(rng, 300);
        plan.v_stride = row + rng_below(rng, 300);
    }
    plan.unaligned = rng_below(rng, 2) ? rng_below(rng, 64) : 0;
    return plan;
}

/* What makes a channel or a token loud, drawn once per matrix. */
struct structure {
    double offset[KVARN_MAX_HEAD_DIM], loud[KVARN_MAX_HEAD_DIM], token[KVARN_MAX_GROUP];
    uint32_t one;
};

static struct structure draw_structure(const struct tile_plan *plan, struct rng *rng)
{
    struct structure s = {0};

    for (uint32_t d = 0; d < plan->shape.dim; d++) {
        s.loud[d] = rng_below(rng, 24) == 0 ? 4 + 8 * rng_unit(rng) : 1;
        s.offset[d] = s.loud[d] > 1 ? 6 * rng_normal(rng) : 0.3 * rng_normal(rng);
        if (plan->kind == TILE_OFFSET)
            s.offset[d] = 30 * (rng_below(rng, 2) ? 1 : -1);
        if (plan->kind == TILE_ZERO_CHANNELS)
            s.loud[d] = rng_below(rng, 8) != 0;
    }
    for (uint32_t g = 0; g < plan->shape.group; g++) {
        s.token[g] = exp(0.35 * rng_normal(rng)) * (rng_below(rng, 40) == 0 ? 10 : 1);
        if (plan->kind == TILE_ZERO_TOKENS)
            s.token[g] = rng_below(rng, 8) != 0;
    }
    s.one = rng_below(rng, (uint32_t)plan->shape.dim * plan->shape.group);
    return s;
}

static double draw(const struct tile_plan *plan, const struct structure *s, struct rng *rng,
                   uint32_t g, uint32_t d)
{
    int bf16 = plan->shape.dtype == KVARN_BF16;
    double x = rng_normal(rng);

    switch (plan->kind) {
    case TILE_OUTLIERS:
        return plan->gain * s->token[g] * (s->loud[d] * x + s->offset[d]);
    case TILE_OFFSET:
        return plan->gain * (x + s->offset[d]);
    case TILE_ZERO_TOKENS:
        return plan->gain * s->token[g] * x;
    case TILE_ZERO_CHANNELS:
        return plan->gain * s->loud[d] * x;
    case TILE_CONSTANT:
        return plan->gain * 3.3;
    case TILE_ZERO:
        return 0;
    case TILE_SUBNORMAL:
        return x * (bf16 ? 0x1p-129 : 0x1p-17);
    case TILE_LARGE:
        return x * (bf16 ? 1e38 : 30000);
    case TILE_ONE:
        return g * plan->shape.dim + d == s->one ? plan->gain * 9 : 0;
    case TILE_NORMAL:
    case TILE_KINDS:
        break;
    }
    return plan->gain * x;
}

static void fill(const struct tile_plan *plan, struct rng *rng, uint8_t *rows, size_t stride,
                 double *values)
{
    struct structure s = draw_structure(plan, rng);
    kvarn_dtype dtype = (kvarn_dtype)plan->shape.dtype;

    for (uint32_t g = 0; g < plan->shape.group; g++) {
        for (uint32_t d = 0; d < plan->shape.dim; d++) {
            double x = draw(plan, &s, rng, g, d);
            uint16_t half = kvk_half_from_f32((float)x, dtype);

            if (!kvk_half_is_finite(half, dtype)) /* beyond the type: its largest number */
                half = (uint16_t)((half & 0x8000u) | (dtype == KVARN_BF16 ? 0x7f7fu : 0x7bffu));
            kvk_u16_store(rows + g * stride + 2 * (size_t)d, half);
            values[(size_t)g * plan->shape.dim + d] = (double)kvk_half_to_f32(half, dtype);
        }
    }
}

size_t tile_case_row(const struct tile_case *c)
{
    return 2 * (size_t)c->plan.shape.dim;
}

struct tile_case *tile_case_make(const struct tile_plan *plan, uint64_t seed)
{
    struct tile_case *c = room(sizeof(*c));
    struct rng rng = rng_make(seed);
    const struct kvk_shape *s = &plan->shape;
    size_t values = (size_t)s->dim * s->group * sizeof(double);

    *c = (struct tile_case){.plan = *plan, .seed = seed};
    if (c->plan.k_stride == 0)
        c->plan.k_stride = tile_case_row(c);
    if (c->plan.v_stride == 0)
        c->plan.v_stride = tile_case_row(c);
    c->memory = room((c->plan.k_stride + c->plan.v_stride) * s->group + 2 * plan->unaligned);
    c->k = c->memory + plan->unaligned;
    c->v = c->k + c->plan.k_stride * s->group + plan->unaligned;
    c->k64 = room(values);
    c->v64 = room(values);
    fill(plan, &rng, c->k, c->plan.k_stride, c->k64);
    fill(plan, &rng, c->v, c->plan.v_stride, c->v64);
    c->record_bytes = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v).bytes;
    return c;
}

void tile_case_free(struct tile_case *c)
{
    free(c->memory);
    free(c->k64);
    free(c->v64);
    free(c);
}

static int guard_is_whole(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0xa5)
            return 0;
    }
    return 1;
}

/* Output rows with a stride -> dense, and the gaps looked at. */
static const char *gather(uint8_t *dense, const uint8_t *rows, size_t stride, size_t row,
                          uint32_t count)
{
    const char *damage = NULL;

    for (uint32_t g = 0; g < count; g++) {
        memcpy(dense + g * row, rows + g * stride, row);
        if (g + 1 < count && !guard_is_whole(rows + g * stride + row, stride - row))
            damage = "decompress wrote between two rows";
    }
    return damage;
}

/* Scratch ends exactly where kvk_scratch_bytes() says: a sanitizer sees a step beyond. */
static void *scratch_for(const struct kvk_shape *shape)
{
    void *memory;

    if (posix_memalign(&memory, 64, kvk_scratch_bytes(shape)) != 0)
        abort();
    memset(memory, 0xff, kvk_scratch_bytes(shape)); /* NaN: nothing may depend on what was there */
    return memory;
}

static void decompress(const struct tile_case *c, const struct kvk_table *table,
                       struct tile_run *run, void *scratch)
{
    const struct kvk_shape *s = &c->plan.shape;
    size_t k_bytes = c->plan.k_stride * s->group, v_bytes = c->plan.v_stride * s->group;
    size_t row = tile_case_row(c), shift = GUARD + c->plan.unaligned;
    uint8_t *memory = room(k_bytes + v_bytes + 2 * shift + GUARD);
    uint8_t *k = memory + shift, *v = k + k_bytes + shift;
    struct kvk_decompress op = {.shape = *s,
                                .record = run->record,
                                .k = k,
                                .v = v,
                                .k_token_stride_bytes = c->plan.k_stride,
                                .v_token_stride_bytes = c->plan.v_stride,
                                .scratch = scratch};
    const char *damage;

    run->decompress = table->decompress(&op);
    damage = gather(run->k, k, c->plan.k_stride, row, s->group);
    if (damage != NULL)
        run->damage = damage;
    damage = gather(run->v, v, c->plan.v_stride, row, s->group);
    if (damage != NULL)
        run->damage = damage;
    if (!guard_is_whole(memory, shift) ||
        !guard_is_whole(k + k_bytes - (c->plan.k_stride - row), shift + c->plan.k_stride - row) ||
        !guard_is_whole(v + v_bytes - (c->plan.v_stride - row), GUARD + c->plan.v_stride - row))
        run->damage = "decompress wrote outside its rows";
    free(memory);
}

void tile_run_make(const struct tile_case *c, const struct kvk_table *table, struct tile_run *run)
{
    const struct kvk_shape *s = &c->plan.shape;
    size_t rows = tile_case_row(c) * s->group, shift = GUARD + c->plan.unaligned;
    void *scratch = scratch_for(s);
    struct kvk_compress op = {.shape = *s,
                              .k = c->k,
                              .v = c->v,
                              .k_token_stride_bytes = c->plan.k_stride,
                              .v_token_stride_bytes = c->plan.v_stride,
                              .scratch = scratch};

    *run = (struct tile_run){.decompress = KVARN_OK};
    run->memory = room(shift + c->record_bytes + GUARD + 2 * rows);
    run->record = op.record = run->memory + shift;
    run->k = run->record + c->record_bytes + GUARD;
    run->v = run->k + rows;
    run->compress = table->compress(&op);
    run->fault = op.fault;
    if (!guard_is_whole(run->memory, shift) ||
        !guard_is_whole(run->record + c->record_bytes, GUARD))
        run->damage = "compress wrote outside the record";
    if (run->compress == KVARN_OK)
        decompress(c, table, run, scratch);
    free(scratch);
}

void tile_run_free(struct tile_run *run)
{
    free(run->memory);
    run->memory = NULL;
}

const char *tile_plan_text(const struct tile_plan *plan, uint64_t seed)
{
    static const char *const kinds[] = {
        "normal",    "outliers", "zero tokens", "zero channels", "constant", "zero",
        "subnormal", "large",    "one",         "offset",        "?"};
    static char text[256];
    const struct kvk_shape *s = &plan->shape;

    snprintf(text, sizeof(text),
             "seed %llu D=%d G=%d K%dV%d %s %s%s iterations=%d rotated=%d,%d '%s' gain %g strides "
             "%zu %zu shift %u",
             (unsigned long long)seed, s->dim, s->group, s->bits_k, s->bits_v,
             s->dtype == KVARN_BF16 ? "bf16" : "f16",
             s->balance == KVARN_BALANCE_PUBLIC ? "public" : "scale-free",
             s->range == KVARN_RANGE_TIGHT ? " tight" : "", s->iterations, s->k_rotated,
             s->v_rotated, kinds[plan->kind], plan->gain, plan->k_stride, plan->v_stride,
             plan->unaligned);
    return text;
}
