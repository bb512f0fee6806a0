/* See attend_case.h. Random halves are drawn as bits: a sign, an exponent of a small range, any
 * fraction; now and then a subnormal. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/tile.h"
#include "support/attend_case.h"
#include "support/decode.h"

static void *keep(struct attend_case *c, size_t bytes)
{
    c->memory = realloc(c->memory, (c->memory_count + 1) * sizeof(*c->memory));
    assert(c->memory != NULL);
    c->memory[c->memory_count] = malloc(bytes > 0 ? bytes : 1);
    assert(c->memory[c->memory_count] != NULL);
    return c->memory[c->memory_count++];
}

/* sign < 0: negative, > 0: positive, 0: either */
static uint16_t random_half(struct rng *rng, uint8_t dtype, int sign, int low, int high)
{
    uint32_t exponent = (uint32_t)(low + (int)rng_below(rng, (uint32_t)(high - low + 1)));
    uint32_t negative = sign < 0 || (sign == 0 && rng_below(rng, 2)) ? 0x8000u : 0u;

    if (dtype == KVARN_BF16)
        return (uint16_t)(negative | ((exponent + 127) & 255) << 7 | rng_below(rng, 128));
    if (rng_below(rng, 100) == 0)
        return (uint16_t)(negative | rng_below(rng, 1024));
    return (uint16_t)(negative | ((exponent + 15) & 31) << 10 | rng_below(rng, 1024));
}

static void put(uint8_t *at, uint16_t bits)
{
    memcpy(at, &bits, sizeof(bits));
}

static void fill(struct rng *rng, uint8_t *at, uint32_t count, int sign, int low, int high)
{
    for (uint32_t i = 0; i < count; i++)
        put(at + 2 * i, random_half(rng, KVARN_F16, sign, low, high));
}

static const uint8_t *make_record(struct attend_case *c, struct rng *rng)
{
    const struct kvk_shape *s = &c->op.shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    size_t shift = c->plan.unaligned ? 1 + rng_below(rng, 63) : 0;
    uint8_t *record = (uint8_t *)keep(c, at.bytes + shift) + shift;
    int k_low = s->bits_k == 2 ? -2 : -4, v_low = s->bits_v == 2 ? -2 : -4;

    for (size_t i = 0; i < at.bytes; i++)
        record[i] = (uint8_t)rng_next(rng);
    fill(rng, record + at.k_step, s->dim, 1, k_low, k_low + 1);
    fill(rng, record + at.k_zero, s->dim, -1, -1, 0);
    fill(rng, record + at.k_token, s->group, 1, -1, 0);
    fill(rng, record + at.v_channel, s->dim, 1, -1, 1);
    fill(rng, record + at.v_step, s->group, 1, v_low, v_low + 1);
    fill(rng, record + at.v_zero, s->group, -1, -1, 0);
    if (c->plan.zero_records)
        memset(record, 0, at.bytes);
    return record;
}

static void make_exact(struct attend_case *c, struct rng *rng, struct kvk_span *span)
{
    const struct kvk_shape *s = &c->op.shape;
    size_t shift = c->plan.unaligned ? 1 : 0;
    size_t bytes = (size_t)s->dim * 2;

    span->token_stride_bytes = bytes + (c->plan.odd_strides ? 7 : 0);
    uint8_t *k = (uint8_t *)keep(c, span->tokens * span->token_stride_bytes + shift) + shift;
    uint8_t *v = (uint8_t *)keep(c, span->tokens * span->token_stride_bytes + shift) + shift;
    for (uint32_t t = 0; t < span->tokens; t++) {
        for (uint32_t d = 0; d < s->dim; d++) {
            size_t at = t * span->token_stride_bytes + 2 * (size_t)d;
            put(k + at, random_half(rng, s->dtype, 0, -3, 0));
            put(v + at, random_half(rng, s->dtype, 0, -3, 0));
        }
    }
    span->data = k;
    span->v = v;
}

static void make_q(struct attend_case *c, struct rng *rng)
{
    struct kvk_attend *op = &c->op;
    size_t element = op->q_dtype == KVARN_F32 ? 4 : 2, dim = op->shape.dim;
    double gain = c->plan.q_gain > 0 ? c->plan.q_gain : 1;
    int power = (int)lround(log2(gain));

    op->q_head_stride_bytes = dim * element + (c->plan.odd_strides ? 3 : 0);
    op->q_token_stride_bytes =
        op->q_heads * op->q_head_stride_bytes + (c->plan.odd_strides ? 13 : 0);
    uint8_t *q = keep(c, op->q_tokens * op->q_token_stride_bytes);
    memset(q, 0, op->q_tokens * op->q_token_stride_bytes);
    op->q = q;
    for (size_t row = 0; row < (size_t)op->q_tokens * op->q_heads && c->plan.q_gain >= 0; row++) {
        uint8_t *at = q + row / op->q_heads * op->q_token_stride_bytes +
                      row % op->q_heads * op->q_head_stride_bytes;
        for (size_t d = 0; d < dim; d++) {
            float x = (float)(gain * rng_normal(rng));
            if (element == 4)
                memcpy(at + 4 * d, &x, sizeof(x));
            else
                put(at + 2 * d, random_half(rng, op->q_dtype, 0, power - 2, power + 1));
        }
    }
}

static struct kvk_span *add_span(struct attend_case *c, uint32_t kind, uint32_t tokens,
                                 uint32_t *position)
{
    struct kvk_span *span = &c->spans[c->op.span_count++];

    *span = (struct kvk_span){.kind = kind, .position = *position, .tokens = tokens};
    *position += tokens;
    return span;
}

static void set_defaults(struct attend_plan *p)
{
    p->dim = p->dim ? p->dim : 128;
    p->group = p->group ? p->group : 128;
    p->bits_k = p->bits_k ? p->bits_k : 2;
    p->bits_v = p->bits_v ? p->bits_v : 2;
    p->q_dtype = p->q_dtype ? p->q_dtype : KVARN_F32;
    p->dtype = p->dtype ? p->dtype : KVARN_F16;
    p->q_tokens = p->q_tokens ? p->q_tokens : 1;
    p->q_heads = p->q_heads ? p->q_heads : 1;
    p->scale = p->scale > 0 ? p->scale : (float)(1.0 / sqrt(p->dim));
}

static void make_spans(struct attend_case *c, struct rng *rng)
{
    const struct attend_plan *p = &c->plan;
    uint32_t position = 0;

    c->spans = calloc(p->tiles + 3, sizeof(*c->spans));
    assert(c->spans != NULL);
    if (p->sink > 0)
        make_exact(c, rng, add_span(c, KVARN_BLOCK_EXACT, p->sink, &position));
    for (uint32_t i = 0; i < p->tiles + (p->partial > 0); i++) {
        uint32_t tokens = i < p->tiles ? p->group : p->partial;
        add_span(c, KVARN_BLOCK_TILE, tokens, &position)->data = make_record(c, rng);
    }
    if (p->tail > 0)
        make_exact(c, rng, add_span(c, KVARN_BLOCK_EXACT, p->tail, &position));
    c->op.spans = c->spans;
    c->op.limit = p->limit > 0 ? p->limit : position + 1 - (position ? p->q_tokens : 1);
}

struct attend_case *attend_case_make(const struct attend_plan *plan, uint64_t seed)
{
    struct attend_case *c = calloc(1, sizeof(*c));
    struct rng rng = rng_make(seed);

    assert(c != NULL);
    c->plan = *plan;
    set_defaults(&c->plan);
    plan = &c->plan;
    c->op.shape = (struct kvk_shape){.dim = (uint16_t)plan->dim,
                                     .group = (uint16_t)plan->group,
                                     .bits_k = (uint8_t)plan->bits_k,
                                     .bits_v = (uint8_t)plan->bits_v,
                                     .dtype = plan->dtype,
                                     .k_rotated = plan->k_rotated ? 1 : 0,
                                     .v_rotated = plan->v_rotated ? 1 : 0,
                                     .iterations = 8};
    c->op.q_dtype = plan->q_dtype;
    c->op.q_tokens = plan->q_tokens;
    c->op.q_heads = plan->q_heads;
    c->op.scale = plan->scale;
    c->op.soft_cap = plan->soft_cap;
    c->op.window = plan->window;
    make_spans(c, &rng);
    make_q(c, &rng);
    attend_case_expect(c);
    return c;
}

void attend_case_free(struct attend_case *c)
{
    for (size_t i = 0; i < c->memory_count; i++)
        free(c->memory[i]);
    free(c->memory);
    free(c->spans);
    free(c->out);
    free(c->lse);
    free(c);
}
