/* Rows as callers have them: 16 bytes at any address, and what is not finite in them. */
#ifndef KVK_CUDA_ROWS_CUH
#define KVK_CUDA_ROWS_CUH

#include "kernels/cuda/args.h"

/* bf16 beyond it counts as it (kernels.h); larger squares could leave fp32. */
constexpr float kInputLimit = 0x1p50f;

/* 16 bytes at any address. Reads whole words only, and no word that does not hold one of the 16. */
__device__ __forceinline__ uint4 load_unaligned(const uint8_t *at)
{
    uintptr_t address = reinterpret_cast<uintptr_t>(at);
    const uint32_t *word = reinterpret_cast<const uint32_t *>(address & ~uintptr_t(3));
    uint32_t shift = static_cast<uint32_t>(address & 3) * 8;
    uint32_t x0 = word[0], x1 = word[1], x2 = word[2], x3 = word[3], x4 = shift ? word[4] : 0;

    return make_uint4(__funnelshift_r(x0, x1, shift), __funnelshift_r(x1, x2, shift),
                      __funnelshift_r(x2, x3, shift), __funnelshift_r(x3, x4, shift));
}

__device__ __forceinline__ uint4 load_row(const uint8_t *at)
{
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 ? *reinterpret_cast<const uint4 *>(at)
                                                     : load_unaligned(at);
}

/* The first non-finite element of a word, 0 or 1; 2 when there is none. */
__device__ __forceinline__ uint32_t first_bad(uint32_t word, bool bf16)
{
    uint32_t exponent = bf16 ? 0x7f80u : 0x7c00u;

    return (word & exponent) == exponent ? 0 : (word >> 16 & exponent) == exponent ? 1 : 2;
}

/* Looks at eight elements. fault: KVK_CUDA_FAULT of the first one; the smallest is kept. */
__device__ __forceinline__ bool find_fault(uint4 x, bool bf16, uint64_t fault, uint64_t faults)
{
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
    bool found = false;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t bad = first_bad(word[i], bf16);

        if (bad < 2 && !found) {
            atomicMin(reinterpret_cast<unsigned long long *>(faults),
                      static_cast<unsigned long long>(fault + 2 * i + bad));
            found = true;
        }
    }
    return found;
}

__device__ __forceinline__ uint32_t clip_bf16(uint32_t word)
{
    float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);

    low = fminf(fmaxf(low, -kInputLimit), kInputLimit);
    high = fminf(fmaxf(high, -kInputLimit), kInputLimit);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

#endif
