/* Compress for any vector width, bit for bit what compress_ref.c defines: loading, variance
 * normalisation, rounding.
 *
 * A template: compress_avx2.c and compress_avx512.c define the vectors (vec*.h, simd_*.h),
 * load_row() and pack_codes(), include this file (and compress_codes.h with it), which defines
 * KVK_COMPRESS_ENTRY, and then define measure_means(). Steps have the names of compress_ref.c. Rows
 * go in blocks of VW, whose statistics end in one register; 16 lanes are SETS registers. The fp32
 * matrix (64 KiB at 128 x 128) stays in the second-level cache; an iteration reads it twice. */
#include <string.h>

#include "kernels/compress_codes.h"
#include "kernels/fwht.h"
#include "kernels/variants.h"

enum { SETS = KVK_LANES / VW };

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

/* K passes through VW rows of scratch to be turned. */
KVK_INLINE kvarn_status load_rows(struct kvk_compress *op, const struct kvk_side *side,
                                  uint32_t dim, int bf16)
{
    struct kvk_compress_scratch *s = op->scratch;
    uint32_t group = op->shape.group;

    for (uint32_t g = 0; g < group; g += VW) {
        float *dst = side->transposed ? s->rows : s->matrix + (size_t)g * dim;

        for (uint32_t i = 0; i < VW; i++) {
            if (!load_row(dst + (size_t)i * dim, side->src + (g + i) * side->stride, dim, bf16,
                          side->rotate))
                return name_fault(op, side, g + i);
        }
        if (!side->transposed)
            continue;
        for (uint32_t d = 0; d < dim; d += VW)
            v_transpose(s->matrix + (size_t)d * group + g, group, s->rows + d, dim);
    }
    return KVARN_OK;
}

static kvarn_status load(struct kvk_compress *op, const struct kvk_side *side)
{
    int bf16 = op->shape.dtype == KVARN_BF16;

    switch (op->shape.dim) {
    case 64:
        return bf16 ? load_rows(op, side, 64, 1) : load_rows(op, side, 64, 0);
    case 128:
        return bf16 ? load_rows(op, side, 128, 1) : load_rows(op, side, 128, 0);
    default:
        return bf16 ? load_rows(op, side, 256, 1) : load_rows(op, side, 256, 0);
    }
}

static float mean_of(const float *x, uint32_t n)
{
    vf sum[SETS];

    for (size_t j = 0; j < SETS; j++)
        sum[j] = v_set(0.0f);
    for (uint32_t i = 0; i < n; i += KVK_LANES) {
        for (size_t j = 0; j < SETS; j++)
            sum[j] = v_add(sum[j], v_load(x + i + VW * j));
    }
    return v_lanes_sum(sum) * (1.0f / (float)n);
}

static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols);

KVK_INLINE vf deviation(vf sum, vf squares, uint32_t n)
{
    vf mean = v_mul(sum, v_set(1.0f / (float)n));
    vf variance = v_mul(v_fnma(mean, sum, squares), v_set(1.0f / (float)(n - 1)));

    return v_sqrt(v_max(variance, v_set(0.0f)));
}

/* out[0 .. n) = x * factor; out may be x. */
static void scale_vector(float *out, const float *x, float factor, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VW)
        v_store(out + i, v_mul(v_load(x + i), v_set(factor)));
}

/* Returns measured / scale; exactly 1 where no clamp held the scale back. */
KVK_INLINE vf update_scale(float *scale, float *reciprocal, float *weight, vf measured,
                           float inverse_gain)
{
    vf s = v_load(scale), r = v_load(reciprocal), change = v_mul(measured, r), clipped, wanted;

    clipped = v_min(v_max(change, v_set(KVK_STD_LOW)), v_set(KVK_STD_HIGH));
    wanted = v_mul(s, clipped);
    s = v_min(v_max(wanted, v_set(KVK_SCALE_LOW)), v_set(KVK_SCALE_HIGH));
    r = v_div(v_set(1.0f), s);
    v_store(scale, s);
    v_store(reciprocal, r);
    v_store(weight, v_mul(r, v_set(inverse_gain)));
    return v_where_same(clipped, change, s, wanted, v_set(1.0f), v_mul(measured, r));
}

/* VW / 4 rows about their shifts: sum and squares get the SETS registers of a row already added.
 * The four accumulators are locals so that they stay in registers. */
KVK_INLINE void measure_some_rows(vf *sum, vf *squares, const float *t, const float *w,
                                  const float *shift, uint32_t cols)
{
    vf m[4], s[4], q[4];

    KVK_UNROLL
    for (size_t i = 0; i < 4; i++) {
        m[i] = v_set(shift[i / SETS]);
        s[i] = q[i] = v_set(0.0f);
    }
    for (uint32_t c = 0; c < cols; c += KVK_LANES) {
        KVK_UNROLL
        for (size_t i = 0; i < 4; i++) {
            size_t set = VW * (i % SETS);
            vf x = v_load(t + i / SETS * cols + c + set), y = v_fms(x, v_load(w + c + set), m[i]);

            s[i] = v_add(s[i], y);
            q[i] = v_fma(y, y, q[i]);
        }
    }
    KVK_UNROLL
    for (size_t i = 0; i < 4; i += SETS) {
        sum[i / SETS] = SETS == 2 ? v_add(s[i], s[i + SETS - 1]) : s[i];
        squares[i / SETS] = SETS == 2 ? v_add(q[i], q[i + SETS - 1]) : q[i];
    }
}

/* A block of 16 rows down four registers of columns, added to the totals. */
KVK_INLINE void measure_some_columns(float *sum, float *squares, const float *t, const float *v,
                                     const float *shift, uint32_t cols)
{
    vf n[4], s[4], q[4];

    KVK_UNROLL
    for (size_t i = 0; i < 4; i++) {
        n[i] = v_load(shift + VW * i);
        s[i] = q[i] = v_set(0.0f);
    }
    for (uint32_t r = 0; r < KVK_LANES; r++) {
        vf weight = v_set(v[r]);

        KVK_UNROLL
        for (size_t i = 0; i < 4; i++) {
            vf y = v_fms(v_load(t + (size_t)r * cols + VW * i), weight, n[i]);

            s[i] = v_add(s[i], y);
            q[i] = v_fma(y, y, q[i]);
        }
    }
    KVK_UNROLL
    for (size_t i = 0; i < 4; i++) {
        v_store(sum + VW * i, v_add(v_load(sum + VW * i), s[i]));
        v_store(squares + VW * i, v_add(v_load(squares + VW * i), q[i]));
    }
}

static void sweep_rows(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols,
                       int update)
{
    _Alignas(64) float shift[KVK_MAX_SIDE];

    scale_vector(shift, b->row_mean, mean_of(b->w, cols), rows);
    for (uint32_t r = 0; r < rows; r += VW, t += (size_t)VW * cols) {
        vf s[VW], q[VW], folded_s, folded_q, measured;

        for (uint32_t i = 0; i < VW; i += VW / 4)
            measure_some_rows(s + i, q + i, t + (size_t)i * cols, b->w, shift + r + i, cols);
        KVK_FOLD(folded_s, s, v_add);
        KVK_FOLD(folded_q, q, v_add);
        measured = deviation(folded_s, folded_q, cols);
        v_store(b->row + r, measured);
        if (update)
            measured = update_scale(b->sr + r, b->rr + r, b->v + r, measured, b->inverse_gain);
        v_store(b->ratio + r, measured);
    }
}

static void sweep_cols(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    _Alignas(64) float sum[KVK_MAX_SIDE] = {0}, squares[KVK_MAX_SIDE] = {0}, shift[KVK_MAX_SIDE];

    scale_vector(shift, b->col_mean, mean_of(b->v, rows), cols);
    for (uint32_t r = 0; r < rows; r += KVK_LANES, t += (size_t)KVK_LANES * cols) {
        for (uint32_t c = 0; c < cols; c += 4 * VW)
            measure_some_columns(sum + c, squares + c, t + c, b->v + r, shift + c, cols);
    }
    for (uint32_t c = 0; c < cols; c += VW)
        v_store(b->col + c, deviation(v_load(sum + c), v_load(squares + c), rows));
}

/* max / min of measured * reciprocal, or of measured alone. */
static double spread(const float *measured, const float *reciprocal, uint32_t n)
{
    vf low = v_set(__builtin_inff()), high = v_set(0.0f);
    double least;

    for (uint32_t i = 0; i < n; i += VW) {
        vf x = v_load(measured + i);

        if (reciprocal != NULL)
            x = v_mul(x, v_load(reciprocal + i));
        low = v_min(low, x);
        high = v_max(high, x);
    }
    least = (double)v_reduce_min(low);
    return (double)v_reduce_max(high) / (least > KVK_SPREAD_FLOOR ? least : KVK_SPREAD_FLOOR);
}

static vf max_of(vf high, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VW)
        high = v_max(high, v_load(x + i));
    return high;
}

static vf min_above(vf low, vf share, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VW) {
        vf y = v_load(x + i);

        low = v_where_ge(y, share, v_min(low, y), low);
    }
    return low;
}

static float find_gain(const struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    float most = v_reduce_max(max_of(max_of(v_set(0.0f), b->row, rows), b->col, cols)), least;
    vf share = v_set(most * KVK_GAIN_SHARE);

    if (!(most > 0.0f))
        return 1.0f;
    least =
        v_reduce_min(min_above(min_above(v_set(most), share, b->row, rows), share, b->col, cols));
    return least > KVK_GAIN_LOW ? least : KVK_GAIN_LOW;
}

static void scale_by_gain(struct kvk_balance *b, uint32_t rows, uint32_t cols)
{
    b->gain = find_gain(b, rows, cols);
    b->inverse_gain = 1.0f / b->gain;
    scale_vector(b->ratio, b->row, b->inverse_gain, rows);
    scale_vector(b->col, b->col, b->inverse_gain, cols);
    scale_vector(b->v, b->v, b->inverse_gain, rows); /* all 1 so far */
    scale_vector(b->w, b->w, b->inverse_gain, cols);
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
        for (uint32_t c = 0; c < cols; c += VW)
            update_scale(b->sc + c, b->rc + c, b->w + c, v_load(b->col + c), b->inverse_gain);
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
    quantise(&s->balance, side, s->matrix);
    for (uint32_t c = 0; c < side->cols; c += VW)
        v_store_vector(side->other + 2 * (size_t)c, v_load(s->balance.best_sc + c));
    return KVARN_OK;
}

kvarn_status KVK_COMPRESS_ENTRY(struct kvk_compress *op)
{
    struct kvk_side k, v;
    kvarn_status status;

    op->fault = (struct kvk_fault){0};
    kvk_sides_of(op, &k, &v);
    status = compress_side(op, &k);
    return status == KVARN_OK ? compress_side(op, &v) : status;
}
