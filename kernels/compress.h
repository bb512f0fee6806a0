/* Inside of compress: the numbers every variant must reproduce, and the scratch they live in.
 *
 * One matrix T has R rows (the quantisation axis: channels of K, tokens of V) of C contiguous
 * columns (tokens of K, channels of V). compress_ref.c is the definition; the rules it follows and
 * that a vector variant must keep are:
 *   - a sum along a row runs in 16 lanes (column c in lane c mod 16), which are then folded
 *     8, 4, 2, 1 apart; a sum down a column runs within blocks of 16 rows, then over the blocks;
 *   - fused multiply-add exactly where the reference has KVK_FMA, nowhere else;
 *   - scales are multiplied in as reciprocals, one division per new scale.
 * Column c's scale is sc[c], row r's is sr[r]; the balanced matrix is T / gain / sc / sr. */
#ifndef KVK_COMPRESS_H
#define KVK_COMPRESS_H

#include "kernels/kernels.h"
#include "kernels/tight.h"
#include "kernels/tile.h"

#define KVK_FMA(a, b, c) __builtin_fmaf(a, b, c)

/* METHOD.md, section 2: clamps of a measured std and of an accumulated scale, exp(-0.3), exp(10).
 */
#define KVK_STD_LOW      1e-3f
#define KVK_STD_HIGH     1e3f
#define KVK_SCALE_LOW    0.7408182206817179f
#define KVK_SCALE_HIGH   22026.465794806718f
#define KVK_SPREAD_FLOOR 1e-8
#define KVK_STEP_FLOOR   1e-10f

/* SCALE_FREE: standard deviations below this share of the largest do not set the gain (an all-zero
 * token would make it 0); below KVK_GAIN_LOW everything is zero in fp16 anyway. */
#define KVK_GAIN_SHARE 1e-4f
#define KVK_GAIN_LOW   1e-18f

/* bf16 reaches 3e38. Finite inputs beyond this limit count as the limit, so that no sum of squares
 * overflows; u * z of a record ends near 1.4e9, far below. */
#define KVK_INPUT_LIMIT 0x1p50f

/* 1.5 * 2^23: adding it rounds to an integer, half to even, and leaves that in the low bits. */
#define KVK_ROUND_MAGIC 12582912.0f

#define KVK_MAX_SIDE    256
#define KVK_LANES       16

struct kvk_balance {                                       /* every vector starts on a cache line */
    _Alignas(64) float sc[KVK_MAX_SIDE], rc[KVK_MAX_SIDE]; /* column scales and their reciprocals */
    float sr[KVK_MAX_SIDE], rr[KVK_MAX_SIDE];
    float w[KVK_MAX_SIDE], v[KVK_MAX_SIDE]; /* rc / gain, rr / gain: what T is multiplied with */
    float col[KVK_MAX_SIDE];   /* std of the columns of T / gain / sr (rows not: / sc) */
    float row[KVK_MAX_SIDE];   /* std of the rows of T / gain / sc */
    float ratio[KVK_MAX_SIDE]; /* row / sr */
    float col_mean[KVK_MAX_SIDE], row_mean[KVK_MAX_SIDE]; /* of T itself */
    float best_sc[KVK_MAX_SIDE], best_w[KVK_MAX_SIDE], best_sr[KVK_MAX_SIDE];
    double best;
    float gain, inverse_gain;
};

/* Start of the scratch: the vectors, then 16 rotated rows, then the matrix. */
struct kvk_compress_scratch {
    struct kvk_balance balance;
    _Alignas(64) float rows[KVK_LANES * KVK_MAX_SIDE];
    _Alignas(64) float matrix[]; /* dim * group */
};

/* What differs between K and V of one tile. */
struct kvk_side {
    char tensor; /* 'k', 'v' */
    const uint8_t *src;
    size_t stride;
    uint32_t rows, cols; /* of T */
    uint32_t bits;
    int rotate;        /* rows arrive un-rotated */
    int transposed;    /* T holds tokens as columns: K */
    int tight;         /* codes are clamped, column scales corrected */
    float share, rest; /* of a row's range: what the codes span, and half of what they do not */
    uint8_t *codes, *step, *zero, *other; /* in the record: codes, (a,z,u) or (b,y,w) */
};

static inline void kvk_side_range(struct kvk_side *side, uint8_t range)
{
    side->tight = range == KVARN_RANGE_TIGHT;
    side->share = side->tight ? kvk_tight_share(!side->transposed, side->bits) : 1.0f;
    side->rest = 0.5f * (1.0f - side->share);
}

static inline void kvk_sides_of(const struct kvk_compress *op, struct kvk_side *k,
                                struct kvk_side *v)
{
    const struct kvk_shape *shape = &op->shape;
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    uint8_t *record = op->record;

    *k = (struct kvk_side){
        .tensor = 'k',
        .src = op->k,
        .stride = op->k_token_stride_bytes,
        .rows = shape->dim,
        .cols = shape->group,
        .bits = shape->bits_k,
        .rotate = !shape->k_rotated,
        .transposed = 1,
        .codes = record + at.k_codes,
        .step = record + at.k_step,
        .zero = record + at.k_zero,
        .other = record + at.k_token,
    };
    *v = (struct kvk_side){
        .tensor = 'v',
        .src = op->v,
        .stride = op->v_token_stride_bytes,
        .rows = shape->group,
        .cols = shape->dim,
        .bits = shape->bits_v,
        .rotate = !shape->v_rotated,
        .transposed = 0,
        .codes = record + at.v_codes,
        .step = record + at.v_step,
        .zero = record + at.v_zero,
        .other = record + at.v_channel,
    };
    kvk_side_range(k, shape->range);
    kvk_side_range(v, shape->range);
}

#endif
