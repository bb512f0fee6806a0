/* Vectors of 8 floats for attend_body.h and compress_body.h: AVX2, FMA, F16C. */
#ifndef KVK_VEC256_H
#define KVK_VEC256_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { VW = 8 };

typedef __m256 vf;

static inline vf v_load(const float *at)
{
    return _mm256_loadu_ps(at);
}

static inline void v_store(float *at, vf x)
{
    _mm256_storeu_ps(at, x);
}

static inline vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

/* a * b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* a * b - c */
static inline vf v_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}

/* c - a * b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

static inline vf v_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

/* x * 2^n, n the integer in the lowest bits of t's significand; x and the result normal. */
static inline vf v_scale(vf x, vf t)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n));
}

/* x where a >= b, else y */
static inline vf v_where_ge(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

static inline float v_reduce_add(vf x)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline float v_reduce_max(vf x)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

static inline float v_reduce_min(vf x)
{
    __m128 half = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_min_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_min_ss(half, _mm_movehdup_ps(half)));
}

static inline vf v_from_f16(const void *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(at));
}

static inline vf v_from_bf16(const void *at)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* dst[i] = halves[at[i]] for count fp16 values; at stays inside runs of `width` (64 or 128). */
static inline void order_halves(float *dst, const uint8_t *halves, const int32_t *at,
                                uint32_t count, uint32_t width)
{
    (void)width;
    for (uint32_t i = 0; i < count; i += VW) {
        uint16_t picked[VW];
        for (uint32_t j = 0; j < VW; j++)
            memcpy(&picked[j], halves + 2 * (size_t)at[i + j], sizeof(picked[j]));
        v_store(dst + i, v_from_f16(picked));
    }
}

#endif
