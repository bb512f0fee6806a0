/* Scalar conversions between fp16, bf16 and fp32: every one of the 65536 codes, subnormals
 * included, rounding to nearest even.
 *
 * Same bits as F16C and AVX-512 (VCVTPH2PS, VCVTPS2PH): overflow gives infinity, a NaN stays a NaN
 * (made quiet, payload truncated). Callers that want saturation clamp before. Integer arithmetic
 * only, so neither the rounding mode nor flush-to-zero changes a result. */
#ifndef KVK_HALF_H
#define KVK_HALF_H

#include <stdint.h>
#include <string.h>

#include <kvarn/types.h>

#define KVK_F16_MAX 65504.0f

static inline uint32_t kvk_f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kvk_f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float kvk_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;

    if (exponent == 31) /* infinity; a NaN becomes quiet */
        return kvk_f32_from_bits(sign | 0x7f800000u | fraction << 13 |
                                 (fraction != 0 ? 0x400000u : 0));
    if (exponent == 0) {
        if (fraction == 0)
            return kvk_f32_from_bits(sign);
        exponent = 1;
        while ((fraction & 0x400u) == 0) { /* subnormal: normal in fp32 */
            fraction <<= 1;
            exponent--;
        }
        fraction &= 0x3ffu;
    }
    /* unsigned wrap of exponent (down to -9) is undone by the bias difference of 112 */
    return kvk_f32_from_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

static inline uint16_t kvk_f16_from_f32(float x)
{
    uint32_t u = kvk_f32_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    uint32_t keep, drop, half;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* 2^-14 and above: a normal fp16 */
        magnitude -= 112u << 23;
        magnitude += 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | magnitude >> 13);
    }
    if (magnitude < 0x33000000u) /* below 2^-25: zero */
        return (uint16_t)sign;
    drop = 126u - (magnitude >> 23); /* 14..24 bits fall off */
    keep = (magnitude & 0x7fffffu) | 0x800000u;
    half = 1u << (drop - 1);
    keep += half - 1 + ((keep >> drop) & 1u);
    return (uint16_t)(sign | keep >> drop);
}

static inline float kvk_bf16_to_f32(uint16_t h)
{
    return kvk_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t kvk_bf16_from_f32(float x)
{
    uint32_t u = kvk_f32_bits(x);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* A 16-bit element of K or V rows, at any alignment. dtype is KVARN_F16 or KVARN_BF16. */
static inline uint16_t kvk_u16_load(const void *at)
{
    uint16_t h;

    memcpy(&h, at, sizeof h);
    return h;
}

static inline void kvk_u16_store(void *at, uint16_t h)
{
    memcpy(at, &h, sizeof h);
}

static inline float kvk_half_to_f32(uint16_t h, kvarn_dtype dtype)
{
    return dtype == KVARN_BF16 ? kvk_bf16_to_f32(h) : kvk_f16_to_f32(h);
}

static inline uint16_t kvk_half_from_f32(float x, kvarn_dtype dtype)
{
    return dtype == KVARN_BF16 ? kvk_bf16_from_f32(x) : kvk_f16_from_f32(x);
}

/* NaN or infinity: the exponent is all ones. */
static inline int kvk_half_is_finite(uint16_t h, kvarn_dtype dtype)
{
    uint16_t exponent = dtype == KVARN_BF16 ? 0x7f80u : 0x7c00u;

    return (h & exponent) != exponent;
}

#endif
