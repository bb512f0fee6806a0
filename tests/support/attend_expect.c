/* The float64 answer of an attend case and the comparison with a variant. See attend_case.h.
 *
 * Two passes over materialised logits, no online softmax: another way than the kernels go. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/attend_case.h"
#include "support/decode.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

struct tokens {
    double *k, *v; /* [count][dim], in the basis the caller sees */
    uint32_t *position;
    size_t count;
};

static void add_exact(struct tokens *all, const struct kvk_shape *shape,
                      const struct kvk_span *span, uint32_t token)
{
    const uint8_t *k = (const uint8_t *)span->data + token * span->token_stride_bytes;
    const uint8_t *v = (const uint8_t *)span->v + token * span->token_stride_bytes;

    for (uint32_t d = 0; d < shape->dim; d++) {
        all->k[all->count * shape->dim + d] =
            decode_half((uint16_t)(k[2 * d] | k[2 * d + 1] << 8), shape->dtype);
        all->v[all->count * shape->dim + d] =
            decode_half((uint16_t)(v[2 * d] | v[2 * d + 1] << 8), shape->dtype);
    }
}

static struct tokens decode_all(const struct kvk_attend *op)
{
    size_t dim = op->shape.dim, room = op->shape.group;
    struct tokens all = {0};

    for (size_t i = 0; i < op->span_count; i++)
        room += op->spans[i].tokens;
    all.k = calloc(room * dim, sizeof(double));
    all.v = calloc(room * dim, sizeof(double));
    all.position = calloc(room, sizeof(*all.position));
    assert(all.k != NULL && all.v != NULL && all.position != NULL);
    for (size_t i = 0; i < op->span_count; i++) {
        const struct kvk_span *span = &op->spans[i];
        if (span->kind ==
            KVARN_BLOCK_TILE) /* decodes a whole tile; what is too much is overwritten */
            decode_tile(&op->shape, span->data, all.k + all.count * dim, all.v + all.count * dim);
        for (uint32_t t = 0; t < span->tokens; t++) {
            if (span->kind == KVARN_BLOCK_EXACT)
                add_exact(&all, &op->shape, span, t);
            all.position[all.count++] = span->position + t;
        }
    }
    return all;
}

static double q_at(const struct kvk_attend *op, size_t row, size_t d)
{
    const uint8_t *at = (const uint8_t *)op->q + row / op->q_heads * op->q_token_stride_bytes +
                        row % op->q_heads * op->q_head_stride_bytes;
    float x;

    if (op->q_dtype != KVARN_F32)
        return decode_half((uint16_t)(at[2 * d] | at[2 * d + 1] << 8), op->q_dtype);
    memcpy(&x, at + 4 * d, sizeof(x));
    return (double)x;
}

static int sees(const struct kvk_attend *op, size_t row, uint32_t position)
{
    int64_t end = (int64_t)op->limit + (int64_t)(row / op->q_heads);

    return position < end && (op->window == 0 || position >= end - (int64_t)op->window);
}

static void expect_row(struct attend_case *c, const struct tokens *all, size_t row, double *s)
{
    const struct kvk_attend *op = &c->op;
    size_t dim = op->shape.dim;
    double top = -(double)INFINITY, sum = 0, cap = (double)op->soft_cap;

    for (size_t t = 0; t < all->count; t++) {
        double dot = 0, absolute = 0;
        for (size_t d = 0; d < dim; d++) {
            double x = q_at(op, row, d) * all->k[t * dim + d] * (double)op->scale;
            dot += x;
            absolute += fabs(x);
        }
        s[t] = cap > 0 ? cap * tanh(dot / cap) : dot;
        if (!sees(op, row, all->position[t]))
            continue;
        top = fmax(top, s[t]);
        c->spread = fmax(c->spread, absolute);
    }
    for (size_t t = 0; t < all->count; t++) {
        double p = sees(op, row, all->position[t]) ? exp(s[t] - top) : 0;
        sum += p;
        for (size_t d = 0; d < dim && p > 0; d++)
            c->out[row * dim + d] += p * all->v[t * dim + d];
    }
    for (size_t d = 0; d < dim && sum > 0; d++)
        c->out[row * dim + d] /= sum;
    c->lse[row] = sum > 0 ? top + log(sum) : -(double)INFINITY;
}

void attend_case_expect(struct attend_case *c)
{
    size_t rows = (size_t)c->op.q_tokens * c->op.q_heads;
    struct tokens all = decode_all(&c->op);
    double *s = calloc(all.count + 1, sizeof(double));

    free(c->out);
    free(c->lse);
    c->out = calloc(rows * c->op.shape.dim, sizeof(double));
    c->lse = calloc(rows, sizeof(double));
    assert(s != NULL && c->out != NULL && c->lse != NULL);
    c->spread = 0;
    for (size_t row = 0; row < rows; row++)
        expect_row(c, &all, row, s);
    free(s);
    free(all.k);
    free(all.v);
    free(all.position);
}

static const char *compare_row(const struct attend_case *c, size_t row, const float *out, float lse,
                               struct attend_error *error)
{
    size_t dim = c->op.shape.dim;
    double difference = 0, norm = 0;

    if (isinf(c->lse[row]) || !isfinite(lse)) {
        if (!isinf(c->lse[row]) || !(lse < 0 && isinf(lse)))
            return "lse is -inf or NaN at another place";
        for (size_t d = 0; d < dim; d++) {
            if (out[d] < 0 || out[d] > 0 || isnan(out[d]))
                return "the output of an empty row is not 0";
        }
        return NULL;
    }
    for (size_t d = 0; d < dim; d++) {
        double want = c->out[row * dim + d];
        if (!isfinite(out[d]))
            return "an output is not finite";
        difference += ((double)out[d] - want) * ((double)out[d] - want);
        norm += want * want;
    }
    error->out = fmax(error->out, norm > 0 ? sqrt(difference / norm) : sqrt(difference));
    error->lse = fmax(error->lse, fabs((double)lse - c->lse[row]));
    return NULL;
}

const char *attend_case_compare(const struct attend_case *c, const float *out, const float *lse,
                                struct attend_error *error)
{
    const char *broken = NULL;

    for (size_t row = 0; row < (size_t)c->op.q_tokens * c->op.q_heads && broken == NULL; row++)
        broken = compare_row(c, row, out + row * c->op.shape.dim, lse[row], error);
    return broken;
}

static uint8_t *guarded(size_t bytes)
{
    uint8_t *memory = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);

    assert(memory != NULL);
    memset(memory, GUARD_BYTE, bytes + 2 * GUARD);
    return memory;
}

static int guards_hold(const uint8_t *memory, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (memory[i] != GUARD_BYTE || memory[GUARD + bytes + i] != GUARD_BYTE)
            return 0;
    }
    return 1;
}

const char *attend_case_check(const struct attend_case *c,
                              kvarn_status (*attend)(struct kvk_attend *),
                              struct attend_error *error)
{
    struct kvk_attend op = c->op;
    size_t rows = (size_t)op.q_tokens * op.q_heads, dim = op.shape.dim;
    size_t scratch_bytes = kvk_attend_scratch_bytes(op.q_tokens, op.q_heads, op.shape.dim);
    uint8_t *out = guarded(rows * dim * sizeof(float)), *lse = guarded(rows * sizeof(float));
    uint8_t *scratch = guarded(scratch_bytes);
    const char *broken = NULL;

    *error = (struct attend_error){0};
    op.out = (float *)(void *)(out + GUARD);
    op.lse = (float *)(void *)(lse + GUARD);
    op.scratch = scratch + GUARD;
    if (attend(&op) != KVARN_OK)
        broken = "the status is not OK";
    else if (!guards_hold(out, rows * dim * sizeof(float)))
        broken = "bytes around out were written";
    else if (!guards_hold(lse, rows * sizeof(float)))
        broken = "bytes around lse were written";
    else if (!guards_hold(scratch, scratch_bytes))
        broken = "bytes around scratch were written";
    if (broken == NULL)
        broken = attend_case_compare(c, op.out, op.lse, error);
    free(out);
    free(lse);
    free(scratch);
    return broken;
}
