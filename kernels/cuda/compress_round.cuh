/* The range of a row, codes in it, and what a reader makes of them.
 *
 * With y an element times its second scale, in units of the tile's largest, a code is
 * (y - low) / step. All of it is fp16 arithmetic with one rounding that matters: y is the same
 * number when the minimum is looked for and when the code is made, y - low of near numbers is
 * exact, and a fused multiply-add that adds 1024 rounds to whole codes, half to even, in its lowest
 * bits. */
#ifndef KVK_CUDA_COMPRESS_ROUND_CUH
#define KVK_CUDA_COMPRESS_ROUND_CUH

#include "kernels/cuda/compress_balance.cuh"
#include "kernels/tight.h"

constexpr float kF16Max = 65504.0f, kF32Max = 0x1.fffffep127f;
/* Smallest step in units of the tile's largest element: its reciprocal is still an fp16 number. */
constexpr float kStepLow = 1.0f / 60000.0f;

/* Saturates instead of becoming infinite; -0 becomes +0. */
__device__ __forceinline__ __half f16_of(float x)
{
    return __hadd(__float2half(fminf(fmaxf(x, -kF16Max), kF16Max)), __ushort_as_half(0));
}

/* Numbers of a record are fp16, and only products of the second scale with step and zero count.
 * Where elements may be as large as `bound`, beyond what step and zero can hold well, this power of
 * two moves from them into the second scale, whose largest is `most`. */
constexpr float kEasyLow = 0x1p-8f, kEasyHigh = 0x1p15f, kShiftLow = 0x1p-12f;

__device__ __forceinline__ float floor_power(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
}

__device__ __forceinline__ float exponent_shift(float bound, float most)
{
    if (bound > kEasyHigh)
        return fmaxf(fminf(2.0f * floor_power(bound / kEasyHigh), floor_power(kEasyHigh / most)),
                     1.0f);
    return fmaxf(floor_power(bound), kShiftLow);
}

/* Minimum and maximum of the two rows of a strip, as they are gathered: two elements side by side.
 */
struct Range {
    __half2 low[2], high[2];

    __device__ __forceinline__ Range()
    {
        low[0] = low[1] = half2_of(0x7c007c00u);
        high[0] = high[1] = half2_of(0xfc00fc00u);
    }

    __device__ __forceinline__ void take(uint32_t r, uint32_t y)
    {
        low[r] = __hmin2(low[r], half2_of(y));
        high[r] = __hmax2(high[r], half2_of(y));
    }

    /* Joins the quad: (low, -high) of row r in all four lanes. */
    __device__ __forceinline__ __half2 join(uint32_t r) const
    {
        __half2 both = __halves2half2(__hmin(__low2half(low[r]), __high2half(low[r])),
                                      __hneg(__hmax(__low2half(high[r]), __high2half(high[r]))));

        both = __hmin2(both, half2_of(__shfl_xor_sync(kAll, word_of(both), 1)));
        return __hmin2(both, half2_of(__shfl_xor_sync(kAll, word_of(both), 2)));
    }
};

/* What rounds one row: y - low, times inverse. */
struct Rounding {
    __half minus_low, inverse;
    float step, low; /* in units of the tile's largest element */
};

template <uint32_t Bits> constexpr float kLevels = (1 << Bits) - 1;

/* Levels span `share` of the range, in its middle. */
template <uint32_t Bits>
__device__ __forceinline__ Rounding rounding_of(__half2 low_high, float share)
{
    float low = __low2float(low_high), high = -__high2float(low_high);
    float step = fmaxf(share * (high - low) * (1.0f / kLevels<Bits>), kStepLow);
    __half begin = __float2half(low + 0.5f * (1.0f - share) * (high - low));
    Rounding to;

    to.minus_low = __hneg(begin);
    to.inverse = __float2half(reciprocal(step));
    to.step = high > low ? step : 0.0f;
    to.low = __half2float(begin);
    return to;
}

/* Two codes, each in the low byte of its half, of two elements times their second scale. Tight:
 * what lies outside of the levels goes to the nearest. */
template <uint32_t Bits, bool Tight>
__device__ __forceinline__ uint32_t round2(uint32_t y, uint32_t minus_low, uint32_t inverse)
{
    __half2 from_low = __hadd2(half2_of(y), half2_of(minus_low));
    __half2 code = __hfma2(from_low, half2_of(inverse), __float2half2_rn(1024.0f));

    if constexpr (Tight)
        code = __hmin2(__hmax2(code, __float2half2_rn(1024.0f)),
                       __float2half2_rn(1024.0f + kLevels<Bits>));
    return word_of(code);
}

/* What a reader makes of two codes, before the second scale. */
__device__ __forceinline__ uint32_t value2(uint32_t code, uint32_t minus_low, uint32_t step)
{
    __half2 number = __hadd2(half2_of(code), __float2half2_rn(-1024.0f));

    return word_of(__hfma2(number, half2_of(step), __hneg2(half2_of(minus_low))));
}

/* Sums of products along the rows of a strip, which are the diagonal of a matrix product. */
struct Products {
    float low[4] = {}, high[4] = {};

    /* A fragments of both. */
    __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[4])
    {
        mma_f16(low, a[0], a[1], a[2], a[3], b[0], b[2]);
        mma_f16(high, a[0], a[1], a[2], a[3], b[1], b[3]);
    }
};

/* Tight: how much of a balanced second scale is kept, when sums that decide it have this ratio. */
__device__ __forceinline__ float corrected(float ratio)
{
    return ratio > 0.0f && ratio <= kF32Max ? fminf(fmaxf(ratio, KVK_TIGHT_LOW), KVK_TIGHT_HIGH)
                                            : 1.0f;
}

#endif
