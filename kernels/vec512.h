/* Vectors of 16 floats for attend_body.h and compress_body.h: AVX-512 F, BW, VL, DQ. */
#ifndef KVK_VEC512_H
#define KVK_VEC512_H

#include <immintrin.h>
#include <stdint.h>

enum { VW = 16 };

typedef __m512 vf;

static inline vf v_load(const float *at)
{
    return _mm512_loadu_ps(at);
}

static inline void v_store(float *at, vf x)
{
    _mm512_storeu_ps(at, x);
}

static inline vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* a * b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a * b - c */
static inline vf v_fms(vf a, vf b, vf c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/* c - a * b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vf v_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

/* x * 2^n, n the integer in the lowest bits of t's significand; x and the result normal. */
static inline vf v_scale(vf x, vf t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
}

/* x where a >= b, else y */
static inline vf v_where_ge(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
}

static inline float v_reduce_add(vf x)
{
    return _mm512_reduce_add_ps(x);
}

static inline float v_reduce_max(vf x)
{
    return _mm512_reduce_max_ps(x);
}

static inline float v_reduce_min(vf x)
{
    return _mm512_reduce_min_ps(x);
}

static inline vf v_from_f16(const void *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(at));
}

static inline vf v_from_bf16(const void *at)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* dst[i] = halves[at[i]] for count fp16 values; at stays inside runs of `width` (64 or 128). */
static inline void order_halves(float *dst, const uint8_t *halves, const int32_t *at,
                                uint32_t count, uint32_t width)
{
    for (uint32_t base = 0; base < count; base += width) {
        const uint8_t *from = halves + 2 * (size_t)base;
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64), c = a, d = b;
        if (width == 128) {
            c = _mm512_loadu_si512(from + 128);
            d = _mm512_loadu_si512(from + 192);
        }
        for (uint32_t i = base; i < base + width; i += 32) {
            __m256i low = _mm512_cvtepi32_epi16(_mm512_loadu_si512(at + i));
            __m256i high = _mm512_cvtepi32_epi16(_mm512_loadu_si512(at + i + 16));
            __m512i index = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
            __m512i picked = _mm512_mask_blend_epi16(upper, _mm512_permutex2var_epi16(a, index, b),
                                                     _mm512_permutex2var_epi16(c, index, d));
            v_store(dst + i, _mm512_cvtph_ps(_mm512_castsi512_si256(picked)));
            v_store(dst + i + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(picked, 1)));
        }
    }
}

#endif
