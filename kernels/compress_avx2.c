/* K and V of one tile -> record with AVX2, FMA and F16C, bit for bit what compress_ref.c defines.
 *
 * Same plan as compress_avx512.c. A set of 16 lanes is a pair of registers. */
#include <string.h>

#include "kernels/fwht.h"
#include "kernels/quantise_avx2.h"
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

/* 64 channels: load, note non-finite values in bad, distances 1 to 32, store. */
KVK_INLINE __m256 load_run(float *dst, const uint8_t *src, int bf16, int rotate, __m256 bad)
{
    const __m256 limit = _mm256_set1_ps(KVK_INPUT_LIMIT), least = _mm256_set1_ps(-KVK_INPUT_LIMIT);
    __m256 x[8];

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        x[i] = kvk_y_load_half(src + 16 * i, bf16);
        /* NaN as soon as one is not finite */
        bad = _mm256_fmadd_ps(x[i], _mm256_setzero_ps(), bad);
        if (bf16)
            x[i] = _mm256_min_ps(_mm256_max_ps(x[i], least), limit);
    }
    if (rotate)
        kvk_y_butterfly_64(x);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        _mm256_store_ps(dst + 8 * i, x[i]);
    return bad;
}

/* The distances above 32 and the factor 1 / sqrt(dim), in place. */
KVK_INLINE void finish_row(float *row, size_t runs, float norm)
{
    for (size_t i = 0; i < 64; i += 8) {
        __m256 x[4];

#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++)
            x[j] = _mm256_load_ps(row + 64 * j + i);
        kvk_y_butterfly_runs(x, runs);
#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++)
            _mm256_store_ps(row + 64 * j + i, _mm256_mul_ps(x[j], _mm256_set1_ps(norm)));
    }
}

/* The row was refused by the values that were loaded. Its place is looked up in the source again,
 * which a client may have changed by now; then it is reported as channel 0. */
static kvarn_status name_fault(struct kvk_compress *op, const struct kvk_side *side, uint32_t token)
{
    struct kvk_fault fault;

    kvk_rows_check(side->src + token * side->stride, 0, 1, op->shape.dim,
                   (kvarn_dtype)op->shape.dtype, side->tensor, &fault);
    op->fault = (struct kvk_fault){side->tensor, token, fault.channel};
    return KVARN_NON_FINITE;
}

KVK_INLINE kvarn_status load_rows(struct kvk_compress *op, const struct kvk_side *side, size_t runs,
                                  int bf16)
{
    struct kvk_compress_scratch *s = op->scratch;
    uint32_t dim = 64 * (uint32_t)runs, group = op->shape.group;
    float norm = kvk_fwht_norm(dim);

    for (uint32_t g = 0; g < group; g += 8) {
        float *dst = side->transposed ? s->rows : s->matrix + (size_t)g * dim;

        for (uint32_t i = 0; i < 8; i++, dst += dim) {
            const uint8_t *src = side->src + (g + i) * side->stride;
            __m256 bad = _mm256_setzero_ps();

            for (size_t j = 0; j < runs; j++)
                bad = load_run(dst + 64 * j, src + 128 * j, bf16, side->rotate, bad);
            if (_mm256_movemask_ps(_mm256_cmp_ps(bad, bad, _CMP_UNORD_Q)) != 0)
                return name_fault(op, side, g + i);
            if (side->rotate)
                finish_row(dst, runs, norm);
        }
        if (!side->transposed)
            continue;
        for (uint32_t d = 0; d < dim; d += 8)
            kvk_y_transpose(s->matrix + (size_t)d * group + g, group, s->rows + d, dim);
    }
    return KVARN_OK;
}

static kvarn_status load(struct kvk_compress *op, const struct kvk_side *side)
{
    int bf16 = op->shape.dtype == KVARN_BF16;

    switch (op->shape.dim) {
    case 64:
        return bf16 ? load_rows(op, side, 1, 1) : load_rows(op, side, 1, 0);
    case 128:
        return bf16 ? load_rows(op, side, 2, 1) : load_rows(op, side, 2, 0);
    default:
        return bf16 ? load_rows(op, side, 4, 1) : load_rows(op, side, 4, 0);
    }
}

static float mean_of(const float *x, uint32_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;

    for (uint32_t i = 0; i < n; i += 16) {
        low = _mm256_add_ps(low, _mm256_load_ps(x + i));
        high = _mm256_add_ps(high, _mm256_load_ps(x + i + 8));
    }
    return kvk_y_sum(low, high) * (1.0f / (float)n);
}

KVK_INLINE __m256 deviation(__m256 sum, __m256 squares, uint32_t n)
{
    __m256 mean = _mm256_mul_ps(sum, _mm256_set1_ps(1.0f / (float)n));
    __m256 variance =
        _mm256_mul_ps(_mm256_fnmadd_ps(mean, sum, squares), _mm256_set1_ps(1.0f / (float)(n - 1)));

    return _mm256_sqrt_ps(_mm256_max_ps(variance, _mm256_setzero_ps()));
}

/* x[0 .. n) *= factor */
static void scale_vector(float *x, float factor, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_store_ps(x + i, _mm256_mul_ps(_mm256_load_ps(x + i), _mm256_set1_ps(factor)));
}

static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    memset(b->col_mean, 0, sizeof b->col_mean);
    for (uint32_t r = 0; r < rows; r++)
        b->row_mean[r] = mean_of(t + (size_t)r * cols, cols);
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        for (uint32_t c = 0; c < cols; c += 16) {
            __m256 low = _mm256_setzero_ps(), high = low;

            for (uint32_t i = 0; i < 16; i++) {
                low = _mm256_add_ps(low, _mm256_load_ps(t + (size_t)i * cols + c));
                high = _mm256_add_ps(high, _mm256_load_ps(t + (size_t)i * cols + c + 8));
            }
            low = _mm256_add_ps(_mm256_load_ps(b->col_mean + c), low);
            high = _mm256_add_ps(_mm256_load_ps(b->col_mean + c + 8), high);
            _mm256_store_ps(b->col_mean + c, low);
            _mm256_store_ps(b->col_mean + c + 8, high);
        }
    }
    scale_vector(b->col_mean, 1.0f / (float)rows, cols);
}

/* Returns measured / scale; exactly 1 where no clamp held the scale back. */
KVK_INLINE __m256 update_scale(float *scale, float *reciprocal, float *weight, __m256 measured,
                               float inverse_gain)
{
    __m256 s = _mm256_load_ps(scale), r = _mm256_load_ps(reciprocal);
    __m256 change = _mm256_mul_ps(measured, r), clipped, wanted, exact;

    clipped = _mm256_max_ps(change, _mm256_set1_ps(KVK_STD_LOW));
    clipped = _mm256_min_ps(clipped, _mm256_set1_ps(KVK_STD_HIGH));
    wanted = _mm256_mul_ps(s, clipped);
    s = _mm256_max_ps(wanted, _mm256_set1_ps(KVK_SCALE_LOW));
    s = _mm256_min_ps(s, _mm256_set1_ps(KVK_SCALE_HIGH));
    r = _mm256_div_ps(_mm256_set1_ps(1.0f), s);
    _mm256_store_ps(scale, s);
    _mm256_store_ps(reciprocal, r);
    _mm256_store_ps(weight, _mm256_mul_ps(r, _mm256_set1_ps(inverse_gain)));
    exact = _mm256_and_ps(_mm256_cmp_ps(clipped, change, _CMP_EQ_OQ),
                          _mm256_cmp_ps(s, wanted, _CMP_EQ_OQ));
    return _mm256_blendv_ps(_mm256_mul_ps(measured, r), _mm256_set1_ps(1.0f), exact);
}

/* Two rows about their shifts; sum and squares get the two halves of 16 lanes already added. */
KVK_INLINE void measure_2_rows(__m256 *sum, __m256 *squares, const float *t, const float *w,
                               const float *shift, uint32_t cols)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 m[2], s[4] = {zero, zero, zero, zero}, q[4] = {zero, zero, zero, zero};

    m[0] = _mm256_set1_ps(shift[0]);
    m[1] = _mm256_set1_ps(shift[1]);
    for (uint32_t c = 0; c < cols; c += 16) {
        __m256 weight[2] = {_mm256_load_ps(w + c), _mm256_load_ps(w + c + 8)};

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m256 x = _mm256_load_ps(t + (size_t)(i / 2) * cols + c + 8 * (i % 2));
            __m256 y = _mm256_fmsub_ps(x, weight[i % 2], m[i / 2]);

            s[i] = _mm256_add_ps(s[i], y);
            q[i] = _mm256_fmadd_ps(y, y, q[i]);
        }
    }
    sum[0] = _mm256_add_ps(s[0], s[1]);
    sum[1] = _mm256_add_ps(s[2], s[3]);
    squares[0] = _mm256_add_ps(q[0], q[1]);
    squares[1] = _mm256_add_ps(q[2], q[3]);
}

/* A block of 16 rows down four registers of columns, added to the totals. */
KVK_INLINE void measure_32_columns(float *sum, float *squares, const float *t, const float *v,
                                   const float *shift, uint32_t cols)
{
    __m256 n[4], s[4], q[4];

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        n[i] = _mm256_load_ps(shift + 8 * i);
        s[i] = q[i] = _mm256_setzero_ps();
    }
    for (uint32_t r = 0; r < 16; r++) {
        __m256 weight = _mm256_set1_ps(v[r]);

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m256 x = _mm256_load_ps(t + (size_t)r * cols + 8 * i);
            __m256 y = _mm256_fmsub_ps(x, weight, n[i]);

            s[i] = _mm256_add_ps(s[i], y);
            q[i] = _mm256_fmadd_ps(y, y, q[i]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm256_store_ps(sum + 8 * i, _mm256_add_ps(_mm256_load_ps(sum + 8 * i), s[i]));
        _mm256_store_ps(squares + 8 * i, _mm256_add_ps(_mm256_load_ps(squares + 8 * i), q[i]));
    }
}

static void sweep_rows(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols,
                       int update)
{
    _Alignas(32) float shift[KVK_MAX_SIDE];

    memcpy(shift, b->row_mean, rows * sizeof *shift);
    scale_vector(shift, mean_of(b->w, cols), rows);
    for (uint32_t r = 0; r < rows; r += 8, t += (size_t)8 * cols) {
        __m256 s[8], q[8], folded_s, folded_q, measured;

        for (uint32_t i = 0; i < 8; i += 2)
            measure_2_rows(s + i, q + i, t + (size_t)i * cols, b->w, shift + r + i, cols);
        KVK_Y_FOLD8(folded_s, s, _mm256_add_ps);
        KVK_Y_FOLD8(folded_q, q, _mm256_add_ps);
        measured = deviation(folded_s, folded_q, cols);
        _mm256_store_ps(b->row + r, measured);
        if (update)
            measured = update_scale(b->sr + r, b->rr + r, b->v + r, measured, b->inverse_gain);
        _mm256_store_ps(b->ratio + r, measured);
    }
}

static void sweep_cols(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    _Alignas(32) float sum[KVK_MAX_SIDE] = {0}, squares[KVK_MAX_SIDE] = {0}, shift[KVK_MAX_SIDE];

    memcpy(shift, b->col_mean, cols * sizeof *shift);
    scale_vector(shift, mean_of(b->v, rows), cols);
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        for (uint32_t c = 0; c < cols; c += 32)
            measure_32_columns(sum + c, squares + c, t + c, b->v + r, shift + c, cols);
    }
    for (uint32_t c = 0; c < cols; c += 8)
        _mm256_store_ps(b->col + c,
                        deviation(_mm256_load_ps(sum + c), _mm256_load_ps(squares + c), rows));
}

/* max / min of measured * reciprocal, or of measured alone. */
static double spread(const float *measured, const float *reciprocal, uint32_t n)
{
    __m256 low = _mm256_set1_ps(__builtin_inff()), high = _mm256_setzero_ps();
    double least;

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_load_ps(measured + i);

        if (reciprocal != NULL)
            x = _mm256_mul_ps(x, _mm256_load_ps(reciprocal + i));
        low = _mm256_min_ps(low, x);
        high = _mm256_max_ps(high, x);
    }
    least = (double)kvk_y_reduce_min(low);
    return (double)kvk_y_reduce_max(high) / (least > KVK_SPREAD_FLOOR ? least : KVK_SPREAD_FLOOR);
}

static __m256 max_of(__m256 high, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        high = _mm256_max_ps(high, _mm256_load_ps(x + i));
    return high;
}

static __m256 min_above(__m256 low, __m256 share, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 y = _mm256_load_ps(x + i);

        low = _mm256_blendv_ps(low, _mm256_min_ps(low, y), _mm256_cmp_ps(y, share, _CMP_GE_OQ));
    }
    return low;
}

static void scale_by_gain(struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    float most = kvk_y_reduce_max(max_of(max_of(_mm256_setzero_ps(), b->row, rows), b->col, cols));

    if (most > 0.0f) {
        __m256 share = _mm256_set1_ps(most * KVK_GAIN_SHARE), low = _mm256_set1_ps(most);

        low = min_above(min_above(low, share, b->row, rows), share, b->col, cols);
        b->gain = kvk_y_reduce_min(low);
        b->gain = b->gain > KVK_GAIN_LOW ? b->gain : KVK_GAIN_LOW;
    }
    b->inverse_gain = 1.0f / b->gain;
    scale_vector(b->ratio, b->inverse_gain, rows); /* = row so far */
    scale_vector(b->col, b->inverse_gain, cols);
    scale_vector(b->v, b->inverse_gain, rows); /* all 1 so far */
    scale_vector(b->w, b->inverse_gain, cols);
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
    for (uint32_t i = 0; i < KVK_MAX_SIDE; i++)
        b->sc[i] = b->rc[i] = b->sr[i] = b->rr[i] = b->w[i] = b->v[i] = 1.0f;
    b->gain = b->inverse_gain = 1.0f;
    measure_means(b, t, rows, cols);
    sweep_rows(b, t, rows, cols, 0);
    sweep_cols(b, t, rows, cols);
    if (shape->balance == KVARN_BALANCE_SCALE_FREE)
        scale_by_gain(b, rows, cols);
    keep_if_best(b, rows, cols, 1);
    for (uint32_t i = 0; i < shape->iterations; i++) {
        for (uint32_t c = 0; c < cols; c += 8)
            update_scale(b->sc + c, b->rc + c, b->w + c, _mm256_load_ps(b->col + c),
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
    for (uint32_t r = 0; r < side->rows; r += 8) {
        const float *t = s->matrix + (size_t)r * side->cols;

        if (side->bits == 2)
            quantise_block(&s->balance, side, t, r, 2);
        else
            quantise_block(&s->balance, side, t, r, 4);
    }
    for (uint32_t c = 0; c < side->cols; c += 8)
        kvk_y_store_vector(side->other + 2 * (size_t)c, _mm256_load_ps(s->balance.best_sc + c));
    return KVARN_OK;
}

kvarn_status kvk_compress_avx2(struct kvk_compress *op)
{
    struct kvk_side k, v;
    kvarn_status status;

    op->fault = (struct kvk_fault){0};
    kvk_sides_of(op, &k, &v);
    status = compress_side(op, &k);
    return status == KVARN_OK ? compress_side(op, &v) : status;
}
