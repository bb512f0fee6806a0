/* K and V of one tile -> record with AVX-512, bit for bit what compress_ref.c defines.
 *
 * The fp32 matrix (64 KiB at 128 x 128) stays in the second-level cache. One sweep per iteration
 * takes both statistics: a block of 16 rows is measured with the column scales, its 16 row scales
 * are renewed in one register, and the block, now in the first level, is measured down the columns
 * with them. */
#include <string.h>

#include "kernels/load_avx512.h"
#include "kernels/quantise_avx512.h"
#include "kernels/simd_avx512.h"
#include "kernels/variants.h"

static float mean_of(const float *x, uint32_t n)
{
    __m512 sum = _mm512_setzero_ps();

    for (uint32_t i = 0; i < n; i += 16)
        sum = _mm512_add_ps(sum, _mm512_load_ps(x + i));
    return kvk_z_sum(sum) * (1.0f / (float)n);
}

KVK_INLINE __m512 deviation(__m512 sum, __m512 squares, uint32_t n)
{
    __m512 mean = _mm512_mul_ps(sum, _mm512_set1_ps(1.0f / (float)n));
    __m512 variance =
        _mm512_mul_ps(_mm512_fnmadd_ps(mean, sum, squares), _mm512_set1_ps(1.0f / (float)(n - 1)));

    return _mm512_sqrt_ps(_mm512_max_ps(variance, _mm512_setzero_ps()));
}

/* Column sums of a block go to registers before they join the total, as in the reference. */
static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    memset(b->col_mean, 0, sizeof b->col_mean);
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        __m512 lane[16], folded;

        for (uint32_t i = 0; i < 16; i++)
            lane[i] = _mm512_setzero_ps();
        for (uint32_t c = 0; c < cols; c += 16) {
            __m512 block = _mm512_setzero_ps();

#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++) {
                __m512 x = _mm512_load_ps(t + (size_t)i * cols + c);

                lane[i] = _mm512_add_ps(lane[i], x);
                block = _mm512_add_ps(block, x);
            }
            _mm512_store_ps(b->col_mean + c, _mm512_add_ps(_mm512_load_ps(b->col_mean + c), block));
        }
        KVK_Z_FOLD16(folded, lane, _mm512_add_ps);
        folded = _mm512_mul_ps(folded, _mm512_set1_ps(1.0f / (float)cols));
        _mm512_store_ps(b->row_mean + r, folded);
    }
    for (uint32_t c = 0; c < cols; c += 16)
        _mm512_store_ps(b->col_mean + c, _mm512_mul_ps(_mm512_load_ps(b->col_mean + c),
                                                       _mm512_set1_ps(1.0f / (float)rows)));
}

/* Returns measured / scale; exactly 1 where no clamp held the scale back. */
KVK_INLINE __m512 update_scale(float *scale, float *reciprocal, float *weight, __m512 measured,
                               float inverse_gain)
{
    __m512 s = _mm512_load_ps(scale), r = _mm512_load_ps(reciprocal);
    __m512 change = _mm512_mul_ps(measured, r), clipped, wanted;
    __mmask16 exact;

    clipped = _mm512_max_ps(change, _mm512_set1_ps(KVK_STD_LOW));
    clipped = _mm512_min_ps(clipped, _mm512_set1_ps(KVK_STD_HIGH));
    wanted = _mm512_mul_ps(s, clipped);
    s = _mm512_max_ps(wanted, _mm512_set1_ps(KVK_SCALE_LOW));
    s = _mm512_min_ps(s, _mm512_set1_ps(KVK_SCALE_HIGH));
    r = _mm512_div_ps(_mm512_set1_ps(1.0f), s);
    _mm512_store_ps(scale, s);
    _mm512_store_ps(reciprocal, r);
    _mm512_store_ps(weight, _mm512_mul_ps(r, _mm512_set1_ps(inverse_gain)));
    exact = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(clipped, change, _CMP_EQ_OQ), s, wanted,
                                    _CMP_EQ_OQ);
    return _mm512_mask_blend_ps(exact, _mm512_mul_ps(measured, r), _mm512_set1_ps(1.0f));
}

/* Sums and squares of four rows about their shifts, 16 lanes each. The accumulators are locals so
 * that they stay in registers. */
KVK_INLINE void measure_4_rows(__m512 *sum, __m512 *squares, const float *t, const float *w,
                               const float *shift, uint32_t cols)
{
    __m512 m[4], s[4], q[4];

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        m[i] = _mm512_set1_ps(shift[i]);
        s[i] = q[i] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; c < cols; c += 16) {
        __m512 weight = _mm512_load_ps(w + c);

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m512 y = _mm512_fmsub_ps(_mm512_load_ps(t + (size_t)i * cols + c), weight, m[i]);

            s[i] = _mm512_add_ps(s[i], y);
            q[i] = _mm512_fmadd_ps(y, y, q[i]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        sum[i] = s[i];
        squares[i] = q[i];
    }
}

/* A block of 16 rows down four registers of columns, added to the totals. */
KVK_INLINE void measure_64_columns(float *sum, float *squares, const float *t, const float *v,
                                   const float *shift, uint32_t cols)
{
    __m512 n[4], s[4], q[4];

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        n[i] = _mm512_load_ps(shift + 16 * i);
        s[i] = q[i] = _mm512_setzero_ps();
    }
#pragma GCC unroll 2
    for (uint32_t r = 0; r < 16; r++) {
        __m512 weight = _mm512_set1_ps(v[r]);

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m512 x = _mm512_load_ps(t + (size_t)r * cols + 16 * i);
            __m512 y = _mm512_fmsub_ps(x, weight, n[i]);

            s[i] = _mm512_add_ps(s[i], y);
            q[i] = _mm512_fmadd_ps(y, y, q[i]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm512_store_ps(sum + 16 * i, _mm512_add_ps(_mm512_load_ps(sum + 16 * i), s[i]));
        _mm512_store_ps(squares + 16 * i, _mm512_add_ps(_mm512_load_ps(squares + 16 * i), q[i]));
    }
}

static void sweep_rows(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols,
                       int update)
{
    _Alignas(64) float shift[KVK_MAX_SIDE];
    __m512 w_mean = _mm512_set1_ps(mean_of(b->w, cols));

    for (uint32_t r = 0; r < rows; r += 16)
        _mm512_store_ps(shift + r, _mm512_mul_ps(_mm512_load_ps(b->row_mean + r), w_mean));
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        __m512 s[16], q[16], folded_s, folded_q, measured;

        for (uint32_t i = 0; i < 16; i += 4)
            measure_4_rows(s + i, q + i, t + (size_t)i * cols, b->w, shift + r + i, cols);
        KVK_Z_FOLD16(folded_s, s, _mm512_add_ps);
        KVK_Z_FOLD16(folded_q, q, _mm512_add_ps);
        measured = deviation(folded_s, folded_q, cols);
        _mm512_store_ps(b->row + r, measured);
        if (update)
            measured = update_scale(b->sr + r, b->rr + r, b->v + r, measured, b->inverse_gain);
        _mm512_store_ps(b->ratio + r, measured);
    }
}

static void sweep_cols(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    _Alignas(64) float sum[KVK_MAX_SIDE] = {0}, squares[KVK_MAX_SIDE] = {0}, shift[KVK_MAX_SIDE];
    __m512 v_mean = _mm512_set1_ps(mean_of(b->v, rows));

    for (uint32_t c = 0; c < cols; c += 16)
        _mm512_store_ps(shift + c, _mm512_mul_ps(_mm512_load_ps(b->col_mean + c), v_mean));
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        for (uint32_t c = 0; c < cols; c += 64)
            measure_64_columns(sum + c, squares + c, t + c, b->v + r, shift + c, cols);
    }
    for (uint32_t c = 0; c < cols; c += 16)
        _mm512_store_ps(b->col + c,
                        deviation(_mm512_load_ps(sum + c), _mm512_load_ps(squares + c), rows));
}

/* max / min of measured * reciprocal, or of measured alone. */
static double spread(const float *measured, const float *reciprocal, uint32_t n)
{
    __m512 low = _mm512_set1_ps(__builtin_inff()), high = _mm512_setzero_ps();
    double least;

    for (uint32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_load_ps(measured + i);

        if (reciprocal != NULL)
            x = _mm512_mul_ps(x, _mm512_load_ps(reciprocal + i));
        low = _mm512_min_ps(low, x);
        high = _mm512_max_ps(high, x);
    }
    least = (double)_mm512_reduce_min_ps(low);
    return (double)_mm512_reduce_max_ps(high) /
           (least > KVK_SPREAD_FLOOR ? least : KVK_SPREAD_FLOOR);
}

static __m512 max_of(__m512 high, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        high = _mm512_max_ps(high, _mm512_load_ps(x + i));
    return high;
}

static __m512 min_above(__m512 low, __m512 share, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 y = _mm512_load_ps(x + i);

        low = _mm512_mask_min_ps(low, _mm512_cmp_ps_mask(y, share, _CMP_GE_OQ), low, y);
    }
    return low;
}

static float find_gain(const struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    __m512 high = max_of(max_of(_mm512_setzero_ps(), b->row, rows), b->col, cols), low, share;
    float most, least;

    most = _mm512_reduce_max_ps(high);
    if (!(most > 0.0f))
        return 1.0f;
    share = _mm512_set1_ps(most * KVK_GAIN_SHARE);
    low = _mm512_set1_ps(most);
    low = min_above(min_above(low, share, b->row, rows), share, b->col, cols);
    least = _mm512_reduce_min_ps(low);
    return least > KVK_GAIN_LOW ? least : KVK_GAIN_LOW;
}

static void scale_by_gain(struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    __m512 inverse;

    b->gain = find_gain(b, rows, cols);
    b->inverse_gain = 1.0f / b->gain;
    inverse = _mm512_set1_ps(b->inverse_gain);
    for (uint32_t r = 0; r < rows; r += 16) {
        _mm512_store_ps(b->ratio + r, _mm512_mul_ps(_mm512_load_ps(b->row + r), inverse));
        _mm512_store_ps(b->v + r, inverse);
    }
    for (uint32_t c = 0; c < cols; c += 16) {
        _mm512_store_ps(b->col + c, _mm512_mul_ps(_mm512_load_ps(b->col + c), inverse));
        _mm512_store_ps(b->w + c, inverse);
    }
}

static void keep_if_best(struct kvk_balance *b, uint32_t rows, uint32_t cols, int first)
{
    double imbalance = spread(b->col, b->rc, cols) + spread(b->ratio, NULL, rows);

    if (!first && !(imbalance <= b->best))
        return;
    b->best = imbalance;
    memcpy(b->best_sc, b->sc, cols * sizeof *b->sc);
    memcpy(b->best_w, b->w, cols * sizeof *b->w);
    memcpy(b->best_sr, b->sr, rows * sizeof *b->sr);
}

static void balance(struct kvk_balance *b, const struct kvk_shape *shape, const float *t,
                    uint32_t rows, uint32_t cols)
{
    const __m512 one = _mm512_set1_ps(1.0f);

    for (uint32_t i = 0; i < KVK_MAX_SIDE; i += 16) {
        _mm512_store_ps(b->sc + i, one);
        _mm512_store_ps(b->rc + i, one);
        _mm512_store_ps(b->sr + i, one);
        _mm512_store_ps(b->rr + i, one);
        _mm512_store_ps(b->w + i, one);
        _mm512_store_ps(b->v + i, one);
    }
    b->gain = b->inverse_gain = 1.0f;
    measure_means(b, t, rows, cols);
    sweep_rows(b, t, rows, cols, 0);
    sweep_cols(b, t, rows, cols);
    if (shape->balance == KVARN_BALANCE_SCALE_FREE)
        scale_by_gain(b, rows, cols);
    keep_if_best(b, rows, cols, 1);
    for (uint32_t i = 0; i < shape->iterations; i++) {
        for (uint32_t c = 0; c < cols; c += 16)
            update_scale(b->sc + c, b->rc + c, b->w + c, _mm512_load_ps(b->col + c),
                         b->inverse_gain);
        sweep_rows(b, t, rows, cols, 1);
        sweep_cols(b, t, rows, cols);
        keep_if_best(b, rows, cols, 0);
    }
}

static kvarn_status compress_side(struct kvk_compress *op, const struct kvk_side *side)
{
    struct kvk_compress_scratch *s = op->scratch;
    kvarn_status status = load(op, side);

    if (status != KVARN_OK)
        return status;
    balance(&s->balance, &op->shape, s->matrix, side->rows, side->cols);
    for (uint32_t r = 0; r < side->rows; r += 16) {
        const float *t = s->matrix + (size_t)r * side->cols;

        if (side->bits == 2)
            quantise_block(&s->balance, side, t, r, 2);
        else
            quantise_block(&s->balance, side, t, r, 4);
    }
    for (uint32_t c = 0; c < side->cols; c += 16)
        kvk_z_store_vector(side->other + 2 * (size_t)c, _mm512_load_ps(s->balance.best_sc + c));
    return KVARN_OK;
}

kvarn_status kvk_compress_avx512(struct kvk_compress *op)
{
    struct kvk_side k, v;
    kvarn_status status;

    op->fault = (struct kvk_fault){0};
    kvk_sides_of(op, &k, &v);
    status = compress_side(op, &k);
    return status == KVARN_OK ? compress_side(op, &v) : status;
}
