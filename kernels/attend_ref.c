/* Attend, scalar and in double: the definition the other variants are measured against.
 *
 * Every token is decoded to K^ and V^ as the record says (tile.h) and meets an online softmax. A
 * tile lives in the rotated basis: q is rotated once for it (H is orthonormal, so q.k = qH.kH), and
 * its share of the output is un-rotated once at the end. Exact rows are taken as they are. */
#include <math.h>

#include "kernels/attend.h"
#include "kernels/half.h"
#include "kernels/tile.h"

struct row {
    double m, l;                      /* running maximum of the logits, sum of exp(s - m) */
    double tile[KVARN_MAX_HEAD_DIM];  /* sum of exp(s - m) V^ over tokens of tiles */
    double exact[KVARN_MAX_HEAD_DIM]; /* sum of exp(s - m) V over exact tokens */
};

static void rotate(double *x, uint32_t dim)
{
    for (uint32_t half = 1; half < dim; half *= 2) {
        for (uint32_t i = 0; i < dim; i++) {
            if ((i & half) == 0) {
                double a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
    for (uint32_t i = 0; i < dim; i++)
        x[i] /= sqrt((double)dim);
}

static double code_at(const uint8_t *codes, uint32_t bits, size_t index)
{
    size_t per_byte = 8 / bits;
    unsigned byte = codes[index / per_byte];
    return byte >> index % per_byte * bits & ((1u << bits) - 1);
}

static double half_at(const uint8_t *at, size_t index, uint8_t dtype)
{
    uint16_t half;

    memcpy(&half, at + 2 * index, sizeof(half));
    return dtype == KVARN_F16 ? (double)kvk_f16_to_f32(half) : (double)kvk_bf16_to_f32(half);
}

/* Token g of a tile -> K^ and V^. */
static void decode(const struct kvk_shape *shape, const uint8_t *record, uint32_t g, double *k,
                   double *v)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    double u = half_at(record + at.k_token, g, KVARN_F16);
    double b = half_at(record + at.v_step, g, KVARN_F16);
    double y = half_at(record + at.v_zero, g, KVARN_F16);

    for (uint32_t d = 0; d < shape->dim; d++) {
        double a = half_at(record + at.k_step, d, KVARN_F16);
        double z = half_at(record + at.k_zero, d, KVARN_F16);
        double w = half_at(record + at.v_channel, d, KVARN_F16);
        size_t kc = (size_t)d * shape->group + g, vc = (size_t)g * shape->dim + d;
        k[d] = (code_at(record + at.k_codes, shape->bits_k, kc) * a + z) * u;
        v[d] = (code_at(record + at.v_codes, shape->bits_v, vc) * b + y) * w;
    }
}

/* One token of an exact span -> K and V. */
static void read_exact(const struct kvk_shape *shape, const struct kvk_span *span, uint32_t token,
                       double *k, double *v)
{
    const uint8_t *k_row = (const uint8_t *)span->data + token * span->token_stride_bytes;
    const uint8_t *v_row = (const uint8_t *)span->v + token * span->token_stride_bytes;

    for (uint32_t d = 0; d < shape->dim; d++) {
        k[d] = half_at(k_row, d, shape->dtype);
        v[d] = half_at(v_row, d, shape->dtype);
    }
}

static double logit(const struct kvk_attend *op, const double *q, const double *k)
{
    double dot = 0;

    for (uint32_t d = 0; d < op->shape.dim; d++)
        dot += q[d] * k[d];
    dot *= (double)op->scale;
    return op->soft_cap > 0 ? (double)op->soft_cap * tanh(dot / (double)op->soft_cap) : dot;
}

/* Online softmax: a new maximum rescales what was summed before it. */
static void add_token(struct row *row, double *sum, double s, const double *v, uint32_t dim)
{
    if (s > row->m) {
        double shrink = exp(row->m - s); /* 0 at the first token, where m is -inf */
        row->l *= shrink;
        for (uint32_t d = 0; d < dim; d++) {
            row->tile[d] *= shrink;
            row->exact[d] *= shrink;
        }
        row->m = s;
    }
    double p = exp(s - row->m);
    row->l += p;
    for (uint32_t d = 0; d < dim; d++)
        sum[d] += p * v[d];
}

static void attend_row(const struct kvk_attend *op, uint32_t index, const float *q_given)
{
    uint32_t dim = op->shape.dim, from, to;
    double q[KVARN_MAX_HEAD_DIM] = {0}, q_rot[KVARN_MAX_HEAD_DIM] = {0};
    double k[KVARN_MAX_HEAD_DIM], v[KVARN_MAX_HEAD_DIM];
    struct row row = {.m = -INFINITY};

    for (uint32_t d = 0; d < dim; d++)
        q[d] = q_rot[d] = (double)q_given[d];
    if (!op->shape.k_rotated)
        rotate(q_rot, dim);
    for (size_t i = 0; i < op->span_count; i++) {
        const struct kvk_span *span = &op->spans[i];
        kvk_attend_clip(span, kvk_attend_range(op, index / op->q_heads), &from, &to);
        for (uint32_t t = from; t < to; t++) {
            if (span->kind == KVARN_BLOCK_TILE) {
                decode(&op->shape, span->data, t, k, v);
                add_token(&row, row.tile, logit(op, q_rot, k), v, dim);
            } else {
                read_exact(&op->shape, span, t, k, v);
                add_token(&row, row.exact, logit(op, q, k), v, dim);
            }
        }
    }
    if (!op->shape.v_rotated)
        rotate(row.tile, dim);
    for (uint32_t d = 0; d < dim; d++)
        op->out[(size_t)index * dim + d] =
            row.l > 0 ? (float)((row.tile[d] + row.exact[d]) / row.l) : 0.0f;
    op->lse[index] = row.l > 0 ? (float)(row.m + log(row.l)) : -INFINITY;
}

kvarn_status kvk_attend_ref(struct kvk_attend *op)
{
    kvarn_status status = kvk_attend_check(op);
    float *q = op->scratch;

    if (status == KVARN_OK)
        status = kvk_attend_load_q(op, q);
    if (status != KVARN_OK)
        return status;
    for (uint32_t index = 0; index < op->q_tokens * op->q_heads; index++)
        attend_row(op, index, q + (size_t)index * op->shape.dim);
    return KVARN_OK;
}
