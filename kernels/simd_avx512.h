/* Pieces of the AVX-512 kernels: rows of 16-bit elements, butterflies inside registers, sums over
 * lanes in the order that compress.h fixes. Included only by files built for AVX-512. */
#ifndef KVK_SIMD_AVX512_H
#define KVK_SIMD_AVX512_H

#include <immintrin.h>

#include "kernels/compress.h"
#include "kernels/inline.h"
#include "kernels/vec512.h"

KVK_INLINE __m512 kvk_z_load_half(const uint8_t *at, int bf16)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)at);

    if (bf16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    return _mm512_cvtph_ps(h);
}

/* Round to nearest even; no NaN handling for bf16, which callers rule out or leave unspecified. */
KVK_INLINE __m256i kvk_z_to_half(__m512 x, int bf16)
{
    __m512i u, odd;

    if (!bf16)
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    u = _mm512_castps_si512(x);
    odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16));
}

/* Saturated, -0 made +0: store_f16() of the reference. */
KVK_INLINE void v_store_vector(uint8_t *at, __m512 x)
{
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-65504.0f)), _mm512_set1_ps(65504.0f));
    x = _mm512_add_ps(x, _mm512_setzero_ps());
    _mm256_storeu_si256((__m256i *)at, kvk_z_to_half(x, 0));
}

/* One butterfly stage inside a register: the lane that holds the second of a pair is negated and
 * the partner added, which rounds like a - b. */
#define KVK_Z_STAGE(x, partner, sign) _mm512_fmadd_ps(x, sign, partner)

/* Butterflies with distances 1, 2, ..., 8 n over a row of n registers, n = 4, 8, 16. */
KVK_INLINE void kvk_z_butterfly(__m512 *x, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), minus = _mm512_set1_ps(-1.0f);
    const __m512 s1 = _mm512_mask_blend_ps(0xaaaa, one, minus);
    const __m512 s2 = _mm512_mask_blend_ps(0xcccc, one, minus);
    const __m512 s4 = _mm512_mask_blend_ps(0xf0f0, one, minus);
    const __m512 s8 = _mm512_mask_blend_ps(0xff00, one, minus);

#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++) {
        x[i] = KVK_Z_STAGE(x[i], _mm512_permute_ps(x[i], 0xb1), s1);
        x[i] = KVK_Z_STAGE(x[i], _mm512_permute_ps(x[i], 0x4e), s2);
        x[i] = KVK_Z_STAGE(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0xb1), s4);
        x[i] = KVK_Z_STAGE(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0x4e), s8);
    }
#pragma GCC unroll 4
    for (size_t distance = 1; distance < n; distance *= 2) {
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++) {
            if ((i & distance) == 0) {
                __m512 a = x[i], b = x[i + distance];

                x[i] = _mm512_add_ps(a, b);
                x[i + distance] = _mm512_sub_ps(a, b);
            }
        }
    }
}

/* Lanes folded 8, 4, 2, 1 apart. */
KVK_INLINE float v_lanes_sum(const vf *x)
{
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(*x), _mm512_extractf32x8_ps(*x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));

    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    z = _mm_add_ss(z, _mm_movehdup_ps(z));
    return _mm_cvtss_f32(z);
}

/* x where a = b and c = d, else y */
KVK_INLINE vf v_where_same(vf a, vf b, vf c, vf d, vf x, vf y)
{
    __mmask16 same = _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);

    return _mm512_mask_blend_ps(_mm512_mask_cmp_ps_mask(same, c, d, _CMP_EQ_OQ), y, x);
}

/* For 16 registers at once: lane i of the result is register i folded 8, 4, 2, 1 apart with `op`.
 * Two registers share one after each step, so it costs 15 operations instead of 64. */
#define KVK_FOLD(result, x, op)                                                                    \
    do {                                                                                           \
        __m512 e_[8], f_[4], g_[2], h_;                                                            \
        _Pragma("GCC unroll 8") for (size_t i_ = 0; i_ < 8; i_++) e_[i_] =                         \
            op(_mm512_shuffle_f32x4((x)[2 * i_], (x)[2 * i_ + 1], 0x44),                           \
               _mm512_shuffle_f32x4((x)[2 * i_], (x)[2 * i_ + 1], 0xee));                          \
        _Pragma("GCC unroll 4") for (size_t i_ = 0; i_ < 4; i_++) f_[i_] =                         \
            op(_mm512_shuffle_f32x4(e_[2 * i_], e_[2 * i_ + 1], 0x88),                             \
               _mm512_shuffle_f32x4(e_[2 * i_], e_[2 * i_ + 1], 0xdd));                            \
        _Pragma("GCC unroll 2") for (size_t i_ = 0; i_ < 2; i_++) g_[i_] =                         \
            op(_mm512_shuffle_ps(f_[2 * i_], f_[2 * i_ + 1], 0x44),                                \
               _mm512_shuffle_ps(f_[2 * i_], f_[2 * i_ + 1], 0xee));                               \
        h_ = op(_mm512_shuffle_ps(g_[0], g_[1], 0x88), _mm512_shuffle_ps(g_[0], g_[1], 0xdd));     \
        (result) = _mm512_permutexvar_ps(                                                          \
            _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), h_);          \
    } while (0)

/* 16 x 16: dst row i = column i of src. Strides in floats. */
KVK_INLINE void v_transpose(float *dst, size_t dst_stride, const float *src, size_t src_stride)
{
    __m512 a[16], b[16];

#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++)
        a[i] = _mm512_load_ps(src + i * src_stride);
#pragma GCC unroll 8
    for (size_t i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 16; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    /* a[4 q + j], 128-bit lane k: column 4 k + j of rows 4 q .. 4 q + 3 */
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) {
        __m512 lo01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88);
        __m512 hi01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
        __m512 lo23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
        __m512 hi23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);

        _mm512_store_ps(dst + j * dst_stride, _mm512_shuffle_f32x4(lo01, lo23, 0x88));
        _mm512_store_ps(dst + (8 + j) * dst_stride, _mm512_shuffle_f32x4(lo01, lo23, 0xdd));
        _mm512_store_ps(dst + (4 + j) * dst_stride, _mm512_shuffle_f32x4(hi01, hi23, 0x88));
        _mm512_store_ps(dst + (12 + j) * dst_stride, _mm512_shuffle_f32x4(hi01, hi23, 0xdd));
    }
}

#endif
