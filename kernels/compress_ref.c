/* K and V of one tile -> record, scalar: the definition of a correct record.
 *
 * Rotation, variance normalisation, rounding, folding and packing: METHOD.md, sections 1 to 5.
 * Order of every sum: see compress.h.
 *
 * Built twice: with fused multiply-add as an instruction, and without, where the compiler calls
 * fmaf(). C requires that to round once, so both give the same bits; the call only costs time. */
#include <string.h>

#include "kernels/compress.h"
#include "kernels/fwht.h"
#include "kernels/half.h"
#include "kernels/variants.h"

#ifndef KVK_COMPRESS_REF /* CMakeLists.txt names the other build */
#define KVK_COMPRESS_REF kvk_compress_ref
#endif

static float clip(float x, float low, float high)
{
    x = x > low ? x : low;
    return x < high ? x : high;
}

static float lanes_sum(float lane[KVK_LANES])
{
    for (uint32_t half = KVK_LANES / 2; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    }
    return lane[0];
}

static float mean_of(const float *x, uint32_t n)
{
    float lane[KVK_LANES] = {0};

    for (uint32_t i = 0; i < n; i += KVK_LANES) {
        for (uint32_t l = 0; l < KVK_LANES; l++)
            lane[l] += x[i + l];
    }
    return lanes_sum(lane) * (1.0f / (float)n);
}

/* Sample standard deviation from sums of y = x - shift and of y * y over n elements. */
static float deviation(float sum, float squares, uint32_t n)
{
    float mean = sum * (1.0f / (float)n);
    float variance = KVK_FMA(-mean, sum, squares) * (1.0f / (float)(n - 1));

    return __builtin_sqrtf(variance > 0.0f ? variance : 0.0f);
}

/* One row copied, looked at, converted and rotated. The copy comes first: the source may be memory
 * that a client can still write. */
static kvarn_status load_row(struct kvk_compress *op, const struct kvk_side *side, uint32_t token,
                             float *row)
{
    uint8_t copy[2 * KVK_MAX_SIDE];
    uint32_t dim = op->shape.dim;
    kvarn_dtype dtype = (kvarn_dtype)op->shape.dtype;
    kvarn_status status;

    memcpy(copy, side->src + token * side->stride, 2 * (size_t)dim);
    status = kvk_rows_check(copy, 0, 1, dim, dtype, side->tensor, &op->fault);
    if (status != KVARN_OK) {
        op->fault.token = token;
        return status;
    }
    for (uint32_t d = 0; d < dim; d++)
        row[d] = clip(kvk_half_to_f32(kvk_u16_load(copy + 2 * (size_t)d), dtype), -KVK_INPUT_LIMIT,
                      KVK_INPUT_LIMIT);
    if (side->rotate)
        kvk_fwht_rotate(row, dim);
    return KVARN_OK;
}

static kvarn_status load(struct kvk_compress *op, const struct kvk_side *side, float *row,
                         float *matrix)
{
    uint32_t dim = op->shape.dim, group = op->shape.group;

    for (uint32_t g = 0; g < group; g++) {
        kvarn_status status = load_row(op, side, g, row);

        if (status != KVARN_OK)
            return status;
        for (uint32_t d = 0; d < dim; d++)
            matrix[side->transposed ? d * group + g : g * dim + d] = row[d];
    }
    return KVARN_OK;
}

static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    float block[KVK_MAX_SIDE];

    for (uint32_t c = 0; c < cols; c++)
        b->col_mean[c] = 0.0f;
    for (uint32_t r = 0; r < rows; r++) {
        b->row_mean[r] = mean_of(t + (size_t)r * cols, cols);
        for (uint32_t c = 0; c < cols; c++) {
            block[c] = (r % KVK_LANES == 0 ? 0.0f : block[c]) + t[(size_t)r * cols + c];
            if (r % KVK_LANES == KVK_LANES - 1)
                b->col_mean[c] += block[c];
        }
    }
    for (uint32_t c = 0; c < cols; c++)
        b->col_mean[c] *= 1.0f / (float)rows;
}

/* Standard deviation of one row of T * w, taken about shift. */
static float measure_row(const float *t, const float *w, float shift, uint32_t cols)
{
    float sum[KVK_LANES] = {0}, squares[KVK_LANES] = {0};

    for (uint32_t c = 0; c < cols; c += KVK_LANES) {
        for (uint32_t l = 0; l < KVK_LANES; l++) {
            float y = KVK_FMA(t[c + l], w[c + l], -shift);

            sum[l] += y;
            squares[l] = KVK_FMA(y, y, squares[l]);
        }
    }
    return deviation(lanes_sum(sum), lanes_sum(squares), cols);
}

/* Returns measured / scale. A scale that no clamp held back equals what was measured, so that ratio
 * is 1, and exactly 1 here: next to an all-zero row, whose part of the imbalance is 1e8, the
 * rounding of x * (1 / x) would decide which iterate is kept. */
static float update_scale(float *scale, float *reciprocal, float measured)
{
    float change = measured * *reciprocal, clipped = clip(change, KVK_STD_LOW, KVK_STD_HIGH);
    float wanted = *scale * clipped;

    *scale = clip(wanted, KVK_SCALE_LOW, KVK_SCALE_HIGH);
    *reciprocal = 1.0f / *scale;
    return clipped == change && *scale == wanted ? 1.0f : measured * *reciprocal;
}

/* Measures all rows with the column scales in w and, when asked, renews the row scales. */
static void sweep_rows(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols,
                       int update)
{
    float w_mean = mean_of(b->w, cols);

    for (uint32_t r = 0; r < rows; r++) {
        b->row[r] = measure_row(t + (size_t)r * cols, b->w, b->row_mean[r] * w_mean, cols);
        b->ratio[r] = b->row[r];
        if (update) {
            b->ratio[r] = update_scale(&b->sr[r], &b->rr[r], b->row[r]);
            b->v[r] = b->rr[r] * b->inverse_gain;
        }
    }
}

/* Measures all columns with the row scales in v. */
static void sweep_cols(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    float sum[KVK_MAX_SIDE] = {0}, squares[KVK_MAX_SIDE] = {0};
    float block_sum[KVK_MAX_SIDE], block_squares[KVK_MAX_SIDE], v_mean = mean_of(b->v, rows);

    for (uint32_t r = 0; r < rows; r++) {
        const float *at = t + (size_t)r * cols;

        if (r % KVK_LANES == 0) {
            memset(block_sum, 0, sizeof block_sum);
            memset(block_squares, 0, sizeof block_squares);
        }
        for (uint32_t c = 0; c < cols; c++) {
            float y = KVK_FMA(at[c], b->v[r], -(b->col_mean[c] * v_mean));

            block_sum[c] += y;
            block_squares[c] = KVK_FMA(y, y, block_squares[c]);
        }
        if (r % KVK_LANES == KVK_LANES - 1) {
            for (uint32_t c = 0; c < cols; c++) {
                sum[c] += block_sum[c];
                squares[c] += block_squares[c];
            }
        }
    }
    for (uint32_t c = 0; c < cols; c++)
        b->col[c] = deviation(sum[c], squares[c], rows);
}

static double spread(const float *x, uint32_t n)
{
    float low = x[0], high = x[0];

    for (uint32_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return (double)high / ((double)low > KVK_SPREAD_FLOOR ? (double)low : KVK_SPREAD_FLOOR);
}

/* The smallest deviation that is at least KVK_GAIN_SHARE of the largest; 1 when all are 0. */
static float find_gain(const struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    float high = 0.0f, low;

    for (uint32_t r = 0; r < rows; r++)
        high = b->row[r] > high ? b->row[r] : high;
    for (uint32_t c = 0; c < cols; c++)
        high = b->col[c] > high ? b->col[c] : high;
    if (!(high > 0.0f))
        return 1.0f;
    low = high;
    for (uint32_t r = 0; r < rows; r++)
        low = b->row[r] >= high * KVK_GAIN_SHARE && b->row[r] < low ? b->row[r] : low;
    for (uint32_t c = 0; c < cols; c++)
        low = b->col[c] >= high * KVK_GAIN_SHARE && b->col[c] < low ? b->col[c] : low;
    return low > KVK_GAIN_LOW ? low : KVK_GAIN_LOW;
}

static void keep_if_best(struct kvk_balance *b, uint32_t rows, uint32_t cols, int first)
{
    float col_ratio[KVK_MAX_SIDE] = {0};
    double imbalance;

    for (uint32_t c = 0; c < cols; c++)
        col_ratio[c] = b->col[c] * b->rc[c];
    imbalance = spread(col_ratio, cols) + spread(b->ratio, rows);
    if (!first && !(imbalance <= b->best)) /* a tie takes the newer iterate */
        return;
    b->best = imbalance;
    memcpy(b->best_sc, b->sc, cols * sizeof *b->sc);
    memcpy(b->best_w, b->w, cols * sizeof *b->w);
    memcpy(b->best_sr, b->sr, rows * sizeof *b->sr);
}

static void balance(struct kvk_balance *b, const struct kvk_shape *shape, const float *t,
                    uint32_t rows, uint32_t cols)
{
    for (uint32_t i = 0; i < KVK_MAX_SIDE; i++)
        b->sc[i] = b->rc[i] = b->sr[i] = b->rr[i] = b->w[i] = b->v[i] = 1.0f;
    b->gain = b->inverse_gain = 1.0f;
    measure_means(b, t, rows, cols);
    sweep_rows(b, t, rows, cols, 0);
    sweep_cols(b, t, rows, cols);
    if (shape->balance == KVARN_BALANCE_SCALE_FREE) {
        b->gain = find_gain(b, rows, cols);
        b->inverse_gain = 1.0f / b->gain;
        for (uint32_t r = 0; r < rows; r++) {
            b->ratio[r] = b->row[r] * b->inverse_gain;
            b->v[r] = b->inverse_gain;
        }
        for (uint32_t c = 0; c < cols; c++) {
            b->col[c] *= b->inverse_gain;
            b->w[c] = b->inverse_gain;
        }
    }
    keep_if_best(b, rows, cols, 1);
    for (uint32_t i = 0; i < shape->iterations; i++) {
        for (uint32_t c = 0; c < cols; c++) {
            update_scale(&b->sc[c], &b->rc[c], b->col[c]);
            b->w[c] = b->rc[c] * b->inverse_gain;
        }
        sweep_rows(b, t, rows, cols, 1);
        sweep_cols(b, t, rows, cols);
        keep_if_best(b, rows, cols, 0);
    }
}

/* Saturates instead of becoming infinite. Adding 0 makes -0 (a matter of operand order in min) +0.
 */
static void store_f16(uint8_t *at, float x)
{
    kvk_u16_store(at, kvk_f16_from_f32(clip(x, -KVK_F16_MAX, KVK_F16_MAX) + 0.0f));
}

/* Codes, step and zero of one row. The row scale never changes a code (METHOD.md, section 4), so
 * the row is rounded in units of T / gain / sc and sr only enters the floor of the step. */
static void quantise_row(const struct kvk_balance *b, const struct kvk_side *side, const float *t,
                         uint32_t r)
{
    uint32_t per_byte = 8 / side->bits, qmax = (1u << side->bits) - 1;
    uint8_t *codes = side->codes + (size_t)r * side->cols / per_byte;
    float low = t[0] * b->best_w[0], high = low, span, step, floor, inverse;

    for (uint32_t c = 1; c < side->cols; c++) {
        float x = t[c] * b->best_w[c];

        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    span = high - low;
    low = KVK_FMA(side->rest, span, low);
    step = side->share * span / (float)qmax;
    floor = KVK_STEP_FLOOR * b->best_sr[r];
    step = step > floor ? step : floor;
    inverse = 1.0f / step;
    store_f16(side->step + 2 * (size_t)r, step * b->gain);
    store_f16(side->zero + 2 * (size_t)r, low * b->gain);
    for (uint32_t c = 0; c < side->cols; c += per_byte) {
        uint32_t byte = 0;

        for (uint32_t i = 0; i < per_byte; i++) {
            float x = t[c + i] * b->best_w[c + i] - low;

            /* with the whole range x lies in 0 .. qmax * step (1 + 2^-22) and nothing is clipped */
            x = clip(KVK_FMA(x, inverse, KVK_ROUND_MAGIC), KVK_ROUND_MAGIC,
                     KVK_ROUND_MAGIC + (float)qmax);
            byte |= (kvk_f32_bits(x) & qmax) << (i * side->bits);
        }
        codes[c / per_byte] = (uint8_t)byte;
    }
}

/* Of every column: T * T, and what a reader will see without the column's scale, P, times itself
 * (K) or times T (V). Within blocks of KVK_LANES rows, then over the blocks. */
struct sums {
    float kept[KVK_MAX_SIDE], seen[KVK_MAX_SIDE];
    float block_kept[KVK_MAX_SIDE], block_seen[KVK_MAX_SIDE];
};

static void compare_row(struct sums *s, const struct kvk_side *side, const float *t, uint32_t r)
{
    uint32_t per_byte = 8 / side->bits, qmax = (1u << side->bits) - 1;
    const uint8_t *codes = side->codes + (size_t)r * side->cols / per_byte;
    float step = kvk_f16_to_f32(kvk_u16_load(side->step + 2 * (size_t)r));
    float zero = kvk_f16_to_f32(kvk_u16_load(side->zero + 2 * (size_t)r));

    if (r % KVK_LANES == 0) {
        memset(s->block_kept, 0, sizeof s->block_kept);
        memset(s->block_seen, 0, sizeof s->block_seen);
    }
    for (uint32_t c = 0; c < side->cols; c++) {
        uint32_t code = (uint32_t)codes[c / per_byte] >> (c % per_byte * side->bits) & qmax;
        float p = KVK_FMA((float)(int)code, step, zero);

        s->block_kept[c] = KVK_FMA(t[c], t[c], s->block_kept[c]);
        s->block_seen[c] = KVK_FMA(side->transposed ? p : t[c], p, s->block_seen[c]);
    }
    if (r % KVK_LANES == KVK_LANES - 1) {
        for (uint32_t c = 0; c < side->cols; c++) {
            s->kept[c] += s->block_kept[c];
            s->seen[c] += s->block_seen[c];
        }
    }
}

/* The scale with which the column keeps its norm (K), or its product with itself (V). */
static float corrected(const struct kvk_side *side, float scale, float kept, float seen)
{
    float x;

    if (kept < KVK_TIGHT_LEAST || seen < KVK_TIGHT_LEAST)
        return scale;
    x = kept / seen;
    if (side->transposed)
        x = __builtin_sqrtf(x);
    return clip(x, KVK_TIGHT_LOW * scale, KVK_TIGHT_HIGH * scale);
}

static void correct_columns(struct kvk_balance *b, const struct kvk_side *side, const float *t)
{
    struct sums s = {0};

    for (uint32_t r = 0; r < side->rows; r++)
        compare_row(&s, side, t + (size_t)r * side->cols, r);
    for (uint32_t c = 0; c < side->cols; c++)
        b->best_sc[c] = corrected(side, b->best_sc[c], s.kept[c], s.seen[c]);
}

static kvarn_status compress_side(struct kvk_compress *op, const struct kvk_side *side)
{
    struct kvk_compress_scratch *s = op->scratch;
    kvarn_status status = load(op, side, s->rows, s->matrix);

    if (status != KVARN_OK)
        return status;
    balance(&s->balance, &op->shape, s->matrix, side->rows, side->cols);
    for (uint32_t r = 0; r < side->rows; r++)
        quantise_row(&s->balance, side, s->matrix + (size_t)r * side->cols, r);
    if (side->tight)
        correct_columns(&s->balance, side, s->matrix);
    for (uint32_t c = 0; c < side->cols; c++)
        store_f16(side->other + 2 * (size_t)c, s->balance.best_sc[c]);
    return KVARN_OK;
}

kvarn_status KVK_COMPRESS_REF(struct kvk_compress *op)
{
    struct kvk_side k, v;
    kvarn_status status;

    op->fault = (struct kvk_fault){0};
    kvk_sides_of(op, &k, &v);
    status = compress_side(op, &k);
    return status == KVARN_OK ? compress_side(op, &v) : status;
}
