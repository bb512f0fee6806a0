/* Attend with AVX2, FMA and F16C: products with packed codes by shift, convert and fma.
 *
 * A unit is 64 columns: 8 dwords of which each lane holds 8 codes, so that code k of every lane
 * needs the same shift. 2-bit codes become floats by a permute of {0,1,2,3} (it reads the low 2
 * bits only), 4-bit codes by mask and convert. The floats serve all query rows of the block. */
#include <math.h>

#include "kernels/attend.h"
#include "kernels/attend_codes.h"
#include "kernels/vec256.h"

static uint32_t unit_columns(uint32_t bits, uint32_t columns)
{
    (void)bits;
    (void)columns;
    return 64;
}

/* Column of a unit whose code lies in lane `place % 8`, at code `place / 8` of the lane. */
static uint32_t unit_column(uint32_t bits, uint32_t columns, uint32_t place)
{
    uint32_t lane = place % 8, k = place / 8;

    (void)columns;
    return bits == 4 ? 8 * lane + k : 16 * (lane % 4) + 8 * (lane / 4) + k;
}

static struct kvk_codes codes_prepare(const uint8_t *packed, uint32_t bits, uint32_t rows,
                                      uint32_t columns, const int32_t *row_at, uint8_t *store)
{
    size_t row_bytes = (size_t)columns * bits / 8;

    (void)row_at; /* x is read through codes->order instead */
    (void)store;
    return (struct kvk_codes){packed, row_bytes, (size_t)8 * bits, bits, rows, columns, NULL};
}

/* The 64 codes of a unit with code k of a lane at bit k * bits. */
KVK_INLINE __m256i unit_load(const uint8_t *at, int bits)
{
    if (bits == 4)
        return _mm256_loadu_si256((const void *)at);
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)at));
    return _mm256_srlv_epi32(both, _mm256_set_epi32(16, 16, 16, 16, 0, 0, 0, 0));
}

KVK_INLINE __m256 unit_floats(__m256i codes, int bits, int k)
{
    __m256i shifted = k ? _mm256_srli_epi32(codes, k * bits) : codes;

    if (bits == 2)
        return _mm256_permutevar_ps(_mm256_set_ps(3, 2, 1, 0, 3, 2, 1, 0), shifted);
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
}

/* sums of `rows` query rows, codes k0 .. k0 + n - 1 of each lane; bits, rows, k0, n constant. */
KVK_INLINE void block(const struct kvk_codes *codes, const uint8_t *z, const float *x, float *sum,
                      int bits, int rows, int k0, int n)
{
    __m256 acc[8];

    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        acc[i] = _mm256_setzero_ps();
    for (uint32_t s = 0; s < codes->rows; s++, z += codes->step_bytes) {
        __m256i packed = unit_load(z, bits);
        const float *at = x + (codes->order ? codes->order[s] : (int32_t)s);
        KVK_UNROLL
        for (int k = 0; k < n; k++) {
            __m256 code = unit_floats(packed, bits, k0 + k);
            KVK_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r * n + k] =
                    v_fma(code, v_set(at[(size_t)r * KVARN_MAX_HEAD_DIM]), acc[r * n + k]);
        }
    }
    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        v_store(sum + (size_t)(i / n) * KVARN_MAX_HEAD_DIM + 8 * (size_t)(k0 + i % n), acc[i]);
}

/* One unit, up to KVK_ROWS query rows. */
KVK_INLINE void multiply_unit(const struct kvk_codes *codes, const uint8_t *z, const float *x,
                              float *sum, uint32_t rows, int bits)
{
    for (; rows >= 4; rows -= 4) {
        block(codes, z, x, sum, bits, 4, 0, 2);
        block(codes, z, x, sum, bits, 4, 2, 2);
        block(codes, z, x, sum, bits, 4, 4, 2);
        block(codes, z, x, sum, bits, 4, 6, 2);
        x += (size_t)4 * KVARN_MAX_HEAD_DIM;
        sum += (size_t)4 * KVARN_MAX_HEAD_DIM;
    }
    for (; rows >= 2; rows -= 2) {
        block(codes, z, x, sum, bits, 2, 0, 4);
        block(codes, z, x, sum, bits, 2, 4, 4);
        x += (size_t)2 * KVARN_MAX_HEAD_DIM;
        sum += (size_t)2 * KVARN_MAX_HEAD_DIM;
    }
    if (rows == 1)
        block(codes, z, x, sum, bits, 1, 0, 8);
}

/* work->sum[r] = work->x[r] times the codes, in column order, for r < rows. */
static void codes_multiply(const struct kvk_codes *codes, struct kvk_attend_work *work,
                           uint32_t rows)
{
    for (uint32_t unit = 0; unit < codes->columns / 64; unit++) {
        const uint8_t *z = codes->base + unit * codes->unit_bytes;
        if (codes->bits == 2)
            multiply_unit(codes, z, work->x[0], work->sum[0] + (size_t)64 * unit, rows, 2);
        else
            multiply_unit(codes, z, work->x[0], work->sum[0] + (size_t)64 * unit, rows, 4);
    }
}

#define KVK_ATTEND_ENTRY kvk_attend_avx2
#include "kernels/attend_body.h"
