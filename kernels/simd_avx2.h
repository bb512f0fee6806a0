/* Pieces of the AVX2 kernels: rows of 16-bit elements, butterflies, sums over lanes in the order
 * that compress.h fixes. Included only by files built for AVX2, FMA and F16C.
 *
 * Sixteen registers do not hold a row of more than 64 channels next to its temporaries, so
 * butterflies go in two passes: distances 1 to 32 over 64 channels inside eight registers, then
 * the one or two distances that are left, over rows in memory. */
#ifndef KVK_SIMD_AVX2_H
#define KVK_SIMD_AVX2_H

#include <immintrin.h>

#include "kernels/compress.h"
#include "kernels/inline.h"
#include "kernels/vec256.h"

KVK_INLINE __m256 kvk_y_load_half(const uint8_t *at, int bf16)
{
    __m128i h = _mm_loadu_si128((const __m128i *)at);

    if (bf16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    return _mm256_cvtph_ps(h);
}

/* Two registers -> 16 elements. Nearest even; bf16 has no NaN handling, which callers rule out or
 * leave unspecified. */
KVK_INLINE void kvk_y_store_half(uint8_t *at, __m256 a, __m256 b, int bf16)
{
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    __m256i u, v;

    if (!bf16) {
        _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128((__m128i *)(at + 16), _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
    u = _mm256_castps_si256(a);
    v = _mm256_castps_si256(b);
    u = _mm256_add_epi32(u,
                         _mm256_add_epi32(half, _mm256_and_si256(_mm256_srli_epi32(u, 16), one)));
    v = _mm256_add_epi32(v,
                         _mm256_add_epi32(half, _mm256_and_si256(_mm256_srli_epi32(v, 16), one)));
    u = _mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_srli_epi32(v, 16));
    _mm256_storeu_si256((__m256i *)at, _mm256_permute4x64_epi64(u, 0xd8));
}

/* Saturated, -0 made +0: store_f16() of the reference. */
KVK_INLINE void v_store_vector(uint8_t *at, __m256 x)
{
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-65504.0f)), _mm256_set1_ps(65504.0f));
    x = _mm256_add_ps(x, _mm256_setzero_ps());
    _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* Distances 1 to 32 over 64 channels. Inside a register the second of a pair is negated and the
 * partner added, which rounds like a - b. */
KVK_INLINE void kvk_y_butterfly_64(__m256 *x)
{
    const __m256 s1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 s2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 s4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        x[i] = _mm256_fmadd_ps(x[i], s1, _mm256_permute_ps(x[i], 0xb1));
        x[i] = _mm256_fmadd_ps(x[i], s2, _mm256_permute_ps(x[i], 0x4e));
        x[i] = _mm256_fmadd_ps(x[i], s4, _mm256_permute2f128_ps(x[i], x[i], 0x01));
    }
#pragma GCC unroll 3
    for (size_t distance = 1; distance < 8; distance *= 2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            if ((i & distance) == 0) {
                __m256 a = x[i], b = x[i + distance];

                x[i] = _mm256_add_ps(a, b);
                x[i + distance] = _mm256_sub_ps(a, b);
            }
        }
    }
}

/* The distances above 32 for one register of each run of 64 channels: 1, 2 or 4 of them. */
KVK_INLINE void kvk_y_butterfly_runs(__m256 *x, size_t runs)
{
#pragma GCC unroll 2
    for (size_t distance = 1; distance < runs; distance *= 2) {
#pragma GCC unroll 4
        for (size_t i = 0; i < runs; i++) {
            if ((i & distance) == 0) {
                __m256 a = x[i], b = x[i + distance];

                x[i] = _mm256_add_ps(a, b);
                x[i + distance] = _mm256_sub_ps(a, b);
            }
        }
    }
}

/* 16 lanes in two registers, folded 8 (the two), 4, 2, 1 apart. */
KVK_INLINE float v_lanes_sum(const vf *x)
{
    __m256 y = _mm256_add_ps(x[0], x[1]);
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));

    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    z = _mm_add_ss(z, _mm_movehdup_ps(z));
    return _mm_cvtss_f32(z);
}

/* x where a = b and c = d, else y */
KVK_INLINE vf v_where_same(vf a, vf b, vf c, vf d, vf x, vf y)
{
    return _mm256_blendv_ps(
        y, x, _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), _mm256_cmp_ps(c, d, _CMP_EQ_OQ)));
}

/* Lane i of the result is register i of 8 folded 4, 2, 1 apart with `op`. */
#define KVK_FOLD(result, x, op)                                                                    \
    do {                                                                                           \
        __m256 f_[4], g_[2], h_;                                                                   \
        _Pragma("GCC unroll 4") for (size_t i_ = 0; i_ < 4; i_++) f_[i_] =                         \
            op(_mm256_permute2f128_ps((x)[2 * i_], (x)[2 * i_ + 1], 0x20),                         \
               _mm256_permute2f128_ps((x)[2 * i_], (x)[2 * i_ + 1], 0x31));                        \
        _Pragma("GCC unroll 2") for (size_t i_ = 0; i_ < 2; i_++) g_[i_] =                         \
            op(_mm256_shuffle_ps(f_[2 * i_], f_[2 * i_ + 1], 0x44),                                \
               _mm256_shuffle_ps(f_[2 * i_], f_[2 * i_ + 1], 0xee));                               \
        h_ = op(_mm256_shuffle_ps(g_[0], g_[1], 0x88), _mm256_shuffle_ps(g_[0], g_[1], 0xdd));     \
        (result) = _mm256_permutevar8x32_ps(h_, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));        \
    } while (0)

/* 8 x 8: dst row i = column i of src. Strides in floats. */
KVK_INLINE void v_transpose(float *dst, size_t dst_stride, const float *src, size_t src_stride)
{
    __m256 a[8], b[8];

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        a[i] = _mm256_load_ps(src + i * src_stride);
#pragma GCC unroll 4
    for (size_t i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm256_store_ps(dst + i * dst_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_store_ps(dst + (i + 4) * dst_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

#endif
