/* Attend with AVX-512 F, BW, VL, DQ and no more: products with packed codes by table look-up.
 *
 * A code vector holds 16 dwords of nibbles. A nibble is one 4-bit code, or the 2-bit codes of two
 * neighbouring rows in the same column; either way x times its codes is one of 16 values, so a
 * 16-entry permute of a table made from x replaces unpacking, conversion and multiplication: a
 * shift per 16 nibbles (shared by all query rows), then one permute and one addition per row. The
 * permute reads the low 4 bits of each lane, so nothing has to be masked. */
#include <math.h>

#include "kernels/attend.h"
#include "kernels/attend_codes.h"
#include "kernels/vec512.h"

static uint32_t unit_columns(uint32_t bits, uint32_t columns)
{
    (void)bits;
    return columns % 128 == 0 ? 128 : 64;
}

/* Column of a unit whose code lies in lane `place % 16`, nibble `place / 16`. */
static uint32_t unit_column(uint32_t bits, uint32_t columns, uint32_t place)
{
    uint32_t lane = place % 16, nibble = place / 16;

    if (bits == 4)
        return columns == 128 ? 8 * lane + nibble : 8 * (lane % 8) + 4 * (lane / 8) + nibble;
    if (columns == 128)
        return 16 * (lane % 8) + 2 * nibble + lane / 8;
    return 16 * (lane % 4) + 8 * (lane / 8) + 2 * nibble + lane / 4 % 2;
}

/* Two rows of 128 2-bit codes -> 128 nibbles: even columns in the low half, odd in the high. */
static __m512i pair_128(const uint8_t *even_row, const uint8_t *odd_row)
{
    const __m512i right = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i left = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    __m512i a = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)even_row));
    __m512i b = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)odd_row));

    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x33333333), _mm512_srlv_epi32(a, right),
                                     _mm512_sllv_epi32(b, left), 0xca);
}

/* Two rows of 64 2-bit codes -> 64 nibbles, four per lane. */
static __m512i pair_64(const uint8_t *even_row, const uint8_t *odd_row)
{
    const __m512i right = _mm512_set_epi32(18, 18, 18, 18, 16, 16, 16, 16, 2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i rotate = _mm512_set_epi32(16, 16, 16, 16, 18, 18, 18, 18, 0, 0, 0, 0, 2, 2, 2, 2);
    __m512i a = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)even_row));
    __m512i b = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)odd_row));

    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x33333333), _mm512_srlv_epi32(a, right),
                                     _mm512_rolv_epi32(b, rotate), 0xca);
}

/* 64 4-bit codes -> four per lane. */
static __m512i single_64(const uint8_t *row)
{
    const __m512i right = _mm512_set_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);

    return _mm512_srlv_epi32(_mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)row)), right);
}

static struct kvk_codes codes_prepare(const uint8_t *packed, uint32_t bits, uint32_t rows,
                                      uint32_t columns, const int32_t *row_at, uint8_t *store)
{
    uint32_t width = unit_columns(bits, columns), units = columns / width,
             per_step = bits == 2 ? 2 : 1;
    uint32_t steps = rows / per_step;
    size_t row_bytes = (size_t)columns * bits / 8, unit_bytes = (size_t)width * bits / 8;

    (void)row_at;                  /* x is read through codes->order instead */
    if (bits == 4 && width == 128) /* the record is in this order already */
        return (struct kvk_codes){packed, row_bytes, unit_bytes, bits, rows, columns, NULL};
    for (uint32_t unit = 0; unit < units; unit++) {
        for (uint32_t s = 0; s < steps; s++) {
            const uint8_t *row = packed + (size_t)s * per_step * row_bytes + unit * unit_bytes;
            __m512i z = bits == 4      ? single_64(row)
                        : width == 128 ? pair_128(row, row + row_bytes)
                                       : pair_64(row, row + row_bytes);
            _mm512_storeu_si512(store + ((size_t)unit * steps + s) * 64, z);
        }
    }
    return (struct kvk_codes){store, 64, (size_t)steps * 64, bits, rows, columns, NULL};
}

/* Tables of `steps` steps from `first`: entry i of a 4-bit table is i * x[row], of a 2-bit table
 * (i & 3) * x[row] + (i >> 2) * x[row + 1]. */
static void make_tables(const struct kvk_codes *codes, const float *x, uint32_t first,
                        uint32_t steps, float *tables)
{
    const __m512 low = _mm512_set_ps(3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0);
    const __m512 high = _mm512_set_ps(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __m512 all = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const int32_t *order = codes->order;

    for (uint32_t s = first; s < first + steps; s++, tables += 16) {
        if (codes->bits == 4) {
            _mm512_storeu_ps(tables, _mm512_mul_ps(all, v_set(x[order ? order[s] : (int)s])));
            continue;
        }
        __m512 a = v_set(x[order ? order[(size_t)2 * s] : (int)(2 * s)]);
        __m512 b = v_set(x[order ? order[2 * s + 1] : (int)(2 * s + 1)]);
        _mm512_storeu_ps(tables, _mm512_fmadd_ps(high, b, _mm512_mul_ps(low, a)));
    }
}

/* sums of `rows` query rows, nibbles k0 .. k0 + n - 1; everything but the step count constant. */
KVK_INLINE void block(const uint8_t *z, size_t step_bytes, const float *tables, uint32_t steps,
                      float *sum, int rows, int k0, int n)
{
    __m512 acc[24];

    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        acc[i] = v_load(sum + (size_t)(i / n) * KVARN_MAX_HEAD_DIM + 16 * (size_t)(k0 + i % n));
    for (uint32_t s = 0; s < steps; s++, z += step_bytes, tables += 16) {
        __m512i codes = _mm512_loadu_si512(z);
        KVK_UNROLL
        for (int k = 0; k < n; k++) {
            __m512i index = k0 + k ? _mm512_srli_epi32(codes, (unsigned)(4 * (k0 + k))) : codes;
            KVK_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r * n + k] = _mm512_add_ps(
                    acc[r * n + k],
                    _mm512_permutexvar_ps(index, v_load(tables + (size_t)r * KVK_STEPS * 16)));
        }
    }
    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        v_store(sum + (size_t)(i / n) * KVARN_MAX_HEAD_DIM + 16 * (size_t)(k0 + i % n), acc[i]);
}

/* One unit, up to KVK_ROWS query rows. */
static void multiply_unit(const uint8_t *z, size_t step_bytes, const float *tables, uint32_t steps,
                          float *sum, uint32_t rows, bool half)
{
    for (; rows >= 4; rows -= 4) {
        block(z, step_bytes, tables, steps, sum, 4, 0, 4);
        if (!half)
            block(z, step_bytes, tables, steps, sum, 4, 4, 4);
        tables += (size_t)4 * KVK_STEPS * 16;
        sum += (size_t)4 * KVARN_MAX_HEAD_DIM;
    }
    if (half && rows == 3)
        block(z, step_bytes, tables, steps, sum, 3, 0, 4);
    else if (half && rows == 2)
        block(z, step_bytes, tables, steps, sum, 2, 0, 4);
    else if (half && rows == 1)
        block(z, step_bytes, tables, steps, sum, 1, 0, 4);
    else if (rows == 3)
        block(z, step_bytes, tables, steps, sum, 3, 0, 8);
    else if (rows == 2)
        block(z, step_bytes, tables, steps, sum, 2, 0, 8);
    else if (rows == 1)
        block(z, step_bytes, tables, steps, sum, 1, 0, 8);
}

/* work->sum[r] = work->x[r] times the codes, in column order, for r < rows. */
static void codes_multiply(const struct kvk_codes *codes, struct kvk_attend_work *work,
                           uint32_t rows)
{
    uint32_t width = unit_columns(codes->bits, codes->columns), units = codes->columns / width;
    uint32_t steps = codes->bits == 2 ? codes->rows / 2 : codes->rows;

    for (uint32_t r = 0; r < rows; r++)
        memset(work->sum[r], 0, codes->columns * sizeof(float));
    for (uint32_t first = 0; first < steps; first += KVK_STEPS) {
        uint32_t count = steps - first < KVK_STEPS ? steps - first : KVK_STEPS;
        for (uint32_t r = 0; r < rows; r++)
            make_tables(codes, work->x[r], first, count, work->tables + (size_t)r * KVK_STEPS * 16);
        for (uint32_t unit = 0; unit < units; unit++)
            multiply_unit(codes->base + first * codes->step_bytes + unit * codes->unit_bytes,
                          codes->step_bytes, work->tables, count,
                          work->sum[0] + (size_t)unit * width, rows, width == 64);
    }
}

#define KVK_ATTEND_ENTRY kvk_attend_avx512_tables
#include "kernels/attend_body.h"

kvarn_status kvk_attend_avx512(struct kvk_attend *op)
{
    if (__builtin_cpu_supports("avx512vnni"))
        return kvk_attend_avx512_vnni(op);
    return kvk_attend_avx512_tables(op);
}
