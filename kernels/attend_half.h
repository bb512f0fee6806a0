/* fp16 and bf16 -> float by bit arithmetic, exact for every finite value. */
#ifndef KVK_ATTEND_HALF_H
#define KVK_ATTEND_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kvk_attend_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float kvk_attend_from_bf16(uint16_t half)
{
    return kvk_attend_from_bits((uint32_t)half << 16);
}

static inline float kvk_attend_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;

    if (rest >= 0x7c00u)
        return kvk_attend_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) { /* zero and subnormals: rest * 2^-24 */
        float x = (float)rest * 0x1p-24f;
        return sign ? -x : x;
    }
    return kvk_attend_from_bits(sign | ((rest << 13) + 0x38000000u));
}

#endif
